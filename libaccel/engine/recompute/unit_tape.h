// UnitTape: the operators that a unit of a model has run in a forward, so that they can run again without the unit's code.
//
// A value is a tensor that an operator of the tape has made; the others, which come from outside, are held. When the tape runs, values are
// made anew, and each operator that autograd has saved tensors of fills the slots of these.
//
//   from outside             held: the unit's input, parameters, masks. What operators write to is kept as it was before
//                            (outside_memory.h), also when an operator behind the unit writes to it
//   factories (zeros, empty) their tensors are held, as from outside: code may fill them by address
//   generators               their state before each operator that draws
//   autocast, grad mode      the thread's state of each operator
//
// What is no operator is not seen: code that writes to a value by its address (data_ptr(), accessors).
//
// Threads:  records on the thread of the forward, runs on those of the backward.
// Cost:     some hundred bytes for each operator, 5 KB for each that draws; boxing of the unit's operators.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/ThreadLocalState.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "libaccel/engine/recompute/generator_states.h"
#include "libaccel/engine/recompute/kept_results.h"
#include "libaccel/engine/recompute/outside_memory.h"
#include "libaccel/interception/recomputed_tensors.h"
#include "libaccel/interception/stack_tensors.h"

namespace accel::recompute {

// What a thread's operators depend on.
struct ThreadConditions {
  ThreadConditions();
  [[nodiscard]] bool are_those_of_now() const;

  at::ThreadLocalState state;
  c10::impl::LocalDispatchKeySet keys;
  bool has_grad;
  at::ScalarType autocast_cpu;
  at::ScalarType autocast_cuda;
};

class UnitTape {
 public:
  // Runs the operators up to the last slot that is asked for. Throws kInvalidArgument: a tensor from outside was changed in place
  // since; kShapeMismatch as RecomputedTensors.
  void run_again(interception::RecomputedTensors::Filling& filling) const;

  // Before an operator outside of the tape writes to a tensor that is held.
  void keep(const at::Tensor& tensor) { outside_.keep(tensor); }

 private:
  friend class UnitRecorder;
  class Run;

  struct Held {
    at::Tensor tensor;  // leads to no graph
    GraphRole role;
    std::uint32_t version;
  };
  struct Read {
    interception::TensorPlace place;
    bool is_held;
    std::size_t index;  // into held_, or of a value
    GraphRole
        role;  // which no operator may have given: functions of the program have nodes of their own
  };
  struct Result {
    interception::TensorPlace place;
    std::size_t value;
  };
  struct Call {
    c10::OperatorHandle op;
    std::vector<c10::IValue> arguments;  // without tensors
    std::vector<Read> reads;
    std::vector<Result> results;
    std::size_t first_slot;
    std::size_t num_slots;
    std::size_t first_kept;  // of the results that it finds kept
    std::shared_ptr<const ThreadConditions> conditions;
    std::optional<GeneratorStates> generators;
  };

  std::vector<Call> calls_;
  std::vector<Held> held_;
  std::size_t num_values_ = 0;
  OutsideMemory outside_;
  std::optional<KeptResults> kept_;
};

// Writes a tape while a unit runs.
class UnitRecorder {
 public:
  // keep: nullptr: nothing.
  UnitRecorder(interception::Comparison comparison, const KeptOperators* keep);

  // Whether it can run again: false for an operator on a tensor that shares memory with a value and was made by no operator.
  [[nodiscard]] bool can_record(c10::ArrayRef<c10::IValue> arguments) const;
  // Runs the operator and notes it. Requires: can_record().
  void run(const c10::OperatorHandle& op,
           torch::jit::Stack* stack,
           interception::OperatorHandler* next);

  // Whose slots autograd saves to now; nullptr: nobody runs an operator of the unit.
  [[nodiscard]] interception::RecomputedTensors* saved_now() const noexcept {
    return is_in_operator_ ? tensors_.get() : nullptr;
  }
  // Whose operators run below autograd now; nullptr: nobody's, or nothing is kept.
  [[nodiscard]] KeptResults* kept_now() const noexcept {
    return is_in_operator_ && tape_->kept_ ? &*tape_->kept_ : nullptr;
  }
  [[nodiscard]] const std::shared_ptr<UnitTape>& tape() const noexcept { return tape_; }
  // Storages that the tape holds, since the last call.
  [[nodiscard]] std::vector<const c10::StorageImpl*> take_newly_held();

 private:
  // Weak: no other tensor gets the address.
  struct Known {
    c10::weak_intrusive_ptr<c10::TensorImpl> tensor;
    bool is_held;
    std::size_t index;
  };

  [[nodiscard]] UnitTape::Read read_of(const interception::TensorPlace& place,
                                       const at::Tensor& tensor);
  [[nodiscard]] std::shared_ptr<const ThreadConditions> conditions();

  std::shared_ptr<UnitTape> tape_ = std::make_shared<UnitTape>();
  std::shared_ptr<interception::RecomputedTensors> tensors_;
  std::unordered_map<const c10::TensorImpl*, Known> known_;
  InsideMemory inside_;
  std::shared_ptr<const ThreadConditions> conditions_;
  std::vector<const c10::StorageImpl*> newly_held_;
  bool is_in_operator_ = false;
};

}  // namespace accel::recompute
