#include "libaccel/api/accelerator/model_runtime.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include <accel/prepared_model.h>

namespace accel::detail {
namespace {

at::Tensor as_fp32(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

}  // namespace

ModelRuntime::ModelRuntime(std::shared_ptr<torch::nn::Module> module,
                           std::shared_ptr<ModelSync> sync,
                           std::optional<AutocastOptions> autocast)
    : module_(std::move(module)), sync_(std::move(sync)), autocast_(autocast) {}

ForwardScope::ForwardScope(ModelRuntime& runtime) : runtime_(runtime) {
  if (runtime_.sync() != nullptr) runtime_.sync()->before_forward();
  if (runtime_.autocast()) autocast_.emplace(*runtime_.autocast());
}

ForwardScope::~ForwardScope() = default;

at::Tensor* ForwardScope::replacement(const at::Tensor& argument) {
  if (runtime_.sync() == nullptr || !argument.defined()) return nullptr;
  at::Tensor other = runtime_.sync()->input(argument);
  return other.defined() ? &replacements_.emplace_back(std::move(other)) : nullptr;
}

bool ForwardScope::wants_outputs() const noexcept {
  const ModelSync* sync = runtime_.sync().get();
  return runtime_.autocast().has_value() || (sync != nullptr && sync->wants_outputs());
}

void ForwardScope::finish(std::vector<at::Tensor>& outputs) {
  if (autocast_) {
    autocast_.reset();
    for (at::Tensor& output : outputs) output = as_fp32(output);
  }
  if (at::GradMode::is_enabled()) runtime_.note_run();
  if (runtime_.sync() != nullptr) runtime_.sync()->after_forward(outputs);
}

}  // namespace accel::detail
