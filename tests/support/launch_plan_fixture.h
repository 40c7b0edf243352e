// LaunchPlanFixture: plans launches on a made-up machine, with a program and a script in a scratch folder.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "launcher/plan/launch_plan.h"
#include "tests/support/scratch_folder.h"

// Beside LaunchPlan, where their argument finds them.
namespace accel::launcher {

template <typename Kind>
std::optional<Kind> start_of(const LaunchPlan& plan) {
  const Kind* kind = std::get_if<Kind>(&plan.start);
  return kind == nullptr ? std::nullopt : std::optional(*kind);
}
inline std::optional<MachinesSettings> machines_of(const LaunchPlan& plan) {
  return start_of<MachinesSettings>(plan);
}
inline std::optional<ElasticSettings> nodes_of(const LaunchPlan& plan) {
  return start_of<ElasticSettings>(plan);
}

}  // namespace accel::launcher

namespace accel::test {

class LaunchPlanFixture : public ::testing::Test {
 protected:
  using Words = std::vector<std::string>;

  LaunchPlanFixture() {
    host_.environment = {{"PATH", folder_.file("bin")}, {"HOME", folder_.file("home")}};
    host_.home = folder_.file("home");
    host_.topology = [this](Caches) { return synthetic_topology(machine_); };
    host_.num_gpus = [this] { return num_gpus_; };
    host_.job_suffix = "1-abc";
    host_.resource_config = [] { return std::string(); };
    python_ = folder_.write("bin/python3", "#!/bin/sh\n", true);
    program_ = folder_.write("digits", "#!/bin/sh\n", true);
    script_ = folder_.write("train.py", "print(1)\n");
  }

  // `words`, and the program.
  launcher::LaunchPlan plan(Words words) {
    words.push_back(program_);
    return or_throw(launcher::resolve_launch(words, host_));
  }
  Error refused(Words words) {
    words.push_back(program_);
    Result<launcher::LaunchPlan> result = launcher::resolve_launch(words, host_);
    if (result) throw std::logic_error("the command line was accepted");
    return result.error();
  }
  // The flags that read a configuration file with this text.
  Words file(const std::string& text) {
    return {"--config_file", folder_.write("config.yaml", text)};
  }

  ScratchFolder folder_;
  launcher::LaunchHost host_;
  std::string machine_ = "package:1 [numa] core:8 pu:1";
  int num_gpus_ = 0;
  std::string python_;
  std::string program_;
  std::string script_;
};

// The words of a test are the whole command line, the program among them.
class LaunchLineFixture : public LaunchPlanFixture {
 protected:
  launcher::LaunchPlan plan(const Words& words) {
    return or_throw(launcher::resolve_launch(words, host_));
  }
  Error refused(const Words& words) {
    Result<launcher::LaunchPlan> result = launcher::resolve_launch(words, host_);
    if (result) throw std::logic_error("the command line was accepted");
    return result.error();
  }
};

}  // namespace accel::test
