// Batch samplers: which elements make up which batch, for one rank of several.
//
// A pass is a BatchList with access to every batch by its number. So the batches of a rank, and the
// rest after an interruption, are found by arithmetic.
//
// Shapes:   n = elements, L = batches of all ranks, N = ranks, r = this rank, B = batch size.
// Threads:  the batch samplers are not synchronised; any thread may read a BatchList.
// Source:   tests/peer/data_sharding.py compares every batch with HF Accelerate's, index by index.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <accel/export.h>
#include <accel/samplers.h>

namespace accel {

// The batches of one pass by number; a batch is made on access.
class ACCEL_EXPORT BatchList {
 public:
  // num_samples: how many of a batch's first elements are in no other batch; if it is empty, all of them.
  BatchList(std::int64_t size,
            std::function<Indices(std::int64_t)> batch,
            std::function<std::int64_t(std::int64_t)> num_samples = {})
      : size_(size), batch_(std::move(batch)), num_samples_(std::move(num_samples)) {}
  explicit BatchList(std::vector<Indices> batches);

  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  // Requires 0 <= number < size().
  [[nodiscard]] Indices operator[](std::int64_t number) const { return batch_(number); }
  // Elements of a batch that are not repeats, if known. Requires 0 <= number < size().
  [[nodiscard]] std::optional<std::int64_t> num_samples(std::int64_t number) const {
    return num_samples_ ? std::optional(num_samples_(number)) : std::nullopt;
  }

 private:
  std::int64_t size_;
  std::function<Indices(std::int64_t)> batch_;
  std::function<std::int64_t(std::int64_t)> num_samples_;
};

// Groups elements into batches. Derive from it for your own batches, for instance of elements with
// similar lengths.
class ACCEL_EXPORT BatchSamplerBase {
 public:
  virtual ~BatchSamplerBase() = default;
  // The batches of a new pass over the order.
  [[nodiscard]] virtual BatchList begin_pass() = 0;
  // Whether a pass may begin at any element of the order, with batches from there on.
  [[nodiscard]] virtual bool begins_anywhere() const { return false; }
  // Such a pass. Requires: begins_anywhere().
  [[nodiscard]] virtual BatchList begin_pass_at(std::int64_t /*first_element*/) {
    return begin_pass();
  }
  virtual void end_pass() {}
  // Batches of one pass, as announced (see BatchSamplerShard for where a pass may differ).
  [[nodiscard]] virtual std::int64_t size() const = 0;
  // Elements in every batch but the last, which may be shorter; not set when batches vary.
  [[nodiscard]] virtual std::optional<std::int64_t> batch_size() const { return std::nullopt; }
  [[nodiscard]] virtual bool drop_last() const { return false; }
  virtual void set_epoch(std::int64_t /*epoch*/) {}
  // The sampler of the order; null if there is none.
  [[nodiscard]] virtual std::shared_ptr<Sampler> sampler() const { return nullptr; }
  // The same batches for another order; null if that is not possible.
  [[nodiscard]] virtual std::shared_ptr<BatchSamplerBase> with_sampler(
      std::shared_ptr<Sampler> /*sampler*/) const {
    return nullptr;
  }
};

// batch_size elements of a sampler at a time; the last batch has the rest, unless drop_last is set.
//
// Errors  kInvalidArgument if batch_size is not positive or the sampler is null.
class ACCEL_EXPORT BatchSampler : public BatchSamplerBase {
 public:
  BatchSampler(std::shared_ptr<Sampler> sampler, std::int64_t batch_size, bool drop_last = false);

  [[nodiscard]] BatchList begin_pass() override { return batches_from(0); }
  [[nodiscard]] bool begins_anywhere() const override { return true; }
  [[nodiscard]] BatchList begin_pass_at(std::int64_t first_element) override {
    return batches_from(first_element);
  }
  void end_pass() override { sampler_->end_pass(); }
  [[nodiscard]] std::int64_t size() const override;
  [[nodiscard]] std::optional<std::int64_t> batch_size() const override { return batch_size_; }
  [[nodiscard]] bool drop_last() const override { return drop_last_; }
  void set_epoch(std::int64_t epoch) override { sampler_->set_epoch(epoch); }
  [[nodiscard]] std::shared_ptr<Sampler> sampler() const override { return sampler_; }
  [[nodiscard]] std::shared_ptr<BatchSamplerBase> with_sampler(
      std::shared_ptr<Sampler> sampler) const override {
    return std::make_shared<BatchSampler>(std::move(sampler), batch_size_, drop_last_);
  }

