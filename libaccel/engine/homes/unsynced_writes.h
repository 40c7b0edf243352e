// UnsyncedWrites: whether the ranks, of which each has a copy of the parameters, have written to the same ones.
//
// A step makes the copies one again: of each value that of the rank whose shard it is in. What all ranks have written stays so;
// of what some of them have written a part would be undone without a word. So they compare which parameters they have
// written to since their copies were one. LibTorch counts the writes of operators; those by an address, or through data(), it
// does not see, and hashes of the values tell, at the price of two passes over all parameters in each step.
//
// Threads:  the thread that trains.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/tensors/parameter_list.h"

namespace accel {
class ProcessGroup;
}

namespace accel::sharding {

struct UnsyncedWrite {
  std::size_t parameter = 0;
  int writer = 0;  // a rank that has written to it
  int other = 0;   // and one that has not

  friend bool operator==(const UnsyncedWrite&, const UnsyncedWrite&) = default;
};

// The first parameter that some ranks have written to and others have not. writers, others: by parameter, the highest such rank;
// -1: none. Pure.
[[nodiscard]] std::optional<UnsyncedWrite> first_unsynced_write(std::span<const int> writers,
                                                                std::span<const int> others);

class UnsyncedWrites {
 public:
  enum class Watch { kOperators, kValues };
  explicit UnsyncedWrites(Watch watch = Watch::kOperators) : watch_(watch) {}

  // The copies of all ranks are one, or are written to alike on all.
  void forget(std::span<const NamedParameter> parameters);
  // Throws kInvalidArgument, the same on all ranks, naming a parameter that some have written to since forget() and others have
  // not; else forgets. Cost: 8 bytes a parameter over the network. Requires: every rank calls it, after forget().
  void refuse(std::span<const NamedParameter> parameters, ProcessGroup& group);

 private:
  struct Seen {
    std::int64_t version = 0;
    std::uint64_t hash = 0;  // of the values, where they are watched

    friend bool operator==(const Seen&, const Seen&) = default;
  };
  [[nodiscard]] Seen seen_of(const at::Tensor& parameter) const;

  Watch watch_;
  std::vector<Seen> seen_;  // by parameter
};

}  // namespace accel::sharding
