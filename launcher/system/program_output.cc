#include "launcher/system/program_output.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <optional>

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launcher/text/shell_word.h"
#include "runtime/clock.h"
#include "runtime/supervisor/spawn/spawner.h"
#include "runtime/system.h"
#include "runtime/unique_fd.h"

namespace accel::launcher {
namespace {

constexpr int kSignalBase = 128;

Error cannot_start(const std::string& program, int error) {
  return Error(ErrorCode::kExecFailed, "cannot start " + program + ": " + errno_text(error));
}

// Input from /dev/null, output to `out`.
class Files {
 public:
  explicit Files(int out) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawn_file_actions_addopen(&actions_, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_adddup2(&actions_, out, STDOUT_FILENO);
  }
  ~Files() { ::posix_spawn_file_actions_destroy(&actions_); }
  Files(const Files&) = delete;
  Files& operator=(const Files&) = delete;
  [[nodiscard]] const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_{};
};

// Whether `fd` can be read, or has ended, before `deadline`.
bool wait_readable(int fd, TimePoint deadline) {
  pollfd waiting{.fd = fd, .events = POLLIN, .revents = 0};
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    const int ready =
        ::poll(&waiting, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready >= 0 || errno != EINTR) return ready > 0;
  }
}

// Up to the end of the stream; std::nullopt when that does not come in time.
std::optional<std::string> read_all(int fd, TimePoint deadline) {
  std::string text;
  char buffer[4096];
  while (wait_readable(fd, deadline)) {
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count > 0) text.append(buffer, static_cast<std::size_t>(count));
    if (count == 0 || (count < 0 && errno != EINTR)) return text;
  }
  return std::nullopt;
}

}  // namespace

std::vector<std::string> assignments_of(const EnvMap& environment) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

int exit_code_of(int wait_status) {
  return WIFSIGNALED(wait_status) ? kSignalBase + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

Result<ProgramOutput> run_program(const std::vector<std::string>& words,
                                  const EnvMap& environment,
                                  std::chrono::milliseconds limit) {
  const TimePoint deadline = std::chrono::steady_clock::now() + limit;
  const auto path = environment.find("PATH");
  const auto program = supervisor::find_program(
      words.front(), path == environment.end() ? "/usr/local/bin:/usr/bin:/bin" : path->second);
  if (!program) return cannot_start(words.front(), ENOENT);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return cannot_start(words.front(), errno);
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);

  std::vector<std::string> arguments = words;
  std::vector<std::string> variables = assignments_of(environment);
  const Files files(write_end.get());
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid,
                                  program->c_str(),
                                  files.get(),
                                  nullptr,
                                  pointers_to(arguments).data(),
                                  pointers_to(variables).data());
  if (error != 0) return cannot_start(words.front(), error);
  write_end = UniqueFd();
  const UniqueFd process = real_system().open_process(pid);
  auto out = read_all(read_end.get(), deadline);
  if (!out || (process && !wait_readable(process.get(), deadline))) {
    ::kill(pid, SIGKILL);
    return Error(ErrorCode::kExecFailed,
                 *program + " did not end within " + std::to_string(limit.count() / 1000) + " s",
                 "run it by hand: `" + shell_words(words) + "`");
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return ProgramOutput{.exit_code = exit_code_of(status), .out = *std::move(out)};
}

}  // namespace accel::launcher
