#include "libaccel/api/accelerator/checkpoint_content.h"

#include <algorithm>
#include <sstream>
#include <string>
#include <tuple>
#include <unordered_set>
#include <utility>

#include <torch/nn/module.h>

#include <accel/error.h>
#include <accel/seen_parameters.h>

#include "libaccel/api/accelerator/local_training.h"
#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "libaccel/engine/checkpoint/states/replica_shares.h"
#include "libaccel/engine/process/agreement.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel::detail {
namespace {

template <typename Hook>
RemovableHandle add_hook(const std::shared_ptr<StateHooks<Hook>>& hooks, Hook hook) {
  const std::uint64_t id = hooks->next_id++;
  hooks->by_id.emplace(id, std::move(hook));
  return {std::weak_ptr(hooks), id};
}

// Copies: a hook may remove itself, or another one, while it runs.
std::vector<SaveWeightsHook> bound_hooks(const StateHooks<SaveStateHook>& hooks,
                                         const std::vector<torch::nn::Module*>& models) {
  std::vector<SaveWeightsHook> bound;
  for (const auto& [id, hook] : hooks.by_id) {
    bound.emplace_back(
        [hook, models](std::vector<ModelWeights>& weights, const std::filesystem::path& folder) {
          hook(models, weights, folder);
        });
  }
  return bound;
}

std::string described(const at::Tensor& tensor) {
  if (!tensor.defined()) return "which is undefined";
  std::ostringstream text;
  text << "of shape " << tensor.sizes();
  return text.str();
}

// A view, a detached tensor or a copy keeps the few bits that it was made of, whatever the parameter has meanwhile.
void refuse_unknown(const std::vector<at::Tensor>& seen, const Preparation& prepared) {
  std::unordered_set<const c10::TensorImpl*> known;
  for (const torch::nn::Module* const module : prepared.modules()) {
    for (const at::Tensor& parameter : module->parameters())
      known.insert(parameter.unsafeGetTensorImpl());
    for (const at::Tensor& buffer : module->buffers()) known.insert(buffer.unsafeGetTensorImpl());
  }
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i].defined() && known.contains(seen[i].unsafeGetTensorImpl())) continue;
    throw Error(
        ErrorCode::kInvalidArgument,
        "parameters_seen() of a registered object names tensor " + std::to_string(i) + ", " +
            described(seen[i]) +
            ": it is no parameter and no buffer of a prepared model, and would not get full "
            "precision",
        "name the tensors of model->parameters(), not views, copies or detached ones of "
        "them; leave out what is of no prepared model");
  }
}

// Empties them at the end of a scope: they hold on to states that the optimizers may have replaced by then.
struct Released {
  std::vector<std::unique_ptr<torch::optim::Optimizer>>& optimizers;
  checkpoint::DividedTensors& divided;
  ~Released() {
    optimizers.clear();
    divided.clear();
  }
};

}  // namespace

RemovableHandle CheckpointContent::add_save_hook(SaveStateHook hook) {
  return add_hook(save_hooks_, std::move(hook));
}

RemovableHandle CheckpointContent::add_load_hook(LoadStateHook hook) {
  return add_hook(load_hooks_, std::move(hook));
}

CheckpointObjects CheckpointContent::checkpoint_objects() {
  CheckpointObjects objects;
  objects.models = prepared_.modules();
  for (std::size_t i = 0; i < prepared_.optimizers.size(); ++i) {
    const bool is_whole = i >= whole_optimizers_.size() || whole_optimizers_[i] == nullptr;
    objects.optimizers.push_back(is_whole ? &prepared_.optimizers[i].optimizer()
                                          : whole_optimizers_[i].get());
    objects.state_places.push_back(is_whole ? Preparation::state_places(prepared_.optimizers[i])
                                            : nullptr);
  }
  for (const auto& scheduler : prepared_.schedulers)
    objects.schedulers.push_back(&scheduler.scheduler());
  for (const auto& loader : prepared_.data_loaders) objects.loaders.push_back(loader.get());
  objects.scaler = prepared_.scaler.get();
  objects.random = &training_;
  objects.custom = custom_objects_;
  for (const auto& model : prepared_.models) {
    if (model->local_training() != nullptr)
      objects.custom.push_back(&model->local_training()->shared_state());
  }
  objects.choose_weights = bound_hooks(*save_hooks_, objects.models);
  for (const auto& [id, hook] : load_hooks_->by_id) objects.choose_models.emplace_back(hook);
  if (!divided_.empty()) objects.divided = &divided_;
  objects.is_fsdp = prepared_.state.distributed_type() == DistributedType::kFsdp;
  return objects;
}

// ---- saving

