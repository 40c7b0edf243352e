// DiskStore: saved tensors whose memory goes to a file while the forward goes on, and comes back ahead of the backward.
//
// A slot is the memory of one storage: tensors that share it share the slot, and are views of what comes back.
//
//   waiting --the thread writes it--> on disk --asked for, or one behind is--> coming --the thread reads it--> there
//      `------------------------------asked for: it is in memory still--------------------------------------->
//
// The thread reads what a backward waits for first, then writes, then reads ahead: the slots before the one that was asked for
// last, since a backward asks for them in reverse. What is waiting to be written holds its storage, as nobody else may; a forward
// waits while that is more than half of what may be in memory.
//
// Places in the file are used again, by size, when no tensor lies in them any more.
//
// Threads:  a lock for the slots; another one for the file, whose table of mappings grows on the thread of the forward.
// Cost:     accel/save_on_disk.h.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <unordered_map>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <accel/error.h>
#include <accel/save_on_disk.h>

#include "libaccel/engine/optim/state_file.h"
#include "libaccel/interception/stored_tensors.h"

namespace accel::placement {

class DiskStore final : public interception::TensorStore,
                        public std::enable_shared_from_this<DiskStore> {
 public:
  explicit DiskStore(const SaveOnDiskOptions& options,
                     checkpoint::FileSystem& file_system = checkpoint::real_file_system());
  ~DiskStore() override;

  std::unique_ptr<interception::StoredTensor> keep(const at::Tensor& tensor) override;
  void wait_until_written();
  [[nodiscard]] SaveOnDisk::Statistics statistics() const;

 private:
  struct Slot;
  class Kept;

  [[nodiscard]] std::shared_ptr<Slot> slot_of(const at::Tensor& tensor);
  [[nodiscard]] at::Tensor take_place(std::size_t bytes);
  // What it held, in memory.
  [[nodiscard]] c10::Storage storage_of(const std::shared_ptr<Slot>& slot);
  void give_up(Slot& slot) noexcept;

  void work();
  [[nodiscard]] std::shared_ptr<Slot> next_ahead();
  void send_out(const at::Tensor& place);
  void write(const std::shared_ptr<Slot>& slot, std::unique_lock<std::mutex>& lock);
  void read(const std::shared_ptr<Slot>& slot, std::unique_lock<std::mutex>& lock);
  void fail_if_broken() const;

  const std::int64_t min_bytes_;
  const std::int64_t most_on_their_way_;  // in each direction
  std::mutex file_mutex_;
  StateFile file_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_number_ = 0;
  std::map<std::uint64_t, std::weak_ptr<Slot>> slots_;  // in the order of saving
  std::unordered_map<const c10::StorageImpl*, std::weak_ptr<Slot>> latest_;  // of a storage
  std::deque<std::shared_ptr<Slot>> to_write_;
  std::deque<std::shared_ptr<Slot>> wanted_;  // by a backward that waits
  std::deque<at::Tensor> to_leave_;           // places in memory that nobody needs any more
  std::uint64_t read_before_ = 0;             // slots below this number are next
  std::int64_t waiting_bytes_ = 0;
  std::int64_t ahead_bytes_ = 0;  // read, and not asked for yet
  std::multimap<std::size_t, at::Tensor>
      places_;  // that are free, or will be when their tensors are gone
  std::optional<Error> error_;
  SaveOnDisk::Statistics statistics_;
  bool is_stopping_ = false;
  std::thread thread_;  // last: it uses the rest
};

}  // namespace accel::placement
