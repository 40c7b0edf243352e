// StepGate: what surrounds the steps of an optimizer whose state is divided over the ranks.
//
// Threads:  the thread that trains; every rank makes the same calls.
// Errors    throws kPeerLost, kProcessGroup.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/state_view.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace accel {

class ModelSync;
class StatePlaces;

namespace checkpoint {
class DividedTensors;
}

// What becomes of what all ranks gather on this one.
enum class GatheredStates {
  kKept,
  kDropped,  // unit by unit: another rank wants them
};

}  // namespace accel

namespace accel::detail {

class StepGate {
 public:
  virtual ~StepGate() = default;

  // The gradients are those of all ranks; called before anything reads them.
  virtual void settle() = 0;
  // Nobody reads parameters until after_step().
  virtual void before_step() = 0;
  // All ranks see what all have written.
  virtual void after_step() = 0;
  // Elements of a piece have been stepped, and are in memory now. Where states lie on disk; before after_step().
  virtual void was_stepped(const at::Tensor& piece, std::int64_t begin, std::int64_t numel) = 0;
  // In place of after_step() when the step failed: this rank may use its parameters again.
  virtual void abandon_step() noexcept = 0;
  // found_inf: 0-d float, not 0 when a gradient of this rank is not finite. The same on all ranks afterwards.
  virtual void combine_overflow(at::Tensor& found_inf) = 0;
  // The norm of the gradients of all ranks' pieces, of which `norm` is that of this rank's. Every rank calls it.
  [[nodiscard]] virtual at::Tensor combine_norm(const at::Tensor& norm, double norm_type) = 0;
  // Gradients that the optimizer does not know of.
  virtual void clear_gradients() = 0;
  // Whether a tensor of the optimizer's groups is a piece of a divided parameter. The memory behind it is padding then, up to
  // a multiple of 64 bytes.
  [[nodiscard]] virtual bool is_piece(const at::Tensor& parameter) const = 0;
  // Whether it steps parameters of the model.
  [[nodiscard]] virtual bool steps(const ModelSync& model) const = 0;

  // ---- for checkpoints: the optimizer as one process would have it (engine/sharding/whole_optimizer.h)

  // One of the same type on the whole parameters, without states. Throws kUnsupported for a class whose states cannot be saved.
  [[nodiscard]] virtual std::unique_ptr<torch::optim::Optimizer> whole_optimizer() const = 0;
  // Gives `whole` the states of all ranks, or placeholders for what this rank has by parts. Every rank calls it.
  virtual void describe_states(torch::optim::Optimizer& whole,
                               checkpoint::DividedTensors& divided,
                               GatheredStates gathered) const = 0;
  // Takes this rank's part of the states of `whole`, and its options.
  // places: where they go; nullptr: into memory.
  virtual void take_states(torch::optim::Optimizer& whole,
                           const checkpoint::DividedTensors& divided,
                           StatePlaces* places) = 0;
  // The state by the names of the modules' parameters. Every rank calls it.
  [[nodiscard]] virtual StateView view(StateDictType type,
                                       GatheredStates gathered,
                                       const StateDictConfig& config,
                                       const std::vector<torch::nn::Module*>& modules) const = 0;
};

}  // namespace accel::detail