void CheckpointContent::save(SaveTo to,
                             const std::function<void(const CheckpointObjects&)>& save,
                             const SaveStateOptions& files) {
  if (!training_.gradient_state().sync_gradients()) {
    prepared_.logger.warning_once(
        "a checkpoint in the middle of an accumulation has no gradients: a run that goes on from "
        "it steps with those of the "
        "batches behind it; save where sync_gradients() is true");
  }
  const Released released{whole_optimizers_, divided_};
  const Shown shown = shown_to_save(to, files);
  const FullParametersScope readable(
      prepared_.divided_models(), Access::kRead, shown.which, shown.asked);
  save(objects_to_save(to, files));
}

CheckpointObjects CheckpointContent::objects_to_save(SaveTo to, const SaveStateOptions& files) {
  std::ignore = objects_to_load();
  // So that all is whole where it is written.
  if (to == SaveTo::kDisk && writes_whole_tensors(files)) divided_.clear();
  for (std::size_t i = 0; i < whole_optimizers_.size(); ++i) {
    if (whole_optimizers_[i] == nullptr) continue;
    Preparation::gate_of(prepared_.optimizers[i])
        ->describe_states(*whole_optimizers_[i], divided_, gathered_to_save(to, files));
  }
  if (to == SaveTo::kMemory) {
    share_replicas();
    return checkpoint_objects();
  }
  // Every replica has every part; the first one writes them.
  const auto models = prepared_.divided_models();
  const bool is_first = std::all_of(
      models.begin(), models.end(), [](const auto& model) { return model->is_first_replica(); });
  if (!is_first) divided_.leave_writing_to_others();
  return checkpoint_objects();
}

// Several nodes that write a folder each have no file that is made of the parts of all ranks.
// Nor has a file of torch.save().
bool CheckpointContent::writes_whole_tensors(const SaveStateOptions& files) const {
  if (!files.safe_serialization || files.format == CheckpointFormat::kAccelerate) return true;
  const AcceleratorState& state = prepared_.state;
  const bool saves_on_several_nodes =
      save_on_each_node_ && state.local_num_processes() < state.num_processes();
  return saves_on_several_nodes ||
         (prepared_.fsdp && prepared_.fsdp->state_dict_type == StateDictType::kFull);
}

// In memory every rank keeps its own parts.
GatheredStates CheckpointContent::gathered_to_save(SaveTo to, const SaveStateOptions& files) const {
  if (to == SaveTo::kMemory || !writes_whole_tensors(files)) return GatheredStates::kKept;
  return is_writer(to) ? GatheredStates::kKept : GatheredStates::kDropped;
}

bool CheckpointContent::is_writer(SaveTo to) const {
  return to == SaveTo::kMemory || save_on_each_node_ ? prepared_.state.is_local_main_process()
                                                     : prepared_.state.is_main_process();
}

std::vector<at::Tensor> CheckpointContent::replicas() const {
  std::vector<at::Tensor> replicas;
  for (const auto& model : prepared_.models) {
    if (model->sync() == nullptr || model->sync()->is_divided()) continue;
    for (const NamedParameter& parameter : trainable_parameters(*model->module())) {
      if (!checkpoint::is_shareable(parameter.tensor)) continue;
      replicas.push_back(parameter.tensor);
      for (const AcceleratedOptimizer& optimizer : prepared_.optimizers) {
        for (at::Tensor& tensor :
             checkpoint::state_tensors(optimizer.optimizer(), parameter.tensor)) {
          if (checkpoint::is_shareable(tensor)) replicas.push_back(std::move(tensor));
        }
      }
    }
  }
  return replicas;
}

void CheckpointContent::share_replicas() {
  const AcceleratorState& state = prepared_.state;
  const std::vector<at::Tensor> tensors = replicas();
  if (state.num_processes() == 1 || tensors.empty()) return;
  const auto samples = or_throw(checkpoint::agree(*checkpoint::current_ranks(), [&] {
    return std::to_string(checkpoint::sample_of(tensors));
  }));
  const auto first = samples.begin() + state.process_index() - state.local_process_index();
  const bool are_equal = std::all_of(first,
                                     first + state.local_num_processes(),
                                     [&](const auto& sample) { return sample == *first; });
  // A loop that steps without reduction makes them differ: the first rank's values count then.
  if (!are_equal) return;
  checkpoint::add_shares(
      tensors,
      {.place = state.local_process_index(), .count = state.local_num_processes()},
      divided_);
}

// ---- loading

CheckpointObjects CheckpointContent::objects_to_load() {
  whole_optimizers_.clear();
  divided_.clear();
  for (const auto& model : prepared_.divided_models()) model->add_parts(divided_);
  for (const AcceleratedOptimizer& optimizer : prepared_.optimizers) {
    const StepGate* const gate = Preparation::gate_of(optimizer);
    whole_optimizers_.push_back(gate == nullptr ? nullptr : gate->whole_optimizer());
  }
  return checkpoint_objects();
}

