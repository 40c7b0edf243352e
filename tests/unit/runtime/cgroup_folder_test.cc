#include "runtime/cgroup_folder.h"

#include <gtest/gtest.h>

namespace accel::cgroup_folder_test {
namespace {

TEST(CgroupFolder, IsBelowTheMountOfVersionTwo) {
  const std::string mounts =
      "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

  EXPECT_EQ(cgroup_folder(mounts, "0::/user.slice/session-1.scope\n"),
            "/sys/fs/cgroup/user.slice/session-1.scope");
  EXPECT_EQ(cgroup_folder(mounts, "0::/\n"), "/sys/fs/cgroup");
}

TEST(CgroupFolder, OfAHybridMachineIsTheUnifiedOne) {
  const std::string mounts =
      "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

  EXPECT_EQ(cgroup_folder(mounts, "4:memory:/a\n0::/b\n"), "/sys/fs/cgroup/unified/b");
}

TEST(CgroupFolder, TheRootOfAMountIsTakenOffAndItsSpacesComeBack) {
  const std::string mounts = "41 31 0:38 /docker/7 /mnt/c\\040g rw - cgroup2 none rw\n";

  EXPECT_EQ(cgroup_folder(mounts, "0::/docker/7/job\n"), "/mnt/c g/job");
  EXPECT_EQ(cgroup_folder(mounts, "0::/docker/77\n"), "");
}

TEST(CgroupFolder, IsNoneWithoutVersionTwoOrOutsideOfTheNamespace) {
  EXPECT_EQ(cgroup_folder("35 31 0:32 / /sys/fs/cgroup rw - cgroup cgroup rw\n", "4:memory:/a\n"),
            "");
  EXPECT_EQ(cgroup_folder("41 31 0:38 / /c rw - cgroup2 none rw\n", "0::/../other\n"), "");
}

TEST(CgroupFolder, OfVersionOneIsThatOfItsController) {
  const std::string mounts =
      "34 31 0:31 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
      "35 31 0:32 /docker/7 /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";
  const std::string cgroup = "5:cpu,cpuacct:/docker/7\n4:memory:/docker/7/job\n0::/\n";

  EXPECT_EQ(cgroup_folder(mounts, cgroup, "memory"), "/sys/fs/cgroup/memory/job");
  EXPECT_EQ(cgroup_folder(mounts, "5:cpu,cpuacct:/docker/7\n", "memory"), "");
  EXPECT_EQ(cgroup_folder(mounts, "4:memory\nnonsense\n", "memory"), "");
}

}  // namespace
}  // namespace accel::cgroup_folder_test
