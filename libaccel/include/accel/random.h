// Random: seeding, saving and synchronising LibTorch's random generators.
//
// The same seed gives the same numbers as in Python's torch: at::rand after set_seed(7) equals
// torch.rand after torch.manual_seed(7). Generators of the C++ standard library and of other
// libraries are not touched.
//
// Threads:  the functions lock the generators; synchronize_rng_states() is a collective.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Generator.h>

#include <accel/export.h>
#include <accel/state_dict.h>
#include <accel/types.h>

namespace accel {

struct SeedOptions {
  bool device_specific = false;  // add the process index: every rank draws other numbers
  bool deterministic =
      false;  // also ask LibTorch for deterministic algorithms, which can be slower
};

// Seeds the generators of the CPU and of all visible GPUs.
ACCEL_EXPORT void set_seed(std::uint64_t seed, const SeedOptions& options = {});

// The states of the CPU's generator ("torch_manual_seed") and of each visible GPU's
// ("torch_cuda_manual_seed.0", ...), for a checkpoint.
ACCEL_EXPORT StateDict rng_state();

// Restores them. States of GPUs that are not visible are ignored.
// Errors  kCheckpointMismatch when the CPU's state is missing or a state has the wrong size.
ACCEL_EXPORT void set_rng_state(const StateDict& state);

// Gives every rank the state of rank 0, for each of the generators. kGenerator means `generator`.
// Errors  kInvalidArgument for kGenerator without one, kUnsupported for a missing device, and the
//         errors of broadcast().
ACCEL_EXPORT void synchronize_rng_states(
    const std::vector<RNGType>& types,
    const std::optional<at::Generator>& generator = std::nullopt);
inline void synchronize_rng_state(RNGType type,
                                  const std::optional<at::Generator>& generator = std::nullopt) {
  synchronize_rng_states({type}, generator);
}

}  // namespace accel
