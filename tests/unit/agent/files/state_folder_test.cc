#include "agent/files/state_folder.h"

#include <gmock/gmock.h>

namespace accel::agent::state_folder_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

constexpr uid_t kRoot = 0;
constexpr uid_t kAnn = 1000;

std::optional<gid_t> one_group(const std::string& name) {
  return name == "accel" ? std::optional<gid_t>(42) : std::nullopt;
}
std::optional<gid_t> no_group(const std::string&) {
  return std::nullopt;
}

TEST(SocketAccess, OfRootsAgentIsForTheGroupAccelWhereThereIsOneElseForRoot) {
  const auto with = or_throw(choose_socket_access("", kRoot, one_group));
  EXPECT_EQ(with.mode, 0660U);
  EXPECT_THAT(with.group, Optional(42U));
  const auto without = or_throw(choose_socket_access("", kRoot, no_group));
  EXPECT_EQ(without.mode, 0600U);
  EXPECT_FALSE(without.group);
}

TEST(SocketAccess, OfAUsersAgentIsForThatUser) {
  EXPECT_EQ(or_throw(choose_socket_access("", kAnn, one_group)).mode, 0600U);
  EXPECT_FALSE(or_throw(choose_socket_access("", kAnn, one_group)).group);
}

TEST(SocketAccess, IsForEverybodyOnlyWhereThatIsSaid) {
  EXPECT_EQ(or_throw(choose_socket_access("*", kRoot, one_group)).mode, 0666U);
}

TEST(SocketAccess, AGroupThatIsNotThereIsAnError) {
  const auto access = choose_socket_access("staff", kRoot, one_group);
  ASSERT_FALSE(access);
  EXPECT_EQ(access.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(access.error().message(), HasSubstr("no group 'staff'"));
}

}  // namespace
}  // namespace accel::agent::state_folder_test
