// A process with the threads of LibTorch cannot just be forked. So ranks are forked of a copy that has none
// (rank_server.h), or started with fork and exec. Their output goes to memory files, and PDEATHSIG takes them along when
// the test binary is killed.

#include "tests/support/rank_group.h"

#include <cstdlib>
#include <cstring>
#include <optional>

#include <ATen/Parallel.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include "tests/support/rank_server.h"
#include "tests/support/reserved_port.h"

namespace accel::test {
namespace {

constexpr const char* kRankVariable = "ACCEL_TEST_RANK";
constexpr const char* kCallVariable = "ACCEL_TEST_CALL";

int env_int(const char* name, int otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr ? std::atoi(value) : otherwise;
}

std::string current_test() {
  const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
  return std::string(info->test_suite_name()) + "." + info->name();
}

c10::intrusive_ptr<c10d::TCPStore> host_store() {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

// Runs the body in a rank process and ends it; the exit code says whether the test has failed.
[[noreturn]] void run_body(const std::function<void()>& body) {
  // What was read at the start may be another one.
  at::set_num_threads(env_int("OMP_NUM_THREADS", 1));
  try {
    body();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "uncaught exception: " << error.what();
  }
  const bool failed = ::testing::Test::HasFailure();
  std::fflush(nullptr);
  // Not exit(): the threads of the process group are still there.
  std::_Exit(failed ? 1 : 0);
}

std::map<std::string, std::string> inherited_env() {
  std::map<std::string, std::string> env;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    env[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return env;
}

std::vector<std::string> rank_env(
    int rank, int num_ranks, int port, int call, const RankGroupOptions& options) {
  auto env = inherited_env();
  const std::string rank_text = std::to_string(rank);
  const std::string size_text = std::to_string(num_ranks);
  env["RANK"] = env["LOCAL_RANK"] = env[kRankVariable] = rank_text;
  env["WORLD_SIZE"] = env["LOCAL_WORLD_SIZE"] = size_text;
  env["MASTER_ADDR"] = "127.0.0.1";
  env["MASTER_PORT"] = std::to_string(port);
  env["TORCHELASTIC_USE_AGENT_STORE"] = options.rank_0_hosts_store ? "False" : "True";
  env["OMP_NUM_THREADS"] = "1";
  env[kCallVariable] = std::to_string(call);
  for (const auto& [name, value] : options.env) env[name] = value;
  std::vector<std::string> entries;
  for (const auto& [name, value] : env) {
    if (!value.empty()) entries.push_back(name + "=" + value);
  }
  return entries;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

struct RankProcess {
  pid_t pid = -1;
  int pidfd = -1;
  int output = -1;  // a memory file
  std::optional<int> status;
};

pid_t exec_rank(std::vector<std::string> arguments, std::vector<std::string> env, int output) {
  const auto argv = pointers(arguments);
  const auto envp = pointers(env);
  const pid_t rank = fork();
  if (rank == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    execve("/proc/self/exe", argv.data(), envp.data());
    _exit(127);
  }
  return rank;
}

// Variables of a test's own may be meant for libraries, which read them when they are loaded.
enum class Loading { kAnew, kAsInThisProcess };

RankProcess start_rank(const std::vector<std::string>& env, Loading loading) {
  const std::vector<std::string> arguments = {
      "/proc/self/exe", "--gtest_filter=" + current_test(), "--gtest_color=no"};
  RankProcess rank;
  rank.output = memfd_create("rank output", MFD_CLOEXEC);
  std::optional<pid_t> forked;
  if (loading == Loading::kAsInThisProcess) forked = fork_rank(arguments, env, rank.output);
  rank.pid = forked ? *forked : exec_rank(arguments, env, rank.output);
  rank.pidfd = static_cast<int>(syscall(SYS_pidfd_open, rank.pid, 0));
  return rank;
}

// Waits until the process ends or the deadline passes; then kills it.
void reap(RankProcess& rank, std::chrono::steady_clock::time_point deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  pollfd ended{rank.pidfd, POLLIN, 0};
  if (poll(&ended, 1, static_cast<int>(std::max<std::int64_t>(0, left.count()))) == 0) {
    ADD_FAILURE() << "rank process " << rank.pid << " did not end in time and was killed";
    kill(rank.pid, SIGKILL);
  }
  int status = 0;
  waitpid(rank.pid, &status, 0);
  rank.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  close(rank.pidfd);
}

std::string read_output(const RankProcess& rank) {
  std::string text(static_cast<std::size_t>(lseek(rank.output, 0, SEEK_END)), '\0');
  const ssize_t size = pread(rank.output, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, size)));
  close(rank.output);
  return text;
}

}  // namespace

int rank_of_this_process() {
  return env_int(kRankVariable, -1);
}

std::vector<RankExit> run_ranks(int num_ranks,
                                const std::function<void()>& body,
                                const RankGroupOptions& options) {
  static int calls = 0;  // a test may call run_ranks() more than once
  static std::string calls_of;
  if (calls_of != current_test()) calls = 0;
  calls_of = current_test();
  const int call = calls++;
  if (rank_of_this_process() >= 0) {
    if (env_int(kCallVariable, 0) == call) run_body(body);
    return std::vector<RankExit>(static_cast<std::size_t>(num_ranks));
  }

  const ReservedPort reserved;
  c10::intrusive_ptr<c10d::TCPStore> store;
  if (!options.rank_0_hosts_store) store = host_store();
  const int port = options.rank_0_hosts_store ? reserved.port() : store->getPort();
  const auto deadline = std::chrono::steady_clock::now() + options.timeout;
  std::vector<RankProcess> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.push_back(start_rank(rank_env(rank, num_ranks, port, call, options),
                               options.env.empty() ? Loading::kAsInThisProcess : Loading::kAnew));
  }
  std::vector<RankExit> exits;
  for (int rank = 0; rank < num_ranks; ++rank) {
    reap(ranks[rank], deadline);
    exits.push_back({*ranks[rank].status, read_output(ranks[rank])});
    if (options.expect_success && exits.back().status != 0) {
      ADD_FAILURE() << "rank " << rank << " of " << num_ranks << " ended with "
                    << exits.back().status << "; its output:\n"
                    << exits.back().output;
    }
  }
  return exits;
}

}  // namespace accel::test
