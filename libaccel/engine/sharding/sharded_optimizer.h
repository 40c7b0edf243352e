// ShardedOptimizer: lets an unmodified torch::optim optimizer work on this rank's pieces of sharded models.
//
// Its parameter groups are rewritten: each parameter of a sharded model gives way to this rank's piece of it, or to
// nothing. Options, and so schedules, stay as they are. What the optimizer computes must depend on each element alone
// (SGD, Adam, AdamW, RMSprop, Adagrad), or on each tensor alone where models are cut by tensors.
//
// Threads:  the thread that trains.
#pragma once

#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "libaccel/engine/optim/step_gate.h"

namespace torch::optim {
class Optimizer;
}

namespace accel::sharding {

class ShardedModel;

class ShardedOptimizer final : public detail::StepGate {
 public:
  // Gives the optimizer the pieces of models that `present`, its gate so far or nullptr, does not know yet. Returns the
  // gate, nullptr when the optimizer has no parameter of any. Throws kUnsupported, naming the type, for one whose
  // steps need more than the pieces are, and for one that has stepped already.
  static std::shared_ptr<ShardedOptimizer> rewrite(
      torch::optim::Optimizer& optimizer,
      std::shared_ptr<ShardedOptimizer> present,
      const std::vector<std::shared_ptr<ShardedModel>>& models);

  explicit ShardedOptimizer(torch::optim::Optimizer& optimizer);

  void settle() override;
  // Throws kUnsupported for a parameter group that was added since prepare(), and for states that neither steps nor load_state()
  // have made.
  void before_step() override;
  void after_step() override;
  void was_stepped(const at::Tensor& piece, std::int64_t begin, std::int64_t numel) override;
  void abandon_step() noexcept override;
  void combine_overflow(at::Tensor& found_inf) override;
  void clear_gradients() override;
  [[nodiscard]] at::Tensor combine_norm(const at::Tensor& norm, double norm_type) override;
  [[nodiscard]] bool is_piece(const at::Tensor& parameter) const override;
  [[nodiscard]] bool steps(const ModelSync& model) const override;
  // For a class of the user's own, what stands for it (engine/checkpoint/states/archived_optimizer.h).
  [[nodiscard]] std::unique_ptr<torch::optim::Optimizer> whole_optimizer() const override;
  void describe_states(torch::optim::Optimizer& whole,
                       checkpoint::DividedTensors& divided,
                       GatheredStates gathered) const override;
  void take_states(torch::optim::Optimizer& whole,
                   const checkpoint::DividedTensors& divided,
                   StatePlaces* places) override;
  [[nodiscard]] accel::StateView view(
      StateDictType type,
      GatheredStates gathered,
      const StateDictConfig& config,
      const std::vector<torch::nn::Module*>& modules) const override;

  // The parameters that the optimizer was made for, by group: whole ones of the model.
  [[nodiscard]] const std::vector<std::vector<at::Tensor>>& whole_groups() const noexcept {
    return whole_groups_;
  }
  // With the units that it changes.
  [[nodiscard]] const auto& models() const noexcept { return models_; }
  // nullptr: the parameter is not divided.
  [[nodiscard]] ShardedModel* model_of(const at::Tensor& parameter) const;

 private:
  // The states of pieces are this rank's own as they are now.
  void note_states();
  [[nodiscard]] std::vector<std::size_t> units_in(const ShardedModel& model) const;
  void refuse_foreign_states() const;
  void make_places(StatePlaces& places, torch::optim::Optimizer& whole) const;

  torch::optim::Optimizer& optimizer_;
  std::vector<std::pair<std::shared_ptr<ShardedModel>, std::vector<std::size_t>>> models_;
  std::vector<std::vector<at::Tensor>> whole_groups_;
  std::unordered_map<const void*, const void*> states_;  // by piece; of classes of torch::optim
};

}  // namespace accel::sharding
