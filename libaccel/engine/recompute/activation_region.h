// ActivationRegion: see accel/activation_checkpoint.h; here what the rest of libaccel asks about it.
//
// Threads:  each has an answer of its own.
#pragma once

namespace accel::recompute {

// Whether this thread runs a part whose activations are computed again, the first time or a later one.
[[nodiscard]] bool is_in_region() noexcept;

}  // namespace accel::recompute
