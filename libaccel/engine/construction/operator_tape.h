// OperatorTape: the operators that have run on tensors without memory, so that the values of some can be made later.
//
// A value is a tensor object, known by its implementation; views of one memory are values of one storage. To make some
// values, those operators are run again, in their order, that gave or wrote to their storages, and before them those
// that these read. What nobody asks for is not run.
//
// Threads:  one.
// Cost:     a copy of each operator's arguments, ordinary tensors that it reads with their values. Others are not kept alive.
#pragma once

#include <cstddef>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "libaccel/interception/stack_tensors.h"

namespace accel::construction {

class OperatorTape {
 public:
  // An operator that has run. arguments: before it ran, with the device that they named. Remembers what it returned.
  void record(const c10::OperatorHandle& op,
              std::vector<c10::IValue> arguments,
              c10::ArrayRef<c10::IValue> results);

  // Whether the tensor is a value of the tape that has no memory yet.
  [[nodiscard]] bool knows(const at::Tensor& tensor) const;

  // Gives memory and values to those tensors and to their views. Throws what their operators throw; then some may have got them.
  void make_real(const std::vector<at::Tensor>& tensors);
  // Its values that somebody holds and that have no memory.
  [[nodiscard]] std::vector<at::Tensor> held() const;

 private:
  struct Value {
    c10::weak_intrusive_ptr<c10::TensorImpl>
        tensor;            // weak: keeps the address from being used again
    c10::Storage storage;  // of no bytes
  };
  // A value among arguments or results.
  struct Place {
    interception::TensorPlace place;
    std::size_t value;
  };
  struct Call {
    c10::OperatorHandle op;
    std::vector<c10::IValue> arguments;  // values left out
    std::vector<Place> reads;
    std::vector<Place> results;
    std::unordered_set<const void*> writes;  // storages
  };

  [[nodiscard]] const Value* find(const at::Tensor& tensor) const;
  std::size_t value_of(const at::Tensor& tensor);
  [[nodiscard]] std::vector<std::size_t> calls_for(const std::vector<std::size_t>& values) const;
  [[nodiscard]] std::vector<std::size_t> with_views(const std::vector<std::size_t>& values) const;
  void make_real_values(const std::vector<std::size_t>& wanted);

  std::vector<Value> values_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> index_;
  std::vector<Call> calls_;
};

}  // namespace accel::construction
