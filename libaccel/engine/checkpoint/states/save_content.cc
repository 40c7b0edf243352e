#include "libaccel/engine/checkpoint/states/save_content.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>

#include <accel/checkpoint_names.h>
#include <accel/detail/checkpointed_optimizer.h>

#include "libaccel/engine/checkpoint/files/state_files.h"
#include "libaccel/engine/checkpoint/files/tensor_file.h"
#include "libaccel/engine/checkpoint/states/accelerate_states.h"
#include "libaccel/engine/checkpoint/states/module_state.h"
#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "libaccel/engine/pager/paged_storage.h"
#include "libaccel/tensors/optimizer_traits.h"
#include "runtime/checkpoint/layout.h"

namespace accel::checkpoint {
namespace {

// Those of the model first, in its order, which says under which name tied weights are kept.
std::vector<NamedTensor> saved_state(const ModelWeights& weights) {
  std::vector<NamedTensor> state;
  std::set<std::string> added;
  for (const NamedTensor& item : state_of(*weights.model)) {
    const auto found = weights.tensors.find(item.name);
    if (found == weights.tensors.end()) continue;
    state.push_back({item.name, found->second});
    added.insert(item.name);
  }
  for (const auto& [name, tensor] : weights.tensors)
    if (!added.contains(name)) state.push_back({name, tensor});
  return state;
}

// Whether nothing but its steps and loads writes to its states. Of a class of the user's own that is not known.
bool writes_in_steps_alone(const torch::optim::Optimizer& optimizer) {
  return traits_of(optimizer) != nullptr ||
         dynamic_cast<const detail::CheckpointedOptimizer*>(&optimizer) != nullptr;
}

// Whether the memory of `part` is a part of that of `whole`.
bool lies_in(const at::Tensor& part, const at::Tensor& whole) {
  const auto* const begin = static_cast<const std::byte*>(whole.const_data_ptr());
  const auto* const first = static_cast<const std::byte*>(part.const_data_ptr());
  return first >= begin && first + part.nbytes() <= begin + whole.nbytes();
}

class Collector {
 public:
  Collector(const CheckpointObjects& objects,
            const std::vector<ModelWeights>& weights,
            const ContentRequest& request)
      : objects_(objects),
        weights_(weights),
        request_(request),
        is_for_accelerate_(request.files.format == CheckpointFormat::kAccelerate),
        is_for_fsdp_(is_for_accelerate_ && objects.is_fsdp) {}

  SaveContent run() && {
    models();
    optimizers();
    if (request_.is_leader) replicated_states();
    if (objects_.random != nullptr) random_states();
    return std::move(content_);
  }

 private:
  void models() {
    for (size_t i = 0; i < weights_.size(); ++i) {
      const std::vector<NamedTensor> named = saved_state(weights_[i]);
      note_parameters(named, *weights_[i].model, numbered("model", i));
      if (is_for_fsdp_ || !request_.files.safe_serialization) {
        pickled_weights(numbered(is_for_fsdp_ ? kFsdpModelName : kModelName, i), named);
        continue;
      }
      UniqueState state = unique_state(named);
      safetensors::TensorMap tensors;
      for (NamedTensor& item : state.tensors)
        tensors.emplace(std::move(item.name), std::move(item.tensor));
      state.aliases["format"] = "pt";
      tensor_file(numbered("model", i), std::move(tensors), std::move(state.aliases));
    }
  }

  // Not buffers, which a forward may write to, nor what a hook has put in the place of a parameter.
  void note_parameters(const std::vector<NamedTensor>& named,
                       const torch::nn::Module& model,
                       const std::string& stem) {
    std::unordered_set<const c10::TensorImpl*> parameters;
    for (const at::Tensor& parameter : model.parameters())
      parameters.insert(parameter.unsafeGetTensorImpl());
    for (const NamedTensor& item : named) {
      if (parameters.contains(item.tensor.unsafeGetTensorImpl()))
        note_step_state(item.name + " of " + stem, item.tensor);
    }
  }