std::optional<LoadReport> CheckpointContent::load(const Load& load,
                                                  const LoadStateOptions& options) {
  std::optional<LoadReport> report = load_objects(load, options, [](std::size_t) { return true; });
  for (const auto& model : prepared_.models)
    if (report && model->local_training() != nullptr) model->local_training()->take_loaded();
  return report;
}

std::optional<LoadReport> CheckpointContent::load_part(const Load& load,
                                                       std::optional<std::size_t> optimizer) {
  return load_objects(load, {}, [optimizer](std::size_t number) { return number == optimizer; });
}

std::optional<LoadReport> CheckpointContent::load_objects(const Load& load,
                                                          const LoadStateOptions& options,
                                                          const LoadsOptimizer& loads_optimizer) {
  const auto models = prepared_.divided_models();
  const Released released{whole_optimizers_, divided_};
  CheckpointObjects objects = objects_to_load();
  objects.strict = options.strict;
  // Hooks and load_state_dict() of registered objects, which run on all ranks, may write to the model.
  const Shown shown =
      shown_to(load_hooks_->by_id.empty() ? Callers::kObjects : Callers::kHooksAndObjects,
               FullParameters::kUndivided);
  FullParametersScope writable(models, Access::kWrite, shown.which, shown.asked);
  std::optional<LoadReport> report = load(objects);
  // A rank that is through writes no shard while another one still loads.
  if (!models.empty()) prepared_.state.wait_for_everyone();
  writable.end();
  // Each rank has loaded its own pieces; or hooks of a checkpoint that was passed over may have written.
  for (const auto& model : models) model->publish_loaded();
  for (const auto& model : prepared_.models)
    if (report && model->sync() != nullptr) model->sync()->agree_on_hook_state();
  const auto take_states = [&] {
    for (std::size_t i = 0; report && i < whole_optimizers_.size(); ++i) {
      if (whole_optimizers_[i] == nullptr || !loads_optimizer(i)) continue;
      const AcceleratedOptimizer& optimizer = prepared_.optimizers[i];
      Preparation::gate_of(optimizer)->take_states(
          *whole_optimizers_[i], divided_, Preparation::state_places(optimizer));
    }
  };
  // It copies out of mapped files: what one rank finds changed is an error of all.
  const auto group = models.empty() ? nullptr : prepared_.state.process_group();
  jointly(take_states, group.get(), "taking the loaded states of optimizers");
  return report;
}

// ---- which parameters a rank has in full precision meanwhile

// It runs the user's code: what that throws is thrown on all ranks.
CheckpointContent::Shown CheckpointContent::shown_to(Callers callers, FullParameters which) const {
  const auto models = prepared_.divided_models();
  const bool has_masters = std::any_of(
      models.begin(), models.end(), [](const auto& model) { return model->has_masters(); });
  Shown shown{which, {}};
  if (!has_masters) return shown;
  const auto said = or_throw(checkpoint::agree(*checkpoint::current_ranks(), [&]() -> std::string {
    shown.asked = parameters_seen_by(callers);
    return shown.asked.empty() ? "" : "yes";
  }));
  if (std::find(said.begin(), said.end(), "yes") == said.end()) return shown;
  if (which == FullParameters::kAll) shown.asked = divided_parameters();
  shown.which = FullParameters::kAsked;
  return shown;
}

std::vector<at::Tensor> CheckpointContent::divided_parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& model : prepared_.divided_models()) {
    for (const NamedParameter& parameter : model->divided_parameters())
      parameters.push_back(parameter.tensor);
  }
  return parameters;
}

// Who does not say what it looks at may look at all.
std::vector<at::Tensor> CheckpointContent::parameters_seen_by(Callers callers) const {
  if (callers == Callers::kHooksAndObjects) return divided_parameters();
  std::vector<at::Tensor> seen;
  if (callers == Callers::kNone) return seen;
  for (const Stateful* const object : custom_objects_) {
    const auto* const says = dynamic_cast<const SeesParameters*>(object);
    if (says == nullptr) return divided_parameters();
    const std::vector<at::Tensor> parameters = says->parameters_seen();
    refuse_unknown(parameters, prepared_);
    seen.insert(seen.end(), parameters.begin(), parameters.end());
  }
  return seen;
}

// Hooks run on all ranks, state_dict() of registered objects on those that write it.
CheckpointContent::Shown CheckpointContent::shown_to_save(SaveTo to,
                                                          const SaveStateOptions& files) const {
  const Callers callers = !save_hooks_->by_id.empty() ? Callers::kHooksAndObjects
                          : is_writer(to)             ? Callers::kObjects
                                                      : Callers::kNone;
  const bool is_by_parts = to == SaveTo::kMemory || !writes_whole_tensors(files);
  return shown_to(callers,
                  is_by_parts     ? FullParameters::kUndivided
                  : is_writer(to) ? FullParameters::kAll
                                  : FullParameters::kNone);
}

}  // namespace accel::detail
