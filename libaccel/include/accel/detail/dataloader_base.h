// DataLoaderBase: what every DataLoader has, whatever its batches are: options, position, state.
//
// The position is the epoch and the batches of it that were yielded. Saved in the middle of a pass,
// it includes what the sampler needs to draw the same order again; saved while the last batch is
// yielded, it is the start of the next epoch.
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
  bool drop_last = false;                           // leave a last batch out that is not full
  int num_workers = 0;      // threads that read ahead; 0 reads in the thread that iterates
  int prefetch_factor = 2;  // batches that each worker reads ahead
  bool pin_memory =
      false;  // batches in page-locked memory, where this build has a device that copies from it
  bool persistent_workers = false;  // the threads stay from pass to pass; wants num_workers > 0
  at::Generator generator;          // of shuffle; torch's default one when undefined
};

// How a loader is divided over the ranks of a job.
struct ShardOptions {
  std::optional<std::int64_t> num_processes;  // PartialState's when not set
  std::optional<std::int64_t> process_index;
  // In place of both: data is divided along its axes dp_replicate and dp_shard alone (data_share()).
  std::optional<DeviceMesh> torch_device_mesh;
  bool split_batches = false;  // true: batch_size is that of all ranks together
  bool even_batches = true;    // true: all ranks see as many batches, at the price of repeats
  std::optional<bool> dispatch_batches;  // rank 0 reads for all; default: for iterable datasets, if
                                         // `device` is set
  bool use_seedable_sampler = false;     // shuffle by seed + epoch instead of a generator
  std::optional<std::int64_t>
      data_seed;                      // of the seedable sampler; torch's initial seed when not set
  std::optional<c10::Device> device;  // where batches are put; not set: left where they are
  bool non_blocking = false;
  // Synchronised with rank 0 when a pass begins. kGenerator is the generator of the shuffle.
  std::vector<RNGType> rng_types = {RNGType::kGenerator};
  // Of reproducible training: batches are micro-batches, and a rank gets its run of those of each step; num_processes and
  // process_index count for the position alone then.
  std::optional<MicroBatches> micro_batches;
};

// What a loader reads, and for whom.
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
      num_shards;  // that the iterable dataset has, when it can be cut into them

  bool is_prepared = false;
  bool shards_itself = false;  // each rank reads shards of its own
  std::int64_t num_processes = 1;
  std::int64_t process_index = 0;
  bool split_batches = false;
  bool dispatch_batches = false;
  std::optional<c10::Device> device;
  bool non_blocking = false;
  std::vector<RNGType> rng_types;
  at::Generator synchronized_generator;  // the one that RNGType::kGenerator means
  std::optional<MicroBatches> micro_batches;

  [[nodiscard]] bool iterable_is_sharded() const {
    return num_processes > 1 && !dispatch_batches && !shards_itself;
  }
  [[nodiscard]] IterableShardOptions iterable_shard() const;
  // Rows that all ranks together read for one batch; not set when batches vary.
  [[nodiscard]] std::optional<std::int64_t> total_batch_size() const;
  // Elements that one pass of all ranks reads, without repeats; not set when that is not known.
  [[nodiscard]] std::optional<std::int64_t> num_elements() const;
  // Batches of one pass of this rank, as announced.
  [[nodiscard]] std::optional<std::int64_t> num_batches() const;
};

// Errors  kInvalidArgument for options that exclude each other or make no sense.
[[nodiscard]] ACCEL_EXPORT LoaderPlan plan_of_map_dataset(std::optional<std::int64_t> size,
                                                          const DataLoaderOptions& options);
[[nodiscard]] ACCEL_EXPORT LoaderPlan plan_of_iterable_dataset(std::optional<std::int64_t> size,
                                                               const DataLoaderOptions& options);

// The plan of one rank. A plan that is prepared already is returned as it is.
//
// Errors  kDataSharding when split_batches is asked for batches that do not divide.
[[nodiscard]] ACCEL_EXPORT LoaderPlan shard_plan(LoaderPlan plan, const ShardOptions& options);

// How many rows of a gathered batch are elements of the dataset and not repeats that made the ranks
// even; std::nullopt: all of them. remainder: as in ActiveDataLoader.
[[nodiscard]] ACCEL_EXPORT std::optional<std::int64_t> rows_to_keep(
    bool end_of_dataloader, std::int64_t remainder) noexcept;

// Cuts a batch that rank 0 has read for all: the rows begin..end of it, for the rank process_index of num_processes; it is also
// asked for the first num_processes rows, which complete the last batch. Default: those rows of every tensor and list.
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
  // Chooses the epoch of the next pass; a position within an epoch that was loaded is given up if
  // it is another one.
  void set_epoch(std::int64_t epoch);
  // Batches of the current epoch that were yielded.
  [[nodiscard]] std::int64_t batches_consumed() const noexcept { return batches_consumed_; }

  // Values "epoch", "batches", "samples" (of all ranks; absent when batches vary), "first_sample" (where the pass began, unless
  // at its first), "micro_batches" (of whole steps, of reproducible ones) and what the sampler saves, its names prefixed with
  // "sampler.".
  [[nodiscard]] StateDict state_dict() const override;
  // The next pass begins behind the samples that were yielded before, for any number of ranks and any batch size: a pass that
  // cannot go on between two batches begins its batches anew at the next sample. Cost: nothing per sample; iterable datasets
  // are read to that place. Errors  kCheckpointMismatch where batches vary, or come from a batch sampler without
  // begin_pass_at(), and no batch of now begins there.
  void load_state_dict(const StateDict& state) override;

  [[nodiscard]] const LoaderPlan& plan() const noexcept { return plan_; }
  [[nodiscard]] bool is_prepared() const noexcept { return plan_.is_prepared; }
  // Called by the thread that iterates when the loop is done with a batch: before the next one is
  // taken, and before a pass begins. What it throws comes out of the loop. Empty: nothing is called.
  void set_on_boundary(std::function<void()> on_boundary) { on_boundary_ = std::move(on_boundary); }

  // Of a prepared loader of a map-style dataset; not set otherwise. For join_uneven_inputs.
  [[nodiscard]] std::optional<bool> even_batches() const;
  void set_even_batches(bool even_batches);

 protected:
  struct PassStart {
    std::int64_t number;  // of the pass, to be handed to the calls below
    std::int64_t epoch;
    std::int64_t first_batch;   // the batches before it are skipped
    std::int64_t first_sample;  // where the first one begins in what all ranks read
    std::optional<BatchList>
        batches;  // none for an iterable dataset, and where rank 0 reads for all
  };

  void reach_boundary() const {
    if (on_boundary_) on_boundary_();
  }
  // Synchronises the random generators, draws the order and becomes the active loader.
  PassStart begin_pass(std::int64_t skip_batches);
  // rows_of_last: of all ranks, when the stream found out; -1 otherwise.
  // Errors  kInvalidArgument when another pass was begun since.
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
  bool resumes_ = false;  // the position was loaded; the next pass goes on from it
  bool end_of_dataloader_ = false;
  std::int64_t remainder_ = -1;
  std::optional<std::int64_t> own_remainder_;
  std::function<std::optional<std::int64_t>(std::int64_t)> num_samples_;  // of a batch of the pass
  std::int64_t first_sample_ = 0;  // of the pass, unless it begins at its beginning
  std::int64_t pass_number_ = 0;
};

}  // namespace accel
