#include "libaccel/api/data/micro_batch_shard.h"

#include <string>
#include <utility>

#include <accel/error.h>

namespace accel {

MicroBatches micro_batches_of(std::int64_t total, std::int64_t rank, std::int64_t world_size) {
  check_rank(rank, world_size);
  if (total < world_size) {
    throw Error(ErrorCode::kInvalidArgument,
                "a step has " + std::to_string(total) + " micro-batches, and there are " +
                    std::to_string(world_size) + " ranks, of which each needs one",
                "set gradient_accumulation_steps to the number of ranks or more: in reproducible "
                "training it counts the micro-batches of all ranks");
  }
  return {
      .total = total, .begin = rank * total / world_size, .end = (rank + 1) * total / world_size};
}

MicroBatchShard::MicroBatchShard(std::shared_ptr<BatchSamplerBase> batches,
                                 MicroBatches micro_batches,
                                 LastStep last_step)
    : batches_(std::move(batches)), micro_batches_(micro_batches), last_step_(last_step) {}

std::int64_t MicroBatchShard::num_steps(std::int64_t num_batches) const noexcept {
  const std::int64_t whole = num_batches / micro_batches_.total;
  const bool has_rest = num_batches % micro_batches_.total != 0;
  return whole + (has_rest && last_step_ == LastStep::kIsCompleted ? 1 : 0);
}

BatchList MicroBatchShard::begin_pass() {
  const BatchList all = batches_->begin_pass();
  const MicroBatches own = micro_batches_;
  return {num_steps(all.size()) * own.size(), [all, own](std::int64_t number) {
            const std::int64_t step = number / own.size();
            return all[(step * own.total + own.begin + number % own.size()) % all.size()];
          }};
}

std::int64_t MicroBatchShard::size() const {
  return num_steps(batches_->size()) * micro_batches_.size();
}

}  // namespace accel
