// ModelRuntime: what surrounds the forwards of one prepared model.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/precision.h>

#include "libaccel/engine/gradients/model_sync.h"

namespace torch::nn {
class Module;
}

namespace accel::detail {

class ModelRuntime {
 public:
  // sync: nullptr when there is nobody to synchronise with. autocast: nullopt in fp32.
  ModelRuntime(std::shared_ptr<torch::nn::Module> module,
               std::shared_ptr<ModelSync> sync,
               std::optional<AutocastOptions> autocast);

  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& module() const noexcept {
    return module_;
  }
  [[nodiscard]] const std::shared_ptr<ModelSync>& sync() const noexcept { return sync_; }
  [[nodiscard]] const std::optional<AutocastOptions>& autocast() const noexcept {
    return autocast_;
  }
  // Whether a forward with gradients has come this way, and not only to the module itself.
  [[nodiscard]] bool has_run() const noexcept { return has_run_; }
  void note_run() noexcept { has_run_ = true; }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<ModelSync> sync_;
  std::optional<AutocastOptions> autocast_;
  bool has_run_ = false;
};

}  // namespace accel::detail
