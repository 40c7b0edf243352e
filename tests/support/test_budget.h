// TestBudget: how long, and from which seed, a rotating test may run. See docs/internals/testing.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>

namespace accel::test {

inline std::uint64_t number_from_environment(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// --long: everything, however long it takes.
inline bool is_long_run() {
  return number_from_environment("ACCEL_TEST_LONG", 0) != 0;
}

// The commit's, so that each commit tries others.
inline std::uint64_t test_seed() {
  return number_from_environment("ACCEL_TEST_SEED", 1);
}

// `share` of the seconds that all rotating tests of a run may take.
inline std::chrono::milliseconds test_budget(double share) {
  const auto seconds = number_from_environment("ACCEL_TEST_BUDGET", 60);
  return std::chrono::milliseconds(
      static_cast<std::int64_t>(static_cast<double>(seconds) * 1000 * share));
}

}  // namespace accel::test
