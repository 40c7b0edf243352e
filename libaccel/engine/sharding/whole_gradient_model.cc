#include "libaccel/engine/sharding/whole_gradient_model.h"

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

// What `whole`, laid out as its parameter, has for the piece.
at::Tensor gradient_part(const at::Tensor& whole, const ShardPiece& piece) {
  return whole.as_strided(piece.tensor.sizes(),
                          piece.tensor.strides(),
                          whole.storage_offset() + piece.place.parameter_offset);
}

}  // namespace

WholeGradientModel::WholeGradientModel(const torch::nn::Module& module,
                                       const std::shared_ptr<Mesh>& mesh,
                                       const FsdpSettings& settings,
                                       const PrecisionRecipe& recipe,
                                       const DistributedDataParallelKwargs& options,
                                       std::optional<c10::Device> device)
    : ShardedModel(module, mesh, settings, recipe, device),
      reducer_(
          module, mesh->group(MeshAxis::kData), options, DdpReducer::FirstState::kIsEqual, [this] {
            give_parts();
          }) {}

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
    part = gradient_part(whole, piece);
  }
}

void WholeGradientModel::give_parts() {
  const at::NoGradGuard no_grad;
  for (ShardPiece& piece : pieces()) {
    const at::Tensor& parameter = parameters()[piece.place.parameter].tensor;
    const at::Tensor& whole = parameter.grad();
    at::Tensor& part = piece.tensor.mutable_grad();
    if (!part.defined() && whole.defined() && whole.strides() == parameter.strides())
      part = gradient_part(whole, piece);
  }
}

}  // namespace accel::sharding
