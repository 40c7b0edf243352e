#include "libaccel/api/accelerator/local_training.h"

#include <string>

#include <accel/error.h>

#include "libaccel/engine/process/join_roll.h"

namespace accel::detail {

void refuse_divided(const Accelerator& accelerator, std::string_view name) {
  const DistributedType type = accelerator.distributed_type();
  if (type != DistributedType::kDeepspeed && type != DistributedType::kFsdp &&
      type != DistributedType::kMegatronLm)
    return;
  throw Error(ErrorCode::kUnsupported,
              std::string(name) +
                  " is for models that every rank has as a whole (no FSDP, DeepSpeed or "
                  "Megatron-LM)",
              "train without a sharding plugin, or leave " + std::string(name) + " out");
}

void refuse_steps_in_common(const Accelerator& accelerator, std::string_view name) {
  if (!accelerator.reproducible() && JoinRoll::current() == nullptr) return;
  throw Error(
      ErrorCode::kUnsupported,
      std::string(name) + " within " +
          (accelerator.reproducible()
               ? "reproducible training, whose steps all ranks sum in one order"
               : "join_uneven_inputs(): ranks without batches do not take part in its averages"),
      "leave one of them out");
}

}  // namespace accel::detail
