#include <typeinfo>
#include <unordered_set>
#include <vector>

#include <c10/util/Type.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <accel/error.h>
#include <accel/memory_use.h>

#include "libaccel/api/accelerator/model_runtime.h"
#include "libaccel/engine/checkpoint/states/optimizer_state.h"
#include "libaccel/engine/gradients/divided_gradients.h"
#include "libaccel/engine/optim/state_file.h"
#include "libaccel/tensors/optimizer_traits.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel::detail {
namespace {

std::int64_t num_bytes(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<std::int64_t>(tensor.nbytes()) : 0;
}

// What gradients lie in, each memory once: several may be views of one shard or bucket.
class GradientMemory {
 public:
  void add(const at::Tensor& of) {
    const at::Tensor& gradient = of.grad();
    if (!gradient.defined() || sharding::is_stand_in(gradient) || StateRange::of(gradient)) return;
    if (gradient.is_sparse()) {
      bytes_ += num_bytes(gradient._indices()) + num_bytes(gradient._values());
    } else if (seen_.insert(gradient.storage().unsafeGetStorageImpl()).second) {
      bytes_ += static_cast<std::int64_t>(gradient.storage().nbytes());
    }
  }
  [[nodiscard]] std::int64_t bytes() const noexcept { return bytes_; }

 private:
  std::unordered_set<const void*> seen_;
  std::int64_t bytes_ = 0;
};

}  // namespace

MemoryUse memory_use(ModelRuntime& runtime) {
  const torch::nn::Module& module = *runtime.module();
  const ModelSync* const sync = runtime.sync().get();
  const bool is_divided = sync != nullptr && sync->is_divided();
  MemoryUse use;
  if (is_divided) sync->add_memory_use(use);
  GradientMemory gradients;
  std::unordered_set<const void*> seen;  // a tied tensor has several names
  for (const at::Tensor& parameter : module.parameters()) {
    if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    gradients.add(parameter);
    if (is_divided && sync->piece(parameter)) continue;
    (!is_divided && parameter.requires_grad() ? use.parameters : use.whole) += num_bytes(parameter);
  }
  for (const at::Tensor& buffer : module.buffers()) {
    if (buffer.defined() && seen.insert(buffer.unsafeGetTensorImpl()).second)
      use.whole += num_bytes(buffer);
  }
  if (is_divided) {
    for (const NamedParameter& parameter : sync->divided_parameters()) {
      const at::Tensor piece = *sync->piece(parameter.tensor);
      if (piece.defined()) gradients.add(piece);
    }
  }
  use.gradients = gradients.bytes();
  return use;
}

std::int64_t optimizer_bytes(torch::optim::Optimizer& optimizer) {
  if (traits_of(optimizer) == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "the states of an optimizer of type " + c10::demangle(typeid(optimizer).name()) +
                    " cannot be counted: it is none of " + optimizer_names(),
                "call memory_use(model), and add what the class has itself");
  }
  std::int64_t bytes = 0;
  for (const auto& [name, tensor] :
       checkpoint::save_optimizer(optimizer, checkpoint::ParameterNames({})).tensors)
    if (!StateRange::of(tensor)) bytes += num_bytes(tensor);
  return bytes;
}

}  // namespace accel::detail
