// DeepSpeedSetup: the objects and numbers of a configuration file of DeepSpeed, and which of several plugins is in force.
//
// Threads:  the thread that trains; every rank makes the same calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <torch/optim/optimizer.h>

#include <accel/accelerator_options.h>

#include "libaccel/engine/settings/deepspeed_config.h"
#include "libaccel/engine/settings/deepspeed_options.h"

namespace accel::detail {

class DeepSpeedSetup {
 public:
  // given: the options before they were read. config: JSON of what the plugin comes to where there is no file.
  DeepSpeedSetup(AcceleratorOptions given, const DeepSpeedOptions& read, std::string config);

  // Throw kInvalidArgument where the file has one, too.
  void refuse_optimizer_of_program() const;
  void refuse_scheduler_of_program() const;

  // Throws kInvalidArgument where the file has none.
  [[nodiscard]] std::shared_ptr<torch::optim::Optimizer> make_optimizer(const DummyOptim& dummy);
  // optimizer: nullptr is refused. num_processes: as make_scheduler() of the sections. Throws kInvalidArgument where neither the
  // file nor the stand-in says what to make.
  [[nodiscard]] std::shared_ptr<Scheduler> make_scheduler(const DummyScheduler& dummy,
                                                          torch::optim::Optimizer* optimizer,
                                                          int num_processes);

  // The options with another plugin, read. Throws kInvalidArgument for a name that there is not.
  [[nodiscard]] DeepSpeedOptions with_plugin(const std::string& name) const;
  [[nodiscard]] const DeepSpeedPlugin& plugin(const std::string& name) const;
  // That one's file from now on.
  void take(const DeepSpeedOptions& read, std::string config);

  // With what "auto" stands for. gradient_clipping: 0 is none. micro_batch_size: of the loaders. Throws as check_batch_sizes().
  [[nodiscard]] std::string config(const DeepSpeedPlugin& plugin,
                                   double gradient_clipping,
                                   std::optional<std::int64_t> micro_batch_size,
                                   std::int64_t gradient_accumulation_steps,
                                   std::int64_t num_processes) const;

 private:
  AcceleratorOptions given_;
  std::optional<sharding::OptimizerSection> optimizer_;
  std::optional<sharding::SchedulerSection> scheduler_;
  std::string config_;
  sharding::ConfigValues values_;  // of the objects that were made
  bool has_made_optimizer_ = false;
};

}  // namespace accel::detail
