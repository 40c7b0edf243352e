#include "launcher/sagemaker/training_container.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string no_file() {
  return "";
}

TEST(TrainingContainer, TheToolkitsVariablesSayWhereItIs) {
  const auto here = or_throw(read_training_container(
      {{"SM_HOSTS", R"(["algo-1","algo-2"])"}, {"SM_CURRENT_HOST", "algo-2"}, {"SM_NUM_GPUS", "8"}},
      no_file));

  ASSERT_TRUE(here);
  EXPECT_THAT(here->hosts, ElementsAre("algo-1", "algo-2"));
  EXPECT_EQ(here->index, 1);
  EXPECT_EQ(here->num_gpus, 8);
}

TEST(TrainingContainer, WithoutThemItsFileDoes) {
  const auto here = or_throw(read_training_container({}, [] {
    return std::string(
        R"({"current_host":"algo-1","hosts":["algo-1","algo-2"],"network_interface_name":"eth0"})");
  }));

  ASSERT_TRUE(here);
  EXPECT_EQ(here->index, 0);
  EXPECT_FALSE(or_throw(read_training_container({}, no_file)));
}

TEST(TrainingContainer, WhatCannotBeReadIsNamed) {
  const auto message = [](const EnvMap& environment, const std::string& file) {
    const auto here = read_training_container(environment, [&] { return file; });
    if (here) throw std::logic_error("it was read");
    EXPECT_EQ(here.error().code(), ErrorCode::kEnvInvalid);
    return here.error().message();
  };

  EXPECT_THAT(message({{"SM_HOSTS", "algo-1"}}, ""), HasSubstr("SM_HOSTS is 'algo-1'"));
  EXPECT_THAT(message({{"SM_HOSTS", "[1]"}}, ""), HasSubstr("SM_HOSTS"));
  EXPECT_THAT(message({{"SM_HOSTS", R"(["a"])"}, {"SM_CURRENT_HOST", "b"}}, ""),
              HasSubstr("SM_CURRENT_HOST is 'b'"));
  EXPECT_THAT(
      message({{"SM_HOSTS", R"(["a"])"}, {"SM_CURRENT_HOST", "a"}, {"SM_NUM_GPUS", "x"}}, ""),
      HasSubstr("SM_NUM_GPUS is 'x'"));
  EXPECT_THAT(message({}, "{\"hosts\": [\"a\"]}"), HasSubstr("resourceconfig.json"));
}

TEST(TrainingContainer, TheHostsAreTheMachinesOfALaunchThatSaysNothingElse) {
  const TrainingContainer here{.hosts = {"algo-1", "algo-2"}, .index = 1, .num_gpus = 4};
  CommandLine line;
  join_training_job(line, nullptr, here);

  EXPECT_EQ(line.text("num_machines"), "2");
  EXPECT_EQ(line.text("machine_rank"), "1");
  EXPECT_EQ(line.text("main_process_ip"), "algo-1");
  EXPECT_EQ(line.text("num_processes"), "8");

  CommandLine said;
  said.given["num_machines"] = "1";
  join_training_job(said, nullptr, here);
  EXPECT_EQ(said.text("num_machines"), "1");
  EXPECT_FALSE(said.has("machine_rank"));
}

}  // namespace
}  // namespace accel::launcher
