// PeerMemory: one copy between memory of this process and of another one, by the kernel.
//
// The kernel lets in who may trace the other process: the same user, unless a security module (Yama's ptrace_scope), a
// filter of system calls or PR_SET_DUMPABLE says no. What is mapped from a device cannot be reached at all. So ranks ask both
// before they rely on it (shm_straight.cc).
//
// Threads:  functions without state.
// Cost:     some hundred nanoseconds a call, and some tens for each page, which the kernel pins while it copies.
// Source:   process_vm_readv(2), process_vm_writev(2); what MPI libraries call CMA, cross memory attach.
#pragma once

#include <cstddef>
#include <cstdint>

#include <sys/types.h>

#include <accel/result.h>

namespace accel::shm {

// Both copy all of the bytes. Errors  kPeerLost: there is no such process any more; kUnsupported: the kernel does not let
// this process in; kInternal: nothing is mapped there that can be read or written.
[[nodiscard]] Result<void> read_memory(pid_t process,
                                       std::uint64_t from,
                                       std::byte* to,
                                       std::size_t bytes);
[[nodiscard]] Result<void> write_memory(pid_t process,
                                        std::uint64_t to,
                                        const std::byte* from,
                                        std::size_t bytes);

// Where other processes find these bytes of this one; 0 where they lie in a mapping that nobody can reach.
[[nodiscard]] std::uint64_t reachable_address(const std::byte* data, std::size_t bytes);

}  // namespace accel::shm
