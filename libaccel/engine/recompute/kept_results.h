// KeptResults: what the operators of a region give that are not to be computed again, with the region's other operators.
//
//   first run    keep(): such an operator runs, and its results are kept
//   later runs   give(): the results are given in its place, in the same order; autograd makes its node for them as before
//
// Before an operator in place writes to a result (a linear layer adds its bias so), the result is copied, and later runs get
// copies of it. One that was written to behind the region is computed again. An operator that draws leaves the generators as it
// left them first.
//
// Threads:  one at a time.
// Cost:     the memory of the results, and copies of those that are written to; boxing of the region's operators below autograd.
// Source:   create_selective_checkpoint_contexts() of torch/utils/checkpoint.py of PyTorch 2.11.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>

#include <accel/activation_checkpoint.h>

#include "libaccel/engine/recompute/generator_states.h"
#include "libaccel/interception/kernel_scope.h"

namespace accel::recompute {

class KeptResults {
 public:
  explicit KeptResults(KeptOperators operators) : operators_(std::move(operators)) {}
  KeptResults(const KeptResults&) = delete;
  KeptResults& operator=(const KeptResults&) = delete;

  // Of the first run. As KernelHandler::run(); next: whom the operators come to then, or nullptr.
  bool keep(const c10::OperatorHandle& op,
            c10::DispatchKeySet keys,
            torch::jit::Stack* stack,
            interception::KernelHandler* next);
  // How many operators have come to keep() that are to be kept.
  [[nodiscard]] std::size_t size() const noexcept { return results_.size(); }

 private:
  friend class LaterKernels;

  struct Result {
    const c10::FunctionSchema* op = nullptr;
    std::vector<c10::IValue> values;            // tensors of their own, on the same memory
    std::vector<std::uint32_t> versions;        // of the tensors among them
    bool is_copied = false;                     // before something has written to it
    std::optional<GeneratorStates> generators;  // behind it, where it draws
  };

  void copy_before_writes(const c10::OperatorHandle& op, c10::ArrayRef<c10::IValue> arguments);
  void copy(const c10::StorageImpl* storage, Result& result);
  [[nodiscard]] static bool is_as_it_was(const Result& result);

  KeptOperators operators_;
  std::vector<Result> results_;
  std::unordered_map<const c10::StorageImpl*, std::size_t> owners_;  // of what is not copied
  bool is_in_kept_ = false;
};

// While the scope that it is given to lives, the thread's operators are those of a first run.
class FirstKernels final : public interception::KernelHandler {
 public:
  explicit FirstKernels(KeptResults& results) : results_(results) {}
  void set_next(interception::KernelHandler* next) noexcept { next_ = next; }
  bool run(const c10::OperatorHandle& op,
           c10::DispatchKeySet keys,
           torch::jit::Stack* stack) override {
    return results_.keep(op, keys, stack, next_);
  }

 private:
  KeptResults& results_;
  interception::KernelHandler* next_ = nullptr;
};

// The same of a later run.
class LaterKernels final : public interception::KernelHandler {
 public:
  explicit LaterKernels(const KeptResults& results) : results_(results) {}
  void set_next(interception::KernelHandler* next) noexcept { next_ = next; }
  // The next one to be given is number `position`.
  void seek(std::size_t position) noexcept { position_ = position; }
  // Throws kShapeMismatch: the region runs another operator than in the first run.
  bool run(const c10::OperatorHandle& op,
           c10::DispatchKeySet keys,
           torch::jit::Stack* stack) override;

 private:
  const KeptResults& results_;
  std::size_t position_ = 0;
  bool is_in_kept_ = false;
  interception::KernelHandler* next_ = nullptr;
};

}  // namespace accel::recompute
