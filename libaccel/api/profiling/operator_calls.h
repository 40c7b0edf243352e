// OperatorCall: one event of a recording, with what torch.profiler makes of it: the call that it is inside, and its memory.
//
// Pure.
// Cost:     O(n log n) for n events, and for each its bytes of memory events inside it.
// Source:   _parse_kineto_results() and EventList._build_tree() of PyTorch 2.11.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <torch/csrc/autograd/profiler_kineto.h>

namespace accel::profiling {

struct OperatorCall {
  std::string name;
  std::uint64_t thread = 0;
  std::uint64_t begin_ns = 0;  // since the recording began
  std::uint64_t end_ns = 0;
  bool is_async = false;  // ends in another thread: it has neither children nor a parent
  bool is_on_cpu = true;
  bool is_annotation = false;  // a scope of the program
  std::int64_t memory = 0;     // bytes taken minus bytes given back meanwhile, in any thread
  std::int64_t flops = 0;
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<std::size_t> children;  // by their places
  std::ptrdiff_t parent = -1;

  [[nodiscard]] double cpu_time_us() const {
    return is_on_cpu ? static_cast<double>(end_ns - begin_ns) / 1000 : 0;
  }
};

// In the order of their beginnings. A call with the name of the only one around it counts once.
[[nodiscard]] std::vector<OperatorCall> operator_calls(
    const torch::autograd::profiler::ProfilerResult& result);

}  // namespace accel::profiling
