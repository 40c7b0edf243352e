// A run goes from event to event: the begin of a call, where its inputs are handed to the hook and back, and its end, where its outputs
// are. Inputs that are used behind the call get their old values back at its end: what a hook puts in their place is for its
// submodule alone.
#include "libaccel/exported/hooked_calls.h"

#include <algorithm>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>

#include <accel/error.h>

#include "runtime/printable.h"

namespace accel::exported {
namespace {

// Values that a hook has, out of the frame meanwhile.
class TakenValues {
 public:
  // Tensors first: what a hook looks for is mostly the first of them.
  TakenValues(const Program& program, std::vector<std::size_t> ids, Frame& frame)
      : ids_(std::move(ids)) {
    std::ranges::stable_partition(ids_, [&](std::size_t id) { return frame[id].isTensor(); });
    for (const std::size_t id : ids_) {
      given.names.push_back(program.value_name(static_cast<ValueId>(id)));
      given.values.push_back(std::move(frame[id]));
    }
  }

  void put_back(const HookedModule& module, Frame& frame) {
    if (given.values.size() != ids_.size())
      throw Error(ErrorCode::kInvalidArgument,
                  "the hook of '" + printable(module.path) + "' got " +
                      std::to_string(ids_.size()) + " values and left " +
                      std::to_string(given.values.size()),
                  "replace values, and add and remove none");
    for (std::size_t i = 0; i < ids_.size(); ++i) frame[ids_[i]] = std::move(given.values[i]);
  }

  HookValues given;

 private:
  std::vector<std::size_t> ids_;
};

}  // namespace

// Where a run is: the calls that have begun, outer ones first.
class HookedCalls::Run {
 public:
  Run(const Program& program, Frame& frame, std::size_t begin)
      : program_(program), frame_(frame), next_(begin) {}

  void begin(const HookedCall& call) {
    advance(call.range.begin);
    Open open{.call = &call};
    for (std::size_t i = 0; i < call.inputs.size(); ++i)
      open.originals.push_back(call.is_used_later[i] ? frame_[call.inputs[i]] : c10::IValue());
    const at::AutoGradMode mode(has_grad());
    TakenValues inputs(program_, call.inputs, frame_);
    call.hook->pre_forward(*call.module, inputs.given);
    inputs.put_back(*call.module, frame_);
    open.is_without_grad = call.hook->no_grad();
    open_.push_back(std::move(open));
  }

  // Ends the calls that end at this node or before it.
  void end_until(std::size_t node) {
    while (!open_.empty() && open_.back().call->range.end <= node) {
      advance(open_.back().call->range.end);
      const Open open = std::move(open_.back());
      open_.pop_back();
      end(open);
    }
  }

  void advance(std::size_t node) {
    const at::AutoGradMode mode(has_grad());
    program_.run(frame_, next_, node);
    next_ = node;
  }

 private:
  struct Open {
    const HookedCall* call = nullptr;
    std::vector<c10::IValue> originals;  // of inputs that are used behind the call
    bool is_without_grad = false;
  };

  [[nodiscard]] bool has_grad() const {
    return at::GradMode::is_enabled() && std::ranges::none_of(open_, &Open::is_without_grad);
  }

  void end(const Open& open) {
    const HookedCall& call = *open.call;
    for (std::size_t i = 0; i < call.inputs.size(); ++i)
      if (call.is_used_later[i]) frame_[call.inputs[i]] = open.originals[i];
    const at::AutoGradMode mode(has_grad());
    TakenValues outputs(program_, call.outputs, frame_);
    call.hook->post_forward(*call.module, outputs.given);
    outputs.put_back(*call.module, frame_);
  }

  const Program& program_;
  Frame& frame_;
  std::size_t next_;
  std::vector<Open> open_;
};

void HookedCalls::refuse_overlap(const std::vector<NodeRange>& calls,
                                 const std::string& path) const {
  if (calls_ == nullptr) return;
  for (const HookedCall& other : *calls_) {
    for (const NodeRange& range : calls) {
      const NodeRange& first = range.begin < other.range.begin ? range : other.range;
      const NodeRange& second = range.begin < other.range.begin ? other.range : range;
      const bool is_apart = second.begin >= first.end;
      if (is_apart || second.end <= first.end || first.begin == second.begin) continue;
      throw Error(ErrorCode::kUnsupported,
                  "the graph runs nodes of the module '" + printable(path) + "' among those of '" +
                      printable(other.module->path) + "', and both would have a hook",
                  "give a hook to one of them, or to the module around both");
    }
  }
}

HookedCalls::Calls HookedCalls::calls_except(
    const std::function<bool(const std::string& path)>& is_left_out) const {
  Calls calls;
  if (calls_ == nullptr) return calls;
  std::ranges::copy_if(*calls_, std::back_inserter(calls), [&](const HookedCall& call) {
    return !is_left_out(call.module->path);
  });
  return calls;
}

void HookedCalls::set(std::vector<HookedCall> calls, const std::string& path) {
  Calls all = calls_except([&](const std::string& other) { return other == path; });
  std::ranges::move(calls, std::back_inserter(all));
  std::ranges::sort(all, [](const HookedCall& a, const HookedCall& b) {
    if (a.range.begin != b.range.begin) return a.range.begin < b.range.begin;
    if (a.range.end != b.range.end) return a.range.end > b.range.end;
    return a.module->path.size() < b.module->path.size();
  });
  calls_ = std::make_shared<const Calls>(std::move(all));
}

void HookedCalls::drop(const std::function<bool(const std::string& path)>& is_dropped) {
  calls_ = std::make_shared<const Calls>(calls_except(is_dropped));
}

void HookedCalls::run(const Program& program,
                      Frame& frame,
                      std::size_t begin,
                      std::size_t end) const {
  const std::shared_ptr<const Calls> calls = calls_;  // a hook may change what the next run has
  Run run(program, frame, begin);
  for (const HookedCall& call : *calls) {
    if (call.range.begin < begin || call.range.end > end) continue;
    run.end_until(call.range.begin);
    run.begin(call);
  }
  run.end_until(end);
  run.advance(end);
}

}  // namespace accel::exported
