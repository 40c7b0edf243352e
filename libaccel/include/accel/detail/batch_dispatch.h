// DispatchStream: rank 0 reads the batches for all ranks and sends each rank its part.
//
// Rank 0 joins the batches of N ranks (or takes one batch with split_batches), broadcasts it, and
// every rank keeps its slice. Rank 0 also reads ahead. If N does not divide the last group, rank 0
// completes it with the first rows of the pass before it sends it: all ranks get equally many rows.
//
// A batch has as many rows as its first tensor. Every other tensor has one row for each of them, and
// every vector without tensors (of strings, of numbers) one element. All other members belong to
// the whole batch, and every rank gets them.
//
// Threads:  every rank calls next() equally often; each call is one broadcast.
// Errors    kShapeMismatch when the batches of one group cannot be joined. kDataSharding when a group
//           before the last does not divide, or holds a tensor or a vector of another length.
//           If rank 0 finds the error before it sends, the others throw kPeerLost with the same text.
// Cost:     the whole group is sent to every rank.
#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/batch.h>
#include <accel/detail/batch_stream.h>
#include <accel/detail/concatenate.h>
#include <accel/detail/dataloader_base.h>
#include <accel/export.h>
#include <accel/nested.h>
#include <accel/operations.h>

namespace accel::detail {

[[noreturn]] ACCEL_EXPORT void throw_cannot_join(const std::string& why);
[[noreturn]] ACCEL_EXPORT void throw_does_not_divide(std::int64_t rows, std::int64_t num_processes);
[[noreturn]] ACCEL_EXPORT void throw_reader_failed(const std::string& why);
[[noreturn]] ACCEL_EXPORT void throw_cannot_send();
[[noreturn]] ACCEL_EXPORT void throw_other_length(std::int64_t length, std::int64_t rows);
// A view of the rows. Throws kDataSharding for a tensor without `num_rows` rows.
ACCEL_EXPORT at::Tensor rows_of_batch(const at::Tensor& tensor,
                                      std::int64_t num_rows,
                                      std::int64_t begin,
                                      std::int64_t end);

// Keeps rows begin..end of a part of a batch of num_rows rows.
struct BatchRows {
  std::int64_t num_rows;
  std::int64_t begin;
  std::int64_t end;

  template <typename T>
  void keep(T& data) const {
    if constexpr (std::is_same_v<T, at::Tensor>) {
      if (data.defined()) data = rows_of_batch(data, num_rows, begin, end);
    } else if constexpr (is_a<T, std::vector> && !Contains<T, at::Tensor>::value) {
      if (std::ssize(data) != num_rows) throw_other_length(std::ssize(data), num_rows);
      data = T(data.begin() + begin, data.begin() + end);
    } else if constexpr (is_sequence<T>) {
      for (auto& element : data) keep(element);
    } else if constexpr (is_map<T>) {
      for (auto& entry : data) keep(entry.second);
    } else if constexpr (is_product<T>) {
      std::apply([&](auto&... parts) { (keep(parts), ...); }, data);
    } else if constexpr (is_a<T, std::optional>) {
      if (data) keep(*data);
    } else if constexpr (is_a<T, std::variant>) {
      std::visit([&](auto& value) { keep(value); }, data);
    } else if constexpr (HasFields<T> || ExampleLike<T>) {
      std::apply([&](auto... member) { (keep(data.*member), ...); }, fields_of<T>());
    }
  }
};

// Rows begin..end of all members of a batch that have one entry for each row.
template <typename Batch>
Batch slice_batch(Batch batch, std::int64_t begin, std::int64_t end) {
  const std::int64_t num_rows = find_batch_size(batch);
  BatchRows{num_rows, std::min(begin, num_rows), std::min(end, num_rows)}.keep(batch);
  return batch;
}

// A batch that can be sent to another rank.
template <typename Batch>
concept Sendable = requires(ObjectWriter& out, const Batch& batch) {
  ObjectCodec<Batch>::write(out, batch);
};

template <Sendable Batch>
class DispatchStream : public BatchStream<Batch> {
 public:
  // local: the batches of this process, on rank 0; null elsewhere. skip: the number of groups to skip. slicer: may be empty.
  DispatchStream(std::unique_ptr<BatchStream<Batch>> local,
                 const LoaderPlan& plan,
                 std::int64_t skip,
                 BatchSlicer<Batch> slicer = {})
      : local_(std::move(local)),
        slicer_(std::move(slicer)),
        num_processes_(plan.num_processes),
        process_index_(plan.process_index),
        split_batches_(plan.split_batches),
        drop_last_(plan.drop_last),
        skip_(skip) {}

