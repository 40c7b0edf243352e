// A wall clock that jumps by days (faults 43 and 44 of docs/reference/faults.md): only monotonic time decides anything.

#include <ctime>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fault_job.h"
#include "tests/support/scratch_folder.h"

namespace accel::test::clock_test {
namespace {

using ::testing::IsEmpty;

constexpr long kDay = 86'400;

class WallClock : public ::testing::Test {
 protected:
  // In place: who has the file open reads the new number.
  void set_clock(long seconds) const {
    std::ofstream(folder_.file("clock")) << seconds << std::string(16, ' ');
  }

  const std::string token_ = unique_token();
  ScratchFolder folder_;
};

// Launcher, shim and workers see the same clock jump forwards and backwards by a day. A grace that was taken from it
// would be over at once, or never.
TEST_F(WallClock, Fault43JumpsOfADayChangeNothing) {
  set_clock(0);
  const std::string worker = "while :; do echo now $(date +%s) end; sleep 0.05; done; : " + token_;
  LaunchProcess launch(
      {"--num_processes", "1", "--no_python", "--stop_grace", "60", "/bin/sh", "-c", worker},
      token_,
      {{"LD_PRELOAD", build_path("tests/libjumping_clock.so")},
       {"ACCEL_TEST_CLOCK", folder_.file("clock")}});
  const auto is_shown = [&](long offset) {
    std::size_t count = 0;
    for (int i = 0; i < 600; ++i) {
      const auto lines = launch.wait_for_lines("now ", ++count);
      if (lines.size() < count) return false;
      if (std::abs(std::stol(lines.back()) - (std::time(nullptr) + offset)) < kDay / 2) return true;
      count = lines.size();
    }
    return false;
  };
  EXPECT_TRUE(is_shown(0));
  for (const long offset : {kDay, -kDay, 0L}) {
    set_clock(offset);
    EXPECT_TRUE(is_shown(offset)) << "the clock did not jump by " << offset << " s";
  }
  set_clock(-kDay);
  launch.signal(SIGTERM);

  EXPECT_EQ(launch.wait(), 143);
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

}  // namespace
}  // namespace accel::test::clock_test
