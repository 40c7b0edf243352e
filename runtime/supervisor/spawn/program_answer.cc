#include "runtime/supervisor/spawn/program_answer.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <utility>
#include <variant>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/clock.h"
#include "runtime/system.h"

namespace accel::supervisor {
namespace {

using End = ProgramAnswer::End;

// A killed one ends at once, unless it waits for a device or a file system that does not answer.
constexpr std::chrono::seconds kAfterKill{1};

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

// Up to the end of the stream.
End read_all(int fd, TimePoint deadline, std::size_t most, std::string& text) {
  char buffer[16 * 1024];
  while (wait_readable(fd, deadline)) {
    const ssize_t count = ::read(fd, buffer, sizeof buffer);
    if (count > 0) text.append(buffer, static_cast<std::size_t>(count));
    if (text.size() > most) return End::kTooLong;
    if (count == 0 || (count < 0 && errno != EINTR)) return End::kEnded;
  }
  return End::kOutOfTime;
}

ProgramAnswer not_started(ExecFailure failure) {
  return {.end = End::kNotStarted, .failure = std::move(failure)};
}

}  // namespace

int exit_code_of(int wait_status) {
  constexpr int kSignalBase = 128;
  return WIFSIGNALED(wait_status) ? kSignalBase + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

ProgramAnswer answer_of(SpawnRequest request, const AnswerLimits& limits) {
  const TimePoint deadline = std::chrono::steady_clock::now() + limits.time;
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing) return not_started({"/dev/null", errno});
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return not_started({"pipe2", errno});
  const UniqueFd read_end(ends[0]);
  UniqueFd write_end(ends[1]);
  request.stdio[0] = nothing.get();
  request.stdio[1] = write_end.get();
  SpawnResult spawned = spawn(request);
  if (auto* failure = std::get_if<ExecFailure>(&spawned)) return not_started(std::move(*failure));
  auto& process = std::get<SpawnedProcess>(spawned);
  write_end = UniqueFd();

  ProgramAnswer answer;
  answer.end = read_all(read_end.get(), deadline, limits.bytes, answer.out);
  if (answer.end == End::kEnded && !wait_readable(process.pidfd(), deadline))
    answer.end = End::kOutOfTime;
  if (answer.end != End::kEnded) {
    System& system = real_system();
    if (request.session == Session::kJoin || system.signal_group(process.pid(), SIGKILL) != 0)
      (void)system.signal_process(process.pidfd(), SIGKILL);
    if (wait_readable(process.pidfd(), std::chrono::steady_clock::now() + kAfterKill))
      (void)::waitpid(process.pid(), nullptr, WNOHANG);
    return answer;
  }
  if (auto failure = process.exec_failure()) answer = not_started(*std::move(failure));
  int status = 0;
  while (::waitpid(process.pid(), &status, 0) < 0 && errno == EINTR) {
  }
  answer.exit_code = exit_code_of(status);
  return answer;
}

}  // namespace accel::supervisor
