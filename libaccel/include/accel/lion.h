// Lion: an optimizer that steps by the sign of a momentum, with one tensor of state.
//
//   accel::Lion lion(net->parameters(), accel::LionOptions(1e-4).weight_decay(0.1));
//
// Use a learning rate three to ten times smaller than AdamW's, and a weight decay larger by the same factor.
//
// Threads:  the thread that trains.
// Errors    the constructor throws kInvalidArgument for invalid options; step() throws kUnsupported for sparse gradients.
// Source:   Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", algorithm 2; the order of operations of its
//           authors' PyTorch version. tests/peer/train_peer.py compares to the bit.
#pragma once

#include <tuple>
#include <vector>

#include <torch/optim/optimizer.h>

#include <accel/detail/checkpointed_optimizer.h>
#include <accel/export.h>

namespace accel {

struct ACCEL_EXPORT LionOptions : torch::optim::OptimizerCloneableOptions<LionOptions> {
  LionOptions(double lr = 1e-4);  // NOLINT: implicit, as in LibTorch
  TORCH_ARG(double, lr) = 1e-4;
  typedef std::tuple<double, double> betas_t;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.99);
  TORCH_ARG(double, weight_decay) = 0;

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { this->lr(lr); }
};

struct ACCEL_EXPORT LionState : torch::optim::OptimizerCloneableParamState<LionState> {
  TORCH_ARG(at::Tensor, exp_avg);
};

class ACCEL_EXPORT Lion : public detail::CheckpointedOptimizer {
 public:
  explicit Lion(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                LionOptions defaults = {});
  explicit Lion(std::vector<at::Tensor> parameters, LionOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace accel
