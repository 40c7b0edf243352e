// GeneratorStates: LibTorch's default generators as they were at some time, those of the CPU and of the GPUs.
//
// Threads:  locks the generators.
// Cost:     5 KB and some microseconds for the CPU's; 16 bytes for each GPU.
#pragma once

#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

namespace accel::recompute {

// Whether the operator draws from a generator.
[[nodiscard]] bool draws(const c10::OperatorHandle& op);

class GeneratorStates {
 public:
  // As they are now.
  GeneratorStates();
  void restore() const;

 private:
  std::vector<std::pair<at::Generator, at::Tensor>> states_;
};

// While it lives, the generators may be drawn from, from other states too; at its end they go on from where they were.
class GeneratorScope {
 public:
  GeneratorScope() = default;
  explicit GeneratorScope(const GeneratorStates& states) { states.restore(); }
  ~GeneratorScope() { before_.restore(); }
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  GeneratorStates before_;
};

}  // namespace accel::recompute
