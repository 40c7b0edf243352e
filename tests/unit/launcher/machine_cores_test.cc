#include "launcher/devices/machine_cores.h"

#include <gtest/gtest.h>

#include "tests/support/scratch_folder.h"

namespace accel::launcher::machine_cores_test {
namespace {

TEST(MachineCores, AreTheDistinctSetsOfSiblings) {
  test::ScratchFolder folder;
  folder.write("cpu0/topology/core_cpus_list", "0,2\n");
  folder.write("cpu1/topology/core_cpus_list", "1,3\n");
  folder.write("cpu2/topology/core_cpus_list", "0,2\n");
  folder.write("cpu3/topology/core_cpus_list", "1,3\n");
  folder.write("cpufreq/topology/core_cpus_list", "9\n");
  folder.write("cpu4/online", "0\n");  // a core that is off has no topology

  EXPECT_EQ(num_machine_cores(folder.path()), 2);
}

TEST(MachineCores, OlderKernelsCallThemThreadSiblingsAndWithoutAnyThereIsOne) {
  test::ScratchFolder folder;
  EXPECT_EQ(num_machine_cores(folder.path()), 1);
  EXPECT_EQ(num_machine_cores(folder.file("none")), 1);

  folder.write("cpu0/topology/thread_siblings_list", "0\n");
  folder.write("cpu1/topology/thread_siblings_list", "1\n");
  EXPECT_EQ(num_machine_cores(folder.path()), 2);
}

}  // namespace
}  // namespace accel::launcher::machine_cores_test
