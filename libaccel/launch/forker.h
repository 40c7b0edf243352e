// Forker: the process that workers are copies of, and that starts their shim.
//
//   program --fork (twice)--> forker --fork--> accel-shim, once executed
//                                                 +-- fork server: a copy of the forker
//                                                        +-- workers (fork_server.h), children of the shim
//
// The program is not the forker's parent, so that no wait() of the program meets a child it does not know, and never a
// subreaper. The forker is one: what a killed shim leaves behind falls to it, and is ended. It ends when the program has
// and the shim has ended the job, which it does when its socket to the program is closed.
//
// Threads:  start() only in a program of one thread; launch() from one thread at a time.
// Source:   docs/guides/launchers.md; tests/unit/launch/, tests/integration/inproc/.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include <sys/types.h>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "libaccel/launch/launch_registry.h"
#include "runtime/unique_fd.h"

namespace accel::launch {

// What the forker makes a job of; descriptors are borrowed.
struct ForkOrder {
  std::string shim_path;
  EnvMap shim_env;
  std::string function_name;  // registered; else
  PlainFunction function =
      nullptr;      // known to the forker under the same address; else what start() was given
  int socket = -1;  // the shim's end of the pair
  int spec = -1;    // memfd with the JobSpec
  int folder = -1;  // that workers begin in
  std::optional<mode_t> mask = {};  // of the files that workers make; none: the forker's own
};

struct StartedShim {
  pid_t pid = 0;
  UniqueFd pidfd;
};

class Forker {
 public:
  // body: what workers run when an order names no function. Errors  kSpawnFailed.
  [[nodiscard]] static Result<Forker> start(std::function<void()> body = {});

  // Errors  kInvalidArgument: the function is not known to the forker; kSpawnFailed.
  [[nodiscard]] Result<StartedShim> launch(const ForkOrder& order);

  // Of the forker. For tests.
  [[nodiscard]] pid_t pid() const noexcept { return pid_; }

 private:
  Forker(UniqueFd socket, pid_t pid, pid_t program)
      : socket_(std::move(socket)), pid_(pid), program_(program) {}

  [[nodiscard]] Error gone() const;

  UniqueFd socket_;
  pid_t pid_;
  pid_t program_;  // that called start()
};

}  // namespace accel::launch
