// FullParametersScope: for a scope, parameters of divided models have the precision that their optimizer works in.
//
// Threads:  the thread that trains; every rank makes the same objects in the same order.
// Cost:     with a mixed precision policy one all-gather of each unit that a rank wants whole, and its memory there.
// Errors    throws kPeerLost, kProcessGroup, and what ModelSync says.
#pragma once

#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "libaccel/engine/gradients/model_sync.h"

namespace accel::detail {

enum class Access { kRead, kWrite };

class FullParametersScope {
 public:
  FullParametersScope(const std::vector<std::shared_ptr<ModelSync>>& models,
                      Access access,
                      FullParameters which,
                      std::span<const at::Tensor> asked = {})
      : FullParametersScope(access) {
    for (const auto& model : models) {
      access == Access::kRead ? model->begin_save(which, asked) : model->begin_load(which, asked);
      models_.push_back(model);
    }
  }
  // What is thrown already, and why the scope ends, counts.
  ~FullParametersScope() {
    try {
      end();
    } catch (...) {  // NOLINT(bugprone-empty-catch)
    }
  }
  FullParametersScope(const FullParametersScope&) = delete;
  FullParametersScope& operator=(const FullParametersScope&) = delete;

  // Of all models, whichever throws: then the first error.
  void end() {
    std::exception_ptr failure;
    for (const auto& model : std::exchange(models_, {})) {
      try {
        access_ == Access::kRead ? model->end_save() : model->end_load();
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  explicit FullParametersScope(Access access) : access_(access) {}

  Access access_;
  std::vector<std::shared_ptr<ModelSync>> models_;
};

}  // namespace accel::detail
