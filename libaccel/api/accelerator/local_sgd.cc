#include <exception>
#include <string>

#include <ATen/core/grad_mode.h>

#include <accel/error.h>
#include <accel/local_sgd.h>
#include <accel/operations.h>

#include "libaccel/engine/process/join_roll.h"
#include "libaccel/tensors/unique_parameters.h"

namespace accel {
namespace {

bool is_divided(DistributedType type) {
  return type == DistributedType::kDeepspeed || type == DistributedType::kFsdp ||
         type == DistributedType::kMegatronLm;
}

}  // namespace

LocalSGD::LocalSGD(const Accelerator& accelerator,
                   std::vector<at::Tensor> parameters,
                   detail::ModelRuntime& model,
                   int local_sgd_steps,
                   bool enabled)
    : local_sgd_steps_(local_sgd_steps), exceptions_(std::uncaught_exceptions()) {
  if (is_divided(accelerator.distributed_type()))
    throw Error(
        ErrorCode::kUnsupported,
        "LocalSGD is for models that every rank has as a whole (no FSDP, DeepSpeed or Megatron-LM)",
        "train without a sharding plugin, or leave LocalSGD out");
  if (enabled && (accelerator.reproducible() || JoinRoll::current() != nullptr))
    throw Error(
        ErrorCode::kUnsupported,
        std::string("LocalSGD within ") +
            (accelerator.reproducible()
                 ? "reproducible training, whose steps all ranks sum in one order"
                 : "join_uneven_inputs(): ranks without batches do not take part in its averages"),
        "leave one of them out");
  if (local_sgd_steps < 1)
    throw Error(ErrorCode::kInvalidArgument,
                "local_sgd_steps is " + std::to_string(local_sgd_steps) + ", expected at least 1");
  if (!enabled || accelerator.num_processes() == 1) return;
  parameters_ = unique_parameters(parameters);
  no_sync_ = std::make_unique<NoSyncScope>(std::initializer_list<detail::ModelRuntime*>{&model});
}

LocalSGD::~LocalSGD() noexcept(false) {
  if (std::uncaught_exceptions() == exceptions_) average();
}

void LocalSGD::step() {
  ++num_steps_;
  if (num_steps_ % local_sgd_steps_ == 0) average();
}

void LocalSGD::average() const {
  if (parameters_.empty()) return;
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> means = reduce(parameters_, Reduction::kMean);
  for (std::size_t i = 0; i < means.size(); ++i) parameters_[i].copy_(means[i]);
}

}  // namespace accel
