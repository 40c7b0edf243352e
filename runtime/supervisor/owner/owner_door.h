// OwnerDoor: where a shim that holds is found by its next owner.
//
// A SOCK_SEQPACKET socket in a folder of mode 0700. Who connects must be of the shim's uid or root
// (SO_PEERCRED), speak a common protocol, and know the job's token: the workers have the same uid,
// so that alone says nothing.
//
//   shim -> owner   hello
//   owner -> shim   adopt (protocols, token)
//   shim -> owner   snapshot and what was missed, or refused
//
// Threads:  the one that runs the io_context.
// Source:   docs/internals/supervision.md "Owners that come back"; tests/fault/hold_test.cc.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>

#include <accel/result.h>

#include "runtime/supervisor/protocol/frames.h"
#include "runtime/unique_fd.h"

namespace accel::supervisor {

struct OwnerDoorOptions {
  std::string folder;
  std::string job_id;
  std::string node_id;
  std::string instance;
  std::string token;
  std::string build;
};

class OwnerDoor {
 public:
  // Whether a new owner may come in now; if not, why not.
  using Gate = std::function<Result<void>()>;
  // Takes the connection to one that has proved itself, and its pidfd (empty when it is gone).
  using Welcome = std::function<void(FrameSocket, UniqueFd)>;

  // Listens and writes the state file. Errors  kShimState.
  [[nodiscard]] static Result<std::unique_ptr<OwnerDoor>> open(boost::asio::io_context& context,
                                                               OwnerDoorOptions options,
                                                               Gate gate,
                                                               Welcome welcome);

  // Removes socket and state file.
  ~OwnerDoor();
  OwnerDoor(const OwnerDoor&) = delete;
  OwnerDoor& operator=(const OwnerDoor&) = delete;

 private:
  class Impl;
  explicit OwnerDoor(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;  // shared with the handlers that are in flight
};

// Whether both are the same; takes the same time wherever they differ.
[[nodiscard]] bool is_same_secret(const std::string& given, const std::string& expected);

}  // namespace accel::supervisor
