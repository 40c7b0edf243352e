#include "agent/calls/grpc_status.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::agent::grpc_status_test {
namespace {

using ::testing::HasSubstr;

const Unanswered kNobody = {
    .code = ErrorCode::kCoordinatorLost, .endpoint = "10.0.0.7:29400", .remedy = "look there"};

TEST(GrpcStatus, BringsAnErrorBackAsItWasSent) {
  for (const ErrorCode code : {ErrorCode::kInvalidArgument,
                               ErrorCode::kAgentRefused,
                               ErrorCode::kJobUnknown,
                               ErrorCode::kAuthentication,
                               ErrorCode::kUnsupported,
                               ErrorCode::kCoordinatorLost,
                               ErrorCode::kInternal}) {
    const Error back = to_error(to_status(Error(code, "what is wrong", "what to do")), kNobody);
    EXPECT_EQ(back.code(), code) << error_info(code).id;
    EXPECT_EQ(back.message(), "what is wrong");
    EXPECT_EQ(back.remedy(), "what to do");
  }
}

TEST(GrpcStatus, AnErrorWithoutAStatusOfItsOwnKeepsItsTextAlone) {
  const Error back =
      to_error(to_status(Error(ErrorCode::kDiskFull, "the disk is full", "make room")), kNobody);
  EXPECT_EQ(back.code(), ErrorCode::kInternal);
  EXPECT_EQ(back.message(), "the disk is full");
  EXPECT_EQ(back.remedy(), "make room");
}

TEST(GrpcStatus, NobodyWhoAnswersIsNamedWithWhatTheCallerMakesOfIt) {
  for (const auto code : {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::DEADLINE_EXCEEDED}) {
    const Error error = to_error({code, "failed to connect"}, kNobody);
    EXPECT_EQ(error.code(), ErrorCode::kCoordinatorLost);
    EXPECT_THAT(error.message(), HasSubstr("10.0.0.7:29400"));
    EXPECT_THAT(error.message(), HasSubstr("failed to connect"));
    EXPECT_EQ(error.remedy(), "look there");
  }
}

TEST(GrpcStatus, WhatAStrangerAnswersIsMadePrintable) {
  const Error error = to_error({grpc::StatusCode::NOT_FOUND, "no \033[2Jjob\ndo \a this"}, kNobody);
  EXPECT_EQ(error.message(), "no ?[2Jjob");
  EXPECT_EQ(error.remedy(), "do ? this");
}

}  // namespace
}  // namespace accel::agent::grpc_status_test
