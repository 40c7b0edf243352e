// IterableDatasetShard: one rank's elements of a dataset that can only be read from the beginning.
//
// Every rank reads the same elements and keeps its slice of each group of N * B (of B with
// split_batches). With drop_last an incomplete last group is dropped. Otherwise it is filled with
// elements of the first group. So all ranks see the same number of elements, a multiple of their
// batch size.
//
// If a dataset has shard(num_shards, index), which returns a dataset of the same type with a part of the elements, ranks need not read
// all elements: prepared without dispatch_batches and split_batches, every rank reads only its shard, to its end. If num_shards() is
// below the number of ranks, the dataset is read like any other.
//
// An iterable dataset is any class with begin() and end(); begin() starts a new pass. It may have
// set_epoch(int64_t), called before each pass; or generator(), an at::Generator that every rank
// seeds with the epoch, so that a shuffle inside the dataset is the same on all ranks; and size(),
// the number of its elements.
//
// Shapes:   N = ranks, r = this rank, B = batch size.
// Threads:  not synchronised.
// Cost:     two groups of elements, and reading the elements of all ranks.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>

#include <accel/export.h>

namespace accel {

// Which part of a stream a rank reads, and in which batches.
struct IterableShardOptions {
  std::int64_t batch_size = 1;  // of a rank; with split_batches of all ranks together
  bool drop_last = false;
  std::int64_t num_processes = 1;
  std::int64_t process_index = 0;
  bool split_batches = false;

  [[nodiscard]] std::int64_t group_size() const noexcept {
    return split_batches ? batch_size : batch_size * num_processes;
  }
  // Elements of one group that belong to one rank.
  [[nodiscard]] std::int64_t slice_size() const noexcept { return group_size() / num_processes; }
};

// Throws kInvalidArgument for an invalid batch size or rank, kDataSharding with split_batches for a
// batch size that cannot be divided.
ACCEL_EXPORT void check(const IterableShardOptions& options);

// Elements that one rank sees of num_elements.
[[nodiscard]] ACCEL_EXPORT std::int64_t iterable_shard_size(std::int64_t num_elements,
                                                            const IterableShardOptions& options);

// The arithmetic behind IterableDatasetShard: takes all elements in order, returns one rank's
// slices.
template <typename T>
class ShardBuffer {
 public:
  explicit ShardBuffer(IterableShardOptions options) : options_(options) { check(options_); }

  // Returns this rank's slice when the element completes a group.
  std::optional<std::vector<T>> push(T element) {
    group_.push_back(std::move(element));
    if (std::ssize(group_) < options_.group_size()) return std::nullopt;
    if (first_group_.empty() && !options_.drop_last) first_group_ = group_;
    return take_slice();
  }

  // Returns this rank's slice of the completed last group, if there is one. Ends the pass.
  std::optional<std::vector<T>> finish() {
    if (options_.drop_last || group_.empty()) return std::nullopt;
    rows_of_last_ = std::ssize(group_);
    if (first_group_.empty()) first_group_ = group_;
    for (size_t i = 0; std::ssize(group_) < options_.group_size(); ++i) {
      group_.push_back(first_group_[i % first_group_.size()]);
    }
    return take_slice();
  }

  // After finish(): elements of all ranks in the last group before it was filled; 0: it was complete.
  [[nodiscard]] std::int64_t rows_of_last() const noexcept { return rows_of_last_; }

 private:
  std::vector<T> take_slice() {
    const auto begin = group_.begin() + options_.process_index * options_.slice_size();
    std::vector<T> slice(std::make_move_iterator(begin),
                         std::make_move_iterator(begin + options_.slice_size()));
    group_.clear();
    return slice;
  }

  IterableShardOptions options_;
  std::vector<T> group_;
  std::vector<T> first_group_;
  std::int64_t rows_of_last_ = 0;
};

// A dataset with set_epoch(); with shard(); with its own generator.
template <typename D>
concept HasSetEpoch = requires(D& dataset, std::int64_t epoch) {
  dataset.set_epoch(epoch);
};
template <typename D>
concept HasShard = requires(const D& dataset, std::int64_t number) {
  { dataset.shard(number, number) } -> std::convertible_to<D>;
};
template <typename D>
concept HasGenerator = requires(D& dataset) {
  { dataset.generator() } -> std::convertible_to<at::Generator>;
};

// Tells an iterable dataset the number of the next pass.
template <typename D>
void begin_dataset_epoch(D& dataset, std::int64_t epoch) {
  if constexpr (HasSetEpoch<D>) {
    dataset.set_epoch(epoch);
  } else if constexpr (HasGenerator<D>) {
    at::Generator generator = dataset.generator();
    if (generator.defined()) generator.set_current_seed(static_cast<std::uint64_t>(epoch));
  }
}

template <typename Dataset>
class IterableDatasetShard {
 public:
  using value_type = std::decay_t<decltype(*std::declval<Dataset&>().begin())>;

  IterableDatasetShard(Dataset dataset, IterableShardOptions options)
      : dataset_(std::move(dataset)), options_(options) {
    check(options_);
  }

  void set_epoch(std::int64_t epoch) { epoch_ = epoch; }

  // Calls visit(element) for each element of this rank.
  template <typename Visit>
  void for_each(Visit&& visit) {
    begin_dataset_epoch(dataset_, epoch_);
    ShardBuffer<value_type> buffer(options_);
    const auto visit_slice = [&](std::optional<std::vector<value_type>> slice) {
      if (!slice) return;
      for (value_type& element : *slice) visit(std::move(element));
    };
    for (auto&& element : dataset_)
      visit_slice(buffer.push(std::forward<decltype(element)>(element)));
    visit_slice(buffer.finish());
  }

  // Elements of one pass of this rank.
  [[nodiscard]] std::int64_t size() const requires requires(const Dataset& dataset) {
    dataset.size();
  }
  { return iterable_shard_size(static_cast<std::int64_t>(dataset_.size()), options_); }

 private:
  Dataset dataset_;
  IterableShardOptions options_;
  std::int64_t epoch_ = 0;
};

}  // namespace accel
