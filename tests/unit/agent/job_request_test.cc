#include "agent/job_request.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/log_reader.h"
#include "tests/support/scratch_folder.h"

namespace accel::agent {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

v1::JobSpec small_job() {
  v1::JobSpec job;
  job.set_job_id("j1");
  job.add_argv("/bin/true");
  return job;
}

UserAccount ann() {
  return {.name = "ann",
          .home = "/home/ann",
          .shell = "/bin/sh",
          .credentials = {.uid = 1000, .gid = 1000, .groups = {}}};
}

TEST(JobRequest, EveryFaultIsNamed) {
  v1::JobSpec job;
  job.set_job_id("../etc");
  job.set_cwd("relative");
  job.set_min_nodes(3);
  job.set_max_nodes(2);
  job.mutable_stop()->set_signal(999);
  (*job.mutable_env())["A=B"] = "x";
  const auto checked = check_job_request(job);
  ASSERT_FALSE(checked);
  const std::string text = checked.error().render();
  for (const char* part : {"job_id '../etc'",
                           "argv names no program",
                           "cwd 'relative'",
                           "max_nodes 2 is below min_nodes 3",
                           "stop.signal 999",
                           "impossible variable"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(JobRequest, VariablesThatSteerLoadingAreLeftOutForAnotherUser) {
  v1::JobSpec job = small_job();
  (*job.mutable_env())["LD_PRELOAD"] = "/tmp/evil.so";
  (*job.mutable_env())["GCONV_PATH"] = "/tmp";
  (*job.mutable_env())["MINE"] = "1";
  std::vector<std::string> scrubbed;
  const auto spec = make_job_spec(job, {}, ann(), "/logs", /*scrub=*/true, scrubbed);
  EXPECT_THAT(scrubbed, ElementsAre("GCONV_PATH", "LD_PRELOAD"));
  EXPECT_EQ(spec.env.count("LD_PRELOAD"), 0U);
  EXPECT_EQ(spec.env.at("MINE"), "1");
  EXPECT_EQ(spec.env.at("HOME"), "/home/ann");
  scrubbed.clear();
  EXPECT_EQ(
      make_job_spec(job, {}, ann(), "/logs", /*scrub=*/false, scrubbed).env.count("LD_PRELOAD"),
      1U);
}

TEST(JobRequest, RanksOfANodeFollowItsFirst) {
  std::vector<std::string> scrubbed;
  const LocalPart part = {
      .node_rank = 1, .num_nodes = 2, .first_rank = 4, .num_ranks = 2, .world_size = 6};
  const auto spec = make_job_spec(small_job(), part, ann(), "/logs", false, scrubbed);
  ASSERT_EQ(spec.workers.size(), 2U);
  EXPECT_EQ(spec.workers[1].global_rank, 5);
  EXPECT_EQ(spec.workers[1].local_rank, 1);
  EXPECT_EQ(spec.identity.world_size, 6);
  EXPECT_TRUE(supervisor::job_spec_from_json(supervisor::to_json(spec)));
}

TEST(JobRequest, AMadeIdIsValid) {
  v1::JobSpec job;
  job.add_argv("/opt/my app/run it!.py");
  job.set_job_id(make_job_id(job));
  EXPECT_TRUE(check_job_request(job)) << job.job_id();
}

class LogReaderTest : public testing::Test {
 protected:
  LogReader::Source source() {
    return {.folder = folder_.path().string(),
            .job_id = "j",
            .owner = ::geteuid(),
            .local_ranks = {0},
            .err = false};
  }
  test::ScratchFolder folder_;
};

TEST_F(LogReaderTest, ReadsGenerationAfterGeneration) {
  folder_.write("j/attempt_0/0/stdout.log", "first");
  folder_.write("j/attempt_1/0/stdout.log", "second");
  LogReader reader(source());
  EXPECT_EQ(reader.next(1)->data(), "first");
  EXPECT_EQ(reader.next(1)->data(), "second");
  EXPECT_FALSE(reader.next(1));
}

TEST_F(LogReaderTest, NeitherLinksNorSecondNamesNorOthersFilesAreRead) {
  const std::string secret = folder_.write("secret", "s");
  folder_.write("j/attempt_0/0/keep", "");
  const std::string log = folder_.file("j/attempt_0/0/stdout.log");
  ASSERT_EQ(::symlink(secret.c_str(), log.c_str()), 0);
  EXPECT_FALSE(LogReader(source()).next(0));
  ASSERT_EQ(::unlink(log.c_str()), 0);
  ASSERT_EQ(::link(secret.c_str(), log.c_str()), 0);
  EXPECT_FALSE(LogReader(source()).next(0));
  ASSERT_EQ(::unlink(secret.c_str()), 0);
  EXPECT_TRUE(LogReader(source()).next(0));
  auto of_somebody_else = source();
  of_somebody_else.owner = ::geteuid() + 1;
  EXPECT_FALSE(LogReader(std::move(of_somebody_else)).next(0));
}

TEST_F(LogReaderTest, AFifoInPlaceOfAFileDoesNotHoldTheReaderUp) {
  folder_.write("j/attempt_0/0/keep", "");
  ASSERT_EQ(::mkfifo(folder_.file("j/attempt_0/0/stdout.log").c_str(), 0600), 0);
  EXPECT_FALSE(LogReader(source()).next(0));
}

}  // namespace
}  // namespace accel::agent
