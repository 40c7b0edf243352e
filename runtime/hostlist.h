// Hostlist: many host names as one short text, in SLURM's notation.
//
//   a[01-03,7]-b[1-2],login    a01-b1 a01-b2 a02-b1 a02-b2 a03-b1 a03-b2 a7-b1 a7-b2 login
//
// A range counts in the width of its first number: [8-10] is 8 9 10, [08-10] is 08 09 10. Several
// brackets multiply, the last one turning fastest. Order and repetitions are kept both ways.
//
// Threads:  pure functions.
// Source:   the man pages of scontrol ("show hostnames") and sbatch; tests/fuzz/fuzz_hostlist.cc.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

namespace accel {

inline constexpr std::size_t kMostHosts = 1 << 20;

// Letters, digits, '.', '_' and '-': what compress_hostlist() takes; at most 255 of them.
[[nodiscard]] bool is_host_name(std::string_view name);

// Errors  kInvalidArgument, naming the character at fault: a bracket without its partner, an empty
// name, a range that runs backwards, more than `most` hosts.
[[nodiscard]] Result<std::vector<std::string>> expand_hostlist(std::string_view text,
                                                               std::size_t most = kMostHosts);

// The inverse: neighbours that differ in their last number alone share a bracket.
// Requires: is_host_name() of each.
[[nodiscard]] std::string compress_hostlist(std::span<const std::string> hosts);

}  // namespace accel
