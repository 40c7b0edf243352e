// Rendezvous: a meeting point for ranks without a launcher of accel, such as the ranks of an MPI communicator.
//
//   std::optional<accel::Rendezvous> rendezvous;
//   if (rank == 0) rendezvous.emplace();                                  // opens a store on a free port
//   std::string address = broadcast(rank == 0 ? rendezvous->address() : "");   // by the program's own means
//   accel::Accelerator accelerator({.init_process_group = {.identity = accel::identity_at(
//       address, {.rank = rank, .world_size = size, .local_rank = local_rank, .local_world_size = local_size})}});
//   ...
//   accelerator.end_training();
//   barrier();              // by the program's own means: others may still speak to the store
//   rendezvous.reset();
//
// The environment is not read, except for GLOO_SOCKET_IFNAME when ranks are on several nodes. The other services of a launcher are
// missing: restarts, detection of hangs, checkpoints in memory.
//
// Trust:    as with torch's store: a client that reaches the port can read and write what ranks exchange while they meet. Name the
//           address of an interface that others do not reach ("127.0.0.1" on one node).
#pragma once

#include <memory>
#include <string>

#include <accel/env_contract.h>
#include <accel/export.h>

namespace accel {

// A key-value store like the launcher's. This process hosts it until the object is destroyed.
class ACCEL_EXPORT Rendezvous {
 public:
  // Listens on `host`, a name or an address of this machine. Empty: on all of its addresses; ranks then use the machine's name.
  // Errors  kInvalidArgument: not an address of this machine; kProcessGroup: the system refused. Cost: a port and a thread.
  explicit Rendezvous(const std::string& host = {});
  ~Rendezvous();
  Rendezvous(const Rendezvous&) = delete;
  Rendezvous& operator=(const Rendezvous&) = delete;

  // "HOST:PORT/TOKEN", less than 320 characters. The token distinguishes groups of this store from groups of an older store.
  [[nodiscard]] const std::string& address() const noexcept { return address_; }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::string address_;
};

struct RankPlacement {
  int rank = 0;
  int world_size = 1;
  int local_rank =
      0;  // among the ranks of this group on this node: MPI_Comm_split_type(..., MPI_COMM_TYPE_SHARED, ...)
  int local_world_size = 1;  // their number
};

// The identity of this process among the ranks of this rendezvous. Errors  kInvalidArgument: not an address of a rendezvous (for one
// rank it may be empty), or inconsistent ranks.
ACCEL_EXPORT WorkerIdentity identity_at(const std::string& address, const RankPlacement& placement);

}  // namespace accel
