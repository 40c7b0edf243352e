#include "runtime/cgroup_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_system.h"

namespace accel::cgroup_memory_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class CgroupRooms : public ::testing::Test {
 protected:
  CgroupRooms() {
    system_.files["/proc/self/mountinfo"] = "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n";
    system_.files["/proc/self/cgroup"] = "0::/job/rank-0\n";
  }
  void limit(const std::string& folder, const std::string& most, const std::string& used) {
    system_.files[folder + "/memory.max"] = most + "\n";
    system_.files[folder + "/memory.current"] = used + "\n";
  }

  test::FakeSystem system_;
};

TEST_F(CgroupRooms, AreOfTheProcessAndOfAllAboveItThatHaveALimit) {
  limit("/cg/job/rank-0", "1000", "400");
  limit("/cg/job", "max", "700");
  limit("/cg", "5000", "4900");

  EXPECT_THAT(cgroup_rooms(system_),
              ElementsAre(CgroupRoom{"/cg/job/rank-0/memory.max", 1000, 600},
                          CgroupRoom{"/cg/memory.max", 5000, 100}));
}

TEST_F(CgroupRooms, CountPagesOfFilesThatWereNotUsedLatelyAsFree) {
  limit("/cg/job", "1000", "900");
  system_.files["/cg/job/memory.stat"] = "anon 100\ninactive_file 300\nactive_file 400\n";

  EXPECT_THAT(cgroup_rooms(system_), ElementsAre(CgroupRoom{"/cg/job/memory.max", 1000, 400}));
}

TEST_F(CgroupRooms, AreEmptyWhereMoreIsTakenThanTheLimit) {
  limit("/cg/job", "1000", "1200");

  EXPECT_THAT(cgroup_rooms(system_), ElementsAre(CgroupRoom{"/cg/job/memory.max", 1000, 0}));
}

TEST_F(CgroupRooms, OfVersionOneAreReadToo) {
  system_.files["/proc/self/mountinfo"] = "35 31 0:32 / /m rw - cgroup cgroup rw,memory\n";
  system_.files["/proc/self/cgroup"] = "4:memory:/job\n";
  system_.files["/m/job/memory.limit_in_bytes"] = "1000\n";
  system_.files["/m/job/memory.usage_in_bytes"] = "900\n";
  system_.files["/m/job/memory.stat"] = "inactive_file 1\ntotal_inactive_file 200\n";
  system_.files["/m/memory.limit_in_bytes"] = "9223372036854771712\n";
  system_.files["/m/memory.usage_in_bytes"] = "5000\n";

  EXPECT_THAT(cgroup_rooms(system_),
              ElementsAre(CgroupRoom{"/m/job/memory.limit_in_bytes", 1000, 300}));
}

TEST_F(CgroupRooms, ThatCannotBeReadAreLeftOut) {
  EXPECT_THAT(cgroup_rooms(system_), IsEmpty());
  limit("/cg/job", "lots", "1");
  EXPECT_THAT(cgroup_rooms(system_), IsEmpty());
  system_.files.erase("/proc/self/cgroup");
  EXPECT_THAT(cgroup_rooms(system_), IsEmpty());
}

}  // namespace
}  // namespace accel::cgroup_memory_test
