// CallRecord: the collective calls of this rank, told to the supervisor, which names the rank that called something else when the job
// hangs (docs/internals/worker_channel.md).
//
// Threads:  one caller at a time, as with all collectives.
// Cost:     nothing without a supervisor; with one a text of 128 bytes and its hash, and 30 ns to write them down.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <ATen/core/Tensor.h>

namespace accel::detail {

// A call of all ranks of the job begins. `kind`: "all_reduce sum"; `operation`: for what; `elements` of `type` of this rank.
void record_call(std::string_view kind,
                 std::string_view operation,
                 std::int64_t elements,
                 std::optional<at::ScalarType> type) noexcept;

}  // namespace accel::detail
