// Muon: an optimizer that steps a matrix along the orthogonal matrix nearest to its momentum.
//
//   accel::Muon muon(matrices, accel::MuonOptions(0.02).adjust_lr_fn("match_rms_adamw"));
//
// Use it for the hidden weights of a network; give embeddings, biases and the last layer to a separate AdamW.
//
// A step needs whole matrices. For a divided model set shard_by_tensor = true of the FullyShardedDataParallelPlugin. Otherwise
// prepare() throws kUnsupported and names the class.
// Threads:  the thread that trains.
// Cost:     one tensor of state; a step multiplies matrices 3 * ns_steps times, in bf16.
// Errors    the constructor throws kInvalidArgument for a parameter that is not a matrix, and for invalid options; step() throws
//           kUnsupported for complex and sparse gradients.
// Source:   Jordan et al. 2024; names, defaults and order of operations of torch.optim.Muon of PyTorch 2.11.
//           tests/peer/train_peer.py compares.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/optim/optimizer.h>

#include <accel/detail/checkpointed_optimizer.h>
#include <accel/export.h>

namespace accel {

struct ACCEL_EXPORT MuonOptions : torch::optim::OptimizerCloneableOptions<MuonOptions> {
  MuonOptions(double lr = 1e-3);  // NOLINT: implicit, as in LibTorch
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(double, weight_decay) = 0.1;
  TORCH_ARG(double, momentum) = 0.95;
  TORCH_ARG(bool, nesterov) = true;
  typedef std::tuple<double, double, double> ns_coefficients_t;
  TORCH_ARG(ns_coefficients_t, ns_coefficients) = std::make_tuple(3.4445, -4.7750, 2.0315);
  TORCH_ARG(double, eps) = 1e-7;          // the least norm that a matrix is divided by
  TORCH_ARG(std::int64_t, ns_steps) = 5;  // of the Newton-Schulz iteration, below 100
  // Scales the step of an A x B matrix by lr times: "original" (the default) sqrt(max(1, A / B)); "match_rms_adamw"
  // 0.2 sqrt(max(A, B)).
  TORCH_ARG(std::optional<std::string>, adjust_lr_fn) = std::nullopt;

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { this->lr(lr); }
};

struct ACCEL_EXPORT MuonState : torch::optim::OptimizerCloneableParamState<MuonState> {
  TORCH_ARG(at::Tensor, momentum_buffer);
};

class ACCEL_EXPORT Muon : public detail::CheckpointedOptimizer {
 public:
  explicit Muon(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                MuonOptions defaults = {});
  explicit Muon(std::vector<at::Tensor> parameters, MuonOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
};

}  // namespace accel