  void note_step_state(const std::string& name, const at::Tensor& tensor) {
    const auto note = [&](const at::Tensor& values, const at::Tensor& parameter) {
      const bool has_place = values.defined() && values.is_cpu() && values.has_storage() &&
                             pager::paged_storage(values) == nullptr;
      if (has_place) content_.step_states.push_back({name, values, parameter});
    };
    const std::vector<TensorPart>* const parts = parts_of(tensor);
    if (parts == nullptr) return note(tensor, {});
    for (const TensorPart& part : *parts) note(part.values, tensor);
  }

  void pickled_weights(const std::string& stem, const std::vector<NamedTensor>& named) {
    if (!request_.is_leader) return;
    c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
    for (const NamedTensor& item : named) dict.insert(item.name, item.tensor);
    object(stem + ".bin", std::move(dict));
  }

  void optimizers() {
    const ParameterNames names(objects_.models);
    for (size_t i = 0; i < objects_.optimizers.size(); ++i) {
      const bool may_wait = writes_in_steps_alone(*objects_.optimizers[i]);
      if (is_for_accelerate_) {
        if (!request_.is_leader) continue;
        const std::string file = numbered("optimizer", i) + ".bin";
        object(
            file,
            accelerate_optimizer(*objects_.optimizers[i],
                                 names,
                                 is_for_fsdp_ ? ParameterKeys::kNames : ParameterKeys::kNumbers));
        if (!may_wait) continue;
        for (const at::Tensor& tensor : content_.objects.back().second.tensors())
          note_step_state("a state of " + file, tensor);
        continue;
      }
      const bool may_be_divided =
          objects_.divided != nullptr && may_have_divided_states(*objects_.optimizers[i]);
      if (!request_.is_leader && !may_be_divided) continue;
      SavedOptimizer saved = save_optimizer(*objects_.optimizers[i], names);
      if (may_wait) {
        for (const auto& [name, tensor] : saved.tensors)
          note_step_state(name + " of " + numbered("optimizer", i), tensor);
      }
      if (request_.is_leader) text(numbered("optimizer", i), std::move(saved.json));
      tensor_file(numbered("optimizer", i), std::move(saved.tensors), {});
    }
  }

  void replicated_states() {
    for (size_t i = 0; i < objects_.schedulers.size(); ++i) {
      if (is_for_accelerate_)
        object(numbered("scheduler", i) + ".bin", accelerate_scheduler(*objects_.schedulers[i]));
      else
        state(numbered("scheduler", i), *objects_.schedulers[i]);
    }
    for (size_t i = 0; i < objects_.loaders.size(); ++i)
      state(numbered("loader", i), *objects_.loaders[i]);
    if (objects_.scaler != nullptr) state_as("scaler.pt", "scaler", *objects_.scaler);
    for (size_t i = 0; i < objects_.custom.size(); ++i)
      state_as(custom_stem(i) + ".pkl", custom_stem(i), *objects_.custom[i]);
  }

  void random_states() {
    const std::string stem = random_stem(request_.rank);
    if (is_for_accelerate_)
      object(stem + ".pkl", accelerate_random_states(objects_.random->state_dict()));
    else
      state(stem, *objects_.random);
  }

  // In the file that Accelerate has for it, or under our own name.
  void state_as(const std::string& file, const std::string& stem, const Stateful& from) {
    if (is_for_accelerate_)
      object(file, accelerate_state(from.state_dict()));
    else
      state(stem, from);
  }

  void object(const std::string& file, const c10::IValue& value) {
    content_.objects.emplace_back(file, ObjectFile(value, file.substr(0, file.rfind('.'))));
  }

  void text(const std::string& stem, std::string text) {
    content_.texts.emplace_back(stem + std::string(kValueSuffix), std::move(text));
  }

  void state(const std::string& stem, const Stateful& object) {
    StateDict state = object.state_dict();
    text(stem, encode_state(state));
    if (state.tensors.empty()) return;
    content_.files.push_back({stem + std::string(kTensorSuffix), std::move(state.tensors), {}});
  }

  [[nodiscard]] const std::vector<TensorPart>* parts_of(const at::Tensor& tensor) const {
    return objects_.divided == nullptr ? nullptr : objects_.divided->find(tensor);
  }

