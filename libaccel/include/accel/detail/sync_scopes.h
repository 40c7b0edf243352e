// SyncScopes: when the backward passes of prepared models exchange gradients. Made by Accelerator.
//
// Threads:  the thread that trains. Cost: a flag per model; no allocation for up to four models.
#pragma once

#include <initializer_list>
#include <utility>

#include <c10/util/SmallVector.h>

#include <accel/export.h>

namespace accel {

namespace detail {
class ModelRuntime;
}

// Keeps gradients local during its lifetime: the backward passes of the models do not synchronise.
class ACCEL_EXPORT NoSyncScope {
 public:
  // A scope that changes nothing.
  [[nodiscard]] NoSyncScope() = default;
  [[nodiscard]] explicit NoSyncScope(std::initializer_list<detail::ModelRuntime*> models);
  ~NoSyncScope();
  NoSyncScope(const NoSyncScope&) = delete;
  NoSyncScope& operator=(const NoSyncScope&) = delete;

 private:
  c10::SmallVector<std::pair<detail::ModelRuntime*, bool>, 4> previous_;
};

// Makes the next backward synchronise although its forward ran inside a NoSyncScope.
class ACCEL_EXPORT SyncScope {
 public:
  [[nodiscard]] explicit SyncScope(detail::ModelRuntime& model);
  ~SyncScope();
  SyncScope(const SyncScope&) = delete;
  SyncScope& operator=(const SyncScope&) = delete;

 private:
  detail::ModelRuntime& model_;
  bool previous_ = true;
};

}  // namespace accel
