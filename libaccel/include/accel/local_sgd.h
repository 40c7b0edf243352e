// LocalSGD: each rank trains its own copy of a model for a while, then the copies are averaged.
//
//   {
//     accel::LocalSGD local_sgd(accelerator, model, 8);
//     for (auto& batch : loader) {
//       accelerator.backward(loss_of(model(batch.data), batch.target));
//       optimizer.step();
//       optimizer.zero_grad();
//       local_sgd.step();
//     }
//   }  // averaged once more; gradients are exchanged again
//
// During its lifetime ranks do not exchange gradients. Parameters are averaged; buffers and optimizer states are not. Batch size,
// learning rate and accumulation do not change.
//
// Source:   accelerate.local_sgd.LocalSGD; arXiv:1805.09767.
// Threads:  the thread that trains.
// Cost:     one all-reduce for each parameter every local_sgd_steps calls, instead of an all-reduce of the gradients in each step.
#pragma once

#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/accelerator.h>
#include <accel/detail/sync_scopes.h>
#include <accel/export.h>

namespace accel {

class ACCEL_EXPORT LocalSGD {
 public:
  // local_sgd_steps: calls of step() from one average to the next, at least 1. With enabled = false, or one process, it has no
  // effect. The accelerator and the model must outlive it.
  // Errors  throws kUnsupported for models that FSDP or ZeRO divides; kInvalidArgument for a number below 1.
  template <typename Handle>
  LocalSGD(const Accelerator& accelerator,
           const Prepared<Handle>& model,
           int local_sgd_steps,
           bool enabled = true)
      : LocalSGD(accelerator, model->parameters(), *model.runtime(), local_sgd_steps, enabled) {}

  // Averages. During an exception it does not, because the other ranks might never arrive. Throws as step() does.
  ~LocalSGD() noexcept(false);
  LocalSGD(const LocalSGD&) = delete;
  LocalSGD& operator=(const LocalSGD&) = delete;

  // Call it after each optimizer.step(). Every call counts, also while gradients accumulate, as in Accelerate.
  // Errors  throws what accel::reduce() throws.
  void step();

 private:
  LocalSGD(const Accelerator& accelerator,
           std::vector<at::Tensor> parameters,
           detail::ModelRuntime& model,
           int local_sgd_steps,
           bool enabled);
  void average() const;

  std::vector<at::Tensor> parameters_;  // empty: there is nothing to do
  int local_sgd_steps_;
  int exceptions_;  // on their way when it was made
  std::int64_t num_steps_ = 0;
  std::unique_ptr<NoSyncScope> no_sync_;
};

}  // namespace accel
