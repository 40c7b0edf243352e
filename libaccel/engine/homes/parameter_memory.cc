#include "libaccel/engine/homes/parameter_memory.h"

#include <algorithm>
#include <map>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include <ATen/MemoryOverlap.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <accel/error.h>
#include <accel/logging.h>

#include "libaccel/engine/homes/parameter_claim.h"

namespace accel::sharding {
namespace {

const void* storage_of(const at::Tensor& tensor) {
  return tensor.storage().unsafeGetStorageImpl();
}

// The weight that a forward of the module scales down to a norm; undefined: none.
at::Tensor renormed_weight(const torch::nn::Module& module) {
  if (const auto* embedding = module.as<torch::nn::EmbeddingImpl>())
    return embedding->options.max_norm() ? embedding->weight : at::Tensor();
  if (const auto* bag = module.as<torch::nn::EmbeddingBagImpl>())
    return bag->options.max_norm() ? bag->weight : at::Tensor();
  return {};
}

bool has_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.has_storage() && !tensor.is_meta() && tensor.numel() > 0;
}

// visit(name, tensor, "parameter" or "buffer")
template <typename Visit>
void for_each_named_tensor(const torch::nn::Module& module, const Visit& visit) {
  for (const auto& item : module.named_parameters()) visit(item.key(), item.value(), "parameter");
  for (const auto& item : module.named_buffers()) visit(item.key(), item.value(), "buffer");
}

}  // namespace

void refuse_overlaps(const std::vector<NamedParameter>& divided, const torch::nn::Module& module) {
  std::map<const void*, const NamedParameter*> owners;
  std::unordered_set<const c10::TensorImpl*> own;
  for (const NamedParameter& parameter : divided) {
    own.insert(parameter.tensor.unsafeGetTensorImpl());
    if (parameter.tensor.numel() == 0) continue;
    if (ParameterClaim::was_divided(parameter.tensor)) continue;  // they did not overlap then
    const auto [other, is_new] = owners.emplace(storage_of(parameter.tensor), &parameter);
    if (is_new) continue;
    throw Error(ErrorCode::kUnsupported,
                "the parameters " + other->second->name + " and " + parameter.name +
                    " are different tensors of one memory, which cannot be sharded",
                "register one tensor under both names to tie them, or clone one of them");
  }
  for_each_named_tensor(
      module, [&](const std::string& name, const at::Tensor& tensor, const char* kind) {
        if (!has_memory(tensor) || own.contains(tensor.unsafeGetTensorImpl())) return;
        const auto owner = owners.find(storage_of(tensor));
        if (owner == owners.end()) return;
        const NamedParameter& parameter = *owner->second;
        if (at::get_overlap_status(parameter.tensor, tensor) == at::MemOverlapStatus::No) return;
        throw Error(ErrorCode::kUnsupported,
                    "the " + std::string(kind) + " " + name +
                        " is another tensor of the memory of the parameter " + parameter.name +
                        ", which is to be sharded: it would not see the parameter change any more",
                    "clone() it, or use the parameter in its place");
      });
}

void refuse_writing_forwards(const std::vector<NamedParameter>& divided,
                             const torch::nn::Module& module) {
  for (const auto& item : module.named_modules(/*name_prefix=*/"", /*include_self=*/true)) {
    const at::Tensor weight = renormed_weight(*item.value());
    const auto found =
        std::find_if(divided.begin(), divided.end(), [&](const NamedParameter& parameter) {
          return weight.defined() && parameter.tensor.is_same(weight);
        });
    if (found == divided.end()) continue;
    throw Error(ErrorCode::kUnsupported,
                "the module '" + item.key() + "' has max_norm: its forward writes to " +
                    found->name + ", which all ranks read",
                "leave max_norm out and scale the rows before prepare(), or name the module in "
                "ignored_modules");
  }
}

void warn_of_views(const std::vector<NamedParameter>& divided, const torch::nn::Module& module) {
  std::unordered_map<const void*, std::unordered_set<const c10::TensorImpl*>> known;
  for_each_named_tensor(module, [&](const std::string&, const at::Tensor& tensor, const char*) {
    if (has_memory(tensor)) known[storage_of(tensor)].insert(tensor.unsafeGetTensorImpl());
  });
  for (const NamedParameter& parameter : divided) {
    if (!has_memory(parameter.tensor) || ParameterClaim::was_divided(parameter.tensor)) continue;
    const std::size_t num_known = known[storage_of(parameter.tensor)].size();
    const std::size_t num_users = parameter.tensor.storage().use_count();
    if (num_users <= num_known) continue;
    static const Logger logger = get_logger("accel.sharding");
    logger.warning_once(
        "the memory of the parameter " + parameter.name +
        " is also used outside of the model (views and detach(): " +
        std::to_string(num_users - num_known) +
        "), where the values of before prepare() stay: make such tensors afterwards, or let go of "
        "them");
    return;
  }
}

}  // namespace accel::sharding
