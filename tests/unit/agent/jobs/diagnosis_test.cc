// What is told about the processes of a job, whose numbers are the word of a shim that its user may replace.

#include "agent/jobs/diagnosis.h"

#include <gmock/gmock.h>
#include <unistd.h>

namespace accel::agent::diagnosis_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

v1::Worker self() {
  v1::Worker worker;
  worker.set_rank(3);
  worker.set_pid(::getpid());
  return worker;
}

TEST(Diagnosis, TellsWhatAProcessOfTheJobsUserWaitsFor) {
  const auto chunk = diagnose(self(), ::getuid(), real_system());

  EXPECT_THAT(chunk.title(), StartsWith("rank 3, pid "));
  EXPECT_THAT(chunk.text(), HasSubstr("State:"));
  EXPECT_THAT(chunk.text(), HasSubstr("thread "));
}

// The agent, which is root, read the kernel stack of any process for a shim that named its number.
TEST(Diagnosis, Fault67OfAProcessThatIsSomebodyElsesNothingIsTold) {
  EXPECT_EQ(diagnose(self(), ::getuid() + 1, real_system()).text(),
            "is no process of the job's user\n");
}

}  // namespace
}  // namespace accel::agent::diagnosis_test
