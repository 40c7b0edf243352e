// One model or one optimizer in the files of FSDP.
//
// A save takes what get_state_dict() gathers. A load goes the way of load_state(), with one object: what is divided gets its parts
// straight from the files, and what else was prepared stays as it is.

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <accel/checkpoint_names.h>
#include <accel/detail/step_span.h>
#include <accel/error.h>
#include <accel/fsdp_checkpoint.h>
#include <accel/logging.h>
#include <accel/saved_object.h>

#include "libaccel/api/accelerator/accelerator_impl.h"
#include "libaccel/api/accelerator/model_runtime.h"
#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "libaccel/engine/checkpoint/series/fsdp_part.h"
#include "libaccel/engine/checkpoint/states/accelerate_states.h"
#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "runtime/checkpoint/layout.h"

namespace accel::detail {
namespace {

namespace fs = std::filesystem;

Error not_prepared(const std::string& what) {
  return Error(ErrorCode::kInvalidArgument,
               "the " + what + " was not prepared by this Accelerator",
               "give it what prepare() returned");
}

// On rank 0; a failure there is one on all ranks, and nobody reads before the file is whole.
void write_on_main(const Accelerator& accelerator,
                   const fs::path& folder,
                   std::string_view kind,
                   std::size_t index,
                   const std::function<c10::IValue()>& value) {
  std::ignore = or_throw(checkpoint::agree(*checkpoint::current_ranks(), [&]() -> std::string {
    if (!accelerator.is_main_process()) return {};
    fs::create_directories(folder);
    accel::save(value(), folder / (checkpoint::numbered(kind, index) + ".bin"));
    return {};
  }));
}

c10::IValue dict_of_tensors(const StateView& view) {
  c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
  for (const auto& [name, tensor] : view.tensors) dict.insert(name, tensor.values);
  return dict;
}

void tell_notices(const std::optional<LoadReport>& report) {
  for (const std::string& notice : report->notices) get_logger("accel").warning(notice);
}

// The number in `prepared` of what was given.
template <typename Prepared, typename Is>
std::size_t number_among(const Prepared& prepared, const std::string& what, const Is& is) {
  const auto found = std::ranges::find_if(prepared, is);
  if (found == prepared.end()) throw not_prepared(what);
  return static_cast<std::size_t>(found - prepared.begin());
}

}  // namespace

void FsdpFiles::save_model(const ModelRuntime& model, const fs::path& folder, std::size_t index) {
  const StepSpan span(StepPart::kIo);
  const StateView view = accelerator_.model_state(model, StateDictType::kFull);
  write_on_main(
      accelerator_, folder, kFsdpModelName, index, [&view] { return dict_of_tensors(view); });
}

void FsdpFiles::save_optimizer(const AcceleratedOptimizer& optimizer,
                               const fs::path& folder,
                               std::size_t index) {
  const StepSpan span(StepPart::kIo);
  const StateView view = accelerator_.get_optimizer_state_dict(optimizer, StateDictType::kFull);
  write_on_main(accelerator_, folder, kOptimizerName, index, [&] {
    checkpoint::SavedOptimizer saved{.tensors = {}, .json = view.json};
    for (const auto& [name, tensor] : view.tensors) saved.tensors.emplace(name, tensor.values);
    return checkpoint::accelerate_optimizer(
        optimizer.optimizer(), saved, checkpoint::ParameterKeys::kNames);
  });
}

void FsdpFiles::load_model(const ModelRuntime& model, const fs::path& folder, std::size_t index) {
  const StepSpan span(StepPart::kIo);
  if (model.local_training() != nullptr)
    throw Error(
        ErrorCode::kUnsupported,
        "load_fsdp_model() while DiLoCo lives, which would go on from the weights before it",
        "load before DiLoCo is made, or load a whole checkpoint with load_state()");
  torch::nn::Module* const module = model.module().get();
  const auto load = [&](const CheckpointObjects& objects) -> std::optional<LoadReport> {
    std::ignore = number_among(
        objects.models, "model", [module](const auto* present) { return present == module; });
    return checkpoint::load_fsdp_part(folder,
                                      {.models = {module}, .divided = objects.divided},
                                      checkpoint::FsdpPart::kModel,
                                      index);
  };
  tell_notices(accelerator_.impl_->checkpointing.content().load_part(load, std::nullopt));
}

void FsdpFiles::load_optimizer(const AcceleratedOptimizer& optimizer,
                               const fs::path& folder,
                               std::size_t index) {
  const StepSpan span(StepPart::kIo);
  const std::size_t place = number_among(
      accelerator_.impl_->preparation.optimizers, "optimizer", [&](const auto& present) {
        return &present.optimizer() == &optimizer.optimizer();
      });
  const auto load = [&](const CheckpointObjects& objects) -> std::optional<LoadReport> {
    CheckpointObjects part{.models = objects.models,
                           .optimizers = {objects.optimizers[place]},
                           .divided = objects.divided};
    // They name parameters, and stay as they are.
    part.choose_models.emplace_back([](auto&, const auto&) {});
    return checkpoint::load_fsdp_part(folder, part, checkpoint::FsdpPart::kOptimizer, index);
  };
  tell_notices(accelerator_.impl_->checkpointing.content().load_part(load, place));
}

}  // namespace accel::detail
