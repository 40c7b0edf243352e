#include "libaccel/api/accelerator/model_runtime.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include <accel/batch.h>
#include <accel/prepared_model.h>

namespace accel::detail {
namespace {

at::Tensor returned(const at::Tensor& output, const PrecisionRecipe& recipe) {
  at::Tensor tensor = recipe.compute ? to_fp32(output) : output;
  if (recipe.output && at::isFloatingType(tensor.scalar_type())) tensor = tensor.to(*recipe.output);
  return tensor;
}

}  // namespace

ModelRuntime::ModelRuntime(std::shared_ptr<torch::nn::Module> module,
                           std::shared_ptr<ModelSync> sync,
                           const PrecisionRecipe& recipe,
                           c10::DeviceType device)
    : module_(std::move(module)),
      sync_(std::move(sync)),
      recipe_(sync_ != nullptr && sync_->is_divided() ? recipe : recipe.of_whole_model()),
      device_(device) {}

ForwardScope::ForwardScope(ModelRuntime& runtime) : runtime_(runtime) {
  const PrecisionRecipe& recipe = runtime_.recipe();
  if (runtime_.sync() != nullptr) runtime_.sync()->before_forward();
  if (recipe.compute)
    autocast_.emplace(autocast_options(recipe, recipe.autocast, runtime_.device()));
}

ForwardScope::~ForwardScope() = default;

at::Tensor* ForwardScope::replacement(const at::Tensor& argument) {
  const std::optional<at::ScalarType>& type = runtime_.recipe().input;
  if (!type || !argument.defined() || !at::isFloatingType(argument.scalar_type()) ||
      argument.scalar_type() == *type)
    return nullptr;
  return &replacements_.emplace_back(argument.to(*type));
}

bool ForwardScope::wants_outputs() const noexcept {
  const ModelSync* sync = runtime_.sync().get();
  const PrecisionRecipe& recipe = runtime_.recipe();
  return recipe.compute || recipe.output || (sync != nullptr && sync->wants_outputs());
}

void ForwardScope::finish(std::vector<at::Tensor>& outputs) {
  autocast_.reset();
  for (at::Tensor& output : outputs) output = returned(output, runtime_.recipe());
  if (at::GradMode::is_enabled()) runtime_.note_run();
  if (runtime_.sync() != nullptr) runtime_.sync()->after_forward(outputs);
}

}  // namespace accel::detail
