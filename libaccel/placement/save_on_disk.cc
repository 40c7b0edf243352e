#include <utility>

#include <accel/save_on_disk.h>

#include "libaccel/interception/saved_tensors.h"
#include "libaccel/placement/disk_store.h"

namespace accel {

struct SaveOnDisk::Scope::Parts {
  interception::SavedTensorScope saved;
};

SaveOnDisk::Scope::Scope(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

SaveOnDisk::Scope::~Scope() = default;

SaveOnDisk::Scope::Scope(Scope&&) noexcept = default;

SaveOnDisk::SaveOnDisk(const SaveOnDiskOptions& options)
    : store_(std::make_shared<placement::DiskStore>(options)) {}

SaveOnDisk::~SaveOnDisk() = default;

SaveOnDisk::Scope SaveOnDisk::scope() {
  return Scope(std::unique_ptr<Scope::Parts>(
      new Scope::Parts{interception::SavedTensorScope(interception::hooks_of(store_))}));
}

void SaveOnDisk::wait_until_written() {
  store_->wait_until_written();
}

SaveOnDisk::Statistics SaveOnDisk::statistics() const {
  return store_->statistics();
}

}  // namespace accel
