#include "agent/shims/job_report.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/shims/worker_end.h"

namespace accel::agent::job_report_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

TEST(JobReport, KeepsTheLinesOfItsShim) {
  v1::Job job;
  add_to_report(job, "one");
  add_to_report(job, "two\n");
  add_to_report(job, "");

  EXPECT_EQ(job.report(), "one\ntwo\n");
}

// proto3 does not parse a string that is no UTF-8: one such job would hide all others from `accel status`.
TEST(JobReport, Fault67BytesOfAHostileShimLeaveTheJobReadable) {
  const std::string hostile = "\xff\xfe \x1b[2J\xc3";
  v1::Job job;
  add_to_report(job, hostile);
  supervisor::WorkerExit exit;
  exit.core_path = hostile;
  exit.detail = hostile;
  exit.stage = hostile;
  exit.tail = hostile;
  for (const auto cause : {supervisor::ExitCause::kHang, supervisor::ExitCause::kExecFailed}) {
    exit.cause = cause;
    *job.add_workers()->mutable_exit() = describe_end(exit);
  }

  v1::Job back;
  EXPECT_TRUE(back.ParseFromString(job.SerializeAsString()));
  EXPECT_EQ(back.report(), "?? ?[2J?\n");
  EXPECT_EQ(back.workers(0).exit().tail_err(), hostile) << "its bytes stay as they were";
}

TEST(JobReport, EveryCauseOfAnEndIsHeardByAnotherNode) {
  for (std::size_t i = 0; i < supervisor::kNumExitCauses; ++i) {
    supervisor::WorkerExit exit;
    exit.cause = static_cast<supervisor::ExitCause>(i);
    EXPECT_EQ(to_worker_exit(describe_end(exit)).cause, exit.cause) << i;
  }
  supervisor::WorkerExit full;
  full.cause = supervisor::ExitCause::kOutOfMemory;
  full.detail = "memory.max of 64 MiB";
  EXPECT_EQ(to_worker_exit(describe_end(full)).detail, full.detail);
}

TEST(JobReport, Fault67EndlessNoticesEndInALineThatSaysSo) {
  v1::Job job;
  for (int i = 0; i < 100; ++i) add_to_report(job, std::string(1000, 'n'));

  EXPECT_LE(job.report().size(), kMostReportBytes);
  EXPECT_THAT(job.report(), EndsWith("nnn\nthe report is full: more was left out\n"));

  v1::Job long_text;
  add_to_report(long_text, "before");
  add_to_report(long_text, std::string(1 << 20, 'n'));
  EXPECT_THAT(long_text.report(), HasSubstr("before\nthe report is full"));
  EXPECT_LE(long_text.report().size(), kMostReportBytes);
}

}  // namespace
}  // namespace accel::agent::job_report_test
