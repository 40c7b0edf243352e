// What a loader reads, and for whom: the pure half of DataLoader.

#include <string>
#include <utility>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <accel/detail/dataloader_base.h>
#include <accel/error.h>

#include "libaccel/api/data/micro_batch_shard.h"

namespace accel {
namespace {

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

[[noreturn]] void refuse_options(const std::string& message, const std::string& remedy) {
  throw Error(ErrorCode::kInvalidArgument, message, remedy);
}

void check_common(const DataLoaderOptions& options) {
  if (options.batch_size <= 0) {
    refuse_options("batch_size must be positive, got " + std::to_string(options.batch_size),
                   "set batch_size to 1 or more");
  }
  if (options.num_workers < 0 || options.prefetch_factor < 1) {
    refuse_options("num_workers must not be negative and prefetch_factor must be positive, got " +
                       std::to_string(options.num_workers) + " and " +
                       std::to_string(options.prefetch_factor),
                   "set num_workers = 0 to read without workers");
  }
  if (options.persistent_workers && options.num_workers == 0) {
    refuse_options("persistent_workers needs num_workers > 0, got 0",
                   "set num_workers, or leave persistent_workers out");
  }
}

LoaderPlan common_plan(std::optional<std::int64_t> size, const DataLoaderOptions& options) {
  LoaderPlan plan;
  plan.dataset_size = size;
  plan.drop_last = options.drop_last;
  plan.generator = options.generator;
  plan.num_workers = options.num_workers;
  plan.prefetch_factor = options.prefetch_factor;
  plan.pin_memory = options.pin_memory;
  plan.persistent_workers = options.persistent_workers;
  return plan;
}

std::shared_ptr<Sampler> make_sampler(std::optional<std::int64_t> size,
                                      const DataLoaderOptions& options) {
  if (options.sampler) return options.sampler;
  if (!size) {
    refuse_options("the dataset does not know its size, and no sampler was given",
                   "give the DataLoader a sampler or a batch_sampler");
  }
  if (options.shuffle) {
    return std::make_shared<RandomSampler>(*size,
                                           RandomSamplerOptions{.generator = options.generator});
  }
  return std::make_shared<SequentialSampler>(*size);
}

// Whose batches these are.
void set_share(LoaderPlan& plan, const ShardOptions& options) {
  if (options.torch_device_mesh) {
    const DataShare share = data_share(*options.torch_device_mesh);
    plan.num_processes = share.count;
    plan.process_index = share.index;
    return;
  }
  plan.num_processes =
      options.num_processes ? *options.num_processes : PartialState().num_processes();
  plan.process_index =
      options.process_index ? *options.process_index : PartialState().process_index();
}

// Puts another random sampler in the place of the one of `plan`.
void replace_sampler(LoaderPlan& plan, std::shared_ptr<Sampler> sampler) {
  std::shared_ptr<BatchSamplerBase> replaced = plan.batch_sampler->with_sampler(std::move(sampler));
  if (!replaced) {
    throw Error(
        ErrorCode::kDataSharding,
        "this batch sampler has a RandomSampler that cannot be replaced by one whose order is "
        "the same on all ranks",
        "override with_sampler() of the batch sampler, or give its RandomSampler a generator");
  }
  plan.batch_sampler = std::move(replaced);
}

// Sees to it that a random order is the same on all ranks.
void synchronize_shuffle(LoaderPlan& plan, const ShardOptions& options) {
  const auto random = std::dynamic_pointer_cast<RandomSampler>(plan.batch_sampler->sampler());
  if (!random || std::dynamic_pointer_cast<SeedableRandomSampler>(random)) return;
  if (options.use_seedable_sampler) {
    replace_sampler(plan,
                    std::make_shared<SeedableRandomSampler>(
                        random->num_elements(), options.data_seed, random->options()));
    return;
  }
  if (plan.num_processes == 1 || plan.dispatch_batches) return;
  RandomSamplerOptions own = random->options();
  if (!own.generator.defined()) {
    // Rank 0's state replaces that of the others when a pass begins.
    const auto seed = at::empty({}, at::kLong).random_().item<std::int64_t>();
    own.generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed));
    replace_sampler(plan, std::make_shared<RandomSampler>(random->num_elements(), own));
  }
  plan.synchronized_generator = own.generator;
}

// The run of this rank, in place of a shard.
LoaderPlan plan_of_micro_batches(LoaderPlan plan, const ShardOptions& options) {
  if (!plan.batch_sampler || plan.split_batches || options.dispatch_batches.value_or(false)) {
    throw Error(ErrorCode::kUnsupported,
                "batches of an iterable dataset, of dispatch_batches and of split_batches are no "
                "micro-batches that any rank could read",
                "give the DataLoader a dataset with size() and get(i), and leave dispatch_batches "
                "and split_batches out");
  }
  plan.dispatch_batches = false;
  plan.micro_batches = options.micro_batches;
  // One whose order depends on nothing that ranks draw meanwhile.
  ShardOptions by_seed = options;
  by_seed.use_seedable_sampler = true;
  synchronize_shuffle(plan, by_seed);
  const bool completes = options.even_batches && !plan.drop_last;
  plan.batch_sampler = std::make_shared<MicroBatchShard>(
      plan.batch_sampler,
      *plan.micro_batches,
      completes ? MicroBatchShard::LastStep::kIsCompleted : MicroBatchShard::LastStep::kIsLeftOut);
  return plan;
}

}  // namespace

