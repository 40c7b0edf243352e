// LogRouter: everything between a worker's descriptors 0, 1, 2 and the files and the console.
//
// Each stream of each worker is a pipe (or a pseudo terminal) whose other end is here:
//
//   worker 1,2 --pipe--> pump --pipe--> file writer    --> <log_dir>/<job>/attempt_<n>/<rank>/...
//                         | \--lines--> console writer --> the owner's 1 and 2
//                         \---> tail ring, 64 KiB of every stream, for the failure report
//
// The pump thread never touches a file or a terminal, so no disk and no console can hold it up;
// every sink has a writer thread of its own. Buffers between are bounded: a full one stops the pump
// from reading that stream (back-pressure, nothing lost) until the sink fails or has not moved for
// 2 s. Then, or at once under Overflow::kDrop, the surplus is thrown away, counted, and marked
// where it is missing with "[accel: N bytes dropped]". Overflow::kSample keeps lines of it (line_sampler.h).
//
// With LogPolicy::merge_stderr descriptors 1 and 2 are the same pipe: one stream, stdout, in the order of the writes.
//
// Threads:  every member is for the supervisor thread, never waits (close() excepted) and touches
//           neither file system nor terminal. Callbacks come on a thread of the router: post from
//           them.
// Cost:     16 KiB fixed, 64 KiB a stream that ever wrote (tail), 64 KiB a stream with an
// unfinished
//           line, 512 KiB a console; the rest of the buffering is in kernel pipes of 128 KiB.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <sys/types.h>

#include <accel/result.h>

#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

// What a child must do between clone and exec besides dup2, to own its terminal.
enum class TerminalSetup {
  kNone,        // setsid() as always; no controlling terminal
  kOwnSession,  // setsid(), then ioctl(1, TIOCSCTTY, 0): descriptor 1 is the pseudo terminal
  kForeground,  // no setsid(): it joins the owner's process group, so the terminal's signals and a
                // shell's job control reach it as they reach the owner. The shim stays in the
                // owner's session for it (JobSpec::console.foreground).
};

// The child's descriptors. All are close-on-exec here: dup2 them to 0, 1, 2 in the child, and
// destroy this value in the parent once the child exists (else no end of file is ever seen).
struct WorkerStdio {
  UniqueFd in;
  UniqueFd out;
  UniqueFd err;
  TerminalSetup terminal = TerminalSetup::kNone;
};

// The last bytes of a worker's streams, at most 64 KiB each; empty for one that goes straight to
// the owner's terminal, and for a stderr that is merged into stdout.
struct WorkerTail {
  std::string out;
  std::string err;
};

struct LogRouterOptions {
  std::string job_id;
  LogPolicy log;
  ConsolePolicy console;
  std::vector<WorkerSpec> workers;
  std::string role = "default";  // of the workers, for prefixes
  int owner_in = 0;              // borrowed for the router's life; the shim inherits its owner's
  int owner_out = 1;
  int owner_err = 2;
  pid_t owner_pid = 0;  // whose job control decides who may read the terminal; 0: nobody else's
  // A sink dropped, failed or recovered: the text for an event. Called on a router thread,
  // never after close(); must not call the router.
  std::function<void(std::string)> on_notice;
  std::chrono::milliseconds folder_limit{10'000};   // for the disk to make the job's folder
  std::chrono::milliseconds stall_limit{2'000};     // a sink that does not move for so long drops
  std::chrono::milliseconds descendant_limit{500};  // see drain()
  // How long a worker must pause in the middle of a line before a console that is no terminal shows
  // it (see LineMerger); a terminal shows it after 100 ms, of rank 0 after 15 ms.
  std::chrono::milliseconds line_patience{1'000};
  // For tests: called on a writer thread before each portion that goes to a file; it may wait, as a file system that
  // hangs lets write() wait.
  std::function<void()> before_file_portion = {};
};

class LogRouter {
 public:
  // Creates the job's log folder (the one call that waits for a disk, before any worker exists; at
  // most folder_limit) and the threads. Errors  kLogUnwritable: the folder cannot be created or
  // written.
  //         kInvalidArgument: a stream is redirected or teed and LogPolicy::dir is empty.
  [[nodiscard]] static Result<std::unique_ptr<LogRouter>> start(LogRouterOptions options);

  // Gives the writers 1 s in all, unless close() was called before.
  ~LogRouter();
  LogRouter(const LogRouter&) = delete;
  LogRouter& operator=(const LogRouter&) = delete;

  // The descriptors for the worker with this local rank in generation `generation` (its restart
  // count, which names the folder attempt_<generation>). The streams of the generation before go on
  // being drained beside it. Errors  kSpawnFailed: no pipe or pseudo terminal could be had.
  [[nodiscard]] Result<WorkerStdio> open(int local_rank, int generation);

  // ConsolePolicy::stop_by_input: all workers see the end of their input.
  void end_inputs();

  // From now on the worker with local rank k is called rank `first_rank` + k in prefixes.
  void renumber(int first_rank);

  // Puts `text` (what a pipe holds of it, 64 KiB or more) into stacks.log in the worker's folder;
  // nothing without a log folder.
  void write_stacks(int local_rank, int generation, const std::string& text);

  // The worker has exited: takes what is still in its pipes, then calls `done` (on a router
  // thread); the tail is complete by then, the sinks may still be writing. A descendant that keeps
  // a pipe open delays that by descendant_limit at most; what it writes comes until close().
  // Without a running worker `done` comes at once.
  void drain(int local_rank, std::function<void()> done);

  // The newest bytes of this worker's latest generation.
  [[nodiscard]] WorkerTail tail(int local_rank) const;

  // Where the worker's TORCHELASTIC_ERROR_FILE belongs (<its folder>/error.json); empty without a
  // log folder. The folder is created by open().
  [[nodiscard]] std::string error_file(int local_rank, int generation) const;

  // The owner's window has another size: passed on to the pseudo terminals.
  void resize_window(int rows, int columns);

  // A line below what the workers write, on a terminal that is the owner's stderr; empty: none. `on_done` is called on a router
  // thread once it is there, or not at all when the router closes before.
  void show_status(std::string text, bool despite_returns, std::function<void()> on_done);

  // Every notice so far, oldest first, for JobOutcome::notices.
  [[nodiscard]] std::vector<std::string> notices() const;

  // Writes out what is buffered and ends the threads; call it when no worker is left. Does not wait:
  // `on_change` (on a router thread; it must not call the router) says that it is worth looking at
  // is_drained() again, and comes at least once. The caller decides how long it is patient (DrainWatch)
  // and ends the waiting with end_close().
  void begin_close(std::function<void()> on_change);
  [[nodiscard]] bool is_drained() const;
  // Grows with every byte that a sink has taken or given up.
  [[nodiscard]] std::uint64_t progress() const;
  // Gives up on what is not written, with a notice that says how much and `why` ("in time"). False when
  // something was lost. Nothing is called back after this.
  bool end_close(const std::string& why);

  // The three in one, waiting: until no sink has moved for `standstill`, and `at_most` in any case.
  bool close(std::chrono::milliseconds standstill,
             std::chrono::milliseconds at_most = std::chrono::hours(1));

 private:
  class Impl;
  explicit LogRouter(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace accel::supervisor
