// ForkServer: a process that makes workers of itself, for a shim whose workers are no programs of their own.
//
// A C++ program that launches a function (accel/launchers.h) has nothing to execute: its workers are copies of the
// program at a moment when it had one thread. Such a copy becomes a child of the shim, keeps to one thread, and forks
// a worker whenever the shim asks. A worker must be a child of the shim, whose wait status, SIGCHLD and death signal
// everything hangs on; so it is forked twice, and the kernel gives it to the nearest subreaper, which the shim is.
//
//   fork server --fork--> between --fork--> worker       `between` ends: the worker's parent is the shim now
//        <----------- its pid and pidfd -- go ahead ----->  then, as in spawn(): session, signals, streams, limits,
//                                                          cores, memory, death signal; variables; the entry
//
// Requests and answers are packets on a SOCK_SEQPACKET pair; descriptors travel beside them.
//
// Threads:  the server has one, for ever. The client is used by the thread that spawns, and blocks for a fork.
// Source:   tests/unit/launch/; docs/guides/launchers.md.
#pragma once

#include <functional>
#include <string>

#include <sys/types.h>

#include "runtime/supervisor/spawn/spawner.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

// The shim's side.
class ForkServer {
 public:
  // `pid` is a child of this process, at the other end of `socket`.
  ForkServer(UniqueFd socket, pid_t pid) : socket_(std::move(socket)), pid_(pid) {}

  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

  // As spawn(), but the process runs the server's entry: argv is not looked at. Descriptors of keep_fds get other
  // numbers, and ACCEL_CHANNEL, which names them, is written anew.
  // Fails with the stages of spawn(), and "fork server" when it is gone or does not answer.
  [[nodiscard]] SpawnResult spawn(const SpawnRequest& request);

 private:
  UniqueFd socket_;
  pid_t pid_;
};

// The server's side: forks until the other end of `socket` is closed, then ends the process.
// entry   called in each worker, which has no handler of signals and blocks none; the worker ends with the status that
//         it returns, without handlers of atexit().
// No signal but SIGKILL ends the server (quiet_process.h).
// Requires: one thread.
[[noreturn]] void serve_forks(UniqueFd socket, const std::function<int()>& entry);

// `channel` ("<version>:<memfd>:<socket>") with the numbers `from` replaced by those in the same place of `to`.
[[nodiscard]] std::string renumber_channel(const std::string& channel,
                                           const std::vector<int>& from,
                                           const std::vector<int>& to);

}  // namespace accel::supervisor
