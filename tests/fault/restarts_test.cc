// Restarts (faults 14 and 16 of docs/reference/faults.md), and many workers at once.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/supervisor/kernel/process_table.h"
#include "tests/support/fault_job.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/test_budget.h"

namespace accel::test::restarts_test {
namespace {

using namespace std::chrono_literals;
using supervisor::GenerationStarted;
using supervisor::Restarting;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Gt;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::SizeIs;

class Restarts : public ::testing::Test {
 protected:
  const std::string token_ = unique_token();
};

std::size_t count_descriptors(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder),
                                                std::filesystem::directory_iterator()));
}

// Of a process. All of it: which pages are private changes with the other processes of the same program.
long count_resident_kib(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/smaps_rollup");
  std::string key;
  long kib = 0;
  while (file >> key) {
    if (key == "Rss:") file >> kib;
  }
  return kib;
}

// A named pipe at which shells wait: `read -r line < path`.
class Gate {
 public:
  explicit Gate(std::string path) : path_(std::move(path)) {
    if (::mkfifo(path_.c_str(), 0600) == 0) file_ = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  }
  ~Gate() { ::close(file_); }
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;

  [[nodiscard]] const std::string& path() const { return path_; }
  void let_one_through() const { EXPECT_EQ(::write(file_, "\n", 1), 1); }

 private:
  std::string path_;
  int file_ = -1;
};

TEST_F(Restarts, Fault14TheSameCrashAgainAndAgainEndsTheJobWithinItsBudget) {
  auto spec = make_job("exit 3", token_);
  spec.restart.max_restarts = 100;
  spec.restart.max_same_crash = 3;
  spec.restart.backoff_initial = spec.restart.backoff_max = 1ms;

  const JobRun run = run_job(spec);

  ASSERT_TRUE(run.outcome) << (run.error ? run.error->what() : "no outcome in time");
  EXPECT_EQ(run.outcome->exit_code, 3);
  EXPECT_THAT(run.all<Restarting>(), SizeIs(2));
  EXPECT_THAT(run.outcome->notices,
              ElementsAre("the same failure 3 times in a row: no more restarts "
                          "(restart.max_same_cause)"));
}

TEST_F(Restarts, ACauseMayBeOneThatEndsTheJob) {
  auto spec = make_job("kill 9", token_);
  spec.restart.max_restarts = 100;
  spec.restart.fail_after = {supervisor::ExitCause::kSignaled};

  const JobRun run = run_job(spec);

  ASSERT_TRUE(run.outcome) << (run.error ? run.error->what() : "no outcome in time");
  EXPECT_THAT(run.all<Restarting>(), IsEmpty());
}

TEST_F(Restarts, FailedGenerationGetsASuccessor) {
  auto spec = make_job("fail-first", token_, 2);
  spec.restart.max_restarts = 1;
  const JobRun run = run_job(spec);

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_TRUE(run.outcome->success);
  EXPECT_EQ(run.outcome->restarts, 1);
  EXPECT_THAT(run.all<GenerationStarted>(), SizeIs(2));
}

TEST_F(Restarts, BudgetIsKeptAndTheLastFailureIsTheJobs) {
  auto spec = make_job("exit 9", token_, 2);
  spec.restart.max_restarts = 2;
  spec.restart.backoff_initial = 1ms;
  const JobRun run = run_job(spec);

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_FALSE(run.outcome->success);
  EXPECT_EQ(run.outcome->exit_code, 9);
  EXPECT_EQ(run.outcome->restarts, 2);
}

TEST_F(Restarts, Fault14FirstRestartIsImmediateAndLaterOnesBackOff) {
  auto spec = make_job("exit 9", token_);
  spec.restart.max_restarts = 3;
  spec.restart.backoff_initial = 20ms;
  const JobRun run = run_job(spec);

  const auto restarts = run.all<Restarting>();
  ASSERT_THAT(restarts, SizeIs(3));
  EXPECT_EQ(restarts[0].delay, 0ms);
  EXPECT_GE(restarts[1].delay, 10ms);
  EXPECT_LE(restarts[1].delay, 20ms);
  EXPECT_GE(restarts[2].delay, 20ms);
  EXPECT_LE(restarts[2].delay, 40ms);
}

