// Joining: a scope of join_uneven_inputs(): what its loaders change in it, and what a rank does there that has run out of batches.
//
// Ranks that train announce what all take part in (engine/process/join_roll.h). This rank then does its part: gradients are zeros,
// or, of a model whose gradients are scattered, nothing; optimizers and schedulers take the steps that the others take, so that
// states and learning rates stay alike, and pieces of divided models are stepped whose owner this rank is.
//
// Threads:  the thread that trains.
// Errors    throws kInvalidArgument for calls that differ, kPeerLost, kProcessGroup, and what those calls throw.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/detail/join_scope.h>

#include "libaccel/api/accelerator/preparation.h"
#include "libaccel/api/accelerator/training.h"
#include "libaccel/engine/process/join_roll.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel::detail {

class Joining {
 public:
  // models: borrowed. Throws kInvalidArgument for a model that is not one of `prepared`, and within another scope.
  Joining(const Preparation& prepared,
          Training& training,
          const std::vector<const ModelRuntime*>& models,
          const JoinOptions& options);
  ~Joining();
  Joining(const Joining&) = delete;
  Joining& operator=(const Joining&) = delete;

  // This rank has no batch left: returns when no rank has. Requires: it is called once.
  void finish();

  // Before clip_grad_norm_() and clip_grad_value_() of a rank that trains, which are called while the result lives.
  [[nodiscard]] static JoinRoll::Within announce_clip(const Preparation& prepared,
                                                      const std::vector<at::Tensor>& parameters,
                                                      JoinRoll::Call call,
                                                      double limit,
                                                      double norm_type = 0);

 private:
  struct Model {
    std::shared_ptr<ModelSync> sync;
    std::vector<NamedParameter> parameters;
    std::vector<at::Tensor> outputs = {};  // of the forward that did not run
  };

  void override_even_batches(bool even_batches);
  [[nodiscard]] std::vector<const void*> objects() const;
  void take_part(const JoinRoll::Announcement& announcement);
  void forward(Model& model, const JoinRoll::Announcement& announcement) const;
  static void exchange(Model& model);
  void clip(const JoinRoll::Announcement& announcement) const;
  void step_scheduler(const JoinRoll::Announcement& announcement,
                      const AcceleratedScheduler& scheduler);

  const Preparation& prepared_;
  Training& training_;
  std::vector<std::pair<std::shared_ptr<DataLoaderBase>, bool>> even_batches_;  // as they were
  std::vector<Model> models_;
  std::optional<JoinRoll> roll_;  // not set: all ranks have as many batches
};

}  // namespace accel::detail
