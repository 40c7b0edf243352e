// The messages are HF Accelerate's, where it has them.

#include "libaccel/api/accelerator/deepspeed_setup.h"

#include <algorithm>
#include <utility>

#include <accel/error.h>

#include "runtime/text/joined.h"

namespace accel::detail {
namespace {

[[noreturn]] void refuse_both(const char* object, const char* article, const char* stand_in) {
  throw Error(ErrorCode::kInvalidArgument,
              std::string("You cannot specify ") + article + " " + object +
                  " in the config file and in the code at the same time",
              std::string("Please remove the ") + object +
                  " from the config file or create `accel::" + stand_in + "` in the code");
}

}  // namespace

DeepSpeedSetup::DeepSpeedSetup(AcceleratorOptions given,
                               const DeepSpeedOptions& read,
                               std::string config)
    : given_(std::move(given)) {
  take(read, std::move(config));
}

void DeepSpeedSetup::take(const DeepSpeedOptions& read, std::string config) {
  optimizer_ = read.optimizer;
  scheduler_ = read.scheduler;
  config_ = read.config.empty() ? std::move(config) : read.config;
  values_.clear();
  has_made_optimizer_ = false;
}

void DeepSpeedSetup::refuse_optimizer_of_program() const {
  if (optimizer_) refuse_both("optimizer", "an", "DummyOptim");
}

void DeepSpeedSetup::refuse_scheduler_of_program() const {
  if (scheduler_) refuse_both("scheduler", "a", "DummyScheduler");
  if (!has_made_optimizer_) return;
  throw Error(ErrorCode::kInvalidArgument,
              "You can only specify `accel::DummyScheduler` in the code when using "
              "`accel::DummyOptim`",
              "prepare a DummyScheduler, with a scheduler in the file or an lr_scheduler_callable");
}

std::shared_ptr<torch::optim::Optimizer> DeepSpeedSetup::make_optimizer(const DummyOptim& dummy) {
  if (!optimizer_) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "You cannot create a `DummyOptim` without specifying an optimizer in the config file",
        "add the section optimizer to DeepSpeed's file, or prepare an optimizer");
  }
  values_["optimizer.params.lr"] = dummy.lr;
  values_["optimizer.params.weight_decay"] = dummy.weight_decay;
  has_made_optimizer_ = true;
  return sharding::make_optimizer(*optimizer_, dummy);
}

std::shared_ptr<Scheduler> DeepSpeedSetup::make_scheduler(const DummyScheduler& dummy,
                                                          torch::optim::Optimizer* optimizer,
                                                          int num_processes) {
  if (optimizer == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "a `DummyScheduler` was prepared before its optimizer",
                "name the optimizer first: prepare(model, optimizer, loader, scheduler)");
  }
  if (dummy.lr_scheduler_callable) return dummy.lr_scheduler_callable(*optimizer);
  if (!scheduler_) {
    throw Error(ErrorCode::kInvalidArgument,
                "Either specify a scheduler in the config file or pass in the "
                "`lr_scheduler_callable` parameter when using `accel::DummyScheduler`",
                "add the section scheduler to DeepSpeed's file, or prepare a scheduler");
  }
  values_["scheduler.params.warmup_min_lr"] = std::int64_t{0};
  values_["scheduler.params.warmup_max_lr"] = optimizer->param_groups().front().options().get_lr();
  values_["scheduler.params.warmup_num_steps"] = std::max<std::int64_t>(1, dummy.warmup_num_steps);
  if (dummy.total_num_steps) {
    values_["scheduler.params.total_num_steps"] =
        (*dummy.total_num_steps + num_processes - 1) / num_processes;
  }
  return sharding::make_scheduler(*scheduler_, dummy, *optimizer, num_processes);
}

const DeepSpeedPlugin& DeepSpeedSetup::plugin(const std::string& name) const {
  for (const auto& [key, plugin] : given_.deepspeed_plugins)
    if (key == name) return plugin;
  throw Error(ErrorCode::kInvalidArgument,
              "there is no DeepSpeed plugin '" + name + "' among deepspeed_plugins",
              "select one of: " + joined(given_.deepspeed_plugins, ", ", [](const auto& item) {
                return item.first;
              }));
}

DeepSpeedOptions DeepSpeedSetup::with_plugin(const std::string& name) const {
  AcceleratorOptions options = given_;
  options.deepspeed_plugin = plugin(name);
  return read_deepspeed_options(std::move(options), process_env());
}

std::string DeepSpeedSetup::config(const DeepSpeedPlugin& plugin,
                                   double gradient_clipping,
                                   std::optional<std::int64_t> micro_batch_size,
                                   std::int64_t gradient_accumulation_steps,
                                   std::int64_t num_processes) const {
  sharding::check_batch_sizes(
      config_, micro_batch_size, gradient_accumulation_steps, num_processes);
  sharding::ConfigValues values = values_;
  values["gradient_accumulation_steps"] = gradient_accumulation_steps;
  values["gradient_clipping"] = gradient_clipping;
  values["zero_optimization.stage3_gather_16bit_weights_on_model_save"] = false;
  if (micro_batch_size) {
    values["train_micro_batch_size_per_gpu"] = *micro_batch_size;
    values["train_batch_size"] = *micro_batch_size * gradient_accumulation_steps * num_processes;
  }
  if (const auto size = plugin.hidden_size) {
    values["zero_optimization.reduce_bucket_size"] = *size * *size;
    values["zero_optimization.stage3_prefetch_bucket_size"] =
        static_cast<std::int64_t>(0.9 * static_cast<double>(*size * *size));
    values["zero_optimization.stage3_param_persistence_threshold"] = 10 * *size;
  }
  return sharding::filled_config(config_, values);
}

}  // namespace accel::detail
