// ExportedCalls: several calls of an exported model side by side. Each weight is used for all of them before the next one is.
//
//   accel::ExportedCalls calls(*net);
//   auto first = calls.new_state();
//   auto second = calls.new_state();
//   const auto outputs = calls({{accel::ExportedInputs{{"input_ids", a}}, &first}, {accel::ExportedInputs{{"input_ids", b}}, &second}});
//
// The graph is cut before each operator that takes a parameter; what is made of parameters alone is in one part with what takes it
// first. A part runs for one call after the other, then comes the next part. So a weight on disk (accel/offload.h) is read once for all
// calls, and each call is the one that the model alone would have made. The numbers are equal to the bit, but for a graph that draws
// numbers, as dropout does in training: the calls draw from one generator in turn. Calls may have inputs of different sizes.
//
// A state has copies of the buffers that the graph writes, such as a static cache of keys and values. Calls that follow each other
// share one. Machine code of `accel export --compile` is not used.
//
// Threads:  as ExportedModelImpl::forward(); calls of one state alone.
// Cost:     that of the calls, and what lies between two operators of each of them in memory.
// Source:   tests/unit/libaccel/exported/exported_calls_test.cc.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/export.h>
#include <accel/exported_model.h>

namespace accel {

namespace exported {
class BoundGraph;
}

// Buffers by their names in Python.
using ExportedState = std::map<std::string, at::Tensor>;

// One call, and whose sequence it goes on with.
struct ExportedCall {
  // By name, as ExportedModel takes them.
  ExportedInputs inputs;
  // Takes the place of the model's own buffers of these names; has all that the graph writes. nullptr: the model's.
  ExportedState* state = nullptr;
};

// Runs calls of one model.
class ACCEL_EXPORT ExportedCalls {
 public:
  // Of the graph of the mode that the model is in. Borrows the model.
  explicit ExportedCalls(const ExportedModelImpl& model);

  // The buffers that the graph writes, and constants that it writes as if they were some. What an operator of the program's own
  // takes, or a graph within the graph, counts as written.
  [[nodiscard]] const std::vector<std::string>& written_buffers() const noexcept {
    return written_;
  }
  // They themselves, as calls without a state write them.
  [[nodiscard]] ExportedState own_state() const;
  // Copies of them, as they are now.
  [[nodiscard]] ExportedState new_state() const;

  // The outputs of each call. Errors  throws as ExportedModelImpl::forward(); kInvalidArgument: a state lacks a buffer that the graph writes; two
  // calls write the same memory; kUnsupported: a submodule has a hook (accel/model_hooks.h), which would see no whole call.
  [[nodiscard]] std::vector<ExportedOutputs> operator()(
      const std::vector<ExportedCall>& calls) const;

 private:
  const exported::BoundGraph* graph_;
  std::vector<std::size_t> cuts_;  // nodes at which parts begin, and the number of nodes
  std::vector<std::string> written_;
};

}  // namespace accel
