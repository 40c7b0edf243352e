#include "runtime/cpu_quota.h"

#include <gtest/gtest.h>

#include "tests/support/fake_system.h"

namespace accel::cpu_quota_test {
namespace {

class CpuQuotaTest : public ::testing::Test {
 protected:
  CpuQuotaTest() {
    system_.files["/proc/self/mountinfo"] =
        "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n"
        "31 23 0:27 / /v1/cpu rw - cgroup cgroup rw,cpu,cpuacct\n";
    system_.files["/proc/self/cgroup"] = "3:cpu,cpuacct:/batch/job\n0::/job/step\n";
  }

  test::FakeSystem system_;
};

TEST_F(CpuQuotaTest, IsTheNarrowestUpTheTree) {
  system_.files["/cg/job/step/cpu.max"] = "400000 100000\n";
  system_.files["/cg/job/cpu.max"] = "150000 100000\n";
  system_.files["/cg/cpu.max"] = "800000 100000\n";

  EXPECT_EQ(cpu_quota(system_), (CpuQuota{.file = "/cg/job/cpu.max", .cpus = 1.5}));
}

TEST_F(CpuQuotaTest, OfVersionOneIsAPairOfFiles) {
  system_.files["/v1/cpu/batch/cpu.cfs_quota_us"] = "50000\n";
  system_.files["/v1/cpu/batch/cpu.cfs_period_us"] = "200000\n";

  EXPECT_EQ(cpu_quota(system_), (CpuQuota{.file = "/v1/cpu/batch/cpu.cfs_quota_us", .cpus = 0.25}));
}

TEST_F(CpuQuotaTest, IsNoneWhereNothingLimitsOrNothingCanBeRead) {
  EXPECT_EQ(cpu_quota(system_), std::nullopt);
  system_.files["/cg/job/cpu.max"] = "max 100000\n";
  system_.files["/cg/cpu.max"] = "10\n";
  system_.files["/v1/cpu/batch/cpu.cfs_quota_us"] = "-1\n";
  system_.files["/v1/cpu/batch/cpu.cfs_period_us"] = "100000\n";
  system_.files["/v1/cpu/cpu.cfs_quota_us"] = "100000\n";
  system_.files["/v1/cpu/cpu.cfs_period_us"] = "0\n";

  EXPECT_EQ(cpu_quota(system_), std::nullopt);
}

TEST_F(CpuQuotaTest, FeedsWholeThreadsAndAlwaysOne) {
  EXPECT_EQ((CpuQuota{.file = "f", .cpus = 3.9}).num_threads(), 3);
  EXPECT_EQ((CpuQuota{.file = "f", .cpus = 0.1}).num_threads(), 1);
  EXPECT_EQ((CpuQuota{.file = "f", .cpus = 1e18}).num_threads(), 2147483647);
}

TEST_F(CpuQuotaTest, IsDividedAmongTheWorkersWhereItIsLessThanTheirCores) {
  AffinityPlan plan{.workers = {{.num_threads = 5}, {.num_threads = 1}}};

  EXPECT_TRUE(bound_threads(plan, {.file = "f", .cpus = 4.5}, /*num_cores=*/6));
  EXPECT_EQ(plan.workers[0].num_threads, 2);
  EXPECT_EQ(plan.workers[1].num_threads, 1);
}

TEST_F(CpuQuotaTest, ThatFeedsEveryCoreBoundsNothing) {
  AffinityPlan plan{.workers = {{.num_threads = 5}, {.num_threads = 1}}};

  EXPECT_FALSE(bound_threads(plan, {.file = "f", .cpus = 6}, /*num_cores=*/6));
  EXPECT_EQ(plan.workers[0].num_threads, 5);
}

}  // namespace
}  // namespace accel::cpu_quota_test
