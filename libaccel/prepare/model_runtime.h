// ModelRuntime: what surrounds the forwards of one prepared model.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/precision.h>

#include "libaccel/prepare/ddp_reducer.h"

namespace torch::nn {
class Module;
}

namespace accel::detail {

class ModelRuntime {
 public:
  // reducer: nullptr when there is nobody to synchronise with. autocast: nullopt in fp32.
  ModelRuntime(std::shared_ptr<torch::nn::Module> module,
               std::unique_ptr<DdpReducer> reducer,
               std::optional<AutocastOptions> autocast);

  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& module() const noexcept {
    return module_;
  }
  [[nodiscard]] DdpReducer* reducer() const noexcept { return reducer_.get(); }
  [[nodiscard]] const std::optional<AutocastOptions>& autocast() const noexcept {
    return autocast_;
  }

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::unique_ptr<DdpReducer> reducer_;
  std::optional<AutocastOptions> autocast_;
};

}  // namespace accel::detail
