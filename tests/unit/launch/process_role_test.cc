// Who may start workers.

#include "libaccel/launch/process_role.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launch::process_role_test {
namespace {

using ::testing::HasSubstr;

std::string refusal(const LaunchSituation& situation, const EnvMap& environment = {}) {
  const EnvLookup lookup = [&](std::string_view name) -> std::optional<std::string> {
    const auto found = environment.find(std::string(name));
    if (found == environment.end()) return std::nullopt;
    return found->second;
  };
  const auto checked = check_may_launch(situation, lookup, "debug_launcher");
  return checked ? "" : checked.error().message() + " / " + checked.error().remedy();
}

TEST(ProcessRole, ProgramOnItsOwnMayLaunch) {
  EXPECT_EQ(refusal({}), "");
}

TEST(ProcessRole, WorkerMayNot) {
  EXPECT_THAT(refusal({.is_worker = true}, {{"RANK", "3"}}), HasSubstr("in a worker (rank 3)"));
  EXPECT_THAT(refusal({}, {{"LOCAL_RANK", "0"}}), HasSubstr("call the function directly"));
}

TEST(ProcessRole, ProgramWithAnAcceleratorMayNot) {
  EXPECT_THAT(refusal({.has_state = true}), HasSubstr("only inside the function that is launched"));
}

TEST(ProcessRole, OneLaunchAtATime) {
  EXPECT_THAT(refusal({.is_launching = true}), HasSubstr("another launch runs"));
}

}  // namespace
}  // namespace accel::launch::process_role_test
