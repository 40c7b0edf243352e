// WholeOperators: who sees operators as the program calls them, above autograd, and may answer in their place.
//
// LibTorch's dispatch key DeferredInit is free for libraries and lies above autograd and autocast. Its one fallback for the
// process belongs to this file, and asks one handler after the other until one answers:
//
//   rewritings        of the operator's name, from the one that was added last to the first; for tensors that are marked
//   the thread's own  for every operator of the thread: deferred construction (engine/construction/empty_weights.cc)
//   nobody            the operator runs as it would have
//
// What a handler calls comes to those behind it alone. So low-rank terms are added to a weight that another rewriting divides or
// dequantizes, and what a rewriting computes with is deferred with the rest of a construction.
//
// A mark stays with the parameter, and views inherit it: torch::nn::Linear calls t() and then addmm or matmul. Handlers know
// parameters by their storage. What a backward computes with a marked parameter is no operator of the program, and not rewritten.
//
// Threads:  any.
// Cost:     an operator on marked tensors, or on a thread with a handler: boxing. Others, and before the first: none.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace accel::interception {

class OperatorHandler {
 public:
  virtual ~OperatorHandler() = default;
  // Takes the operator's arguments off the stack and puts results there; or returns false, with the stack as it was.
  virtual bool run(const c10::OperatorHandle& op, torch::jit::Stack* stack) = 0;
};

// While it lives, the handler stands before those that were there. Requires: destroyed while no operator is with the handler.
class Rewriting {
 public:
  // operators: "aten::mm", with the overload behind a point where it has one. Throws c10::Error: there is no such operator.
  Rewriting(const std::vector<std::string>& operators, OperatorHandler& handler);
  ~Rewriting();
  Rewriting(const Rewriting&) = delete;
  Rewriting& operator=(const Rewriting&) = delete;

 private:
  std::uint64_t number_;
};

// Has operators on the parameter come to rewritings, for good. The tensor object stays the same.
void mark_for_rewriting(const at::Tensor& parameter);

// While it lives, the operators of its thread come to the handler, in place of that of a scope around it.
class ThreadHandler {
 public:
  explicit ThreadHandler(OperatorHandler& handler);
  ~ThreadHandler();
  ThreadHandler(const ThreadHandler&) = delete;
  ThreadHandler& operator=(const ThreadHandler&) = delete;

  // Of the scope around it, for a handler that lets it see what it sees; nullptr: there is none.
  [[nodiscard]] OperatorHandler* outer() const noexcept { return outer_; }

 private:
  OperatorHandler* outer_;
  c10::impl::IncludeDispatchKeyGuard key_;
};

// While it lives, the operators of its thread come to nobody.
class NoHandlers {
 public:
  NoHandlers();

 private:
  c10::impl::ExcludeDispatchKeyGuard key_;
};

}  // namespace accel::interception
