// KernelScope: who computes a thread's operators in place of LibTorch's kernels, below autograd.
//
// Autograd, autocast and the code of modules run as ever; what they call in the end, forward and backward, comes to the handler
// instead of a kernel. It shares the dispatch key Fake and its fallback with parameter_operators.h: of an operator that the handler
// takes nobody asks the owners of parameters, unless it calls run_kernel().
//
// Operators that make views or look at sizes, and some that are made of others, skip the key: their kernels run, and touch no
// values.
//
// Threads:  the one that made the scope. Backward on the CPU runs there.
// Cost:     boxing for each operator of the thread. Without a scope: none.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace accel::interception {

class KernelHandler {
 public:
  virtual ~KernelHandler() = default;
  // Takes the operator's arguments off the stack and puts its results there; or returns false, with the stack as it was, and the
  // operator runs as without a scope. With op.redispatchBoxed(keys, stack) the kernel runs, and the operators that it calls come to
  // the handler.
  virtual bool run(const c10::OperatorHandle& op,
                   c10::DispatchKeySet keys,
                   torch::jit::Stack* stack) = 0;
};

class KernelScope {
 public:
  explicit KernelScope(KernelHandler& handler);
  ~KernelScope();
  KernelScope(const KernelScope&) = delete;
  KernelScope& operator=(const KernelScope&) = delete;

  // Of the scope around it, for a handler that lets it see what it sees; nullptr: there is none.
  [[nodiscard]] KernelHandler* outer() const noexcept { return outer_; }

 private:
  KernelHandler* outer_;
  c10::impl::IncludeDispatchKeyGuard key_;
};

// While it lives, the thread's operators go to their kernels.
class NoKernelScope {
 public:
  NoKernelScope();

 private:
  c10::impl::ExcludeDispatchKeyGuard key_;
};

// As without a scope: asks the owners of parameters, and runs the kernel. Not for operators that they refuse (resize_, set_).
void run_kernel(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

// nullptr: the thread has no scope.
[[nodiscard]] KernelHandler* kernel_handler() noexcept;

}  // namespace accel::interception
