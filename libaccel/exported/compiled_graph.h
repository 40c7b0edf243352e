// CompiledGraph: machine code in the place of a graph, for evaluation and for training: when it may run, and with which tensors.
//
// Code for evaluation records nothing for autograd. Code for training computes the loss and all gradients in one call, which the
// forward makes: the loss that it returns has a node of autograd whose backward gives each parameter its gradient, times that
// of the loss, so that hooks, DDP and shards see a backward as usual. A gradient is kept from the forward to the backward.
//
// A call that the code is not for is the interpreter's, and a line says once why; where code is required it is an error. The first
// call runs both, and compares outputs and gradients (compiled_inputs.h says how near they have to be).
//
// Threads:  run() may be called by many at once; all else alone.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include <accel/exported_model.h>

#include "libaccel/exported/compiled_code.h"
#include "libaccel/exported/compiled_inputs.h"
#include "libaccel/exported/graph.h"
#include "libaccel/exported/module_tree.h"
#include "libaccel/exported/stored_tensors.h"

namespace accel::exported {

// Runs the graph on the module's tensors, but for those parameters that have others here, by name.
using Interpreter = std::function<std::vector<at::Tensor>(const TensorsByName& instead)>;

class CompiledGraph {
 public:
  // Throws kUnsupported: the graph writes or takes what code cannot; kCheckpointIncomplete; what CompiledCode throws.
  CompiledGraph(const CompiledPackage& package,
                const ExportedGraph& graph,
                std::string source,
                CompiledUse use);
  // Where the graph's tensors are.
  void bind(const std::map<std::string, TensorPlace>& places, const TensorsByName& constants);

  // users: the caller's inputs, that were checked. std::nullopt: this call is not for the code.
  // Throws kUnsupported instead where code is required.
  [[nodiscard]] std::optional<std::vector<at::Tensor>> run(const std::vector<c10::IValue>& users,
                                                           const Interpreter& interpret) const;

  // Why it is not run any more; empty: it is.
  [[nodiscard]] std::string fault() const;

 private:
  struct Results {
    std::vector<at::Tensor> outputs;    // of the graph
    std::vector<at::Tensor> gradients;  // of gradients_, one for one
    std::vector<at::Tensor> buffers;    // new values of buffers_, one for one
  };
  // Why this call is not for the code; empty: it is.
  [[nodiscard]] std::string fault_of_call(const std::vector<c10::IValue>& users) const;
  [[nodiscard]] Results call(CompiledArguments arguments) const;
  void write_buffers(const Results& results) const;
  [[nodiscard]] std::optional<std::vector<at::Tensor>> compare_first(
      CompiledArguments arguments, const Interpreter& interpret) const;
  // What differs, as a text; empty: nothing.
  [[nodiscard]] std::string difference_in_evaluation(const Results& results,
                                                     const std::vector<at::Tensor>& expected) const;
  [[nodiscard]] std::string difference_in_training(const Results& results,
                                                   const Interpreter& interpret) const;
  [[nodiscard]] std::vector<at::Tensor> with_derivatives(Results results) const;
  void refuse(const std::string& why) const;

  std::string source_;
  CompiledUse use_;
  CompiledCode code_;
  CompiledInputs inputs_;
  std::vector<std::pair<std::string, std::string>> results_;  // kind and name, in the code's order
  std::vector<std::string> outputs_;
  std::vector<std::string> gradients_;  // names of parameters
  std::vector<std::string> buffers_;
  std::map<std::string, TensorPlace> places_;  // of gradients_ and buffers_
  enum class State { kNotCompared, kGood, kBad };
  mutable std::atomic<State> state_{State::kNotCompared};
  mutable std::mutex first_;   // while the first call is compared
  mutable std::string fault_;  // kBad
};

}  // namespace accel::exported
