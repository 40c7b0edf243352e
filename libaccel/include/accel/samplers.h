// Samplers: the order in which one pass visits the elements of a dataset.
//
// A pass is fixed at its start: begin_pass() draws the random numbers that it needs and returns the
// whole order, with access to any position. So a rank finds its own batches by arithmetic, and a
// resumed pass skips indices, not data.
//
//   Sampler --IndexOrder--> BatchSampler --BatchList--> BatchSamplerShard --BatchList--> DataLoader
//
// RandomSampler gives the order of torch.utils.data.RandomSampler (torch.randperm) for a generator
// in the same state. SeedableRandomSampler gives the order of HF Accelerate's. PermutationSampler computes another random order without
// drawing it.
//
// Threads:  the samplers are not synchronised; any thread may read an IndexOrder.
// Cost:     8 bytes for each element of a random order; nothing for a sequential or permuted one.
// Source:   tests/peer/data_sharding.py compares every order with HF Accelerate's, index by index.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Generator.h>

#include <accel/export.h>
#include <accel/state_dict.h>

namespace accel {

using Indices = std::vector<std::int64_t>;

class Permutation;

// The elements of one pass by position: 0, 1, 2, ..., a list, or a permutation.
class ACCEL_EXPORT IndexOrder {
 public:
  explicit IndexOrder(std::int64_t size) : size_(size) {}
  explicit IndexOrder(Indices list)
      : size_(static_cast<std::int64_t>(list.size())),
        list_(std::make_shared<const Indices>(std::move(list))) {}
  explicit IndexOrder(std::shared_ptr<const Permutation> permutation);

  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  // Requires 0 <= position < size().
  [[nodiscard]] std::int64_t operator[](std::int64_t position) const {
    if (list_) return (*list_)[static_cast<size_t>(position)];
    return permutation_ ? permuted(position) : position;
  }

 private:
  [[nodiscard]] std::int64_t permuted(std::int64_t position) const;

  std::int64_t size_;
  std::shared_ptr<const Indices> list_;  // shared by the copies of one order, which never changes
  std::shared_ptr<const Permutation> permutation_;
};

// Decides the order of the elements. Derive from it for your own order.
class ACCEL_EXPORT Sampler : public Stateful {
 public:
  // Fixes the next pass.
  [[nodiscard]] virtual IndexOrder begin_pass() = 0;
  // Tells the sampler that the pass was read to its end.
  virtual void end_pass() {}
  // Indices of one pass.
  [[nodiscard]] virtual std::int64_t size() const = 0;
  // Sets the number of the next pass; it only matters for an order that depends on the epoch.
  virtual void set_epoch(std::int64_t /*epoch*/) {}
  // During a pass: the state that begins it again with the same order. Between passes: the state of the next one.
  [[nodiscard]] StateDict state_dict() const override { return {}; }
  void load_state_dict(const StateDict& /*state*/) override {}
};

// 0, 1, ..., size - 1.
class ACCEL_EXPORT SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(std::int64_t size) : size_(size) {}
  [[nodiscard]] IndexOrder begin_pass() override { return IndexOrder(size_); }
  [[nodiscard]] std::int64_t size() const override { return size_; }

 private:
  std::int64_t size_;
};

struct RandomSamplerOptions {
  bool replacement = false;                 // true: every draw is from all elements
  std::optional<std::int64_t> num_samples;  // per pass; as many as there are elements when not set
  at::Generator generator;                  // undefined: a seed from torch's default one, each pass
};

// A random order: torch.randperm, repeated until num_samples are drawn, or draws with replacement.
//
// Errors  kInvalidArgument if num_samples (or the number of elements) is not positive.
class ACCEL_EXPORT RandomSampler : public Sampler {
 public:
  explicit RandomSampler(std::int64_t num_elements, RandomSamplerOptions options = {});

  [[nodiscard]] IndexOrder begin_pass() override;
  void end_pass() override;
  [[nodiscard]] std::int64_t size() const override;
  // With its own generator: "generator", its bytes from before the pass. Otherwise "seed", during a
  // pass.
  [[nodiscard]] StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  [[nodiscard]] std::int64_t num_elements() const noexcept { return num_elements_; }
  [[nodiscard]] const RandomSamplerOptions& options() const noexcept { return options_; }
  // The generator of the passes to come.
  void set_generator(at::Generator generator) { options_.generator = std::move(generator); }

 protected:
  [[nodiscard]] IndexOrder draw(at::Generator generator) const;

 private:
  std::int64_t num_elements_;
  RandomSamplerOptions options_;
  at::Tensor state_before_pass_;                // of options_.generator; undefined between passes
  std::optional<std::int64_t> seed_of_pass_;    // drawn from the default generator; of this pass
  std::optional<std::int64_t> seed_to_repeat_;  // loaded; used by the next pass
};

// A random order that depends only on a seed and the epoch. A pass is drawn from a generator with
// the seed epoch + initial seed. The epoch advances after each full pass.
class ACCEL_EXPORT SeedableRandomSampler : public RandomSampler {
 public:
  // seed: not set means torch's initial seed, as manual_seed() or set_seed() left it.
  explicit SeedableRandomSampler(std::int64_t num_elements,
                                 std::optional<std::int64_t> seed = std::nullopt,
                                 RandomSamplerOptions options = {});

  [[nodiscard]] IndexOrder begin_pass() override;
  void end_pass() override { ++epoch_; }
  void set_epoch(std::int64_t epoch) override { epoch_ = epoch; }
  // "epoch" and "seed".
  [[nodiscard]] StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  [[nodiscard]] std::int64_t epoch() const noexcept { return epoch_; }
  [[nodiscard]] std::int64_t initial_seed() const noexcept { return initial_seed_; }
  // The seed of the passes to come.
  void set_initial_seed(std::int64_t seed) noexcept { initial_seed_ = seed; }

 private:
  std::int64_t initial_seed_;
  std::int64_t epoch_ = 0;
};

// Every element once, in a random order that depends only on a seed and the epoch. The order is computed for each position, so a pass
// begins at once at any position, with any number of elements, and takes no memory. For data sets of millions of small samples.
// Prepared loaders use rank 0's seed on every rank.
//
// Cost:     about 30 ns for an index.
// Errors    kInvalidArgument if num_elements is not positive.
class ACCEL_EXPORT PermutationSampler : public Sampler {
 public:
  // seed: not set means torch's initial seed, as manual_seed() or set_seed() left it.
  explicit PermutationSampler(std::int64_t num_elements,
                              std::optional<std::int64_t> seed = std::nullopt);

  [[nodiscard]] IndexOrder begin_pass() override;
  void end_pass() override { ++epoch_; }
  [[nodiscard]] std::int64_t size() const override { return num_elements_; }
  void set_epoch(std::int64_t epoch) override { epoch_ = epoch; }
  // "epoch" and "seed".
  [[nodiscard]] StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

  [[nodiscard]] std::int64_t seed() const noexcept { return seed_; }
  // The seed of the passes to come.
  void set_seed(std::int64_t seed) noexcept { seed_ = seed; }

 private:
  std::int64_t num_elements_;
  std::int64_t seed_;
  std::int64_t epoch_ = 0;
};

}  // namespace accel
