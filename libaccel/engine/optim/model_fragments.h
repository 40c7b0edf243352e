// ModelFragments: the layers of a model, which of them are exchanged together, and when (accel/diloco.h).
//
// Layers are the children of the module in their order; ModuleList, ModuleDict and Sequential count as their elements, and a
// module with one child alone as that child. Parameters of the module itself are one more layer, the last. Layers
// without a parameter to train are none. Layer i is in fragment i mod F, so that each fragment has some of all depths (strided).
//
// Threads:  pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "libaccel/tensors/parameter_list.h"

namespace accel {

// The parameters that require a gradient, by fragment; a tied one is where its first name is. Throws kInvalidArgument where there
// are more fragments than layers.
[[nodiscard]] std::vector<std::vector<NamedParameter>> strided_fragments(
    const torch::nn::Module& module, int num_fragments);

// In sync_every steps each fragment is exchanged once, one after the other, at even distances:
//
//   sync_every 6, 2 fragments, delay 1      step   1  2      3      4  5      6      7  8
//                                   exchange begins after   0             1             0
//                                   and is merged after            0             1
struct FragmentSchedule {
  std::int64_t sync_every = 1;  // a multiple of num_fragments
  std::int64_t num_fragments = 1;
  std::int64_t delay = 0;  // steps from begin to merge, less than sync_every / num_fragments

  // The fragment, if any, after so many steps.
  [[nodiscard]] std::optional<std::size_t> begins_after(std::int64_t step) const noexcept {
    return merged_after(step + delay);
  }
  [[nodiscard]] std::optional<std::size_t> merged_after(std::int64_t step) const noexcept {
    const std::int64_t distance = sync_every / num_fragments;
    if (step % distance != 0) return std::nullopt;
    return static_cast<std::size_t>((step / distance - 1) % num_fragments);
  }
};

}  // namespace accel
