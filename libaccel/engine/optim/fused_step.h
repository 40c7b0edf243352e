// FusedStep: the step of SGD, Adam or AdamW (optimizer_traits.h) by LibTorch's fused kernels, which go over the memory once.
//
// Parameters of a group that follow one another in memory, and whose gradients do too, are stepped as one tensor, a
// run. The states of a run are parts of one tensor; optimizer.state() shows for each parameter its own part, so that
// checkpoints and schedulers find what they always find. The pieces of a sharded model are one run for each unit and
// group; tensors with memory of their own are a run each.
//
//   run of 3 parameters:  |aaaaaaa.|bbb.....|cccccccccc......|    .  padding, stepped along: it stays what nobody reads
//
// The kernels contract products and sums in another way than the steps of torch::optim, so the bits are not theirs: an
// element differs in the last places. The kernels also treat whole vectors and the rest of a tensor in two ways; a run
// of padded parameters has no rest, so its bits do not depend on how parameters are divided.
//
// Threads:  the thread that trains.
// Cost:     reads and writes each byte of parameters and states once and reads gradients once: 28 bytes a parameter
//           for AdamW in fp32, 20 for SGD with momentum.
#pragma once

#include <cstddef>
#include <functional>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace accel {

class FusedStep {
 public:
  // Whether the memory from the end of a parameter to the next multiple of 64 bytes from its start is nobody's.
  using IsPadded = std::function<bool(const at::Tensor& parameter)>;

  // Throws kUnsupported naming the type for an optimizer that is none of SGD, Adam and AdamW, derived ones included.
  explicit FusedStep(torch::optim::Optimizer& optimizer);

  // What optimizer.step() does. Throws kUnsupported for sparse gradients and for parameters that are no dense tensors
  // of real numbers; then nothing was stepped.
  void step(const IsPadded& is_padded);

  // Calls of a kernel that the last step made.
  [[nodiscard]] std::size_t num_runs() const noexcept { return num_runs_; }

 private:
  torch::optim::Optimizer& optimizer_;
  std::size_t num_runs_ = 0;
};

}  // namespace accel
