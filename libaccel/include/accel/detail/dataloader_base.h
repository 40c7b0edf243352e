// DataLoaderBase: the common part of every DataLoader, for any type of batch: options, position, state.
//
// The position is the epoch and the number of its batches that were yielded. Saved in the middle of a
// pass, it includes the sampler's state, which draws the same order again; saved while the last batch
// is yielded, it is the start of the next epoch.
//
// Threads:  the thread that iterates.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <accel/batch_samplers.h>
#include <accel/device_mesh.h>
#include <accel/export.h>
#include <accel/iterable_shard.h>
#include <accel/micro_batches.h>
#include <accel/samplers.h>
#include <accel/state.h>
#include <accel/state_dict.h>
#include <accel/types.h>

namespace accel {

struct DataLoaderOptions {
  std::int64_t batch_size = 1;
  bool shuffle = false;                             // map-style only: a RandomSampler
  std::shared_ptr<Sampler> sampler;                 // the order; excludes shuffle
  std::shared_ptr<BatchSamplerBase> batch_sampler;  // the batches; excludes all of the above
  bool drop_last = false;                           // skip the last batch if it is not full
  int num_workers = 0;      // threads that read ahead; 0 reads in the thread that iterates
  int prefetch_factor = 2;  // batches that each worker reads ahead
  bool pin_memory =
      false;  // batches in page-locked memory, where this build has a device that copies from it
  bool persistent_workers = false;  // the threads stay from pass to pass; needs num_workers > 0
  at::Generator generator;          // of shuffle; undefined: torch's default generator
};

// How a loader is divided over the ranks of a job.
struct ShardOptions {
  std::optional<std::int64_t> num_processes;  // PartialState's when not set
  std::optional<std::int64_t> process_index;
  // In place of both: data is divided only along its axes dp_replicate and dp_shard (data_share()).
  std::optional<DeviceMesh> torch_device_mesh;
  bool split_batches = false;  // true: batch_size is the sum over all ranks
  bool even_batches = true;    // true: all ranks see equally many batches; some samples repeat
  std::optional<bool> dispatch_batches;  // rank 0 reads for all; default: for iterable datasets, if
                                         // `device` is set
  bool use_seedable_sampler = false;     // shuffle by seed + epoch instead of a generator
  std::optional<std::int64_t>
      data_seed;                      // of the seedable sampler; torch's initial seed when not set
  std::optional<c10::Device> device;  // where batches are moved; not set: they are not moved
  bool non_blocking = false;
  // Synchronised with rank 0 when a pass begins. kGenerator is the generator of the shuffle.
  std::vector<RNGType> rng_types = {RNGType::kGenerator};
  // For reproducible training: batches are micro-batches, and a rank gets a contiguous run of the micro-batches of each step;
  // num_processes and process_index then count only for the position.
  std::optional<MicroBatches> micro_batches;
};

// What a loader reads, and for which ranks.
struct ACCEL_EXPORT LoaderPlan {
  std::shared_ptr<BatchSamplerBase> batch_sampler;  // null for an iterable dataset
  std::optional<std::int64_t> dataset_size;
  std::int64_t iterable_batch_size = 1;
  bool drop_last = false;
  at::Generator generator;
  int num_workers = 0;
  int prefetch_factor = 2;
  bool pin_memory = false;
  bool persistent_workers = false;

  std::optional<std::int64_t>
      num_shards;  // of the iterable dataset, if it can be divided into them

  bool is_prepared = false;
  bool shards_itself = false;  // each rank reads its own shards
  std::int64_t num_processes = 1;
  std::int64_t process_index = 0;
  bool split_batches = false;
  bool dispatch_batches = false;
  std::optional<c10::Device> device;
  bool non_blocking = false;
  std::vector<RNGType> rng_types;
  at::Generator synchronized_generator;  // the generator of RNGType::kGenerator
  std::optional<MicroBatches> micro_batches;

  [[nodiscard]] bool iterable_is_sharded() const {
    return num_processes > 1 && !dispatch_batches && !shards_itself;
  }
  [[nodiscard]] IterableShardOptions iterable_shard() const;
  // The number of rows that all ranks together read for one batch; not set when batches vary.
  [[nodiscard]] std::optional<std::int64_t> total_batch_size() const;
  // The number of elements that one pass of all ranks reads, without repeats; not set when it is unknown.
  [[nodiscard]] std::optional<std::int64_t> num_elements() const;
  // The number of batches of one pass of this rank, if it is known in advance.
  [[nodiscard]] std::optional<std::int64_t> num_batches() const;
};

// Errors  kInvalidArgument for options that exclude each other or make no sense.
[[nodiscard]] ACCEL_EXPORT LoaderPlan plan_of_map_dataset(std::optional<std::int64_t> size,
                                                          const DataLoaderOptions& options);
[[nodiscard]] ACCEL_EXPORT LoaderPlan plan_of_iterable_dataset(std::optional<std::int64_t> size,
                                                               const DataLoaderOptions& options);

// The plan of one rank. A plan that is already prepared is returned unchanged.
//
// Errors  kDataSharding when split_batches is set and the batch size is not divisible by the number of ranks.
[[nodiscard]] ACCEL_EXPORT LoaderPlan shard_plan(LoaderPlan plan, const ShardOptions& options);

// How many rows of a gathered batch are elements of the dataset and not repeats that made the ranks
// even; std::nullopt: all of them. remainder: as in ActiveDataLoader.
[[nodiscard]] ACCEL_EXPORT std::optional<std::int64_t> rows_to_keep(
    bool end_of_dataloader, std::int64_t remainder) noexcept;

// Slices a batch that rank 0 has read for all: its rows begin..end, for the rank process_index of num_processes. It is also
// called for the first num_processes rows, which complete the last batch. Default: these rows of every tensor and list.
template <typename Batch>
using BatchSlicer = std::function<Batch(const Batch& batch,
                                        std::int64_t begin,
                                        std::int64_t end,
                                        std::int64_t process_index,
                                        std::int64_t num_processes)>;

class ACCEL_EXPORT DataLoaderBase : public Stateful, public ActiveDataLoader {
 public:
  explicit DataLoaderBase(LoaderPlan plan);
  ~DataLoaderBase() override;
  DataLoaderBase(const DataLoaderBase&) = delete;
  DataLoaderBase& operator=(const DataLoaderBase&) = delete;

