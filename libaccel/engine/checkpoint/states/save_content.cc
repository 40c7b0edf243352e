#include "libaccel/engine/checkpoint/states/save_content.h"

#include <algorithm>

#include "libaccel/engine/checkpoint/files/state_files.h"
#include "libaccel/engine/checkpoint/files/tensor_file.h"
#include "libaccel/engine/checkpoint/states/module_state.h"
#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "runtime/checkpoint/layout.h"

namespace accel::checkpoint {
namespace {

class Collector {
 public:
  Collector(const CheckpointObjects& objects, int rank, bool is_leader)
      : objects_(objects), rank_(rank), is_leader_(is_leader) {}

  SaveContent run() && {
    models();
    optimizers();
    if (is_leader_) replicated_states();
    if (objects_.random != nullptr) state(random_stem(rank_), *objects_.random);
    return std::move(content_);
  }

 private:
  void models() {
    for (size_t i = 0; i < objects_.models.size(); ++i) {
      UniqueState state = unique_state(state_of(*objects_.models[i]));
      safetensors::TensorMap tensors;
      for (NamedTensor& item : state.tensors)
        tensors.emplace(std::move(item.name), std::move(item.tensor));
      state.aliases["format"] = "pt";
      tensor_file(numbered("model", i), std::move(tensors), std::move(state.aliases));
    }
  }

  void optimizers() {
    const ParameterNames names(objects_.models);
    for (size_t i = 0; i < objects_.optimizers.size(); ++i) {
      const bool may_be_divided =
          objects_.divided != nullptr && may_have_divided_states(*objects_.optimizers[i]);
      if (!is_leader_ && !may_be_divided) continue;
      SavedOptimizer saved = save_optimizer(*objects_.optimizers[i], names);
      if (is_leader_) text(numbered("optimizer", i), std::move(saved.json));
      tensor_file(numbered("optimizer", i), std::move(saved.tensors), {});
    }
  }

  void replicated_states() {
    for (size_t i = 0; i < objects_.schedulers.size(); ++i)
      state(numbered("scheduler", i), *objects_.schedulers[i]);
    for (size_t i = 0; i < objects_.loaders.size(); ++i)
      state(numbered("loader", i), *objects_.loaders[i]);
    if (objects_.scaler != nullptr) state("scaler", *objects_.scaler);
    for (size_t i = 0; i < objects_.custom.size(); ++i) state(custom_stem(i), *objects_.custom[i]);
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
    } else if (is_leader_) {
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
    if (is_leader_) whole.parts.push_back({0, tensor});
    return whole;
  }

  const CheckpointObjects& objects_;
  int rank_;
  bool is_leader_;
  SaveContent content_;
};

}  // namespace

void SaveContent::copy_tensors(CopySpace& space) {
  std::vector<at::Tensor*> tensors;
  for (TensorFile& file : files) {
    for (auto& [name, tensor] : file.tensors) tensors.push_back(&tensor);
  }
  for (SharedFile& file : shared) {
    for (at::Tensor* const values : file.part_values()) tensors.push_back(values);
  }
  space.replace_by_copies(tensors);
}

SaveContent collect_content(const CheckpointObjects& objects, int rank, bool is_leader) {
  return Collector(objects, rank, is_leader).run();
}

}  // namespace accel::checkpoint
