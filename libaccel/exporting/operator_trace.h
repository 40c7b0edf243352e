// OperatorTrace: the graph of a module's forward, put together while it runs.
//
// Operators are seen above autograd and autocast, as the module's code calls them (interception/whole_operators.h): layer_norm and
// dropout stay whole, and torch::nn::Linear is what it calls, t() and addmm(). A tensor is known by its implementation, and the
// memory that it lies in by its storage:
//
//   parameters, buffers, inputs   are there from the start
//   results of operators          become values as the operators return
//   anything else                 is a constant when it cannot depend on what is traced, otherwise an error
//
// What a graph cannot say is refused while it happens, with the operator's name: reading values to decide on them (item(), equal()
// of two tensors), results whose size depends on values, derivatives that no operator has (torch::autograd::Function), backward(),
// autocast, writes to parameters and constants. What no operator shows, as a loop over data_ptr(), is found by trace_check.h.
//
// Threads:  the one that traces.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/exporting/module_tensors.h"
#include "libaccel/exporting/traced_graph.h"
#include "libaccel/exporting/value_names.h"
#include "libaccel/interception/whole_operators.h"

namespace accel::exporting {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

class OperatorTrace final : public interception::OperatorHandler {
 public:
  // decided: operators that read values and may be believed to answer always what they answer now: "aten::equal".
  OperatorTrace(const std::vector<ModuleTensor>& tensors,
                const NamedTensors& inputs,
                std::set<std::string> decided);

  // Throws kUnsupported for what a graph cannot say.
  bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;

  // Once, with what forward returned.
  [[nodiscard]] TracedGraph finish(const NamedTensors& outputs);

 private:
  enum class Origin : std::uint8_t { kParameter, kBuffer, kInput, kConstant, kOperator };
  struct Known {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;  // keeps the address from being used again
    exported::ValueId id = exported::kNoValue;
    bool requires_grad = false;
  };
  struct Memory {
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    Origin origin = Origin::kOperator;
    bool is_unwritten = false;  // of at::empty() and its like, so far
    bool has_been_written = false;
    std::string name;  // of a parameter, buffer or input
  };

  // ---- values ----
  exported::ValueId add_value(const std::string& name, const at::Tensor& tensor);
  exported::ValueId add_input(exported::InputSpec::Kind kind,
                              const std::string& target,
                              const std::string& name,
                              const at::Tensor& tensor);
  void remember(const at::Tensor& tensor, exported::ValueId id);
  Memory* memory_of(const at::Tensor& tensor);
  void remember_memory(const at::Tensor& tensor, Origin origin, const std::string& name);
  [[nodiscard]] const Known* known(const at::Tensor& tensor) const;

  // ---- what operators take ----
  [[nodiscard]] bool answers_without_values(const c10::OperatorHandle& op,
                                            const torch::jit::Stack& arguments) const;
  void check_operator(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) const;
  exported::Argument argument_of(const c10::FunctionSchema& schema,
                                 const c10::Argument& to,
                                 const at::Tensor& tensor);
  exported::ValueId value_of(const c10::FunctionSchema& schema, const at::Tensor& tensor);
  exported::ValueId same_place(const at::Tensor& tensor);
  exported::ValueId add_constant(const at::Tensor& tensor);
  exported::ValueId without_gradient(exported::ValueId id, const at::Tensor& tensor);
  void check_gradient(const c10::FunctionSchema& schema,
                      const Known& value,
                      const at::Tensor& tensor);
  void note_write(const c10::FunctionSchema& schema, const at::Tensor& tensor);

  // ---- nodes ----
  exported::Node node_of(const c10::OperatorHandle& op, const torch::jit::Stack& arguments);
  void add_results(const c10::OperatorHandle& op,
                   exported::Node node,
                   c10::ArrayRef<c10::IValue> results);
  exported::ValueId result_value(const at::Tensor& tensor, const std::string& name, bool is_empty);

  ValueNames names_;
  std::set<std::string> decided_;
  TracedGraph traced_;
  std::vector<exported::InputSpec> user_inputs_;  // come last
  std::unordered_map<const c10::TensorImpl*, Known> known_;
  std::unordered_map<const c10::StorageImpl*, Memory> memories_;
};

}  // namespace accel::exporting
