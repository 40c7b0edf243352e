#include "runtime/supervisor/owner/shim_state.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "runtime/supervisor/kernel/sealed_file.h"
#include "runtime/supervisor/owner/owner_door.h"
#include "tests/support/scratch_folder.h"

namespace accel::supervisor::shim_state_test {
namespace {

using ::testing::HasSubstr;

class ShimStateTest : public ::testing::Test {
 protected:
  ShimStateTest() {
    ::chmod(folder_.path().c_str(), 0700);
    state_ = own_state(real_system());
    state_.job_id = "job-1";
    state_.node_id = "node-1";
    state_.instance = "0123456789abcdef0123456789abcdef";
    state_.protocol = 2;
    state_.socket = "job-1.sock";
  }

  std::string written() {
    auto place = open_runtime_folder(folder_.path());
    EXPECT_TRUE(place);
    EXPECT_TRUE(write_shim_state(place->get(), state_));
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }

  std::string complaint_about(const std::string& content) {
    std::ofstream(path_, std::ios::trunc) << content;
    const auto read = read_shim_state(path_);
    EXPECT_FALSE(read) << content;
    if (read) return "";
    EXPECT_EQ(read.error().code(), ErrorCode::kShimState);
    return std::string(read.error().message());
  }

  test::ScratchFolder folder_;
  const std::string path_ = folder_.file("job-1.shim");
  ShimState state_;
};

TEST_F(ShimStateTest, ComesBackAndNamesARunningProcess) {
  (void)written();

  const auto read = read_shim_state(path_);

  ASSERT_TRUE(read) << read.error().render();
  EXPECT_EQ(read->job_id, "job-1");
  EXPECT_EQ(read->instance, state_.instance);
  EXPECT_EQ(read->pid, ::getpid());
  EXPECT_EQ(read->start_time, state_.start_time);
  EXPECT_TRUE(is_running(real_system(), *read));
}

TEST_F(ShimStateTest, Fault30AFileOfABuildThatKnewNoInstanceIsRead) {
  const std::string now = written();
  auto json = nlohmann::json::parse(now.substr(now.find('\n')));
  json.erase("instance");
  const Seal seal = {.magic = "accel-shim-state ", .version = 1, .kind = "state"};
  std::ofstream(path_, std::ios::trunc) << supervisor::seal(seal, json.dump());

  const auto read = read_shim_state(path_);

  ASSERT_TRUE(read) << read.error().render();
  EXPECT_EQ(read->job_id, "job-1");
  EXPECT_EQ(read->instance, "");
}

TEST_F(ShimStateTest, Fault20AReusedNumberOrAnotherBootIsNotTheShim) {
  ShimState other = state_;
  other.start_time += 1;
  EXPECT_FALSE(is_running(real_system(), other));
  other = state_;
  other.boot_id = "00000000-0000-0000-0000-000000000000";
  EXPECT_FALSE(is_running(real_system(), other));
}

TEST_F(ShimStateTest, Fault31EveryFlippedByteAndEveryCutIsSeen) {
  const std::string good = written();
  for (std::size_t at = 0; at + 1 < good.size(); ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 1);
    (void)complaint_about(bad);
    if (at + 2 < good.size()) (void)complaint_about(good.substr(0, at));
  }
}

TEST_F(ShimStateTest, Fault31ForeignFilesAreNamedForWhatTheyAre) {
  const std::string good = written();
  EXPECT_THAT(complaint_about(""), HasSubstr("no state file"));
  EXPECT_THAT(complaint_about("hello\n"), HasSubstr("no state file"));
  std::string newer = good;
  newer.replace(newer.find(" 1 "), 3, " 7 ");
  EXPECT_THAT(complaint_about(newer), HasSubstr("version 7, this program reads version 1"));
  EXPECT_THAT(complaint_about(std::string(100'000, 'x')), HasSubstr("more than 65536 bytes"));
  EXPECT_THAT(read_shim_state(folder_.file("none")).error().message(), HasSubstr("cannot be read"));
}

TEST_F(ShimStateTest, ASocketElsewhereIsRefused) {
  state_.socket = "../other.sock";
  const std::string bad = written();

  EXPECT_THAT(complaint_about(bad), HasSubstr("not a file name"));
}

TEST_F(ShimStateTest, Fault67TheFolderMustBePrivateAndNoLink) {
  ::chmod(folder_.path().c_str(), 0750);
  EXPECT_THAT(open_runtime_folder(folder_.path()).error().message(), HasSubstr("mode 0750"));
  ::chmod(folder_.path().c_str(), 0700);
  const std::string link = folder_.file("link");
  ASSERT_EQ(::symlink(folder_.path().c_str(), link.c_str()), 0);
  EXPECT_FALSE(open_runtime_folder(link));
}

TEST(Secrets, AreTheSameOnlyWhenWhole) {
  EXPECT_TRUE(is_same_secret("0123456789abcdef", "0123456789abcdef"));
  for (const char* other :
       {"", "0", "0123456789abcdeg", "0123456789abcdef0", "0123456789abcdef0123456789abcdef"}) {
    EXPECT_FALSE(is_same_secret(other, "0123456789abcdef")) << other;
  }
  EXPECT_FALSE(is_same_secret("", ""));
}

}  // namespace
}  // namespace accel::supervisor::shim_state_test
