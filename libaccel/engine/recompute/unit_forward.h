// UnitForward: a forward of an unmodified model in which the activations of its units are not kept.
//
// A unit is a set of parameters, as a wrap policy makes them. Its part of the forward goes from the first operator that reads one of
// its parameters to the first one that reads a parameter of another unit, or of none. Such a part is recorded (unit_tape.h), and the
// backward runs it again.
//
//   embedding   block 0 ......   block 1 ......   norm, head   loss
//   kept        computed again   computed again   kept         kept
//
// A part ends early where an operator comes whose arguments the tape does not know: the rest of it is kept.
//
// Threads:  one for the life of the object.
#pragma once

#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/activation_checkpoint.h>

#include "libaccel/engine/recompute/unit_tape.h"
#include "libaccel/interception/kernel_scope.h"
#include "libaccel/interception/recomputed_tensors.h"
#include "libaccel/interception/saved_tensors.h"
#include "libaccel/interception/whole_operators.h"

namespace accel::recompute {

using interception::Comparison;

// Not computed again.
inline constexpr int kNoUnit = -1;

// The unit of each parameter of a model, by implementation; kNoUnit: it belongs to none.
using UnitOfParameter = std::unordered_map<const c10::TensorImpl*, int>;

// While it lives, the operators of its thread are those of one forward.
class UnitForward final : public interception::OperatorHandler {
 public:
  // keep: what parts do not compute again; unset: nothing.
  UnitForward(std::shared_ptr<const UnitOfParameter> units,
              Comparison comparison,
              std::optional<KeptOperators> keep = std::nullopt);

  bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;

 private:
  // Below autograd.
  class Kernels final : public interception::KernelHandler {
   public:
    explicit Kernels(UnitForward& forward) : forward_(forward), scope_(*this) {}
    bool run(const c10::OperatorHandle& op,
             c10::DispatchKeySet keys,
             torch::jit::Stack* stack) override;

   private:
    UnitForward& forward_;
    interception::KernelScope scope_;
  };

  void begin_part_of(c10::ArrayRef<c10::IValue> arguments);
  void keep_for_tapes(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);

  std::shared_ptr<const UnitOfParameter> units_;
  Comparison comparison_;
  std::optional<KeptOperators> keep_;
  int unit_ = kNoUnit;
  std::unique_ptr<UnitRecorder> part_;  // of the unit, unless it has ended early
  // Tapes of the forward that hold a storage.
  std::unordered_map<const c10::StorageImpl*, std::vector<std::weak_ptr<UnitTape>>> holders_;
  interception::SavedTensorScope saved_;
  interception::ThreadHandler handler_;
  std::optional<Kernels> kernels_;  // where results are kept
};

}  // namespace accel::recompute
