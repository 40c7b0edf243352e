#include "libaccel/placement/disk_store.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <string>
#include <utility>

#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>

namespace accel::placement {
namespace {

std::int64_t checked_size(std::int64_t bytes, const char* name) {
  if (bytes >= 1) return bytes;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(name) + " is " + std::to_string(bytes) + " bytes, expected 1 or more",
              "leave it out for the default of accel/save_on_disk.h");
}

// Or a view of one, as of a weight that is transposed.
bool is_parameter(const at::Tensor& tensor) {
  const at::TensorBase& base = tensor.is_view() ? tensor._base() : tensor;
  return base.is_leaf() && base.requires_grad();
}

bool has_plain_memory(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized() &&
         !tensor.is_inference() && tensor.has_storage() && tensor.storage().data() != nullptr;
}

}  // namespace

struct DiskStore::Slot {
  enum class State : std::uint8_t { kWaiting, kWriting, kOnDisk, kReading, kThere };

  explicit Slot(const at::Tensor& tensor)
      : bytes(static_cast<std::int64_t>(tensor.storage().nbytes())),
        version(static_cast<std::int64_t>(tensor._version())),
        origin(tensor.storage().getWeakStorageImpl()),
        source(tensor.storage()) {}

  std::uint64_t number = 0;
  std::int64_t bytes;
  std::int64_t version;  // of the tensor that was saved first
  c10::weak_intrusive_ptr<c10::StorageImpl> origin;
  c10::Storage source;  // until it is written
  at::Tensor place;
  State state = State::kWaiting;
  int num_kept = 0;
  bool was_asked_for = false;
};

// A tensor in the memory of a slot, or one that stays in memory.
class DiskStore::Kept final : public interception::StoredTensor {
 public:
  explicit Kept(const at::Tensor& tensor) : Kept(tensor, nullptr, nullptr) {
    tensor_ = tensor.detach();
  }
  Kept(const at::Tensor& tensor, std::shared_ptr<DiskStore> store, std::shared_ptr<Slot> slot)
      : store_(std::move(store)),
        slot_(std::move(slot)),
        keys_(tensor.key_set()),
        dtype_(tensor.dtype()),
        sizes_(tensor.sizes().vec()),
        strides_(tensor.strides().vec()),
        offset_(tensor.storage_offset()),
        counter_(tensor.unsafeGetTensorImpl()->version_counter()),
        version_(counter_.enabled() ? counter_.current_version() : 0) {}
  ~Kept() override {
    if (slot_ == nullptr) return;
    const std::lock_guard lock(store_->mutex_);
    if (--slot_->num_kept == 0) store_->give_up(*slot_);
  }
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;

  at::Tensor value() override {
    if (counter_.enabled() && counter_.current_version() != version_) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a tensor that the backward needs was changed in place since it was saved: it "
                  "was at version " +
                      std::to_string(version_) + ", and is at version " +
                      std::to_string(counter_.current_version()),
                  "use the operator that does not write in place, as add() for add_()");
    }
    if (slot_ == nullptr) return tensor_;
    at::Tensor made =
        at::detail::make_tensor<c10::TensorImpl>(store_->storage_of(slot_), keys_, dtype_);
    made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes_, strides_, offset_);
    return made;
  }

 private:
  std::shared_ptr<DiskStore> store_;
  std::shared_ptr<Slot> slot_;
  at::Tensor tensor_;
  c10::DispatchKeySet keys_;
  caffe2::TypeMeta dtype_;
  std::vector<std::int64_t> sizes_;
  std::vector<std::int64_t> strides_;
  std::int64_t offset_;
  c10::VariableVersion counter_;
  std::uint32_t version_;
};

DiskStore::DiskStore(const SaveOnDiskOptions& options, checkpoint::FileSystem& file_system)
    : min_bytes_(checked_size(options.min_bytes, "min_bytes")),
      most_on_their_way_(checked_size(options.max_bytes_in_memory, "max_bytes_in_memory") / 2),
      file_(options.folder,
            {.name = "activations", .folder_option = "SaveOnDiskOptions::folder"},
            file_system),
      thread_([this] { work(); }) {}