IterableShardOptions LoaderPlan::iterable_shard() const {
  return {.batch_size = iterable_batch_size,
          .drop_last = drop_last,
          .num_processes = num_processes,
          .process_index = process_index,
          .split_batches = split_batches};
}

std::optional<std::int64_t> LoaderPlan::total_batch_size() const {
  const std::optional<std::int64_t> own =
      batch_sampler ? batch_sampler->batch_size() : iterable_batch_size;
  if (!own || micro_batches) return std::nullopt;
  // The batch sampler of a shard tells the size of this rank's part.
  const bool is_whole = split_batches && (!batch_sampler || dispatch_batches);
  return is_whole ? *own : *own * num_processes;
}

std::optional<std::int64_t> LoaderPlan::num_elements() const {
  const std::shared_ptr<Sampler> sampler = batch_sampler ? batch_sampler->sampler() : nullptr;
  return sampler ? sampler->size() : dataset_size;
}

std::optional<std::int64_t> LoaderPlan::num_batches() const {
  std::optional<std::int64_t> own;
  if (shards_itself) return std::nullopt;
  if (batch_sampler) {
    own = batch_sampler->size();
  } else if (dataset_size && iterable_is_sharded()) {
    const IterableShardOptions shard = iterable_shard();
    return iterable_shard_size(*dataset_size, shard) / shard.slice_size();
  } else if (dataset_size) {
    own = drop_last ? *dataset_size / iterable_batch_size
                    : ceil_divide(*dataset_size, iterable_batch_size);
  }
  if (!own || !dispatch_batches || split_batches) return own;
  return drop_last ? *own / num_processes : ceil_divide(*own, num_processes);
}

LoaderPlan plan_of_map_dataset(std::optional<std::int64_t> size, const DataLoaderOptions& options) {
  check_common(options);
  const bool has_order = options.sampler || options.shuffle;
  if (options.sampler && options.shuffle) {
    refuse_options("sampler and shuffle exclude each other",
                   "leave shuffle out and give a RandomSampler");
  }
  if (options.batch_sampler && (has_order || options.batch_size != 1 || options.drop_last)) {
    refuse_options("batch_sampler excludes batch_size, shuffle, sampler and drop_last",
                   "set these in the batch sampler");
  }
  LoaderPlan plan = common_plan(size, options);
  plan.batch_sampler =
      options.batch_sampler
          ? options.batch_sampler
          : std::make_shared<BatchSampler>(
                make_sampler(size, options), options.batch_size, options.drop_last);
  plan.drop_last = plan.batch_sampler->drop_last();
  return plan;
}

LoaderPlan plan_of_iterable_dataset(std::optional<std::int64_t> size,
                                    const DataLoaderOptions& options) {
  check_common(options);
  if (options.shuffle || options.sampler || options.batch_sampler) {
    refuse_options(
        "an iterable dataset decides its order itself: shuffle, sampler and batch_sampler do not "
        "apply",
        "shuffle inside the dataset, or give it size() and get(i)");
  }
  LoaderPlan plan = common_plan(size, options);
  plan.iterable_batch_size = options.batch_size;
  return plan;
}

LoaderPlan shard_plan(LoaderPlan plan, const ShardOptions& options) {
  if (plan.is_prepared) return plan;
  plan.is_prepared = true;
  set_share(plan, options);
  check_rank(plan.process_index, plan.num_processes);
  plan.split_batches = options.split_batches;
  plan.dispatch_batches =
      plan.num_processes > 1 &&
      options.dispatch_batches.value_or(!plan.batch_sampler && options.device.has_value());
  plan.device = options.device;
  plan.non_blocking = options.non_blocking;
  plan.shards_itself = plan.num_processes > 1 && !plan.dispatch_batches && !plan.split_batches &&
                       plan.num_shards.value_or(0) >= plan.num_processes;
  plan.rng_types = options.rng_types;
  if (options.micro_batches) return plan_of_micro_batches(std::move(plan), options);

  if (plan.split_batches) {
    check_batch_size_divides(
        plan.batch_sampler ? plan.batch_sampler->batch_size() : plan.iterable_batch_size,
        plan.num_processes);
  }
  if (!plan.batch_sampler) return plan;
  synchronize_shuffle(plan, options);
  if (plan.num_processes > 1 && !plan.dispatch_batches) {
    plan.batch_sampler = std::make_shared<BatchSamplerShard>(
        plan.batch_sampler,
        BatchShardOptions{.num_processes = plan.num_processes,
                          .process_index = plan.process_index,
                          .split_batches = plan.split_batches,
                          .even_batches = options.even_batches});
  }
  return plan;
}

std::optional<std::int64_t> rows_to_keep(bool end_of_dataloader, std::int64_t remainder) noexcept {
  if (!end_of_dataloader || remainder <= 0) return std::nullopt;
  return remainder;
}

}  // namespace accel