  std::optional<Batch> next() override {
    Group group;
    std::exception_ptr failure;
    if (local_) {
      try {
        group = read_complete_group();
      } catch (const std::exception& error) {
        failure = std::current_exception();
        group.error = error.what();
      }
    }
    group = receive(broadcast_object(send(group)));
    if (failure) std::rethrow_exception(failure);
    if (!group.error.empty()) throw_reader_failed(group.error);
    if (!group.batch) return std::nullopt;
    rows_of_last_ = group.rows;
    const std::int64_t own_rows = find_batch_size(*group.batch) / num_processes_;
    return slice(
        *std::move(group.batch), process_index_ * own_rows, (process_index_ + 1) * own_rows);
  }

  // Rows of the last group before it was completed.
  [[nodiscard]] std::int64_t rows_of_last() const override { return rows_of_last_; }

 private:
  [[nodiscard]] Batch slice(Batch batch, std::int64_t begin, std::int64_t end) const {
    if (slicer_) return slicer_(batch, begin, end, process_index_, num_processes_);
    return slice_batch(std::move(batch), begin, end);
  }

  struct Group {
    std::string error;      // what rank 0 failed with
    std::int64_t rows = 0;  // before completion
    std::optional<Batch> batch;
  };
  using Message = std::tuple<std::string, std::int64_t, std::optional<Batch>>;
  static Message send(const Group& group) { return {group.error, group.rows, group.batch}; }
  static Group receive(Message message) {
    auto& [error, rows, batch] = message;
    return {std::move(error), rows, std::move(batch)};
  }

  Group read_complete_group() {
    if (!has_begun_) begin();
    Group group;
    if (failure_) std::rethrow_exception(failure_);
    group.batch = std::exchange(ahead_, std::nullopt);
    if (!group.batch) return group;
    read_ahead();
    group.rows = find_batch_size(*group.batch);
    if (group.rows % num_processes_ == 0) return group;
    if (failure_) std::rethrow_exception(failure_);  // nobody knows whether it is the last
    if (ahead_) throw_does_not_divide(group.rows, num_processes_);
    if (drop_last_) {
      group.batch = slice_batch(*group.batch, 0, group.rows / num_processes_ * num_processes_);
    } else {
      complete(*group.batch, group.rows);
    }
    return group;
  }

  // The current group is complete, even if reading the next one fails.
  void read_ahead() {
    try {
      ahead_ = read_group();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  void begin() {
    has_begun_ = true;
    ahead_ = read_group();
    if (ahead_) first_rows_ = slice(*ahead_, 0, num_processes_);
    for (std::int64_t skipped = 0; skipped < skip_ && ahead_; ++skipped) ahead_ = read_group();
  }

  // Appends rows of the beginning, repeatedly, until every rank has one more.
  void complete(Batch& batch, std::int64_t rows) const {
    const std::int64_t wanted = (rows / num_processes_ + 1) * num_processes_;
    std::vector<Batch> parts = {std::move(batch)};
    const std::int64_t first_rows = find_batch_size(*first_rows_);
    if (first_rows == 0) throw_does_not_divide(rows, num_processes_);  // a slicer gave none
    for (std::int64_t have = rows; have < wanted; have += first_rows) {
      parts.push_back(slice_batch(*first_rows_, 0, std::min(first_rows, wanted - have)));
    }
    batch = concatenate(parts);
  }

  // The next N batches in one, or the remaining ones; std::nullopt at the end.
  std::optional<Batch> read_group() {
    if (split_batches_) return local_->next();
    std::vector<Batch> batches;
    while (std::ssize(batches) < num_processes_) {
      std::optional<Batch> batch = local_->next();
      if (!batch) break;
      batches.push_back(*std::move(batch));
    }
    const bool is_whole = std::ssize(batches) == num_processes_;
    if (batches.empty() || (drop_last_ && !is_whole)) return std::nullopt;
    try {
      return concatenate(batches);
    } catch (const std::exception& error) {
      throw_cannot_join(error.what());
    }
  }

  std::unique_ptr<BatchStream<Batch>> local_;
  BatchSlicer<Batch> slicer_;  // empty: slice_batch()
  std::int64_t num_processes_;
  std::int64_t process_index_;
  bool split_batches_;
  bool drop_last_;
  std::int64_t skip_;
  bool has_begun_ = false;
  std::optional<Batch> ahead_;
  std::exception_ptr failure_;  // in place of the group ahead
  std::optional<Batch> first_rows_;
  std::int64_t rows_of_last_ = -1;
};

}  // namespace accel::detail
