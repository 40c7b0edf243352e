// Modules as named tensors, and the comparison with a file.

#include "libaccel/engine/checkpoint/states/module_state.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include <ATen/ops/empty_like.h>
#include <torch/nn/module.h>

#include <accel/error.h>
#include <accel/non_persistent_buffers.h>

#include "libaccel/engine/checkpoint/files/mapped_tensors.h"
#include "libaccel/engine/construction/tensor_memory.h"
#include "libaccel/engine/pager/weight_file.h"
#include "libaccel/interception/state_staging.h"
#include "libaccel/tensors/memory_key.h"

namespace accel::checkpoint {
namespace {

void append_state(const torch::nn::Module& module,
                  const std::string& prefix,
                  std::vector<NamedTensor>& state) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    if (item.value().defined()) state.push_back({prefix + item.key(), item.value()});
  }
  const auto* unsaved = dynamic_cast<const NonPersistentBuffers*>(&module);
  for (const auto& item : module.named_buffers(/*recurse=*/false)) {
    if (!item.value().defined()) continue;
    if (unsaved != nullptr && !unsaved->is_persistent_buffer(item.key())) continue;
    state.push_back({prefix + item.key(), item.value()});
  }
  for (const auto& child : module.named_children()) {
    append_state(*child.value(), prefix + child.key() + ".", state);
  }
}

std::string type_and_shape(at::ScalarType dtype, at::IntArrayRef sizes) {
  std::ostringstream out;
  out << c10::toString(dtype) << sizes;
  return out.str();
}

// Collects what does not fit, by kind, and turns it into one message.
class Faults {
 public:
  void add(const std::string& kind, const std::string& text) { by_kind_[kind].push_back(text); }
  [[nodiscard]] bool empty() const { return by_kind_.empty(); }

  [[nodiscard]] std::string text() const {
    constexpr size_t kShown = 8;
    std::string out;
    for (const auto& [kind, items] : by_kind_) {
      out += (out.empty() ? "" : "; ") + std::to_string(items.size()) + " " + kind + ": ";
      for (size_t i = 0; i < std::min(items.size(), kShown); ++i)
        out += (i > 0 ? ", " : "") + items[i];
      if (items.size() > kShown) out += " and " + std::to_string(items.size() - kShown) + " more";
    }
    return out;
  }

 private:
  std::map<std::string, std::vector<std::string>> by_kind_;
};

}  // namespace

std::vector<NamedTensor> state_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> state;
  append_state(module, "", state);
  return state;
}

StateTensor whole_tensor(at::Tensor values) {
  StateTensor tensor{.shape = values.sizes().vec(), .strides = values.strides().vec()};
  tensor.values = std::move(values);
  return tensor;
}

at::Tensor placed(const at::Tensor& values, const StateDictConfig& config) {
  return config.offload_to_cpu ? values.cpu() : values;
}

UniqueState unique_state(const std::vector<NamedTensor>& state) {
  UniqueState unique;
  std::map<MemoryKey, std::string> kept;
  for (const NamedTensor& item : state) {
    if (may_be_tied(item.tensor)) {
      const auto [first, is_new] = kept.try_emplace(memory_key(item.tensor), item.name);
      if (!is_new) {
        unique.aliases[item.name] = first->second;
        continue;
      }
    }
    unique.tensors.push_back(item);
  }
  return unique;
}

void FittedState::apply(const DividedTensors& loaded, const DividedTensors* present) const {
  before_state_is_written();
  const at::NoGradGuard no_grad;
  for (const Copy& copy : copies_) {
    const std::vector<TensorPart>* from = loaded.find(copy.from);
    if (from == nullptr) {
      if (copy.to.is_meta() && !copy.from.is_meta())
        construction::give_memory(copy.to, construction::memory_like(copy.to));
      // A weight on disk can only be read.
      if (pager::is_in_file(copy.to)) copy.to.set_data(at::empty_like(copy.to));
      copy_loaded(copy.to, copy.from);
      continue;
    }
    const std::vector<TensorPart>& to = *present->find(copy.to);
    for (std::size_t i = 0; i < to.size(); ++i) copy_loaded(to[i].values, from->at(i).values);
  }
}

FittedState fit_state(const torch::nn::Module& module,
                      const safetensors::TensorMap& tensors,
                      const std::filesystem::path& source,
                      const FitOptions& options) {
  const std::vector<NamedTensor> state = state_of(module);
  std::set<MemoryKey> present;
  for (const NamedTensor& item : state) {
    if (tensors.contains(item.name) && may_be_tied(item.tensor))
      present.insert(memory_key(item.tensor));
  }

  FittedState fitted;
  Faults faults;
  std::set<std::string> expected;
  for (const auto& [name, tensor] : state) {
    expected.insert(name);
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      const bool is_tied = may_be_tied(tensor) && present.contains(memory_key(tensor));
      if (is_tied) continue;
      if (options.strict) faults.add("missing in the file", name);
      fitted.missing_.push_back(name);
      continue;
    }
    const at::Tensor& value = found->second;
    const at::ScalarType dtype =
        options.divided == nullptr ? tensor.scalar_type() : options.divided->dtype_of(tensor);
    const std::string difference =
        name + " (" + type_and_shape(value.scalar_type(), value.sizes()) + " in the file, " +
        type_and_shape(dtype, tensor.sizes()) + " in the model)";
    if (value.sizes() != tensor.sizes()) {
      faults.add("of another shape", difference);
    } else if (value.scalar_type() != dtype && options.dtypes == DtypeRule::kSame) {
      faults.add("of another dtype", difference);
    } else {
      fitted.copies_.push_back({tensor, value});
    }
  }
  for (const auto& [name, value] : tensors) {
    if (expected.contains(name)) continue;
    if (options.strict) faults.add("unknown to the model", name);
    fitted.unexpected_.push_back(name);
  }
  if (!faults.empty()) {
    throw Error(ErrorCode::kSafetensorsMismatch,
                source.string() + " does not fit the model: " + faults.text());
  }
  return fitted;
}

}  // namespace accel::checkpoint
