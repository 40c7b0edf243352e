// log_drop: a LogRouter under the policy `drop`, for bench/logs_bench.py.
//
//   log_drop RANKS running|stopped PROGRAM ARGS...
//
// Starts RANKS copies of PROGRAM (RANK in their environment) whose stdout goes to a console that is read
// at full speed, or not at all. Prints what the router and its pipes took at the end, in bytes, private
// memory apart from the pipes: {"private_bytes": N, "pipe_bytes": N}.

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/supervisor/logs/log_router.h"

namespace {

using accel::UniqueFd;
using accel::supervisor::LogRouter;
using accel::supervisor::LogRouterOptions;
using accel::supervisor::Overflow;
using accel::supervisor::WorkerSpec;
using accel::supervisor::WorkerStdio;

// Of this process, from /proc/self/smaps_rollup.
long private_bytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  long total = 0;
  for (std::string line; std::getline(rollup, line);) {
    long kilobytes = 0;
    if (std::sscanf(line.c_str(), "Private_Clean: %ld kB", &kilobytes) == 1 ||
        std::sscanf(line.c_str(), "Private_Dirty: %ld kB", &kilobytes) == 1) {
      total += kilobytes * 1024;
    }
  }
  return total;
}

pid_t start(char** argv, int rank, const WorkerStdio& stdio) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, stdio.in.get(), 0);
  posix_spawn_file_actions_adddup2(&actions, stdio.out.get(), 1);
  posix_spawn_file_actions_adddup2(&actions, stdio.err.get(), 2);
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    std::fprintf(stderr, "log_drop: cannot start %s: %s\n", argv[0], std::strerror(error));
    std::exit(1);
  }
  return pid;
}

void read_to_the_end(int fd) {
  std::vector<char> buffer(1 << 16);
  while (::read(fd, buffer.data(), buffer.size()) > 0) {
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "use: log_drop RANKS running|stopped PROGRAM ARGS...\n");
    return 2;
  }
  const int num_ranks = std::atoi(argv[1]);
  const bool is_running = std::strcmp(argv[2], "running") == 0;
  int console[2];
  if (::pipe2(console, O_CLOEXEC) != 0) return 1;
  std::thread reader;
  if (is_running) reader = std::thread(read_to_the_end, console[0]);

  LogRouterOptions options;
  options.job_id = "log_drop";
  options.log.overflow = Overflow::kDrop;
  options.owner_out = console[1];
  options.console.stdin_to_rank0 = false;
  for (int rank = 0; rank < num_ranks; ++rank) {
    WorkerSpec worker;
    worker.local_rank = rank;
    worker.global_rank = rank;
    options.workers.push_back(worker);
  }
  auto router = LogRouter::start(std::move(options));
  if (!router) {
    std::fprintf(stderr, "%s\n", router.error().what());
    return 1;
  }

  long pipe_bytes = 0;
  std::vector<pid_t> children;
  for (int rank = 0; rank < num_ranks; ++rank) {
    const auto stdio = (*router)->open(rank, 0);
    if (!stdio) return 1;
    pipe_bytes += ::fcntl(stdio->out.get(), F_GETPIPE_SZ) + ::fcntl(stdio->err.get(), F_GETPIPE_SZ);
    children.push_back(start(argv + 3, rank, *stdio));
  }
  bool all_ended_well = true;
  for (const pid_t child : children) {
    int status = 0;
    ::waitpid(child, &status, 0);
    all_ended_well = all_ended_well && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  std::printf("{\"private_bytes\": %ld, \"pipe_bytes\": %ld}\n", private_bytes(), pipe_bytes);
  if (!is_running) ::close(console[0]);
  (*router)->close(std::chrono::seconds(5));
  ::close(console[1]);
  if (reader.joinable()) reader.join();
  return all_ended_well ? 0 : 1;
}
