// StateHooks: functions of the program that run within save_state() and load_state() of its Accelerator.
//
//   auto handle = accelerator.register_save_state_pre_hook(
//       [](const auto& models, const auto& folder) { write_config(folder / "config.json"); });
//   handle.remove();
//
// A save hook may remove weights from `weights`: it then saves them itself. A load hook may remove models from `models`: it then
// loads them itself.
//
//   accelerator.register_save_state_pre_hook([](const auto& models, auto& weights, const auto& folder) {
//     save_adapter(*models[0], folder / "adapter.safetensors");
//     weights.clear();
//   });
//   accelerator.register_load_state_pre_hook([](auto& models, const auto& folder) {
//     load_adapter(*models[0], folder / "adapter.safetensors");
//     models.clear();
//   });
//
// Hooks run on every rank, in the order of registration. An exception of a hook fails the save or the load on all ranks. Then
// no existing state is changed, except by a load hook itself.
//
// Threads:  the thread that trains.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace accel {

// The parameters and buffers of one model that a save writes, by name. The tensors share the memory of the model.
struct ModelWeights {
  torch::nn::Module* model = nullptr;
  std::map<std::string, at::Tensor> tensors;
};

// models: the prepared models, in the order of prepare(). folder: the checkpoint being built; a hook may add plain files to it.
using StateHook = std::function<void(const std::vector<torch::nn::Module*>& models,
                                     const std::filesystem::path& folder)>;
// weights: one entry for each model, in the same order. Removed entries or tensors are not saved. Remove the same on every rank.
using SaveStateHook = std::function<void(const std::vector<torch::nn::Module*>& models,
                                         std::vector<ModelWeights>& weights,
                                         const std::filesystem::path& folder)>;
// models: the models to be loaded. Removed models are not loaded. Remove the same on every rank. folder: the checkpoint.
using LoadStateHook = std::function<void(std::vector<torch::nn::Module*>& models,
                                         const std::filesystem::path& folder)>;

namespace detail {

template <typename Hook>
struct StateHooks {
  std::map<std::uint64_t, Hook> by_id;  // ids ascend in the order of registration
  std::uint64_t next_id = 0;
};

}  // namespace detail

// Removes one hook. Destruction of the handle does not remove it. After the end of the Accelerator remove() does nothing.
class RemovableHandle {
 public:
  template <typename Hook>
  RemovableHandle(std::weak_ptr<detail::StateHooks<Hook>> hooks, std::uint64_t id)
      : remove_([hooks = std::move(hooks), id] {
          if (const auto present = hooks.lock()) present->by_id.erase(id);
        }) {}

  // A second call does nothing.
  void remove() const { remove_(); }

 private:
  std::function<void()> remove_;
};

}  // namespace accel
