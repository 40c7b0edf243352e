// ModuleState: the tensors of a module by name, and how tensors of a file fit into them.
//
// Names and order are those of Python's state_dict(): the parameters of a module, then its buffers,
// then its children. Tensors that share their memory exactly (tied weights) are stored once, under
// the name that comes first; the file's metadata maps the other names to it, as Python's
// safetensors does.
//
// Threads:  the thread that owns the module.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/safetensors_file.h>
#include <accel/state_dict_type.h>
#include <accel/state_view.h>

#include "libaccel/tensors/divided_tensors.h"

namespace torch::nn {
class Module;
}

namespace accel::checkpoint {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// Borrows the module's tensors. Undefined buffers are left out.
[[nodiscard]] std::vector<NamedTensor> state_of(const torch::nn::Module& module);

[[nodiscard]] StateTensor whole_tensor(at::Tensor values);
// On the CPU where that is wanted.
[[nodiscard]] at::Tensor placed(const at::Tensor& values, const StateDictConfig& config);

struct UniqueState {
  std::vector<NamedTensor> tensors;  // one of each tied group
  safetensors::Metadata aliases;     // every other name -> the one that is kept
};
[[nodiscard]] UniqueState unique_state(const std::vector<NamedTensor>& state);

enum class DtypeRule {
  kSame,     // a checkpoint: another dtype is another model
  kConvert,  // weights from elsewhere
};

struct FitOptions {
  bool strict = true;  // false: names that only one side has are left alone
  DtypeRule dtypes = DtypeRule::kSame;
  // Of the module: says which dtypes files have of them.
  const DividedTensors* divided = nullptr;
};

// Values that are known to fit their places.
class FittedState {
 public:
  // Copies the values into the module's tensors, on their devices; those of the meta device get memory, on the CPU. A placeholder, whose parts are in `loaded`, goes to the
  // parts that `present` gives of its tensor, which are the same ones.
  void apply(const DividedTensors& loaded = {}, const DividedTensors* present = nullptr) const;
  // Names that only one side has, where that is no fault: of the model, in its order; of the file, sorted.
  [[nodiscard]] const std::vector<std::string>& missing() const noexcept { return missing_; }
  [[nodiscard]] const std::vector<std::string>& unexpected() const noexcept { return unexpected_; }

 private:
  friend FittedState fit_state(const torch::nn::Module&,
                               const safetensors::TensorMap&,
                               const std::filesystem::path&,
                               const FitOptions&);
  struct Copy {
    at::Tensor to;
    at::Tensor from;
  };
  std::vector<Copy> copies_;
  std::vector<std::string> missing_;
  std::vector<std::string> unexpected_;
};

// Finds a place for every tensor of `tensors`. A name that is missing is no fault when a tensor
// tied to it is there. `source` is for the message. Errors  throws kSafetensorsMismatch: all
// missing and unexpected names and all differences of shape and
//         dtype (the first of many).
[[nodiscard]] FittedState fit_state(const torch::nn::Module& module,
                                    const safetensors::TensorMap& tensors,
                                    const std::filesystem::path& source,
                                    const FitOptions& options = {});

}  // namespace accel::checkpoint
