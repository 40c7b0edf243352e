// BatchStream: the batches of one pass, one after the other; and the readers that make one.
//
// A stream is read by one thread. WorkerStream reads ahead with threads and returns the batches
// in order, also if they were finished in another order; StreamReadAhead does the same with one
// thread for data that can only be read in order.
//
// Threads:  next() from one thread. With workers the dataset's get() runs in several threads at once.
// Cost:     workers * prefetch_factor batches in memory.
// Errors    next() throws an exception of the dataset or of the collate function at the batch that it
//           belongs to, from any thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <accel/batch_samplers.h>
#include <accel/export.h>
#include <accel/iterable_shard.h>

namespace accel {

template <typename Batch>
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  // The next batch; std::nullopt after the last.
  virtual std::optional<Batch> next() = 0;
  // After the last batch: the rows that all ranks together had for it; -1 if only the plan knows
  // the number.
  [[nodiscard]] virtual std::int64_t rows_of_last() const { return -1; }
};

namespace detail {

// Reads in the calling thread.
template <typename Batch>
class DirectStream : public BatchStream<Batch> {
 public:
  DirectStream(BatchList list, std::int64_t first, std::function<Batch(const Indices&)> read)
      : list_(std::move(list)), next_(first), read_(std::move(read)) {}

  std::optional<Batch> next() override {
    if (next_ >= list_.size()) return std::nullopt;
    return read_(list_[next_++]);
  }

 private:
  BatchList list_;
  std::int64_t next_;
  std::function<Batch(const Indices&)> read_;
};

// Threads that stay from one pass to the next.
class ACCEL_EXPORT WorkerPool {
 public:
  explicit WorkerPool(int num_workers);
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // Lets every thread call work() once. False: the threads are busy.
  [[nodiscard]] bool begin(std::function<void()> work);
  // Waits until all have returned.
  void finish();

 private:
  void serve();

  std::mutex mutex_;  // guards everything below but the threads
  std::condition_variable changed_;
  std::function<void()> work_;  // empty: there is none
  std::int64_t round_ = 0;
  int num_busy_ = 0;
  bool stopping_ = false;
  std::vector<std::jthread> threads_;  // last: joined before the rest is destroyed
};

// Slots in a ring: batch number n is in slot n modulo the capacity, until it is taken.
template <typename Batch>
class WorkerStream : public BatchStream<Batch> {
 public:
  WorkerStream(BatchList list,
               std::int64_t first,
               std::function<Batch(const Indices&)> read,
               int num_workers,
               int prefetch_factor,
               std::shared_ptr<WorkerPool> pool = nullptr)
      : list_(std::move(list)),
        read_(std::move(read)),
        slots_(static_cast<size_t>(num_workers) * static_cast<size_t>(prefetch_factor)),
        next_to_read_(first),
        next_to_take_(first) {
    if (pool != nullptr && pool->begin([this] { work(); })) {
      pool_ = std::move(pool);
      return;
    }
    for (int i = 0; i < num_workers; ++i) workers_.emplace_back([this] { work(); });
  }

  ~WorkerStream() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (pool_ != nullptr) pool_->finish();
  }

  std::optional<Batch> next() override {
    if (next_to_take_ >= list_.size()) return std::nullopt;
    Slot slot;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return slot_of(next_to_take_).is_filled; });
      slot = std::exchange(slot_of(next_to_take_), Slot{});
      ++next_to_take_;
    }
    changed_.notify_all();
    if (slot.failure) std::rethrow_exception(slot.failure);
    return std::move(slot.batch);
  }

 private:
  struct Slot {
    bool is_filled = false;
    std::optional<Batch> batch;
    std::exception_ptr failure;  // instead of a batch
  };

  Slot& slot_of(std::int64_t number) { return slots_[static_cast<size_t>(number) % slots_.size()]; }

  bool may_read() const {
    return next_to_read_ < list_.size() && next_to_read_ < next_to_take_ + std::ssize(slots_);
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return stopping_ || next_to_read_ >= list_.size() || may_read(); });
      if (stopping_ || next_to_read_ >= list_.size()) return;
      const std::int64_t number = next_to_read_++;
      lock.unlock();
      Slot slot = read_slot(number);
      lock.lock();
      slot_of(number) = std::move(slot);
      changed_.notify_all();
    }
  }

  Slot read_slot(std::int64_t number) {
    Slot slot{.is_filled = true};
    try {
      slot.batch = read_(list_[number]);
    } catch (...) {
      slot.failure = std::current_exception();
    }
    return slot;
  }

  BatchList list_;
  std::function<Batch(const Indices&)> read_;
  std::mutex mutex_;  // guards everything below but the threads
  std::condition_variable changed_;
  std::vector<Slot> slots_;
  std::int64_t next_to_read_;
  std::int64_t next_to_take_;
  bool stopping_ = false;
  std::shared_ptr<WorkerPool> pool_;   // whose threads work here; else those below
  std::vector<std::jthread> workers_;  // last: joined before the rest is destroyed
};

