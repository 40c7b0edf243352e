// HookedCalls: a run of a graph that stops where hooked submodules begin and end.
//
// Calls may lie within each other, as modules do. Where several begin at one node the outer one begins first; where several end
// there, it ends last.
//
// Threads:  run() may be called by many at once; all else alone.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <accel/model_hooks.h>

#include "libaccel/exported/call_range.h"
#include "libaccel/exported/program.h"

namespace accel::exported {

class HookedCalls {
 public:
  // inputs: the values that the call takes. The program has to outlive this.
  void add(const Program& program,
           const NodeRange& range,
           std::vector<std::size_t> inputs,
           const std::shared_ptr<const HookedModule>& module,
           const std::shared_ptr<ModelHook>& hook);
  void clear() noexcept { calls_.clear(); }
  [[nodiscard]] bool empty() const noexcept { return calls_.empty(); }

  // A range of nodes, with the hooks of those calls that lie wholly in it.
  void run(const Program& program, Frame& frame, std::size_t begin, std::size_t end) const;

 private:
  struct Call {
    NodeRange range;
    std::vector<std::size_t> inputs;
    std::vector<std::size_t> outputs;
    std::vector<bool> is_used_later;  // of inputs
    std::shared_ptr<const HookedModule> module;
    std::shared_ptr<ModelHook> hook;
  };
  class Run;

  std::vector<Call> calls_;  // by their begins, outer ones first
};

}  // namespace accel::exported