  // Shared when any of its tensors is divided.
  void tensor_file(const std::string& stem,
                   safetensors::TensorMap tensors,
                   safetensors::Metadata metadata) {
    const std::string name = stem + std::string(kTensorSuffix);
    const bool is_shared = std::any_of(tensors.begin(), tensors.end(), [&](const auto& item) {
      return parts_of(item.second) != nullptr;
    });
    if (is_shared) {
      std::vector<SharedTensor> list;
      for (const auto& [tensor_name, tensor] : tensors) list.push_back(shared(tensor_name, tensor));
      content_.shared.emplace_back(name, std::move(list), std::move(metadata));
    } else if (request_.is_leader) {
      content_.files.push_back({name, std::move(tensors), std::move(metadata)});
    }
  }

  [[nodiscard]] SharedTensor shared(const std::string& name, const at::Tensor& tensor) const {
    if (const std::vector<TensorPart>* parts = parts_of(tensor)) {
      return {spec_of_shape(name, objects_.divided->dtype_of(tensor), tensor.sizes()),
              objects_.divided->writes() ? *parts : std::vector<TensorPart>{},
              true};
    }
    SharedTensor whole{spec_of(name, tensor), {}, false};
    if (request_.is_leader) whole.parts.push_back({0, tensor});
    return whole;
  }

  const CheckpointObjects& objects_;
  const std::vector<ModelWeights>& weights_;
  const ContentRequest& request_;
  bool is_for_accelerate_;
  bool is_for_fsdp_;
  SaveContent content_;
};

}  // namespace

std::vector<at::Tensor*> SaveContent::tensors() {
  std::vector<at::Tensor*> tensors;
  for (TensorFile& file : files) {
    for (auto& [name, tensor] : file.tensors) tensors.push_back(&tensor);
  }
  for (auto& [name, object] : objects) {
    for (at::Tensor& tensor : object.tensors()) tensors.push_back(&tensor);
  }
  for (SharedFile& file : shared) {
    for (at::Tensor* const values : file.part_values()) tensors.push_back(values);
  }
  return tensors;
}

void SaveContent::copy_tensors(CopySpace& space) {
  space.replace_by_copies(tensors());
  step_states.clear();
}

std::unique_ptr<StateStaging> SaveContent::stage_tensors(CopySpace& space) {
  std::unordered_map<const void*, const StepState*> by_place;
  for (const StepState& state : step_states)
    by_place.try_emplace(state.values.const_data_ptr(), &state);
  const auto find = [&](const at::Tensor& tensor) -> const StepState* {
    const auto found = by_place.find(tensor.const_data_ptr());
    const bool is_in = found != by_place.end() && tensor.nbytes() <= found->second->values.nbytes();
    return is_in ? found->second : nullptr;
  };
  std::vector<StagedTensor> staged;
  for (CopySpace::Place& place : space.replace_by_places(
           tensors(), [&](const at::Tensor& tensor) { return find(tensor) != nullptr; })) {
    const StepState& state = *find(place.from);
    staged.push_back(
        {.name = state.name, .from = std::move(place.from), .to = std::move(place.to)});
    // The program knows the parameter, whose version is not its part's.
    if (state.parameter.defined() && lies_in(state.values, state.parameter))
      staged.back().aliases.push_back(state.parameter.detach());
  }
  step_states.clear();
  return std::make_unique<StateStaging>(std::move(staged));
}

std::vector<ModelWeights> weights_of(const std::vector<torch::nn::Module*>& models) {
  std::vector<ModelWeights> weights;
  for (torch::nn::Module* const model : models) {
    weights.push_back({.model = model, .tensors = {}});
    for (NamedTensor& item : state_of(*model))
      weights.back().tensors.emplace(std::move(item.name), std::move(item.tensor));
  }
  return weights;
}

SaveContent collect_content(const CheckpointObjects& objects,
                            const std::vector<ModelWeights>& weights,
                            const ContentRequest& request) {
  return Collector(objects, weights, request).run();
}

}  // namespace accel::checkpoint