// Reads another stream ahead, in one thread.
template <typename Batch>
class StreamReadAhead : public BatchStream<Batch> {
 public:
  StreamReadAhead(std::unique_ptr<BatchStream<Batch>> inner, int num_batches)
      : inner_(std::move(inner)),
        // The number of batches is not known: the worker stream ends at the first empty one.
        ahead_(
            BatchList(std::numeric_limits<std::int64_t>::max(),
                      [](std::int64_t) { return Indices{}; }),
            0,
            [this](const Indices&) { return ended_ ? std::nullopt : read_one(); },
            1,
            num_batches) {}

  std::optional<Batch> next() override { return *std::move(ahead_.next()); }
  // The thread that reads has ended with the last batch.
  [[nodiscard]] std::int64_t rows_of_last() const override { return inner_->rows_of_last(); }

 private:
  std::optional<Batch> read_one() {
    std::optional<Batch> batch = inner_->next();
    ended_ = !batch;
    return batch;
  }

  std::unique_ptr<BatchStream<Batch>> inner_;
  bool ended_ = false;  // of the reading thread
  WorkerStream<std::optional<Batch>> ahead_;
};

// Groups the elements of one process: batches of batch_size, the last one with the rest.
template <typename T>
class PlainGroups {
 public:
  PlainGroups(std::int64_t batch_size, bool drop_last)
      : batch_size_(batch_size), drop_last_(drop_last) {}

  std::optional<std::vector<T>> push(T element) {
    group_.push_back(std::move(element));
    if (std::ssize(group_) < batch_size_) return std::nullopt;
    return std::exchange(group_, {});
  }

  std::optional<std::vector<T>> finish() {
    if (drop_last_ || group_.empty()) return std::nullopt;
    return std::exchange(group_, {});
  }
  // It repeats no element.
  [[nodiscard]] std::int64_t rows_of_last() const noexcept { return -1; }

 private:
  std::int64_t batch_size_;
  bool drop_last_;
  std::vector<T> group_;
};

// Reads an iterable dataset; Groups is PlainGroups or ShardBuffer.
template <typename Batch, typename Dataset, typename Groups, typename Collate>
class IterableStream : public BatchStream<Batch> {
 public:
  // first_element: the elements before it are read and skipped.
  IterableStream(std::shared_ptr<Dataset> dataset,
                 std::int64_t epoch,
                 std::int64_t first_element,
                 Groups groups,
                 Collate collate)
      : dataset_(std::move(dataset)), groups_(std::move(groups)), collate_(std::move(collate)) {
    begin_dataset_epoch(*dataset_, epoch);
    position_.emplace(dataset_->begin());
    for (std::int64_t i = 0; i < first_element && *position_ != dataset_->end(); ++i) ++*position_;
  }

  std::optional<Batch> next() override {
    if (!position_) return std::nullopt;
    while (*position_ != dataset_->end()) {
      auto group = groups_.push(**position_);
      ++*position_;
      if (group) return collate_(*std::move(group));
    }
    position_.reset();
    auto rest = groups_.finish();
    if (!rest) return std::nullopt;
    return collate_(*std::move(rest));
  }

  [[nodiscard]] std::int64_t rows_of_last() const override { return groups_.rows_of_last(); }

 private:
  std::shared_ptr<Dataset> dataset_;  // shared with the loader and its copies
  Groups groups_;
  Collate collate_;
  std::optional<std::decay_t<decltype(std::declval<Dataset&>().begin())>> position_;
};

}  // namespace detail
}  // namespace accel
