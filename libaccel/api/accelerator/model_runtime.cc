#include "libaccel/api/accelerator/model_runtime.h"

#include <utility>

#include <ATen/core/grad_mode.h>

#include <accel/batch.h>
#include <accel/error.h>
#include <accel/prepared_model.h>

#include "libaccel/engine/gradients/gradient_exchange.h"
#include "libaccel/engine/gradients/zero_gradients.h"
#include "libaccel/engine/precision/lstm_kernels.h"
#include "libaccel/engine/process/join_roll.h"
#include "libaccel/engine/recompute/activation_region.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel::detail {
namespace {

at::Tensor returned(const at::Tensor& output, const PrecisionRecipe& recipe) {
  at::Tensor tensor = recipe.compute ? to_fp32(output) : output;
  if (recipe.output && at::isFloatingType(tensor.scalar_type())) tensor = tensor.to(*recipe.output);
  return tensor;
}

// Ranks without batches take part.
void announce_forward(const ModelRuntime& runtime) {
  JoinRoll* const roll = JoinRoll::of_training();
  if (roll == nullptr) return;
  GradientExchange& exchange = runtime.sync()->exchange();
  roll->require_named(&exchange);
  const bool has_graph = at::GradMode::is_enabled();
  roll->announce_of(&exchange,
                    {.call = JoinRoll::Call::kForward,
                     .a = static_cast<std::int64_t>(has_graph),
                     .b = static_cast<std::int64_t>(exchange.syncs()),
                     .most = static_cast<std::int64_t>(
                         has_graph && has_gradients(trainable_parameters(*runtime.module())))});
}

}  // namespace

ModelRuntime::ModelRuntime(std::shared_ptr<torch::nn::Module> module,
                           std::shared_ptr<ModelSync> sync,
                           const PrecisionRecipe& recipe,
                           c10::DeviceType device,
                           bool is_for_evaluation)
    : module_(std::move(module)),
      sync_(std::move(sync)),
      recipe_(sync_ != nullptr && sync_->is_divided() ? recipe : recipe.of_whole_model()),
      device_(device),
      is_for_evaluation_(is_for_evaluation) {}

void ModelRuntime::set_local_training(LocalTraining* training) {
  if (training != nullptr && local_training_ != nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "the model is trained by another DiLoCo already",
                "end its scope first");
  }
  local_training_ = training;
}

ForwardScope::ForwardScope(ModelRuntime& runtime) : runtime_(runtime) {
  if (recompute::is_in_region()) {
    throw Error(ErrorCode::kUnsupported,
                "a prepared model is called in a part whose activations are computed again: its "
                "forward would take part in the exchange of gradients twice",
                "call checkpoint_activations() inside of the model's own forward");
  }
  const PrecisionRecipe& recipe = runtime_.recipe();
  if (runtime_.sync() != nullptr) {
    announce_forward(runtime_);
    runtime_.sync()->before_forward();
  }
  if (recipe.compute)
    autocast_.emplace(autocast_options(recipe, recipe.autocast, runtime_.device()));
  if (runtime_.recomputed_units() != nullptr && at::GradMode::is_enabled()) {
    units_ = std::make_unique<recompute::UnitForward>(
        runtime_.recomputed_units(),
        runtime_.has_run() ? recompute::Comparison::kShapes : recompute::Comparison::kValues,
        runtime_.kept_operators());
  }
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

void ForwardScope::explain(const std::exception& error) const {
  const PrecisionRecipe& recipe = runtime_.recipe();
  if (!recipe.casts_by_autocast()) return;
  if (auto clear = lstm_error(error, *runtime_.module(), *recipe.compute)) throw *std::move(clear);
}

void ForwardScope::finish(std::vector<at::Tensor>& outputs) {
  units_.reset();
  autocast_.reset();
  for (at::Tensor& output : outputs) output = returned(output, runtime_.recipe());
  if (at::GradMode::is_enabled()) runtime_.note_run();
  if (runtime_.sync() != nullptr) runtime_.sync()->after_forward(outputs);
}

}  // namespace accel::detail
