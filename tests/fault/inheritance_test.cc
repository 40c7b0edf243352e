// What a worker inherits (faults 15 and 20 of docs/faults.md).

#include <csignal>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "tests/support/fault_job.h"

namespace accel::test {
namespace {

using ::testing::SizeIs;

class Inheritance : public ::testing::Test {
 protected:
  const std::string token_ = unique_token();

  std::vector<std::string> launch_arguments(const std::vector<std::string>& command) const {
    std::vector<std::string> arguments = {"--num_processes", "2", "--no_python"};
    arguments.insert(arguments.end(), command.begin(), command.end());
    return arguments;
  }
};

TEST_F(Inheritance, Fault15WorkerStartsWithTheDeclaredDescriptorsOnly) {
  // One that the launcher itself inherits and must not pass on.
  const UniqueFd leak(::open("/dev/null", O_RDONLY));
  ASSERT_GT(leak.get(), 2);
  LaunchProcess launch(launch_arguments(worker_command("descriptors", token_)), token_);
  const auto lines = launch.wait_for_lines("descriptors ", 2);
  ASSERT_EQ(launch.wait(), 0) << launch.output();
  ASSERT_THAT(lines, SizeIs(2));

  for (const std::string& line : lines) {
    // "0 1 2 channel none" or "0 1 2 A B channel 1:A:B"
    const std::size_t at = line.find(" channel ");
    ASSERT_NE(at, std::string::npos);
    std::string expected = "0 1 2";
    const std::string channel = line.substr(at + 9);
    if (channel != "none") {
      const std::size_t first = channel.find(':');
      const std::size_t second = channel.find(':', first + 1);
      int a = std::stoi(channel.substr(first + 1, second - first - 1));
      int b = std::stoi(channel.substr(second + 1));
      if (a > b) std::swap(a, b);
      expected += " " + std::to_string(a) + " " + std::to_string(b);
    }
    EXPECT_EQ(line.substr(0, at), expected);
  }
}

TEST_F(Inheritance, LimitsOfTheJobAreThoseOfItsWorkersAndNotOfTheShim) {
  auto spec = make_job("exit 0", token_);
  spec.workers[0].argv = {
      "/bin/sh", "-c", "echo $(ulimit -Sn) $(ulimit -Hn) $(ulimit -Hc) $(ulimit -Hl) >&2; exit 3"};
  spec.limits.open_files = 77;
  spec.limits.core_bytes = 512 * 8;
  spec.limits.locked_bytes = 1024 * 4;

  const JobRun run = run_job(spec);

  ASSERT_TRUE(run.outcome.has_value()) << (run.error ? run.error->what() : "no outcome in time");
  EXPECT_EQ(run.outcome->first_failure->tail, "77 77 8 4\n");
}

TEST_F(Inheritance, Fault15WorkersKeepTheUsersLimitOfOpenFilesAndTheShimTakesMore) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit small = {.rlim_cur = 300, .rlim_max = before.rlim_max};
  ASSERT_GT(before.rlim_max, small.rlim_cur);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &small), 0);
  LaunchProcess launch(
      launch_arguments(
          {"/bin/sh", "-c", "echo open files $(ulimit -Sn); while :; do sleep 0.05; done"}),
      token_);
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);

  EXPECT_EQ(launch.wait_for_lines("open files ", 2), std::vector<std::string>(2, "300"));
  rlimit of_shim{};
  ASSERT_EQ(::prlimit(launch.shim(), RLIMIT_NOFILE, nullptr, &of_shim), 0);
  EXPECT_EQ(of_shim.rlim_cur, before.rlim_max);
}

TEST_F(Inheritance, WorkerStartsWithoutBlockedOrAddedIgnoredSignals) {
  LaunchProcess launch(
      launch_arguments({"/bin/sh", "-c", "grep -E '^Sig(Blk|Ign)' /proc/self/status"}), token_);
  ASSERT_EQ(launch.wait(), 0) << launch.output();

  EXPECT_EQ(launch.wait_for_lines("SigBlk:\t", 2), std::vector<std::string>(2, "0000000000000000"));
  for (const std::string& ignored : launch.wait_for_lines("SigIgn:\t", 2)) {
    // glibc's posix_spawn, by which the test starts the launcher, ignores its two internal signals.
    constexpr unsigned long kInternalSignals = 0x180000000;
    EXPECT_EQ(std::stoul(ignored, nullptr, 16) & ~kInternalSignals, 0U);
  }
}

}  // namespace
}  // namespace accel::test
