// JoinScope: lets ranks train on different numbers of batches. Made by Accelerator::join_uneven_inputs().
//
// A rank without further batches leaves the scope: it has joined. It stays in the destructor until the last rank has joined.
// Meanwhile it takes part in each step of the other ranks: its gradients count as zero, and it makes the same steps of optimizers and
// schedulers. At the end all copies of a model equal the copy of the last rank that joined.
//
//   joined   calls of all ranks together            in
//   waits    forward(), backward(), accumulate(),   the prepared model, Accelerator
//            clip_grad_norm_(), clip_grad_value_(),
//            unscale_gradients()
//            step(), zero_grad()                    prepared optimizers and schedulers
//
// Other collectives need every rank: gather(), save_state(), the beginning of a pass over a loader. Call them outside the scope.
//
// Averages are sums divided by the number of all ranks, including those that have joined. This is the default of PyTorch's Join,
// divide_by_initial_world_size. With gradient accumulation, the last batch of a rank synchronises the gradients. So does the batch
// that the other ranks train on at that moment.
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
  // Replaces even_batches of the prepared map-style loaders within the scope. Default: the Accelerator's value. With true no rank
  // waits for others.
  std::optional<bool> even_batches;
};

class ACCEL_EXPORT JoinScope {
 public:
  explicit JoinScope(std::shared_ptr<detail::Joining> joining);
  // Blocks until all ranks have joined. Throws the exceptions that the calls of the other ranks cause here, kInvalidArgument if the
  // ranks that still train make different calls, kPeerLost, kProcessGroup. If an exception ends the scope, it does nothing more for
  // the other ranks: they notice when this process ends.
  ~JoinScope() noexcept(false);
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

 private:
  std::shared_ptr<detail::Joining> joining_;
  int exceptions_at_entry_;
};

}  // namespace accel