DiskStore::~DiskStore() {
  {
    const std::lock_guard lock(mutex_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void DiskStore::fail_if_broken() const {
  if (error_) throw Error(*error_);
}

// ---- forward ----

std::unique_ptr<interception::StoredTensor> DiskStore::keep(const at::Tensor& tensor) {
  if (!has_plain_memory(tensor) || is_parameter(tensor) ||
      static_cast<std::int64_t>(tensor.storage().nbytes()) < min_bytes_)
    return std::make_unique<Kept>(tensor);
  std::shared_ptr<Slot> slot = slot_of(tensor);
  return std::make_unique<Kept>(tensor, shared_from_this(), std::move(slot));
}

std::shared_ptr<DiskStore::Slot> DiskStore::slot_of(const at::Tensor& tensor) {
  const c10::StorageImpl* const storage = tensor.storage().unsafeGetStorageImpl();
  const auto version = static_cast<std::int64_t>(tensor._version());
  std::unique_lock lock(mutex_);
  fail_if_broken();
  if (const auto found = latest_.find(storage); found != latest_.end()) {
    auto slot = found->second.lock();
    if (slot != nullptr && slot->num_kept > 0 && slot->version == version &&
        slot->origin.lock().get() == storage) {
      ++slot->num_kept;
      return slot;
    }
  }
  auto slot = std::make_shared<Slot>(tensor);
  lock.unlock();
  slot->place = take_place(static_cast<std::size_t>(slot->bytes));
  lock.lock();
  changed_.wait(lock, [this] { return waiting_bytes_ <= most_on_their_way_ || error_; });
  fail_if_broken();
  slot->num_kept = 1;
  slot->number = next_number_++;
  slots_.emplace(slot->number, slot);
  latest_[storage] = slot;
  to_write_.push_back(slot);
  waiting_bytes_ += slot->bytes;
  read_before_ = 0;  // a forward again
  changed_.notify_all();
  return slot;
}

at::Tensor DiskStore::take_place(std::size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = places_.equal_range(bytes);
    const auto found = std::find_if(
        first, last, [](const auto& place) { return place.second.storage().use_count() == 1; });
    if (found != last) {
      at::Tensor place = std::move(found->second);
      places_.erase(found);
      return place;
    }
  }
  const std::array like = {at::empty({static_cast<std::int64_t>(bytes)},
                                     at::TensorOptions(at::kByte).device(at::kMeta))};
  const std::lock_guard file_lock(file_mutex_);
  at::Tensor place = file_.make(like).front();
  const std::lock_guard lock(mutex_);
  statistics_.file_bytes = static_cast<std::int64_t>(file_.bytes());
  return place;
}

void DiskStore::wait_until_written() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_bytes_ == 0 || error_; });
  fail_if_broken();
}

SaveOnDisk::Statistics DiskStore::statistics() const {
  const std::lock_guard lock(mutex_);
  return statistics_;
}

// ---- backward ----

c10::Storage DiskStore::storage_of(const std::shared_ptr<Slot>& slot) {
  std::unique_lock lock(mutex_);
  fail_if_broken();
  read_before_ = slot->number;
  changed_.notify_all();
  if (slot->source) return slot->source;
  if (slot->state != Slot::State::kThere) {
    ++statistics_.num_waits;
    if (slot->state == Slot::State::kOnDisk) wanted_.push_back(slot);
    changed_.wait(lock, [&] { return slot->state == Slot::State::kThere || error_; });
    fail_if_broken();
  }
  if (!std::exchange(slot->was_asked_for, true)) ahead_bytes_ -= slot->bytes;
  changed_.notify_all();
  return slot->place.storage();
}

