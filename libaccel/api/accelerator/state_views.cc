// The state of models and optimizers as dictionaries, and a model's weights as files.
//
// Three forms of the same: whole tensors on the ranks that want them, the part of each tensor that this rank has, and this
// rank's shards as they lie in memory. The second needs no communication for a model; of an optimizer the ranks agree on its
// numbers. The third is the second, laid out by units.

#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include "libaccel/api/accelerator/accelerator_impl.h"
#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "libaccel/engine/checkpoint/states/module_state.h"
#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "libaccel/engine/sharding/full_parameters.h"

namespace accel {
namespace {

using checkpoint::NamedTensor;
using checkpoint::placed;
using checkpoint::whole_tensor;

// Copies, once of a tensor that has several names.
void add_copies(const torch::nn::Module& module, const StateDictConfig& config, StateView& view) {
  std::unordered_map<const c10::TensorImpl*, at::Tensor> copies;
  for (const NamedTensor& item : checkpoint::state_of(module)) {
    at::Tensor& copy = copies[item.tensor.unsafeGetTensorImpl()];
    if (!copy.defined()) copy = placed(item.tensor.detach().clone(), config);
    view.tensors.emplace(item.name, whole_tensor(copy));
  }
}

GatheredStates gathered_to_view(const detail::Preparation& prepared,
                                const StateDictConfig& config) {
  const bool is_elsewhere = prepared.fsdp && config.rank0_only && !prepared.state.is_main_process();
  return is_elsewhere ? GatheredStates::kDropped : GatheredStates::kKept;
}

}  // namespace

StateView Accelerator::model_state(const detail::ModelRuntime& model, StateDictType type) const {
  const at::NoGradGuard no_grad;
  const detail::Preparation& prepared = impl_->preparation;
  const StateDictConfig config = prepared.fsdp ? prepared.fsdp->state_dict : StateDictConfig{};
  const GatheredStates gathered = gathered_to_view(prepared, config);
  const torch::nn::Module& module = *model.module();
  const std::shared_ptr<ModelSync>& sync = model.sync();
  const bool is_divided = sync != nullptr && sync->is_divided();
  StateView view{.type = type};
  if (is_divided && type != StateDictType::kFull) {
    sync->add_to_view(module, view);
  } else if (is_divided) {
    const auto which =
        gathered == GatheredStates::kKept ? FullParameters::kAll : FullParameters::kNone;
    const detail::FullParametersScope readable({sync}, detail::Access::kRead, which);
    if (gathered == GatheredStates::kKept) add_copies(module, config, view);
    prepared.state.wait_for_everyone();  // nobody takes a step while another rank still reads
  } else if (type == StateDictType::kFull && prepared.fsdp) {
    if (gathered == GatheredStates::kKept) add_copies(module, config, view);
  } else {
    for (const NamedTensor& item : checkpoint::state_of(module))
      view.tensors.emplace(item.name, whole_tensor(item.tensor.detach()));
  }
  return view;
}

StateView Accelerator::get_optimizer_state_dict(const AcceleratedOptimizer& optimizer,
                                                StateDictType type) const {
  const at::NoGradGuard no_grad;
  const detail::Preparation& prepared = impl_->preparation;
  const StateDictConfig config =
      prepared.fsdp ? prepared.fsdp->optim_state_dict : StateDictConfig{};
  const GatheredStates gathered = gathered_to_view(prepared, config);
  const std::vector<torch::nn::Module*> modules = prepared.modules();
  if (const detail::StepGate* const gate = detail::Preparation::gate_of(optimizer))
    return gate->view(type, gathered, config, modules);
  StateView view{.type = type};
  const bool is_copy = type == StateDictType::kFull && prepared.fsdp;
  if (is_copy && gathered == GatheredStates::kDropped) return view;
  checkpoint::SavedOptimizer saved =
      checkpoint::save_optimizer(optimizer.optimizer(), checkpoint::ParameterNames(modules));
  for (auto& [name, tensor] : saved.tensors)
    view.tensors.emplace(name, whole_tensor(is_copy ? placed(tensor.clone(), config) : tensor));
  view.json = std::move(saved.json);
  return view;
}

StateView Accelerator::wrapped(const detail::ModelRuntime& model, StateView state) const {
  const bool is_copy = model.sync() != nullptr && !model.sync()->is_divided();
  if (!is_copy || num_processes() == 1) return state;
  StateView named{.type = state.type, .tensors = {}, .json = std::move(state.json)};
  for (auto& [name, tensor] : state.tensors)
    named.tensors.emplace("module." + name, std::move(tensor));
  return named;
}

void Accelerator::save_weights(const detail::ModelRuntime& model,
                               const std::filesystem::path& folder,
                               const SaveModelOptions& options) const {
  const detail::StepSpan span(detail::StepPart::kIo);
  const detail::FullParametersScope readable(
      impl_->preparation.divided_models(),
      detail::Access::kRead,
      is_main_process() ? FullParameters::kAll : FullParameters::kNone);
  std::ignore = or_throw(checkpoint::agree(*checkpoint::current_ranks(), [&]() -> std::string {
    if (is_main_process()) accel::save_model(*model.module(), folder, options);
    return {};
  }));
}

}  // namespace accel
