// Over a network a sum is waited for: its bytes are on their way, and nobody computes. Two hosts with a rank and a core each, 19.2 M
// parameters in buckets of 25 MiB, links of 1 Gbit/s (bench/run ddp_network; the hosts were namespaces of a machine on which others
// compiled, so least and most are given): a step took 1.4 to 2.0 s beside the backward (4 runs) and 1.9 to 2.6 s within it (2 runs),
// PyTorch's DDP on Gloo 1.5 to 1.8 s (2 runs).
//
// One bucket is full when the backward is over, so a thread only adds two hand-overs: 0.86 M parameters, one bucket, won nothing
// (178 ms beside, 166 within; a run each).
//
// On one node there is no thread. A sum is made by the cores that compute, where gradients lie: 5 ms for 64 MiB (docs/reference/benchmarks.md),
// 3 % of a step of 19.2 M parameters, and ranks with a core each have none to spare for it.

#include "libaccel/engine/gradients/overlapped_sums.h"

#include <exception>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "libaccel/engine/collectives/shm_backend.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/settings/variable_values.h"

namespace accel {
namespace {

constexpr const char* kOverlapVariable = "ACCEL_OVERLAP_COMM";

// While one lives, all-reduces go on beside their caller.
class Overlapping {
 public:
  explicit Overlapping(ShmBackend& backend)
      : backend_(backend), before_(backend.set_overlaps(true)) {}
  ~Overlapping() { backend_.set_overlaps(before_); }
  Overlapping(const Overlapping&) = delete;
  Overlapping& operator=(const Overlapping&) = delete;

 private:
  ShmBackend& backend_;
  bool before_;
};

ShmBackend& own_backend(const ProcessGroup& group) {
  return dynamic_cast<ShmBackend&>(*group.c10d_group()->getBackend(group.device().type()));
}

}  // namespace

bool should_overlap(std::string_view backend, std::size_t num_buckets, const EnvLookup& env) {
  if (backend != "two_level") return false;
  return sharding::flag_of(env, kOverlapVariable).value_or(num_buckets > 1);
}

OverlappedSums::OverlappedSums(std::shared_ptr<ProcessGroup> group)
    : group_(std::move(group)), backend_(own_backend(*group_)) {}

OverlappedSums::~OverlappedSums() {
  drop();
}

void OverlappedSums::begin(at::Tensor values, std::string_view operation) {
  const Overlapping overlapping(backend_);
  works_.push_back(group_->begin_all_reduce(values, Reduction::kSum, operation));
}

void OverlappedSums::wait() {
  std::exception_ptr first;
  for (Work& work : std::exchange(works_, {})) {
    try {
      work.wait();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

void OverlappedSums::drop() noexcept {
  try {
    wait();
  } catch (const std::exception&) {
    // The group is over then, and says so to whoever calls it next.
  }
}

}  // namespace accel
