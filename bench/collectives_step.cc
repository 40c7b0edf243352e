// One rank of collectives_bench.py: times the collectives of one backend, each after a check of its result.
//
//   collectives_step BACKEND [COLLECTIVE]   prints "collective bytes checksum seconds" per case, of one collective or all,
//                                           and "copy BYTES 0 seconds" for 4 and 64 MiB
//
// `bytes` is what this rank brings (all_gather, broadcast, all_reduce) or brings for all (reduce_scatter, all_to_all); the
// seconds are the median of the calls. "all_reduce_own" is one of tensors of the backend's allocator, where it has one, as
// DDP's buckets are. "copy" is a memcpy at the same time on all ranks: the memory's limit.
//
// COLLECTIVE "preemption": the seconds that the end of a batch takes to ask whether to save and end, and "meeting": those of the
// all-reduce that ranks without shared memory do instead.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <accel/error.h>
#include <accel/state.h>

#include "libaccel/api/accelerator/preemption.h"
#include "libaccel/engine/process/process_group.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr std::int64_t kFourMiB = std::int64_t{4} << 20;
constexpr std::int64_t kManyMiB = std::int64_t{64} << 20;

struct Case {
  std::string name;
  std::int64_t bytes = 0;
  std::function<void()> prepare;  // before each call; not timed
  std::function<void()> call;
  std::function<at::Tensor()> result;
};

