#include "launcher/cluster/agents/failed_stop.h"

#include <gtest/gtest.h>

namespace accel::cluster::failed_stop_test {
namespace {

// "not stopped" made people press the keys again, and the second stop killed.
TEST(FailedStop, OfAnAnswerThatWasLostNobodyKnowsWhatTheAgentDid) {
  for (const auto code : {grpc::StatusCode::DEADLINE_EXCEEDED, grpc::StatusCode::UNAVAILABLE}) {
    const FailedStop failed = failed_stop(code, "no answer");
    EXPECT_FALSE(failed.is_known);
    EXPECT_EQ(failed.message, "it is not known whether it was stopped: no answer");
  }
}

TEST(FailedStop, AnAgentThatRefusedHasStoppedNothing) {
  const FailedStop failed = failed_stop(grpc::StatusCode::PERMISSION_DENIED, "you may not");
  EXPECT_TRUE(failed.is_known);
  EXPECT_EQ(failed.message, "not stopped: you may not");
}

}  // namespace
}  // namespace accel::cluster::failed_stop_test
