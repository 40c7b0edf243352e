// Workers that have moved to a cgroup of their own, and what it counted.

#include "runtime/supervisor/spawn/oom_counters.h"

#include <gtest/gtest.h>

#include "tests/support/fake_system.h"

namespace accel::supervisor::oom_counters_test {
namespace {

constexpr pid_t kWorker = 42;

class OomCountersTest : public ::testing::Test {
 protected:
  OomCountersTest() {
    system_.files["/proc/self/mountinfo"] = "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n";
    system_.files["/proc/42/cgroup"] = "0::/elsewhere/own\n";
  }
  void count(int kills) {
    system_.files["/cg/elsewhere/own/memory.events"] =
        "oom 1\noom_kill " + std::to_string(kills) + "\n";
  }
  bool grew() { return counters_.grew(system_, kWorker, {"", "/cg/job"}); }

  test::FakeSystem system_;
  OomCounters counters_;
};

TEST_F(OomCountersTest, AKillInACgroupThatTheWorkerMovedToIsSeenOnce) {
  count(1);

  EXPECT_TRUE(grew());
  EXPECT_FALSE(grew()) << "the next one there was killed by somebody else";
  count(2);
  EXPECT_TRUE(grew());
}

TEST_F(OomCountersTest, ACgroupWithoutKillsOrWithoutCounterSaysNothing) {
  EXPECT_FALSE(grew());
  count(0);
  EXPECT_FALSE(grew());
}

TEST_F(OomCountersTest, CgroupsThatCountForThemselvesAreLeftOut) {
  for (const char* own : {"0::/job\n", "0::/job/rank-0\n", "0::/job/rank-0/below\n"}) {
    system_.files["/proc/42/cgroup"] = own;
    for (const char* folder : {"/cg/job", "/cg/job/rank-0", "/cg/job/rank-0/below"})
      system_.files[std::string(folder) + "/memory.events"] = "oom_kill 7\n";
    EXPECT_FALSE(grew()) << own;
  }
  system_.files["/proc/42/cgroup"] = "0::/job-2\n";
  system_.files["/cg/job-2/memory.events"] = "oom_kill 7\n";
  EXPECT_TRUE(grew());
}

// Version 1 says "/" of every process that has ended: the kills of the whole machine are there.
TEST_F(OomCountersTest, OfVersionOneNothingIsBelieved) {
  system_.files["/proc/self/mountinfo"] = "31 23 0:27 / /v1 rw - cgroup cgroup rw,memory\n";
  system_.files["/proc/42/cgroup"] = "4:memory:/\n";
  system_.files["/v1/memory.oom_control"] = "oom_kill 7\n";

  EXPECT_FALSE(grew());
}

}  // namespace
}  // namespace accel::supervisor::oom_counters_test
