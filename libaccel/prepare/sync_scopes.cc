#include <accel/sync_scopes.h>

#include "libaccel/prepare/model_runtime.h"

namespace accel {

NoSyncScope::NoSyncScope(std::initializer_list<detail::ModelRuntime*> models) {
  for (detail::ModelRuntime* model : models) {
    if (model->reducer() == nullptr) continue;
    previous_.emplace_back(model, model->reducer()->set_sync_in_backward(false));
  }
}

NoSyncScope::~NoSyncScope() {
  for (const auto& [model, previous] : previous_) model->reducer()->set_sync_in_backward(previous);
}

SyncScope::SyncScope(detail::ModelRuntime& model) : model_(model) {
  if (model_.reducer() == nullptr) return;
  previous_ = model_.reducer()->set_sync_in_backward(true);
  model_.reducer()->sync_next_backward();
}

SyncScope::~SyncScope() {
  if (model_.reducer() != nullptr) model_.reducer()->set_sync_in_backward(previous_);
}

}  // namespace accel