  // True from when the last batch of a pass is yielded until the next pass begins.
  [[nodiscard]] bool end_of_dataloader() const override { return end_of_dataloader_; }
  [[nodiscard]] std::int64_t remainder() const override { return remainder_; }
  [[nodiscard]] std::optional<std::int64_t> own_remainder() const override {
    return own_remainder_;
  }

  [[nodiscard]] std::int64_t epoch() const noexcept { return epoch_; }
  // Chooses the epoch of the next pass. A loaded position within another epoch is
  // dropped.
  void set_epoch(std::int64_t epoch);
  // The number of batches of the current epoch that were yielded.
  [[nodiscard]] std::int64_t batches_consumed() const noexcept { return batches_consumed_; }

  // Values "epoch", "batches", "samples" (of all ranks; absent when batches vary), "first_sample" (where the pass began, unless
  // at its first), "micro_batches" (of whole steps, in reproducible training) and the state of the sampler, its names prefixed
  // with "sampler.".
  [[nodiscard]] StateDict state_dict() const override;
  // The next pass begins after the samples that were already yielded, for any number of ranks and any batch size: if the position
  // is not between two batches, a new batch begins at the next sample. Cost: nothing per sample; iterable datasets are read to
  // that position. Errors  kCheckpointMismatch if batches vary, or come from a batch sampler without begin_pass_at(), and no
  // current batch begins at the position.
  void load_state_dict(const StateDict& state) override;

  [[nodiscard]] const LoaderPlan& plan() const noexcept { return plan_; }
  [[nodiscard]] bool is_prepared() const noexcept { return plan_.is_prepared; }
  // Called by the thread that iterates when the loop has finished a batch: before the next one is
  // taken, and before a pass begins. The loop throws its exceptions. Empty: nothing is called.
  void set_on_boundary(std::function<void()> on_boundary) { on_boundary_ = std::move(on_boundary); }

  // Set for a prepared loader of a map-style dataset. For join_uneven_inputs.
  [[nodiscard]] std::optional<bool> even_batches() const;
  void set_even_batches(bool even_batches);

 protected:
  struct PassStart {
    std::int64_t number;  // of the pass, to be handed to the calls below
    std::int64_t epoch;
    std::int64_t first_batch;   // the batches before it are skipped
    std::int64_t first_sample;  // where the first batch begins in the samples that all ranks read
    std::optional<BatchList> batches;  // none for an iterable dataset, and if rank 0 reads for all
  };

  void reach_boundary() const {
    if (on_boundary_) on_boundary_();
  }
  // Synchronises the random generators, draws the order and becomes the active loader.
  PassStart begin_pass(std::int64_t skip_batches);
  // rows_of_last: of all ranks, if the stream knows it; -1 otherwise.
  // Errors  kInvalidArgument if another pass has begun meanwhile.
  void count_batch(std::int64_t pass, bool is_last, std::int64_t rows_of_last);
  // Stops being the active loader. read_to_end: the epoch advances.
  void end_pass(std::int64_t pass, bool read_to_end);

 private:
  struct Position {
    std::int64_t batches;
    std::int64_t first_sample;  // before them
  };
  [[nodiscard]] static Position position_of(std::int64_t samples,
                                            std::int64_t first_sample,
                                            std::int64_t rows);
  void synchronize_generators();
  [[nodiscard]] BatchList begin_batches();

  LoaderPlan plan_;
  std::function<void()> on_boundary_;
  std::int64_t epoch_ = 0;
  std::int64_t batches_consumed_ = 0;
  bool is_in_pass_ = false;
  bool resumes_ = false;  // the position was loaded; the next pass resumes from it
  bool end_of_dataloader_ = false;
  std::int64_t remainder_ = -1;
  std::optional<std::int64_t> own_remainder_;
  std::function<std::optional<std::int64_t>(std::int64_t)> num_samples_;  // of a batch of the pass
  std::int64_t first_sample_ = 0;  // of the pass, unless it begins at its beginning
  std::int64_t pass_number_ = 0;
};

}  // namespace accel
