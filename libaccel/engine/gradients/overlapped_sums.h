// OverlappedSums: sums over the ranks that go on in a thread of the group while the caller computes.
//
// With the thread and without, every rank makes the same calls in the same order, and gets the same bits. So ranks may differ in
// whether they have one.
//
// Threads:  as GradientPolicy.
// Errors    throws what ProcessGroup throws.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/env_contract.h>

namespace accel {

class ProcessGroup;
class ShmBackend;
class Work;

// Whether the buckets of a backward are summed beside it: what ACCEL_OVERLAP_COMM says, else whether it is worth it (see the
// source, with figures). backend: of the group. Throws kEnvInvalid.
[[nodiscard]] bool should_overlap(std::string_view backend,
                                  std::size_t num_buckets,
                                  const EnvLookup& env);

class OverlappedSums {
 public:
  // Requires: the group's backend is two_level.
  explicit OverlappedSums(std::shared_ptr<ProcessGroup> group);
  // Waits for what goes on, and is silent about its errors.
  ~OverlappedSums();
  OverlappedSums(const OverlappedSums&) = delete;
  OverlappedSums& operator=(const OverlappedSums&) = delete;

  // values: contiguous; nobody else looks at them until wait().
  void begin(at::Tensor values, std::string_view operation);
  // Until all that were begun are done. Throws the first error of them.
  void wait();
  // The same, of what nobody wants any more.
  void drop() noexcept;

 private:
  std::shared_ptr<ProcessGroup> group_;
  ShmBackend& backend_;  // the group's
  std::vector<Work> works_;
};

}  // namespace accel
