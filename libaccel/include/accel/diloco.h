// DiLoCo: each rank trains its own copy of a model for many steps; then an outer optimizer steps a global copy by what the ranks
// have changed. A rank exchanges the parameters once in sync_every steps, in place of the gradients in each.
//
//   {
//     accel::DiLoCo diloco(accelerator, model, optimizer,
//                          {.sync_every = 100, .num_fragments = 4, .fragment_sync_delay = 5, .fragment_update_alpha = 0.5});
//     accelerator.begin_run(accel::RunStart::kResume);
//     for (auto& batch : loader) {
//       accelerator.backward(loss_of(model(batch.data), batch.target));
//       optimizer.step();
//       optimizer.zero_grad();
//       diloco.step();
//     }
//   }  // all ranks have the same weights; gradients are exchanged again
//
// With the global parameters G of a fragment of layers, and P those of a rank:
//
//   after so many steps            begins      D = mean over the ranks of (G - P), in fp32: the outer gradient
//   fragment_sync_delay later      is merged   G = outer optimizer(G, D);  P = (1 - alpha) G + alpha P
//
// D is exchanged by a thread of its own while the steps between go on. Fragments take turns: each is exchanged once in sync_every
// steps, and one begins every sync_every / num_fragments. Layers are strided: with 2 fragments each has every second one. What comes
// out does not depend on time, and is the same for as many ranks in every run.
//
// At its end the scope merges what has begun and averages the parameters that ranks have of their own, without an outer step.
//
// Checkpoints that are made while it lives have G, the state of the outer optimizer and the count of steps, and for each rank its
// parameters, buffers and the state of its inner optimizer: a run that goes on with as many ranks is to the bit the one that was
// not interrupted. Make it before load_state(), which refuses a checkpoint without one. On another number of ranks all begin at G.
// The weights in a checkpoint, and those of save_model() meanwhile, are rank 0's own.
//
// Threads:  the thread that trains; one thread of libaccel for each exchange. Every rank calls step() as often.
// Cost:     G and the outer momentum in fp32, and an outer gradient: 3 times the parameters in memory. The bytes of an all-reduce of the
//           parameters once in sync_every steps.
// Source:   DiLoCo, arXiv:2311.08105, algorithm 1; Streaming DiLoCo, arXiv:2501.18512, algorithm 2 (without its 4-bit exchange); names
//           of torchft.local_sgd.DiLoCo, which has no num_fragments but a list of them. tests/peer/diloco.py compares to the bit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/accelerator.h>
#include <accel/export.h>

namespace torch::optim {
class Optimizer;
}

namespace accel {

// The optimizer of these global parameters, whose gradients are outer gradients. One that save_state() can save.
using OuterOptimizer =
    std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

// SGD with Nesterov momentum; the defaults of DiLoCo.
[[nodiscard]] ACCEL_EXPORT OuterOptimizer outer_sgd(double lr = 0.7, double momentum = 0.9);

// The same on all ranks.
struct DiLoCoOptions {
  // Steps of the inner optimizer from one exchange of a fragment to its next; a multiple of num_fragments. Must be set.
  int sync_every = 0;
  // At most the number of layers: children of the module, and elements of its ModuleLists and Sequentials.
  int num_fragments = 1;
  // Steps for which an exchange goes on beside them; less than sync_every / num_fragments.
  int fragment_sync_delay = 0;
  // How much of its own parameters a rank keeps when a fragment is merged: 0 nothing, 1 all.
  double fragment_update_alpha = 0;
  // Called once for each fragment.
  OuterOptimizer outer_optimizer = outer_sgd();
};

class ACCEL_EXPORT DiLoCo {
 public:
  // inner_optimizer: the prepared one of the model. The accelerator and the model must outlive it. On one process the outer
  // optimizer steps, too.
  // Errors  throws kUnsupported for models that are divided, by FSDP or ZeRO, in reproducible training, within
  //         join_uneven_inputs(), and for an outer optimizer that cannot be saved; kInvalidArgument for options that cannot be, or
  //         differ between ranks, and while another one of the model lives; kPeerLost, kProcessGroup.
  // Requires: every rank makes it.
  template <typename Handle>
  DiLoCo(const Accelerator& accelerator,
         const Prepared<Handle>& model,
         const AcceleratedOptimizer& inner_optimizer,
         const DiLoCoOptions& options)
      : DiLoCo(accelerator, model.runtime(), inner_optimizer, options) {}

  // Merges and averages, unless an exception is on its way: the other ranks may never come then. May throw as step() does.
  ~DiLoCo() noexcept(false);
  DiLoCo(const DiLoCo&) = delete;
  DiLoCo& operator=(const DiLoCo&) = delete;

  // After each optimizer.step(). Does nothing for batches whose gradients are being accumulated. Begins, or waits for and merges,
  // the exchange that is due. Errors  throws kPeerLost, kProcessGroup.
  void step();

  // Of the inner optimizer so far, restarts included.
  [[nodiscard]] std::int64_t num_steps() const noexcept;

 private:
  DiLoCo(const Accelerator& accelerator,
         std::shared_ptr<detail::ModelRuntime> model,
         const AcceleratedOptimizer& inner_optimizer,
         const DiLoCoOptions& options);
  struct Impl;

  int exceptions_;  // on their way when it was made
  std::unique_ptr<Impl> impl_;
};

}  // namespace accel
