// StateHooks: functions that a program adds to save_state() and load_state() of its Accelerator.
//
//   auto handle = accelerator.register_save_state_pre_hook(
//       [](const auto& models, const auto& folder) { write_config(folder / "config.json"); });
//   handle.remove();
//
// A hook that removes weights from `weights` saves them itself; one that removes models from `models` loads them itself:
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
// A hook runs on every rank, in the order of registration. What it throws fails the save or the load
// on all ranks, and nothing that existed is changed; what a load hook itself has changed stays so.
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

// What a save writes of a model: its parameters and buffers by name, the memory of the model.
struct ModelWeights {
  torch::nn::Module* model = nullptr;
  std::map<std::string, at::Tensor> tensors;
};

// models: those that were prepared, in that order. folder: the one that is being built, where plain files may be left.
using StateHook = std::function<void(const std::vector<torch::nn::Module*>& models,
                                     const std::filesystem::path& folder)>;
// weights: of the models, in their order. Removed models or tensors are not saved: the same on every rank.
using SaveStateHook = std::function<void(const std::vector<torch::nn::Module*>& models,
                                         std::vector<ModelWeights>& weights,
                                         const std::filesystem::path& folder)>;
// models: those that will be loaded. Removed ones are left alone: the same on every rank. folder: the checkpoint.
using LoadStateHook = std::function<void(std::vector<torch::nn::Module*>& models,
                                         const std::filesystem::path& folder)>;

namespace detail {

template <typename Hook>
struct StateHooks {
  std::map<std::uint64_t, Hook> by_id;  // ids grow: the order of registration
  std::uint64_t next_id = 0;
};

}  // namespace detail

// Removes one hook. A dropped handle leaves its hook in place; one that outlives the Accelerator does nothing.
class RemovableHandle {
 public:
  template <typename Hook>
  RemovableHandle(std::weak_ptr<detail::StateHooks<Hook>> hooks, std::uint64_t id)
      : remove_([hooks = std::move(hooks), id] {
          if (const auto present = hooks.lock()) present->by_id.erase(id);
        }) {}

  // Once; later calls do nothing.
  void remove() const { remove_(); }

 private:
  std::function<void()> remove_;
};

}  // namespace accel
