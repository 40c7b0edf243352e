#include <exception>
#include <string>

#include <ATen/core/grad_mode.h>

#include <accel/error.h>
#include <accel/local_sgd.h>
#include <accel/operations.h>

#include "libaccel/api/accelerator/local_training.h"
#include "libaccel/interception/state_staging.h"
#include "libaccel/tensors/unique_parameters.h"

namespace accel {

LocalSGD::LocalSGD(const Accelerator& accelerator,
                   std::vector<at::Tensor> parameters,
                   detail::ModelRuntime& model,
                   int local_sgd_steps,
                   bool enabled)
    : local_sgd_steps_(local_sgd_steps), exceptions_(std::uncaught_exceptions()) {
  detail::refuse_divided(accelerator, "LocalSGD");
  if (enabled) detail::refuse_steps_in_common(accelerator, "LocalSGD");
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
  before_state_is_written();
  for (std::size_t i = 0; i < means.size(); ++i) parameters_[i].copy_(means[i]);
}

}  // namespace accel