TEST_F(Restarts, StopDuringTheBackOffEndsTheJob) {
  auto spec = make_job("exit 9", token_);
  spec.restart.max_restarts = 3;
  spec.restart.backoff_initial = 3'600s;
  spec.restart.backoff_max = 3'600s;
  const JobRun run = run_job(spec, [](auto& host, const auto& event) {
    const auto* restarting = std::get_if<Restarting>(&event);
    if (restarting != nullptr && restarting->delay > 0ms) {
      host.request(supervisor::Stop{.mode = supervisor::StopMode::kTerminate, .signal = SIGTERM});
    }
  });

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_EQ(run.outcome->exit_code, 128 + SIGTERM);
}

TEST_F(Restarts, NextGenerationStartsWhenTheOldOneIsGone) {
  auto spec = make_job("rank0 exit 9", token_, 2);
  spec.workers[1].argv = worker_command("family", token_);
  spec.stop.grace = 50ms;
  spec.restart.max_restarts = 2;
  spec.restart.backoff_initial = 1ms;
  std::vector<std::int64_t> old_pids;
  bool is_any_old_alive = false;

  const JobRun run = run_job(spec, [&](auto&, const auto& event) {
    const auto* started = std::get_if<GenerationStarted>(&event);
    if (started == nullptr) return;
    for (const std::int64_t pid : old_pids) {
      is_any_old_alive |=
          supervisor::read_process(real_system(), static_cast<pid_t>(pid)).has_value();
    }
    old_pids = started->pids;
  });

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_FALSE(is_any_old_alive);
  EXPECT_EQ(run.outcome->restarts, 2);
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

// Every fiftieth generation waits at a gate, so that the shim has nothing left to open or close when
// its descriptors are counted; what is left of the generations before drains meanwhile.
TEST_F(Restarts, Fault16DescriptorsAndMemoryOfTheShimStayFlatOverManyRestarts) {
  const int num_restarts = is_long_run() ? 10'000 : 200;
  constexpr int kWorkers = 2;
  const ScratchFolder folder;
  Gate gate(folder.path() / "gate");
  auto spec = make_job("exit 9", token_, kWorkers);
  // One reader alone: of two, the second may be stopped before it has read its line, and the next gate would be open.
  const std::string at_gate = "[ $((TORCHELASTIC_RESTART_COUNT % 50)) -ne 0 ] || ";
  spec.workers[0].argv = {
      "/bin/sh", "-c", at_gate + "read -r line < '" + gate.path() + "'; exit 9"};
  spec.workers[1].argv = {"/bin/sh", "-c", at_gate + "exec sleep 1000; exit 9"};
  spec.restart.max_restarts = num_restarts;
  spec.restart.backoff_initial = 0ms;
  pid_t shim = 0;
  std::vector<std::size_t> counts;
  std::vector<long> resident_kib;

  const JobRun run = run_job(spec, [&](auto&, const auto& event) {
    if (const auto* hello = std::get_if<supervisor::Hello>(&event)) {
      shim = static_cast<pid_t>(hello->pid);
    }
    const auto* started = std::get_if<GenerationStarted>(&event);
    if (started == nullptr || started->generation % 50 != 0) return;
    std::size_t count = count_descriptors(shim);  // the first generation has none before it
    if (!counts.empty()) {
      (void)eventually([&] { return (count = count_descriptors(shim)) <= counts[0]; });
    }
    counts.push_back(count);
    resident_kib.push_back(count_resident_kib(shim));
    gate.let_one_through();
  });

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_EQ(run.outcome->restarts, num_restarts);
  ASSERT_THAT(counts, SizeIs(static_cast<std::size_t>(1 + num_restarts / 50)));
  EXPECT_THAT(counts, Each(AllOf(Gt(0U), Le(counts[0]))));
  EXPECT_THAT(resident_kib, Each(Gt(0)));
  EXPECT_LE(counts[0], 64U);
  RecordProperty("descriptors", static_cast<int>(counts.back()));
  RecordProperty("resident_kib",
                 std::to_string(resident_kib[1]) + " -> " + std::to_string(resident_kib.back()));
  // From the second look on: the first restarts fill what is kept for the next ones.
  EXPECT_LT(resident_kib.back() - resident_kib[1], 1'024) << resident_kib.back() << " KiB at last";
}

TEST_F(Restarts, SixtyFourWorkersStartAndEnd) {
  const JobRun run = run_job(make_job("exit 0", token_, 64));

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_TRUE(run.outcome->success);
  EXPECT_THAT(run.outcome->exits, SizeIs(64));
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

}  // namespace
}  // namespace accel::test::restarts_test