 private:
  [[nodiscard]] BatchList batches_from(std::int64_t first_element);

  std::shared_ptr<Sampler> sampler_;  // shared with the loader that saves its state
  std::int64_t batch_size_;
  bool drop_last_;
};

struct BatchShardOptions {
  std::int64_t num_processes = 1;
  std::int64_t process_index = 0;
  bool split_batches = false;  // true: a rank takes a part of every batch, not every N-th batch
  bool even_batches = true;    // true: the end is completed with elements from the beginning
};

// Throws kInvalidArgument when num_batches is negative.
ACCEL_EXPORT void check_skip(std::int64_t num_batches);

// Throws kInvalidArgument unless 0 <= process_index < num_processes.
ACCEL_EXPORT void check_rank(std::int64_t process_index, std::int64_t num_processes);

// Throws kDataSharding, naming the numbers, unless num_processes divides batch_size.
ACCEL_EXPORT void check_batch_size_divides(std::optional<std::int64_t> batch_size,
                                           std::int64_t num_processes);

// The batches of one rank.
//
// Whole batches (split_batches = false): rank r takes the batches r, r + N, r + 2N, ... . An
// incomplete last round is dropped with drop_last. With even_batches it is filled from the first
// batches, so all ranks have the same number of batches and elements. Otherwise only the first ranks
// get a batch of it. Parts (split_batches = true): rank r takes the r-th of N equal parts of each
// batch.
//
// Errors  kDataSharding with split_batches if N does not divide the batch size, or the size varies;
//         kInvalidArgument if the rank is not one of N.
class ACCEL_EXPORT BatchSamplerShard : public BatchSamplerBase {
 public:
  BatchSamplerShard(std::shared_ptr<BatchSamplerBase> batches, BatchShardOptions options);

  [[nodiscard]] BatchList begin_pass() override { return shard_of(batches_->begin_pass()); }
  [[nodiscard]] bool begins_anywhere() const override { return batches_->begins_anywhere(); }
  [[nodiscard]] BatchList begin_pass_at(std::int64_t first_element) override {
    return shard_of(batches_->begin_pass_at(first_element));
  }
  void end_pass() override { batches_->end_pass(); }
  // With split_batches the result may be one more than a pass has: if even_batches is off and the
  // last batch ends before this rank's part.
  [[nodiscard]] std::int64_t size() const override;
  [[nodiscard]] std::optional<std::int64_t> batch_size() const override;
  [[nodiscard]] bool drop_last() const override { return batches_->drop_last(); }
  void set_epoch(std::int64_t epoch) override { batches_->set_epoch(epoch); }
  [[nodiscard]] std::shared_ptr<Sampler> sampler() const override { return batches_->sampler(); }

  // Batches of all ranks.
  [[nodiscard]] std::int64_t total_length() const { return batches_->size(); }
  [[nodiscard]] const BatchShardOptions& options() const noexcept { return options_; }
  [[nodiscard]] const std::shared_ptr<BatchSamplerBase>& inner() const noexcept { return batches_; }
  void set_even_batches(bool even_batches) noexcept { options_.even_batches = even_batches; }

 private:
  [[nodiscard]] BatchList shard_of(BatchList all) const;

  std::shared_ptr<BatchSamplerBase> batches_;
  BatchShardOptions options_;
};

// All batches except the first num_batches.
class ACCEL_EXPORT SkipBatchSampler : public BatchSamplerBase {
 public:
  SkipBatchSampler(std::shared_ptr<BatchSamplerBase> batches, std::int64_t num_batches);

  [[nodiscard]] BatchList begin_pass() override;
  void end_pass() override { batches_->end_pass(); }
  [[nodiscard]] std::int64_t size() const override;
  [[nodiscard]] std::optional<std::int64_t> batch_size() const override {
    return batches_->batch_size();
  }
  [[nodiscard]] bool drop_last() const override { return batches_->drop_last(); }
  void set_epoch(std::int64_t epoch) override { batches_->set_epoch(epoch); }
  [[nodiscard]] std::shared_ptr<Sampler> sampler() const override { return batches_->sampler(); }
  [[nodiscard]] std::int64_t total_length() const { return batches_->size(); }

 private:
  std::shared_ptr<BatchSamplerBase> batches_;
  std::int64_t num_batches_;
};

}  // namespace accel
