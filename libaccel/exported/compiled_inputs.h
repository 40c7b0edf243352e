// CompiledInputs: the tensors that machine code of a graph takes, where they are, and whether they are what it was compiled for.
//
// Code is compiled for the dtypes, the device and the layout of its inputs, and knows no autocast.
//
// Threads:  gather() may be called by many at once; all else alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <accel/error.h>

#include "libaccel/exported/compiled_package.h"
#include "libaccel/exported/graph.h"
#include "libaccel/exported/module_tree.h"
#include "libaccel/exported/stored_tensors.h"

namespace accel::exported {

// Code that is not run, and why.
[[nodiscard]] Error code_cannot(const std::string& source, const std::string& why);

// A line for the user of the program, once for each text: by the logger of accel, or LibTorch's where no PartialState exists.
void say_of_code(const std::string& text);

// How far apart two tensors are that should be the same, as a text for people; empty: near enough.
//
// Two of a floating dtype have to agree to half of their digits: within the square root of the dtype's epsilon of the largest value
// of `expected`, and `slack` beyond. Kernels sum in another order than LibTorch's, which costs some units of the last place for each operator; code that
// reads the wrong memory, or has a value baked in, is wrong in the first digits. Integers are not compared: the larger of two
// nearly equal logits may be another.
[[nodiscard]] std::string difference_of(const at::Tensor& found,
                                        const at::Tensor& expected,
                                        double slack = 0.0);

// As CompiledCode::run() takes them.
struct CompiledArguments {
  std::vector<at::Tensor> read;
  std::vector<at::Tensor> written;
  std::vector<std::int64_t> order;
};

class CompiledInputs {
 public:
  struct Input {
    InputSpec::Kind kind = InputSpec::Kind::kUser;
    std::string name;
    at::ScalarType dtype = at::kFloat;
    std::optional<TensorPlace> place;  // of parameters and buffers
    at::Tensor constant;
    std::size_t user = 0;  // which of the caller's
  };

  // Throws kUnsupported: the graph takes what is no tensor, or writes what it is given; kCheckpointIncomplete: the package takes
  // what the graph has not.
  CompiledInputs(const CompiledPackage& package,
                 const ExportedGraph& graph,
                 const std::string& source);
  void bind(const std::map<std::string, TensorPlace>& places, const TensorsByName& constants);

  [[nodiscard]] const std::vector<Input>& list() const noexcept { return inputs_; }
  // Fills the arguments, from the caller's inputs and the module's tensors. Why this call is not for the code; empty: it is.
  [[nodiscard]] std::string gather(const std::vector<c10::IValue>& users,
                                   CompiledArguments& arguments) const;

 private:
  std::vector<Input> inputs_;
};

}  // namespace accel::exported
