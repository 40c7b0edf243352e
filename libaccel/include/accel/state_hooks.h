// StateHooks: what a program adds to save_state() and load_state() of its Accelerator.
//
//   auto handle = accelerator.register_save_state_pre_hook(
//       [](const auto& models, const auto& folder) { write_config(folder / "config.json"); });
//   handle.remove();
//
// A hook runs on every rank, in the order of registration. What it throws fails the save or the load
// on all ranks, and nothing that existed is changed.
//
// Threads:  the thread that trains.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace accel {

// models: those that were prepared, in that order. folder: before a save the one that is being
// built, where plain files may be left; before a load the checkpoint.
using StateHook = std::function<void(const std::vector<torch::nn::Module*>& models,
                                     const std::filesystem::path& folder)>;

namespace detail {

struct StateHooks {
  std::map<std::uint64_t, StateHook> by_id;  // ids grow: the order of registration
  std::uint64_t next_id = 0;
};

}  // namespace detail

// Takes one hook away again. A handle that is dropped leaves its hook in place; one that outlives
// the Accelerator does nothing.
class RemovableHandle {
 public:
  RemovableHandle(std::weak_ptr<detail::StateHooks> hooks, std::uint64_t id)
      : hooks_(std::move(hooks)), id_(id) {}

  // Once; later calls do nothing.
  void remove() const {
    if (const auto hooks = hooks_.lock()) hooks->by_id.erase(id_);
  }

 private:
  std::weak_ptr<detail::StateHooks> hooks_;
  std::uint64_t id_;
};

}  // namespace accel
