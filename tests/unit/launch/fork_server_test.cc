// The worker channel of a process that is no program of its own.

#include "runtime/supervisor/spawn/fork_server.h"

#include <gtest/gtest.h>

namespace accel::supervisor::fork_server_test {
namespace {

TEST(ForkServer, ChannelNamesTheDescriptorsOfTheWorker) {
  EXPECT_EQ(renumber_channel("2:7:8", {7, 8}, {4, 5}), "2:4:5");
}

TEST(ForkServer, ChannelIsRenumberedOnceAndKeepsItsVersion) {
  EXPECT_EQ(renumber_channel("7:7:8", {7, 8}, {8, 7}), "7:8:7");
}

TEST(ForkServer, ChannelThatIsNoneStaysAsItIs) {
  EXPECT_EQ(renumber_channel("", {7, 8}, {4, 5}), "");
  EXPECT_EQ(renumber_channel("x", {7}, {4}), "x");
}

}  // namespace
}  // namespace accel::supervisor::fork_server_test
