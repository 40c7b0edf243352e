// DiLoCo: each rank trains its own copy of a model for many steps. Then an outer optimizer updates a global copy with the mean change
// of the ranks. Ranks exchange parameters once in sync_every steps, instead of gradients in each step.
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
// With the global parameters G of a fragment of layers, and the parameters P of a rank:
//
//   after so many steps            begins      D = mean over the ranks of (G - P), in fp32: the outer gradient
//   fragment_sync_delay later      is merged   G = outer optimizer(G, D);  P = (1 - alpha) G + alpha P
//
// A thread exchanges D while training continues. Fragments take turns: each is exchanged once in sync_every steps, and one exchange
// begins every sync_every / num_fragments steps. Layers are strided: with 2 fragments each has every second layer. The result does not
// depend on timing: with the same number of ranks, every run gives the same.
//
// At its end the scope merges unfinished exchanges. Then it averages the ranks' own parameters, without an outer step.
//
// A checkpoint within the scope contains G, the state of the outer optimizer and the count of steps. For each rank it contains the
// parameters, buffers and the state of the inner optimizer. With the same number of ranks, a resumed run equals an uninterrupted
// one to the bit. With another number all ranks begin at G. Make the scope before load_state(), which refuses a checkpoint without a
// DiLoCo state. Within the scope, checkpoints and save_model() contain the weights of rank 0.
//
// Threads:  the thread that trains; one thread of libaccel for each exchange. Every rank calls step() equally often.
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

// Makes the optimizer of these global parameters. Their gradients are outer gradients. save_state() must be able to save it.
using OuterOptimizer =
    std::function<std::shared_ptr<torch::optim::Optimizer>(std::vector<at::Tensor> parameters)>;

// SGD with Nesterov momentum; the defaults of DiLoCo.
[[nodiscard]] ACCEL_EXPORT OuterOptimizer outer_sgd(double lr = 0.7, double momentum = 0.9);

// Give the same options on all ranks.
struct DiLoCoOptions {
  // Steps of the inner optimizer from one exchange of a fragment to its next; a multiple of num_fragments. Must be set.
  int sync_every = 0;
  // At most the number of layers: children of the module, and elements of its ModuleLists and Sequentials.
  int num_fragments = 1;
  // Training steps during an exchange; less than sync_every / num_fragments.
  int fragment_sync_delay = 0;
  // The share of its own parameters that a rank keeps when a fragment is merged: 0 none, 1 all.
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

  // Merges and averages. During an exception it does neither, because the other ranks might never arrive. Throws as step() does.
  ~DiLoCo() noexcept(false);
  DiLoCo(const DiLoCo&) = delete;
  DiLoCo& operator=(const DiLoCo&) = delete;

  // Call it after each optimizer.step(). It begins the exchange that is due, or waits for one and merges it. While gradients are being
  // accumulated it does nothing. Errors  throws kPeerLost, kProcessGroup.
  void step();

  // Returns the steps of the inner optimizer so far, restarts included.
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
