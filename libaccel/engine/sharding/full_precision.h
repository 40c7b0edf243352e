// FullPrecision: for a scope, parameters of sharded models have the precision that their optimizer works in.
//
// Threads:  the thread that trains; every rank makes the same objects in the same order.
// Cost:     with a mixed precision policy one all-gather of each unit that is exposed on a rank, and its memory there.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "libaccel/engine/sharding/sharded_model.h"

namespace accel {

class FullPrecision {
 public:
  // Throws kPeerLost, kProcessGroup.
  FullPrecision(const std::vector<std::shared_ptr<sharding::ShardedModel>>& models,
                sharding::Exposure exposure,
                std::span<const at::Tensor> asked = {}) {
    try {
      for (const auto& model : models) {
        model->begin_save(exposure, asked);
        models_.push_back(model);
      }
    } catch (...) {
      end();
      throw;
    }
  }
  ~FullPrecision() { end(); }
  FullPrecision(const FullPrecision&) = delete;
  FullPrecision& operator=(const FullPrecision&) = delete;

 private:
  void end() {
    for (const auto& model : models_) model->end_save();
  }

  std::vector<std::shared_ptr<sharding::ShardedModel>> models_;
};

}  // namespace accel
