#include "libaccel/engine/homes/unsynced_writes.h"

#include <string>

#include <ATen/ops/full.h>

#include <accel/error.h>

#include "libaccel/engine/process/process_group.h"
#include "runtime/checkpoint/xxh3.h"

namespace accel::sharding {
namespace {

constexpr int kNobody = -1;

}  // namespace

std::optional<UnsyncedWrite> first_unsynced_write(std::span<const int> writers,
                                                  std::span<const int> others) {
  for (std::size_t i = 0; i < writers.size(); ++i) {
    if (writers[i] == kNobody || others[i] == kNobody) continue;
    return UnsyncedWrite{.parameter = i, .writer = writers[i], .other = others[i]};
  }
  return std::nullopt;
}

void UnsyncedWrites::forget(std::span<const NamedParameter> parameters) {
  seen_.clear();
  for (const NamedParameter& parameter : parameters) seen_.push_back(seen_of(parameter.tensor));
}

// A parameter is a view of its unit without gaps.
UnsyncedWrites::Seen UnsyncedWrites::seen_of(const at::Tensor& parameter) const {
  Seen seen{.version = parameter._version()};
  if (watch_ == Watch::kValues) {
    const at::Tensor values = parameter.detach().cpu();
    seen.hash = checkpoint::xxh3_functions().hash(values.const_data_ptr(), values.nbytes());
  }
  return seen;
}

void UnsyncedWrites::refuse(std::span<const NamedParameter> parameters, ProcessGroup& group) {
  const auto count = std::ssize(parameters);
  at::Tensor ranks = at::full({2, count}, kNobody, at::kInt);  // writers, and others
  const std::span<int> all(ranks.mutable_data_ptr<int>(), 2 * parameters.size());
  const std::span<int> writers = all.first(parameters.size());
  const std::span<int> others = all.last(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const bool is_written = seen_of(parameters[i].tensor) != seen_.at(i);
    (is_written ? writers : others)[i] = group.rank();
  }
  group.all_reduce_(ranks, Reduction::kMax, "comparing which parameters were written to");
  if (const auto lone = first_unsynced_write(writers, others)) {
    throw Error(ErrorCode::kInvalidArgument,
                "the parameter " + parameters[lone->parameter].name + " was written to on rank " +
                    std::to_string(lone->writer) + " and not on rank " +
                    std::to_string(lone->other) +
                    ": each has a copy, of which a step keeps the rank's own shard alone",
                "write the same to it on every rank, or use load_state()");
  }
  forget(parameters);
}

}  // namespace accel::sharding
