// ModelRuntime: what surrounds the forwards of one prepared model.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/engine/gradients/model_sync.h"
#include "libaccel/engine/precision/precision_recipe.h"
#include "libaccel/engine/recompute/unit_forward.h"

namespace torch::nn {
class Module;
}

namespace accel::detail {

class LocalTraining;

class ModelRuntime {
 public:
  // sync: nullptr when there is nobody to synchronise with. recipe: what it says of shards counts for models that are divided alone.
  ModelRuntime(std::shared_ptr<torch::nn::Module> module,
               std::shared_ptr<ModelSync> sync,
               const PrecisionRecipe& recipe,
               c10::DeviceType device,
               bool is_for_evaluation);

  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& module() const noexcept {
    return module_;
  }
  [[nodiscard]] const std::shared_ptr<ModelSync>& sync() const noexcept { return sync_; }
  [[nodiscard]] const PrecisionRecipe& recipe() const noexcept { return recipe_; }
  [[nodiscard]] c10::DeviceType device() const noexcept { return device_; }
  [[nodiscard]] bool is_for_evaluation() const noexcept { return is_for_evaluation_; }
  // Whether a forward with gradients has come this way, and not only to the module itself.
  [[nodiscard]] bool has_run() const noexcept { return has_run_; }
  void note_run() noexcept { has_run_ = true; }
  // Whose activations its forwards do not keep; nullptr: all are kept.
  [[nodiscard]] const std::shared_ptr<const recompute::UnitOfParameter>& recomputed_units()
      const noexcept {
    return recomputed_units_;
  }
  // What these keep of them all the same.
  [[nodiscard]] const std::optional<KeptOperators>& kept_operators() const noexcept {
    return kept_operators_;
  }
  void recompute(recompute::UnitOfParameter units, std::optional<KeptOperators> keep) {
    recomputed_units_ = std::make_shared<const recompute::UnitOfParameter>(std::move(units));
    kept_operators_ = std::move(keep);
  }
  // Of DiLoCo, while it lives; else nullptr.
  [[nodiscard]] LocalTraining* local_training() const noexcept { return local_training_; }
  // Throws kInvalidArgument where there is one already; nullptr: it ends.
  void set_local_training(LocalTraining* training);

 private:
  std::shared_ptr<torch::nn::Module> module_;
  std::shared_ptr<ModelSync> sync_;
  PrecisionRecipe recipe_;
  c10::DeviceType device_;
  bool is_for_evaluation_;
  bool has_run_ = false;
  std::shared_ptr<const recompute::UnitOfParameter> recomputed_units_;
  std::optional<KeptOperators> kept_operators_;
  LocalTraining* local_training_ = nullptr;  // borrowed
};

}  // namespace accel::detail
