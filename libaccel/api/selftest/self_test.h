// SelfTest: what `accel test` runs under accel-launch to see whether a set-up can train.
//
// Every rank runs every check, in the same order. A check compares what the ranks did together with what one process
// computes alone; it throws CheckFailed on the rank that sees a difference.
//
// Threads:  the main thread.
#pragma once

#include <span>
#include <stdexcept>
#include <string>

#include <ATen/core/Tensor.h>

#include <accel/accelerator.h>

namespace accel::selftest {

struct CheckFailed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// What a check works with.
struct Surroundings {
  const Accelerator& accelerator;
  bool is_faulty = false;  // this rank falsifies what it sees: shows that a check can fail

  [[nodiscard]] int rank() const { return accelerator.process_index(); }
  [[nodiscard]] int num_ranks() const { return accelerator.num_processes(); }

  // `seen` within `tolerance` of `wanted`, element by element; 0: equal. Throws CheckFailed with the first difference.
  void expect_equal(const at::Tensor& seen,
                    const at::Tensor& wanted,
                    const std::string& what,
                    double tolerance = 0) const;
};

struct Check {
  const char* name;
  const char* meaning;  // what it shows when it passes
  void (*run)(const Surroundings&);
};

// In the order in which they run.
[[nodiscard]] std::span<const Check> checks() noexcept;

void check_collectives(const Surroundings& here);
void check_objects(const Surroundings& here);
void check_data_loaders(const Surroundings& here);
void check_random_numbers(const Surroundings& here);
void check_training(const Surroundings& here);

}  // namespace accel::selftest
