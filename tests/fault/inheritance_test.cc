// What a worker inherits, and what it then makes of it (faults 15, 19, 20 and 72 of docs/reference/faults.md).

#include <csignal>
#include <cstdio>
#include <filesystem>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "runtime/system.h"
#include "tests/support/fault_job.h"
#include "tests/support/scratch_folder.h"

namespace accel::test::inheritance_test {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int kNoSuchNode = supervisor::kMaxMemoryNodes - 1;

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

struct Ended {
  int exit_code = -1;
  std::string output;
};

// What a shell runs.
Ended run_shell(const std::string& command) {
  Ended ended;
  std::FILE* shell = ::popen(command.c_str(), "r");
  if (shell == nullptr) return ended;
  char buffer[4096];
  while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, shell))
    ended.output.append(buffer, got);
  const int status = ::pclose(shell);
  if (WIFEXITED(status)) ended.exit_code = WEXITSTATUS(status);
  return ended;
}

// Two workers, with so many descriptors for launcher and shim.
Ended launch_with(int descriptors, const ScratchFolder& temporary) {
  // The shell itself wants another descriptor to redirect one.
  return run_shell("export TMPDIR=" + temporary.path().string() + "; { ulimit -n " +
                   std::to_string(descriptors) + "; exec " + build_path("bin/accel-launch") +
                   " --num_processes 2 --no_python /bin/true; } 2>&1");
}

TEST_F(Inheritance, WithoutAnInputWorkersGetAnEmptyOneAndNoFileOfTheLauncher) {
  for (const char* launch : {"bin/accel-launch", "bin/accel launch"}) {
    const Ended ended =
        run_shell(build_path(launch) +
                  " --cpu --num_processes 2 --no_python /bin/readlink /proc/self/fd/0 <&-");
    EXPECT_EQ(ended.exit_code, 0) << launch;
    EXPECT_EQ(ended.output, "/dev/null\n/dev/null\n") << launch;
  }
}

// With each number of descriptors until there are enough.
TEST_F(Inheritance, TooFewDescriptorsRefuseTheJobAndTheShimDoesNotDieOfThem) {
  constexpr int kFewest = 6;
  constexpr int kSpawnFailed = 71;
  constexpr int kCannotLoad = 127;  // the dynamic linker already had too few
  const ScratchFolder temporary;
  Ended ended;
  for (int descriptors = kFewest; descriptors < 64 && ended.exit_code != 0; ++descriptors) {
    ended = launch_with(descriptors, temporary);
    if (ended.exit_code == 0 || ended.exit_code == kCannotLoad) continue;
    EXPECT_EQ(ended.exit_code, kSpawnFailed) << descriptors << " descriptors: " << ended.output;
    EXPECT_THAT(ended.output, HasSubstr("Too many open files")) << descriptors << " descriptors";
  }
  EXPECT_EQ(ended.exit_code, 0) << ended.output;
  EXPECT_TRUE(std::filesystem::is_empty(temporary.path()));
}

// While it lives this process, and what it starts, may use one core alone.
class NarrowedToOneCore {
 public:
  NarrowedToOneCore() {
    CPU_ZERO(&before_);
    EXPECT_EQ(::sched_getaffinity(0, sizeof before_, &before_), 0);
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &before_)) cpu_ = cpu;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu_, &one);
    EXPECT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  }
  ~NarrowedToOneCore() { (void)::sched_setaffinity(0, sizeof before_, &before_); }
  NarrowedToOneCore(const NarrowedToOneCore&) = delete;
  NarrowedToOneCore& operator=(const NarrowedToOneCore&) = delete;

  [[nodiscard]] int cpu() const { return cpu_; }
  [[nodiscard]] bool is_narrower() const { return CPU_COUNT(&before_) > 1; }

 private:
  cpu_set_t before_;
  int cpu_ = 0;
};

TEST_F(Inheritance, Fault72OnlyGrantedCoresAreUsedWithAndWithoutBinding) {
  const NarrowedToOneCore narrowed;
  if (!narrowed.is_narrower()) GTEST_SKIP() << "one core is all that this process has";
  for (const char* binding : {"", "--enable_cpu_affinity"}) {
    std::vector<std::string> arguments =
        launch_arguments({"/bin/sh", "-c", "grep ^Cpus_allowed_list: /proc/self/status"});
    if (*binding != 0) arguments.insert(arguments.begin(), binding);
    LaunchProcess launch(arguments, token_);
    EXPECT_EQ(launch.wait_for_lines("Cpus_allowed_list:\t", 2),
              std::vector<std::string>(2, std::to_string(narrowed.cpu())));
    EXPECT_EQ(launch.wait(), 0) << launch.output();
  }
}

TEST_F(Inheritance, MemoryIsBoundWhereTheJobSaysOrNoProgramRuns) {
  auto spec = make_job("exit 0", token_);
  spec.workers[0].argv = {"/bin/sh", "-c", "grep -c 'bind:0' /proc/self/numa_maps >&2; exit 3"};
  spec.workers[0].memory_nodes = {0};
  spec.workers[0].bind_memory = true;
  const JobRun bound = run_job(spec);
  ASSERT_TRUE(bound.outcome.has_value());
  if (bound.outcome->first_failure->error_number == ENOSYS ||
      bound.outcome->first_failure->error_number == EPERM)
    GTEST_SKIP() << "this kernel or container lets nobody choose memory";
  EXPECT_GT(std::stoi(bound.outcome->first_failure->tail), 0);

  spec.workers[0].memory_nodes = {kNoSuchNode};
  const JobRun impossible = run_job(spec);
  ASSERT_TRUE(impossible.outcome.has_value());
  EXPECT_EQ(impossible.outcome->first_failure->cause, supervisor::ExitCause::kExecFailed);
  EXPECT_EQ(impossible.outcome->first_failure->stage, "set_mempolicy");
  EXPECT_EQ(impossible.outcome->first_failure->error_number, EINVAL);

  spec.workers[0].bind_memory = false;
  EXPECT_EQ(run_job(spec).outcome->exit_code, 3) << "a preference that cannot be had costs nothing";
}

TEST_F(Inheritance, Fault19AWorkerThatChangesItsCoresLimitsAndUserRunsOnAndEndsWell) {
  LaunchProcess launch(launch_arguments(worker_command("changes stops 15", token_)), token_);
  const auto workers = launch.wait_for_lines("ready ", 2);
  ASSERT_THAT(workers, SizeIs(2));

  for (const std::string& worker : workers) {
    const pid_t pid = std::stoi(worker);
    const auto limits = real_system().read_file("/proc/" + worker + "/limits");
    ASSERT_TRUE(limits) << limits.error().what();
    EXPECT_THAT(*limits, ContainsRegex("Max open files +64 +64 ")) << "nobody set it back";
    ::kill(pid, SIGTERM);
  }

  EXPECT_EQ(launch.wait(), 0) << launch.output();
}

TEST_F(Inheritance, Fault19AWorkerThatChangedItselfIsStoppedLikeAnyOther) {
  auto arguments = launch_arguments(worker_command("changes stubborn", token_));
  arguments.insert(arguments.begin(), {"--stop_grace", "0.1"});
  LaunchProcess launch(arguments, token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2), SizeIs(2));

  launch.signal(SIGTERM);

  EXPECT_EQ(launch.wait(), 128 + SIGTERM);
  EXPECT_THAT(processes_with(token_), IsEmpty());
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
}  // namespace accel::test::inheritance_test
