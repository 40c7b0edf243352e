#include "runtime/supervisor/logs/stdio_plan.h"

namespace accel::supervisor {
namespace {

bool has(Streams set, Stream stream) {
  const Streams bit = stream == Stream::kOut ? Streams::kOut : Streams::kErr;
  return (static_cast<int>(set) & static_cast<int>(bit)) != 0;
}

// Whether the stream needs nothing from us and may be the owner's own descriptor.
bool is_plain(const StreamRoute& route, const LogPolicy& log) {
  return route.to_console && !route.to_file && !log.prefix;
}

InputKind plan_input(const ConsolePolicy& console,
                     const OwnerTerminals& owner,
                     bool has_pseudo_terminal) {
  if (!console.stdin_to_rank0) return InputKind::kNull;
  if (!owner.in) return InputKind::kInherited;
  return has_pseudo_terminal ? InputKind::kPseudoTerminal : InputKind::kPumpedPipe;
}

}  // namespace

StreamRoute route_of(const WorkerSpec& worker, Stream stream) {
  // As torchrun: a stream that is both redirected and teed is teed.
  const bool is_teed = has(worker.tee, stream);
  const bool is_redirected = has(worker.redirect, stream) && !is_teed;
  return {.to_file = is_teed || is_redirected, .to_console = !is_redirected};
}

StdioPlan plan_stdio(const WorkerSpec& worker,
                     std::size_t num_workers,
                     const LogPolicy& log,
                     const ConsolePolicy& console,
                     const OwnerTerminals& owner) {
  StdioPlan plan;
  if (console.stop_by_input) {
    plan.in = InputKind::kHeldPipe;
    return plan;
  }
  if (worker.local_rank != 0) return plan;
  const StreamRoute out = route_of(worker, Stream::kOut);
  const StreamRoute err = route_of(worker, log.merge_stderr ? Stream::kOut : Stream::kErr);

  // A stream of the owner that is no terminal gets a pipe, and does not stand in the way.
  const bool captures_terminal =
      (owner.out && !is_plain(out, log)) || (owner.err && !is_plain(err, log));
  if (console.foreground && num_workers == 1 && console.stdin_to_rank0 && owner.in &&
      !captures_terminal) {
    plan.in = InputKind::kInherited;
    plan.out = owner.out ? OutputKind::kInherited : OutputKind::kPipe;
    plan.err =
        (log.merge_stderr ? owner.out : owner.err) ? OutputKind::kInherited : OutputKind::kPipe;
    plan.terminal = TerminalSetup::kForeground;
    return plan;
  }
  const bool out_on_terminal = console.use_pty && owner.out && out.to_console;
  if (out_on_terminal) {
    plan.out = OutputKind::kPseudoTerminal;
    if ((owner.err || log.merge_stderr) && err.to_console) plan.err = OutputKind::kPseudoTerminal;
    plan.terminal = TerminalSetup::kOwnSession;
  }
  plan.in = plan_input(console, owner, out_on_terminal);
  return plan;
}

}  // namespace accel::supervisor
