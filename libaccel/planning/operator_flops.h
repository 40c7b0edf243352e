// OperatorFlops: multiplications and additions of an operator, two for each pair of factors: matrix products, convolutions,
// attention and LSTMs. All else counts nothing.
//
// Threads:  pure.
// Source:   torch/utils/flop_counter.py, whose counts these are.
#pragma once

#include <string_view>

#include "libaccel/planning/size_rules.h"

namespace accel::planning {

using FlopCount = double (*)(Arguments arguments);

// nullptr: it counts nothing. name: "aten::mm".
[[nodiscard]] FlopCount find_flop_count(std::string_view name);

}  // namespace accel::planning
