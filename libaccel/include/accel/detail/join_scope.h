// JoinScope: ranks with fewer batches than others take part until all are done. Made by Accelerator::join_uneven_inputs().
//
// A rank that leaves the scope has joined: it has no batch left. It stays in the destructor, and does for each step of a rank
// that still trains what that needs of all ranks: its gradients count as zero, it takes the same steps of the optimizers and
// schedulers, and it ends when the last rank has joined. Then copies of a model are those of the last rank that joined.
//
//   joined   what all ranks do together             by
//   waits    forward(), backward(), accumulate(),   the prepared model, Accelerator
//            clip_grad_norm_(), clip_grad_value_(),
//            unscale_gradients()
//            step(), zero_grad()                    prepared optimizers and schedulers
//
// Other collectives (gather(), save_state(), the beginning of a pass over a loader) need every rank, so they belong outside of
// the scope.
//
// Averages are sums divided by the number of all ranks, also when some have joined: the default of PyTorch's Join,
// divide_by_initial_world_size. With gradient accumulation a rank's last batch synchronises, and so does the batch that the
// others are at then.
//
// Threads:  the thread that trains.
// Cost:     one small all-reduce for each of those calls; a joined rank computes no forward, and adds zeros to its gradients.
// Source:   torch.distributed.algorithms.join and DistributedDataParallel of PyTorch 2.11; tests/peer/uneven_inputs.py.
#pragma once

#include <memory>
#include <optional>

#include <accel/export.h>

namespace accel {

namespace detail {
class Joining;
}

struct JoinOptions {
  // That of the prepared map-style loaders within the scope. Default: the Accelerator's. With true nobody waits for others.
  std::optional<bool> even_batches;
};

class ACCEL_EXPORT JoinScope {
 public:
  explicit JoinScope(std::shared_ptr<detail::Joining> joining);
  // Blocks until all ranks have joined. Throws what the calls of the others throw here, kInvalidArgument when ranks that still
  // train do not do the same, kPeerLost, kProcessGroup. Left by an exception it does nothing more for others: they learn of it
  // when this process ends.
  ~JoinScope() noexcept(false);
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

 private:
  std::shared_ptr<detail::Joining> joining_;
  int exceptions_at_entry_;
};

}  // namespace accel