// Requires: the lock.
void DiskStore::give_up(Slot& slot) noexcept {
  slots_.erase(slot.number);
  if (const auto storage = slot.origin._unsafe_get_target(); latest_.contains(storage)) {
    if (latest_.at(storage).lock().get() == &slot) latest_.erase(storage);
  }
  switch (slot.state) {
    case Slot::State::kWaiting:
      waiting_bytes_ -= slot.bytes;
      slot.source = {};
      places_.emplace(slot.bytes, std::move(slot.place));
      break;
    case Slot::State::kOnDisk:
      places_.emplace(slot.bytes, std::move(slot.place));
      break;
    case Slot::State::kThere:
      if (!slot.was_asked_for) ahead_bytes_ -= slot.bytes;
      to_leave_.push_back(std::move(slot.place));
      break;
    case Slot::State::kWriting:
    case Slot::State::kReading:
      break;  // the thread does it
  }
  changed_.notify_all();
}

// ---- the thread ----

void DiskStore::work() {
  std::unique_lock lock(mutex_);
  try {
    while (!is_stopping_) {
      if (!wanted_.empty()) {
        const auto slot = std::move(wanted_.front());
        wanted_.pop_front();
        read(slot, lock);
      } else if (!to_write_.empty()) {
        const auto slot = std::move(to_write_.front());
        to_write_.pop_front();
        if (slot->num_kept > 0) write(slot, lock);
      } else if (const auto slot = next_ahead()) {
        read(slot, lock);
      } else if (!to_leave_.empty()) {
        at::Tensor place = std::move(to_leave_.front());
        to_leave_.pop_front();
        lock.unlock();
        send_out(place);
        lock.lock();
        places_.emplace(place.nbytes(), std::move(place));
      } else {
        changed_.wait(lock);
      }
    }
  } catch (const Error& error) {
    if (!lock.owns_lock()) lock.lock();
    error_ = error;
    changed_.notify_all();
  }
}

// Requires: the lock. nullptr: none, or there is no room.
std::shared_ptr<DiskStore::Slot> DiskStore::next_ahead() {
  for (auto next = slots_.lower_bound(read_before_); next != slots_.begin();) {
    --next;
    auto slot = next->second.lock();
    if (slot == nullptr || slot->state != Slot::State::kOnDisk) continue;
    const bool has_room = ahead_bytes_ == 0 || ahead_bytes_ + slot->bytes <= most_on_their_way_;
    return has_room ? slot : nullptr;
  }
  return nullptr;
}

void DiskStore::send_out(const at::Tensor& place) {
  StateRange::of(place)->store();
}

void DiskStore::write(const std::shared_ptr<Slot>& slot, std::unique_lock<std::mutex>& lock) {
  slot->state = Slot::State::kWriting;
  lock.unlock();
  std::memcpy(
      slot->place.mutable_data_ptr(), slot->source.data(), static_cast<std::size_t>(slot->bytes));
  send_out(slot->place);
  lock.lock();
  slot->state = Slot::State::kOnDisk;
  waiting_bytes_ -= slot->bytes;
  ++statistics_.num_written;
  statistics_.bytes_written += slot->bytes;
  const c10::Storage written = std::exchange(slot->source, {});
  if (slot->num_kept == 0) places_.emplace(slot->bytes, std::move(slot->place));
  changed_.notify_all();
}

void DiskStore::read(const std::shared_ptr<Slot>& slot, std::unique_lock<std::mutex>& lock) {
  if (slot->num_kept == 0 || slot->state != Slot::State::kOnDisk) return;
  slot->state = Slot::State::kReading;
  ahead_bytes_ += slot->bytes;
  lock.unlock();
  StateRange::of(slot->place)->fetch(StateRange::Access::kRead);
  lock.lock();
  slot->state = Slot::State::kThere;
  ++statistics_.num_read;
  if (slot->num_kept == 0) {
    ahead_bytes_ -= slot->bytes;
    to_leave_.push_back(std::move(slot->place));
  }
  changed_.notify_all();
}

}  // namespace accel::placement
