// HookedCalls: a run of a graph that stops where hooked submodules begin and end.
//
// Calls may lie within each other, as modules do. Where several begin at one node the outer one begins first; where several end
// there, it ends last.
//
// Threads:  run() may be called by many at once, and a hook may change the calls: a run goes on with those that it began with. All
//           else alone.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <accel/model_hooks.h>

#include "libaccel/exported/call_range.h"
#include "libaccel/exported/program.h"

namespace accel::exported {

struct HookedCall {
  NodeRange range;
  std::vector<std::size_t> inputs;  // values
  std::vector<std::size_t> outputs;
  std::vector<bool> is_used_later;  // of inputs
  std::shared_ptr<const HookedModule> module;
  std::shared_ptr<ModelHook> hook;
};

class HookedCalls {
 public:
  // Throws kUnsupported for a call that begins within one of another module and ends behind it.
  void refuse_overlap(const std::vector<NodeRange>& calls, const std::string& path) const;
  // Calls of one module, in place of its calls so far.
  void set(std::vector<HookedCall> calls, const std::string& path);
  void drop(const std::function<bool(const std::string& path)>& is_dropped);
  [[nodiscard]] bool empty() const noexcept { return calls_ == nullptr || calls_->empty(); }

  // A range of nodes, with the hooks of those calls that lie wholly in it.
  void run(const Program& program, Frame& frame, std::size_t begin, std::size_t end) const;

 private:
  class Run;
  using Calls = std::vector<HookedCall>;  // by their begins, outer ones first
  [[nodiscard]] Calls calls_except(
      const std::function<bool(const std::string& path)>& is_left_out) const;

  std::shared_ptr<const Calls> calls_;  // nullptr: none
};

}  // namespace accel::exported
