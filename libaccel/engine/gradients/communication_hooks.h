// CommunicationHooks: what options of copies say of them.
//
// Threads:  as GradientPolicy.
#pragma once

#include <memory>
#include <vector>

#include <accel/accelerator_options.h>
#include <accel/communication_hook.h>

#include "libaccel/tensors/parameter_list.h"

namespace accel {

class PowerSgd;

struct ExchangeHook {
  CommunicationHook call;  // empty: gradients are averaged
  std::shared_ptr<PowerSgd>
      state;  // what it remembers from step to step; nullptr: nothing, or a user's own
};

// Throws kInvalidArgument for a wrapper of nothing, for an empty function, and what PowerSgd throws.
[[nodiscard]] ExchangeHook exchange_hook(const DistributedDataParallelKwargs& options);

// Throws kUnsupported naming the first parameter whose gradient does not go through the hook of `options`: a sparse one, and,
// where that is rounded to 16 bits, one of complex numbers.
void refuse_hooked_gradients(const DistributedDataParallelKwargs& options,
                             const std::vector<NamedParameter>& parameters);

// Throws kUnsupported where a model that is divided over the ranks has a hook.
void refuse_hooked_shards(const DistributedDataParallelKwargs& options);

// What the hook makes of the bucket is its gradients. Throws kShapeMismatch where that has other than bucket.buffer.numel()
// elements, and what the hook throws.
void run_hook(const CommunicationHook& hook, GradientBucket& bucket, CommunicationGroup& group);

}  // namespace accel
