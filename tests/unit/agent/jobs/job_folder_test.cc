// Records that outlive the agent (faults 31 and 66 of docs/reference/faults.md).

#include "agent/jobs/job_folder.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/scratch_folder.h"

namespace accel::agent::job_folder_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class JobFolderTest : public testing::Test {
 protected:
  [[nodiscard]] JobFolder open() const {
    auto folder = JobFolder::open(path_);
    EXPECT_TRUE(folder) << folder.error().render();
    return *std::move(folder);
  }
  static v1::JobRecord record(const std::string& id, std::int64_t started = 1) {
    v1::JobRecord made;
    made.mutable_job()->set_job_id(id);
    made.mutable_job()->mutable_started()->set_seconds(started);
    made.mutable_job()->set_report("several\nlines\n");
    made.set_log_dir("/logs/7");
    return made;
  }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::ifstream file(path_ + "/" + name, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  test::ScratchFolder scratch_;
  const std::string path_ = scratch_.file("jobs");
};

TEST_F(JobFolderTest, RecordsComeBackInTheOrderOfTheirStarts) {
  ASSERT_TRUE(open().write(record("b", 5)));
  ASSERT_TRUE(open().write(record("a", 9)));
  ASSERT_TRUE(open().write(record("c", 2)));

  const auto contents = open().read_all();

  ASSERT_THAT(contents.records, SizeIs(3));
  EXPECT_EQ(contents.records[0].job().job_id(), "c");
  EXPECT_EQ(contents.records[2].job().job_id(), "a");
  EXPECT_EQ(contents.records[1].SerializeAsString(), record("b", 5).SerializeAsString());
  EXPECT_THAT(contents.damaged, IsEmpty());
}

TEST_F(JobFolderTest, Fault31EveryFlippedByteAndEveryCutIsSeenAndTheFileIsPutAside) {
  const JobFolder folder = open();
  ASSERT_TRUE(folder.write(record("j")));
  const std::string good = content("j.job");
  for (std::size_t at = 0; at < good.size(); ++at) {
    std::string flipped = good;
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    for (const std::string& bad : {flipped, good.substr(0, at)}) {
      std::ofstream(path_ + "/j.job", std::ios::binary | std::ios::trunc) << bad;
      const auto contents = folder.read_all();
      EXPECT_THAT(contents.records, IsEmpty()) << at;
      ASSERT_THAT(contents.damaged, SizeIs(1)) << at;
      EXPECT_EQ(contents.damaged[0].job_id, "j");
      EXPECT_EQ(content("j.damaged"), bad);
    }
  }
}

TEST_F(JobFolderTest, Fault31ARecordOfAnotherVersionIsNamedForWhatItIs) {
  const JobFolder folder = open();
  ASSERT_TRUE(folder.write(record("j")));
  std::string newer = content("j.job");
  newer.replace(newer.find(" 1 "), 3, " 9 ");
  std::ofstream(path_ + "/j.job", std::ios::binary | std::ios::trunc) << newer;

  const auto contents = folder.read_all();

  ASSERT_THAT(contents.damaged, SizeIs(1));
  EXPECT_THAT(contents.damaged[0].error.message(),
              HasSubstr("version 9, this program reads version 1"));
}

TEST_F(JobFolderTest, ARecordThatWasRemovedIsGone) {
  const JobFolder folder = open();
  ASSERT_TRUE(folder.write(record("j")));
  folder.remove("j");
  EXPECT_THAT(folder.read_all().records, IsEmpty());
}

TEST_F(JobFolderTest, Fault68TwoUsersMayHaveJobsOfTheSameId) {
  const JobFolder folder = open();
  const uid_t other = ::geteuid() + 7;
  v1::JobRecord anns = record("j", 1);
  v1::JobRecord bobs = record("j", 2);
  bobs.set_key(record_name(other, "j"));
  ASSERT_TRUE(folder.write(anns));
  ASSERT_TRUE(folder.write(bobs));

  ASSERT_THAT(folder.read_all().records, SizeIs(2));
  EXPECT_EQ(record_name(folder.read_all().records[0]), "j");  // as builds before have named it
  EXPECT_NE(folder.token_for(record_name(anns)), folder.token_for(record_name(bobs)));
  EXPECT_NE(folder.instance_for(record_name(anns)), folder.instance_for(record_name(bobs)));

  std::ofstream(path_ + "/" + record_name(bobs) + ".job", std::ios::trunc) << "x";
  const auto contents = folder.read_all();
  ASSERT_THAT(contents.damaged, SizeIs(1));
  EXPECT_EQ(contents.damaged[0].job_id, "j");
  EXPECT_EQ(contents.damaged[0].user, other);
  EXPECT_EQ(contents.damaged[0].name, record_name(bobs));
  folder.remove(record_name(anns));
  EXPECT_THAT(folder.read_all().records, IsEmpty());
}

TEST_F(JobFolderTest, TokensDifferByJobAndStayTheSame) {
  const std::string token = open().token_for("a");
  EXPECT_THAT(token, SizeIs(64));
  EXPECT_EQ(open().token_for("a"), token);
  EXPECT_NE(open().token_for("b"), token);
}

TEST_F(JobFolderTest, InstancesDifferByJobAndByAgentAndStayTheSame) {
  const std::string instance = open().instance_for("a");
  EXPECT_THAT(instance, testing::MatchesRegex("[0-9a-f]{32}"));
  EXPECT_EQ(open().instance_for("a"), instance);
  EXPECT_NE(open().instance_for("b"), instance);
  EXPECT_THAT(open().token_for("a"), testing::Not(HasSubstr(instance)));
  const auto others = JobFolder::open(scratch_.file("others"));
  ASSERT_TRUE(others);
  EXPECT_NE(others->instance_for("a"), instance);
}

TEST_F(JobFolderTest, Fault31ADamagedKeyIsMadeAnewWithAWord) {
  const std::string token = open().token_for("a");
  std::ofstream(path_ + "/key", std::ios::trunc) << "";

  const JobFolder folder = open();

  EXPECT_THAT(folder.complaint(), HasSubstr("made anew"));
  EXPECT_NE(folder.token_for("a"), token);
  EXPECT_THAT(open().complaint(), IsEmpty());
}

TEST_F(JobFolderTest, Fault66NobodyElseMayReadIt) {
  (void)open();
  ASSERT_TRUE(open().write(record("j")));
  struct stat info {};
  for (const char* name : {"key", "j.job"}) {
    ASSERT_EQ(::stat((path_ + "/" + name).c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600U) << name;
  }
  ASSERT_EQ(::chmod(path_.c_str(), 0755), 0);
  EXPECT_FALSE(JobFolder::open(path_));
}

}  // namespace
}  // namespace accel::agent::job_folder_test
