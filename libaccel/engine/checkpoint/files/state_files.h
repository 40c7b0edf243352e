// StateFiles: a StateDict on disk: plain values in <stem>.json, tensors in <stem>.safetensors.
//
// The second file exists only when there are tensors. Doubles keep every bit: JSON has no NaN and
// no infinity, so those are written as {"double": "nan"}.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <string_view>

#include <accel/state_dict.h>

namespace accel::checkpoint {

// The values, and whether tensors belong to them: a missing file is then noticed.
[[nodiscard]] std::string encode_state(const StateDict& state);

struct DecodedState {
  StateDict state;           // without tensors
  bool has_tensors = false;  // <stem>.safetensors belongs to it
};

// Errors  throws kCheckpointMismatch naming the key whose value is of no known type.
[[nodiscard]] DecodedState decode_state(std::string_view text);

}  // namespace accel::checkpoint
