#include <accel/detail/sync_scopes.h>

#include "libaccel/api/accelerator/model_runtime.h"

namespace accel {

NoSyncScope::NoSyncScope(std::initializer_list<detail::ModelRuntime*> models) {
  for (detail::ModelRuntime* model : models) {
    if (model->sync() == nullptr) continue;
    previous_.emplace_back(model, model->sync()->set_sync_in_backward(false));
  }
}

NoSyncScope::~NoSyncScope() {
  for (const auto& [model, previous] : previous_) model->sync()->set_sync_in_backward(previous);
}

SyncScope::SyncScope(detail::ModelRuntime& model) : model_(model) {
  if (model_.sync() == nullptr) return;
  previous_ = model_.sync()->set_sync_in_backward(true);
  model_.sync()->sync_next_backward();
}

SyncScope::~SyncScope() {
  if (model_.sync() != nullptr) model_.sync()->set_sync_in_backward(previous_);
}

}  // namespace accel
