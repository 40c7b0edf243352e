#include "launcher/cluster/meeting/job_folder.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "agent/rendezvous/token_proof.h"
#include "tests/support/scratch_folder.h"

namespace accel::cluster::job_folder_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

mode_t mode_of(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

class JobFolderTest : public ::testing::Test {
 protected:
  test::ScratchFolder scratch_;
  std::string path_ = scratch_.file("job");
};

TEST_F(JobFolderTest, OnlyItsUserCanEnterIt) {
  const auto folder = or_throw(JobFolder::make(path_));
  EXPECT_EQ(mode_of(path_), 0700u);
  EXPECT_EQ(mode_of(folder.token_file()), 0600u);
  EXPECT_EQ(mode_of(path_ + "/ca-key.pem"), 0600u);
  EXPECT_TRUE(agent::read_token(folder.token_file()));
}

TEST_F(JobFolderTest, TheOthersFindWhatTheHostPublished) {
  const auto host = or_throw(JobFolder::make(path_));
  or_throw(host.publish({"10.0.0.7:4000", "[fd00::7]:4000"}));

  const auto node = or_throw(JobFolder::find(path_, 60s, {}));

  EXPECT_THAT(node.endpoints(), ElementsAre("10.0.0.7:4000", "[fd00::7]:4000"));
  const std::string papers = or_throw(node.certificate("gpu-01"));
  EXPECT_EQ(mode_of(papers + "/key.pem"), 0600u);
}

TEST_F(JobFolderTest, ItIsRemovedByItsMakerAlone) {
  {
    const auto host = or_throw(JobFolder::make(path_));
    or_throw(host.publish({"10.0.0.7:4000"}));
    { const auto node = or_throw(JobFolder::find(path_, 60s, {})); }
    EXPECT_TRUE(std::filesystem::exists(path_));
  }
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(JobFolderTest, AFolderThatIsThereAlreadyIsNotUsed) {
  std::filesystem::create_directory(path_);
  const auto made = JobFolder::make(path_);
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().remedy(), HasSubstr("--rdzv_dir"));
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(JobFolderTest, AFolderThatOthersMayEnterIsNotBelieved) {
  const auto host = or_throw(JobFolder::make(path_));
  or_throw(host.publish({"10.0.0.7:4000"}));
  ::chmod(path_.c_str(), 0750);

  const auto found = JobFolder::find(path_, 60s, {});

  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::kAuthentication);
}

TEST_F(JobFolderTest, ALinkIsNotBelieved) {
  const auto host = or_throw(JobFolder::make(path_));
  or_throw(host.publish({"10.0.0.7:4000"}));
  std::filesystem::create_directory_symlink(path_, scratch_.file("link"));

  const auto found = JobFolder::find(scratch_.file("link"), 60s, {});

  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::kAuthentication);
}

TEST_F(JobFolderTest, OneThatNeverComesIsNamed) {
  const auto found = JobFolder::find(path_, 0s, {});
  ASSERT_FALSE(found);
  EXPECT_EQ(found.error().code(), ErrorCode::kRendezvousTimeout);
  EXPECT_THAT(found.error().message(), HasSubstr(path_));
}

}  // namespace
}  // namespace accel::cluster::job_folder_test