double median(std::vector<double> values) {
  std::nth_element(values.begin(),
                   values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

int calls_for(std::int64_t bytes) {
  if (bytes <= 65'536) return 300;
  return bytes <= 4 << 20 ? 30 : 6;
}

// All ranks begin together, as near as the backend's barrier lets them.
double seconds_of(c10d::ProcessGroup& group, const Case& one) {
  std::vector<double> times;
  for (int i = 0; i < calls_for(one.bytes) + 2; ++i) {
    one.prepare();
    group.barrier()->wait();
    const auto begin = Clock::now();
    one.call();
    if (i >= 2) times.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
  }
  return median(times);
}

// Floats in memory of the backend, where it hands out any.
at::Tensor own_tensor(c10d::ProcessGroup& group, std::int64_t count) {
  const auto backend = group.getBackend(c10::DeviceType::CPU);
  if (!backend->supportsTensorAlloc(0)) return at::empty({count});
  return backend->allocateTensor(count, at::TensorOptions(at::kFloat));
}

std::vector<Case> cases_of(c10d::ProcessGroup& group, int rank, int size) {
  std::vector<Case> cases;
  const auto nothing = [] {};
  // Whole numbers: every sum is exact in every order.
  const auto input_of = [rank](std::int64_t bytes) {
    return at::arange(bytes / 4).remainder(64).add(rank).to(at::kFloat);
  };
  const auto add_all_reduce = [&](const char* name, std::int64_t bytes, const at::Tensor& values) {
    const at::Tensor input = input_of(bytes);
    cases.push_back({name,
                     bytes,
                     [=] { values.copy_(input); },
                     [=, &group] {
                       std::vector<at::Tensor> tensors = {values};
                       group.allreduce(tensors)->wait();
                     },
                     [=] { return values; }});
  };
  for (const std::int64_t bytes : {std::int64_t{4096}, std::int64_t{65'536}, kFourMiB, kManyMiB})
    add_all_reduce("all_reduce", bytes, at::empty({bytes / 4}));
  for (const std::int64_t bytes : {kFourMiB, kManyMiB})
    add_all_reduce("all_reduce_own", bytes, own_tensor(group, bytes / 4));
  const std::int64_t bytes = kFourMiB;
  const at::Tensor input = input_of(bytes);
  const at::Tensor gathered = at::zeros({size, bytes / 4});
  const at::Tensor part = at::zeros({bytes / 4 / size});
  const at::Tensor exchanged = at::zeros({bytes / 4});
  const at::Tensor sent = input.clone();
  cases.push_back({"all_gather",
                   bytes,
                   nothing,
                   [=, &group] {
                     at::Tensor out = gathered.view({-1});
                     at::Tensor in = input;
                     group._allgather_base(out, in)->wait();
                   },
                   [=] { return gathered; }});
  cases.push_back({"reduce_scatter",
                   bytes,
                   nothing,
                   [=, &group] {
                     at::Tensor out = part;
                     at::Tensor in = input;
                     group._reduce_scatter_base(out, in)->wait();
                   },
                   [=] { return part; }});
  cases.push_back({"broadcast",
                   bytes,
                   nothing,
                   [=, &group] {
                     std::vector<at::Tensor> tensors = {sent};
                     group.broadcast(tensors)->wait();
                   },
                   [=] { return sent; }});
  cases.push_back({"all_to_all",
                   bytes,
                   nothing,
                   [=, &group] {
                     at::Tensor out = exchanged;
                     at::Tensor in = input;
                     std::vector<std::int64_t> even;
                     group.alltoall_base(out, in, even, even)->wait();
                   },
                   [=] { return exchanged; }});
  cases.push_back({"barrier",
                   0,
                   nothing,
                   [&group] { group.barrier()->wait(); },
                   [] { return at::zeros({1}); }});
  return cases;
}

double seconds_of_copy(c10d::ProcessGroup& group, std::int64_t bytes) {
  std::vector<char> from(static_cast<std::size_t>(bytes), 1);
  std::vector<char> to(static_cast<std::size_t>(bytes), 2);
  return seconds_of(
      group, {"copy", bytes, [] {}, [&] { std::memcpy(to.data(), from.data(), to.size()); }, {}});
}

void print_preemption(const std::shared_ptr<accel::ProcessGroup>& group) {
  constexpr int kBoundaries = 20'000;
  const auto print = [&](const char* name, const std::function<bool()>& asks) {
    group->barrier("beginning");
    const auto begin = Clock::now();
    for (int i = 0; i < kBoundaries; ++i) {
      if (asks()) throw std::runtime_error("nobody was asked to end");
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    std::printf("%s 8 0 %.9g\n", name, seconds / kBoundaries);
  };
  accel::detail::Preemption preemption(group);
  print("preemption", [&] { return preemption.is_due(false); });
  print("meeting", [&] { return group->begin_any(false, "meeting")(); });
}

// "two_level" has no name of its own: it is what ranks of several nodes get.
void run(const std::string& backend, const std::string& only) {
  const bool is_default = backend == "two_level";
  const accel::PartialState state({.init_process_group = {.backend = is_default ? "" : backend}});
  if (state.backend() != backend)
    throw std::runtime_error("the backend is " + state.backend() + ", not " + backend);
  const auto joined = state.process_group();
  c10d::ProcessGroup& group = *joined->c10d_group();
  if (only == "preemption") return print_preemption(joined);
  for (const Case& one : cases_of(group, joined->rank(), joined->size())) {
    if (!only.empty() && one.name != only) continue;
    double seconds = -1;
    double checksum = 0;
    try {
      one.prepare();
      one.call();
      checksum = one.result().to(at::kDouble).sum().item<double>();
      seconds = seconds_of(group, one);
    } catch (const std::exception&) {  // this backend has no such collective: the same on all ranks
    }
    std::printf(
        "%s %ld %.17g %.9g\n", one.name.c_str(), static_cast<long>(one.bytes), checksum, seconds);
  }
  for (const std::int64_t bytes : {kFourMiB, kManyMiB})
    std::printf("copy %ld 0 %.9g\n", static_cast<long>(bytes), seconds_of_copy(group, bytes));
  state.wait_for_everyone();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "use: collectives_step shm|gloo|two_level [COLLECTIVE]\n");
    return 2;
  }
  at::set_num_threads(1);
  try {
    run(argv[1], argc == 3 ? argv[2] : "");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "collectives_step: %s\n", error.what());
    return 1;
  }
  return 0;
}
