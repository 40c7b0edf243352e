// Checks and sizes of IterableDatasetShard.

#include <string>

#include <accel/batch_samplers.h>
#include <accel/error.h>
#include <accel/iterable_shard.h>

namespace accel {

void check(const IterableShardOptions& options) {
  if (options.batch_size <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "batch_size must be positive, got " + std::to_string(options.batch_size));
  }
  check_rank(options.process_index, options.num_processes);
  if (options.split_batches) check_batch_size_divides(options.batch_size, options.num_processes);
}

std::int64_t iterable_shard_size(std::int64_t num_elements, const IterableShardOptions& options) {
  const std::int64_t whole_groups = num_elements / options.group_size();
  const bool has_rest = !options.drop_last && num_elements % options.group_size() != 0;
  return (whole_groups + (has_rest ? 1 : 0)) * options.slice_size();
}

}  // namespace accel
