// MemoryOffer: how a process names memory that it holds, so that others of the node can open it.
//
// The others open /proc/PID/fd/FD, which needs no socket and no name in a file system: the kernel lets in who may look
// into the process (the same user). A pid may mean another process by then, and a descriptor another file; so what was
// opened is compared with what was offered.
//
// Threads:  functions without state.
// Source:   proc(5), memfd_create(2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include <sys/types.h>

#include <accel/result.h>

#include "runtime/unique_fd.h"

namespace accel::shm {

struct MemoryOffer {
  pid_t pid = 0;
  std::uint64_t start_time = 0;  // of the process, in ticks since boot
  int descriptor = -1;
  std::uint64_t device = 0;  // st_dev and st_ino name one file while anybody holds it
  std::uint64_t inode = 0;

  friend bool operator==(const MemoryOffer&, const MemoryOffer&) = default;
};

// Of a descriptor of this process, which must keep it until the others have opened it. Errors  kInternal.
[[nodiscard]] Result<MemoryOffer> offer_memory(int memory);

// The same memory. Errors  kPeerLost: the process is gone, or the descriptor means something else by now;
// kUnsupported: the kernel does not let this process in (another user, a hidden /proc), or what is offered is no memory
// of this user whose size is sealed: it could be cut off under its readers.
[[nodiscard]] Result<UniqueFd> open_offer(const MemoryOffer& offer);

// Five numbers, parted by blanks.
[[nodiscard]] std::string to_text(const MemoryOffer& offer);
// Errors  kInvalidArgument.
[[nodiscard]] Result<MemoryOffer> parse_memory_offer(const std::string& text);

}  // namespace accel::shm
