#include "libaccel/sharding/whole_gradient_model.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

namespace accel::sharding {
namespace {

// In the order of the parameter's memory, which is that of its pieces.
at::Tensor laid_out(const at::Tensor& gradient, const at::Tensor& parameter) {
  if (gradient.strides() == parameter.strides()) return gradient;
  return at::empty_strided(parameter.sizes(), parameter.strides(), gradient.options())
      .copy_(gradient);
}

}  // namespace

WholeGradientModel::WholeGradientModel(const torch::nn::Module& module,
                                       std::shared_ptr<ProcessGroup> group,
                                       const FsdpSettings& settings,
                                       const DistributedDataParallelKwargs& options)
    : ShardedModel(module, group, settings),
      reducer_(module, std::move(group), options, DdpReducer::FirstState::kIsEqual) {}

void WholeGradientModel::settle() {
  const at::NoGradGuard no_grad;
  for (ShardPiece& piece : pieces()) {
    const at::Tensor& parameter = parameters()[piece.place.parameter].tensor;
    at::Tensor& part = piece.tensor.mutable_grad();
    if (!parameter.grad().defined()) {
      part.reset();
      continue;
    }
    const at::Tensor whole = laid_out(parameter.grad(), parameter);
    // Who clips or unscales the pieces changes the gradient, also when this is asked again.
    if (!whole.is_same(parameter.grad())) parameter.mutable_grad() = whole;
    part = whole.as_strided(piece.tensor.sizes(),
                            piece.tensor.strides(),
                            whole.storage_offset() + piece.place.parameter_offset);
  }
}

}  // namespace accel::sharding
