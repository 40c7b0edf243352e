// ShapeKernels: runs operators on sizes alone: tensors of the CPU whose memory is counted by a MemoryLedger, and has no values.
//
//   views, and operators made of others   their kernels run, and what they call comes back here
//   in place                              nothing is done
//   all others                            LibTorch's own kernels for the device meta tell sizes and strides, or a SizeRule does
//
// So autograd, autocast and the operators' choices between kernels (which attention, which batch norm) are those of the CPU.
// What a kernel takes for itself is counted where a SizeRule says so.
//
// work() has what they would compute and move: the bytes of all tensors that operators take and give, but for views, and for what is
// made without being written.
//
// Threads:  one at a time.
// Errors    throws kUnsupported naming the operator: it reads a value, its result has a size that depends on values, or no rule
// knows it.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/interception/kernel_scope.h"
#include "libaccel/planning/memory_ledger.h"
#include "libaccel/planning/size_rules.h"

namespace accel::planning {

// Of operators.
struct OperatorWork {
  double flops =
      0;  // multiplications and additions of matrix products, convolutions, attention and LSTMs
  double bytes = 0;  // read and written
};

class ShapeKernels final : public interception::KernelHandler {
 public:
  explicit ShapeKernels(std::shared_ptr<MemoryLedger> ledger) : ledger_(std::move(ledger)) {}

  bool run(const c10::OperatorHandle& op,
           c10::DispatchKeySet keys,
           torch::jit::Stack* stack) override;

  // On the CPU, without values.
  [[nodiscard]] at::Tensor make(const Shape& shape) const;

  // One for each operator that has flops, so far.
  [[nodiscard]] const std::vector<OperatorWork>& products() const noexcept { return products_; }
  // Of all others together.
  [[nodiscard]] double other_bytes() const noexcept { return other_bytes_; }

 private:
  enum class Kind : std::uint8_t { kRule, kKernel, kInPlace, kResize, kMeta };
  struct Plan {
    Kind kind = Kind::kMeta;
    bool moves = true;  // its results are written
    SizeRule rule = nullptr;
    double (*flops)(Arguments) = nullptr;
    std::int64_t (*scratch)(Arguments) = nullptr;  // beside a rule's
  };
  const Plan& plan_of(const c10::OperatorHandle& op);
  void run_planned(const c10::OperatorHandle& op,
                   c10::DispatchKeySet keys,
                   torch::jit::Stack* stack,
                   const Plan& plan);
  void run_on_meta(const c10::OperatorHandle& op, torch::jit::Stack* stack) const;
  void resize(const at::Tensor& tensor, c10::IntArrayRef sizes) const;

  std::shared_ptr<MemoryLedger> ledger_;
  std::unordered_map<const c10::FunctionSchema*, Plan> plans_;
  std::vector<OperatorWork> products_;
  double other_bytes_ = 0;
};

}  // namespace accel::planning
