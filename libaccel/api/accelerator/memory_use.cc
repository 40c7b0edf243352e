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
#include "libaccel/engine/pager/paged_storage.h"
#include "libaccel/engine/sharding/sharded_model.h"
#include "libaccel/engine/sharding/whole_gradient_model.h"
#include "libaccel/tensors/optimizer_traits.h"

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
    if (!gradient.defined() || sharding::is_stand_in(gradient)) return;
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

// Of what is divided, but for gradients that are done: those are the pieces'.
MemoryUse use_of(const sharding::ShardedModel& model) {
  MemoryUse use;
  const std::int64_t num_shards = model.shares_memory() ? 1 : model.group().size();
  for (std::size_t unit = 0; unit < model.units().size(); ++unit) {
    const Unit& of = model.units()[unit];
    const at::Tensor& seen = model.parameters()[of.slots.front().parameter].tensor;
    use.parameters += of.shard_numel * static_cast<std::int64_t>(seen.element_size()) * num_shards;
    if (model.has_masters()) use.masters += num_bytes(model.shard(unit));
    if (const auto* storage = pager::paged_storage(seen)) {
      const pager::PagerStatistics statistics = storage->table->statistics();
      use.paged = static_cast<std::int64_t>(statistics.live_bytes);
      use.peak_paged = static_cast<std::int64_t>(statistics.peak_bytes);
    }
  }
  if (dynamic_cast<const sharding::WholeGradientModel*>(&model) == nullptr) {
    use.filling = model.gradients().live_bytes();
    use.peak_filling = model.gradients().peak_bytes();
  }
  return use;
}

}  // namespace

MemoryUse memory_use(ModelRuntime& runtime) {
  const torch::nn::Module& module = *runtime.module();
  const auto sharded = std::dynamic_pointer_cast<sharding::ShardedModel>(runtime.sync());
  MemoryUse use;
  if (sharded) use = use_of(*sharded);
  GradientMemory gradients;
  std::unordered_set<const void*> seen;  // a tied tensor has several names
  for (const at::Tensor& parameter : module.parameters()) {
    if (!parameter.defined() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    gradients.add(parameter);
    const bool is_divided = sharded && sharded->owns(parameter);
    if (is_divided) continue;
    const bool is_copied = sharded == nullptr && parameter.requires_grad();
    (is_copied ? use.parameters : use.whole) += num_bytes(parameter);
  }
  for (const at::Tensor& buffer : module.buffers()) {
    if (buffer.defined() && seen.insert(buffer.unsafeGetTensorImpl()).second)
      use.whole += num_bytes(buffer);
  }
  if (sharded) {
    for (const NamedParameter& parameter : sharded->parameters()) {
      if (const auto* piece = sharded->piece_of(parameter.tensor)) gradients.add(piece->tensor);
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
    bytes += num_bytes(tensor);
  return bytes;
}

}  // namespace accel::detail
