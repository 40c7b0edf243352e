// StdioPlan: what a worker gets as its descriptors 0, 1 and 2. Pure.
//
// | stream is     | redirected | teed             | neither |
// |---------------|------------|------------------|---------|
// | and goes to   | file       | file and console | console |
//
// (--log_dir alone tees every stream: the launcher says so in the WorkerSpec.)
//
// LogPolicy::merge_stderr: stderr goes where stdout goes, as the same descriptor.
//
// | rank 0, console on a terminal | it gets |
// |-------------------------------|------------------------------------------------------------------|
// | alone, nothing captured       | the terminal itself, as its foreground process group | |
// otherwise (use_pty)           | a pseudo terminal for each of its streams that go to the terminal
// | | all other ranks and streams   | a pipe |
#pragma once

#include "runtime/supervisor/logs/log_layout.h"
#include "runtime/supervisor/logs/log_router.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::supervisor {

struct StreamRoute {
  bool to_file = false;
  bool to_console = false;
};

[[nodiscard]] StreamRoute route_of(const WorkerSpec& worker, Stream stream);

enum class OutputKind { kPipe, kPseudoTerminal, kInherited };
enum class InputKind {
  kNull,            // /dev/null
  kHeldPipe,        // a pipe in which nothing comes, until end_inputs() closes it
  kInherited,       // the owner's own descriptor
  kPumpedPipe,      // a pipe fed from the owner's terminal
  kPseudoTerminal,  // the same pseudo terminal as stdout, fed from the owner's terminal
};

struct StdioPlan {
  InputKind in = InputKind::kNull;
  OutputKind out = OutputKind::kPipe;
  OutputKind err = OutputKind::kPipe;
  TerminalSetup terminal = TerminalSetup::kNone;
};

// Which of the owner's descriptors are terminals.
struct OwnerTerminals {
  bool in = false;
  bool out = false;
  bool err = false;
};

// num_workers  on this node.
[[nodiscard]] StdioPlan plan_stdio(const WorkerSpec& worker,
                                   std::size_t num_workers,
                                   const LogPolicy& log,
                                   const ConsolePolicy& console,
                                   const OwnerTerminals& owner);

}  // namespace accel::supervisor
