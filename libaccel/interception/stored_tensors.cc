#include "libaccel/interception/stored_tensors.h"

#include <utility>

#include <torch/csrc/autograd/saved_variable_hooks.h>

namespace accel::interception {
namespace {

class StoreHooks final : public torch::autograd::SavedVariableHooks {
 public:
  explicit StoreHooks(std::shared_ptr<TensorStore> store) : store_(std::move(store)) {}
  void call_pack_hook(const at::Tensor& tensor) override { kept_ = store_->keep(tensor); }
  at::Tensor call_unpack_hook() override { return kept_->value(); }

 private:
  std::shared_ptr<TensorStore> store_;
  std::unique_ptr<StoredTensor> kept_;
};

}  // namespace

SavedTensorScope::MakeHooks hooks_of(std::shared_ptr<TensorStore> store) {
  return [store = std::move(store)] { return std::make_unique<StoreHooks>(store); };
}

}  // namespace accel::interception
