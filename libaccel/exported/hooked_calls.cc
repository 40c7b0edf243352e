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

HookValues values_of(const Program& program, const std::vector<std::size_t>& ids, Frame& frame) {
  HookValues taken;
  for (const std::size_t id : ids) {
    taken.names.push_back(program.value_name(static_cast<ValueId>(id)));
    taken.values.push_back(std::move(frame[id]));
  }
  return taken;
}

void put_back(HookValues values,
              const std::vector<std::size_t>& ids,
              const HookedModule& module,
              Frame& frame) {
  if (values.values.size() != ids.size())
    throw Error(ErrorCode::kInvalidArgument,
                "the hook of '" + printable(module.path) + "' got " + std::to_string(ids.size()) +
                    " values and left " + std::to_string(values.values.size()),
                "replace values, and add and remove none");
  for (std::size_t i = 0; i < ids.size(); ++i) frame[ids[i]] = std::move(values.values[i]);
}

}  // namespace

// Where a run is: the calls that have begun, outer ones first.
class HookedCalls::Run {
 public:
  Run(const Program& program, Frame& frame, std::size_t begin)
      : program_(program), frame_(frame), next_(begin) {}

  void begin(const Call& call) {
    advance(call.range.begin);
    Open open{.call = &call};
    for (std::size_t i = 0; i < call.inputs.size(); ++i)
      open.originals.push_back(call.is_used_later[i] ? frame_[call.inputs[i]] : c10::IValue());
    HookValues inputs = values_of(program_, call.inputs, frame_);
    call.hook->pre_forward(*call.module, inputs);
    put_back(std::move(inputs), call.inputs, *call.module, frame_);
    open.is_without_grad = call.hook->no_grad();
    open_.push_back(std::move(open));
  }

  // Ends the calls that end at this node or before it.
  void end_until(std::size_t node) {
    while (!open_.empty()) {
      const auto first = std::ranges::min_element(
          open_.rbegin(), open_.rend(), {}, [](const Open& open) { return open.call->range.end; });
      if (first->call->range.end > node) return;
      advance(first->call->range.end);
      const Open open = std::move(*first);
      open_.erase(std::next(first).base());
      end(open);
    }
  }

  void advance(std::size_t node) {
    const bool is_without_grad = std::ranges::any_of(open_, &Open::is_without_grad);
    const at::AutoGradMode mode(at::GradMode::is_enabled() && !is_without_grad);
    program_.run(frame_, next_, node);
    next_ = node;
  }

 private:
  struct Open {
    const Call* call = nullptr;
    std::vector<c10::IValue> originals;  // of inputs that are used behind the call
    bool is_without_grad = false;
  };

  void end(const Open& open) {
    const Call& call = *open.call;
    for (std::size_t i = 0; i < call.inputs.size(); ++i)
      if (call.is_used_later[i]) frame_[call.inputs[i]] = open.originals[i];
    HookValues outputs = values_of(program_, call.outputs, frame_);
    call.hook->post_forward(*call.module, outputs);
    put_back(std::move(outputs), call.outputs, *call.module, frame_);
  }

  const Program& program_;
  Frame& frame_;
  std::size_t next_;
  std::vector<Open> open_;
};

void HookedCalls::add(const Program& program,
                      const NodeRange& range,
                      std::vector<std::size_t> inputs,
                      const std::shared_ptr<const HookedModule>& module,
                      const std::shared_ptr<ModelHook>& hook) {
  Call call{.range = range,
            .inputs = std::move(inputs),
            .outputs = program.values_out_of(range.begin, range.end),
            .module = module,
            .hook = hook};
  for (const std::size_t id : call.inputs)
    call.is_used_later.push_back(program.is_used_from(static_cast<ValueId>(id), range.end));
  calls_.push_back(std::move(call));
  std::ranges::sort(calls_, [](const Call& a, const Call& b) {
    if (a.range.begin != b.range.begin) return a.range.begin < b.range.begin;
    if (a.range.end != b.range.end) return a.range.end > b.range.end;
    return a.module->path.size() < b.module->path.size();
  });
}

void HookedCalls::run(const Program& program,
                      Frame& frame,
                      std::size_t begin,
                      std::size_t end) const {
  Run run(program, frame, begin);
  for (const Call& call : calls_) {
    if (call.range.begin < begin || call.range.end > end) continue;
    run.end_until(call.range.begin);
    run.begin(call);
  }
  run.end_until(end);
  run.advance(end);
}

}  // namespace accel::exported
