#include "libaccel/tracking/bridge_process.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "libaccel/tracking/bridge_script.h"
#include "runtime/printable.h"
#include "runtime/system.h"

namespace accel::tracking {
namespace {

constexpr int kEndSeconds = 15;  // more than END_GRACE of tracker_bridge.py
constexpr std::chrono::seconds kProbeLimit{60};

struct StartedPython {
  UniqueFd socket;
  pid_t pid = -1;
};

enum class PythonOutput { kStderr, kSocket };

// Standard input is the socket; no other descriptor of this process is open there, and no signal blocked or handled.
Result<StartedPython> start_python(const std::string& python,
                                   std::vector<std::string> words,
                                   PythonOutput output) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return Error(ErrorCode::kExecFailed, "cannot start " + python + ": " + errno_text(errno));
  StartedPython started{.socket = UniqueFd(ends[0])};
  const UniqueFd theirs(ends[1]);
  words.insert(words.begin(), {python, "-c", std::string(bridge_script())});
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);

  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, theirs.get(), STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(
      &files, output == PythonOutput::kSocket ? STDIN_FILENO : STDERR_FILENO, STDOUT_FILENO);
  ::posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t signals;
  sigemptyset(&signals);
  ::posix_spawnattr_setsigmask(&attributes, &signals);
  sigfillset(&signals);
  ::posix_spawnattr_setsigdefault(&attributes, &signals);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  const int error =
      ::posix_spawn(&started.pid, python.c_str(), &files, &attributes, arguments.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  ::posix_spawn_file_actions_destroy(&files);
  if (error == 0) return started;
  return Error(ErrorCode::kExecFailed, "cannot start " + python + ": " + errno_text(error));
}

std::string status_text(int status) {
  if (WIFSIGNALED(status)) return "signal " + std::to_string(WTERMSIG(status));
  return "exit code " + std::to_string(WEXITSTATUS(status));
}

// The text of its exit status; std::nullopt when it was killed at the end of the limit.
std::optional<std::string> wait_for_end(pid_t pid, std::chrono::milliseconds limit) {
  const UniqueFd process = real_system().open_process(pid);
  pollfd waiting{.fd = process.get(), .events = POLLIN, .revents = 0};
  const bool has_ended = process && ::poll(&waiting, 1, static_cast<int>(limit.count())) == 1;
  if (!has_ended) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return "a status that another part of the program took";
  }
  if (!has_ended) return std::nullopt;
  return status_text(status);
}

}  // namespace

BridgeProcess::~BridgeProcess() {
  if (pid_ > 0) reap(kEndSeconds);
}

bool BridgeProcess::start() {
  auto started = start_python(python_, {}, PythonOutput::kStderr);
  if (!started) {
    fail_all(started.error().message());
    return false;
  }
  socket_ = std::move(started->socket);
  pid_ = started->pid;
  received_.clear();
  for (const auto& [journal, news] : news_) send("open " + journal);
  return true;
}

void BridgeProcess::serve(const std::string& journal) {
  news_.try_emplace(journal);
  if (pid_ > 0) {
    send("open " + journal);
  } else {
    (void)start();
  }
}

void BridgeProcess::wake() {
  if (pid_ > 0) send("wake");
}

void BridgeProcess::send(const std::string& line) {
  // A full socket means that it will wake anyway; a broken one is seen by receive().
  const std::string text = line + "\n";
  (void)::send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void BridgeProcess::receive() {
  std::array<char, 4096> bytes;
  while (pid_ > 0) {
    const ssize_t count = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count <= 0) return note_death();
    received_.append(bytes.data(), static_cast<std::size_t>(count));
    for (std::size_t end = received_.find('\n'); end != std::string::npos;
         end = received_.find('\n')) {
      take(received_.substr(0, end));
      received_.erase(0, end + 1);
    }
  }
}

void BridgeProcess::take(const std::string& line) {
  const auto said = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!said.is_object() || !said.contains("journal") || !said["journal"].is_string()) return;
  const auto found = news_.find(said["journal"].get<std::string>());
  if (found == news_.end()) return;
  const auto text_of = [&said](const char* key) {
    return said.contains(key) && said[key].is_string() ? printable(said[key].get<std::string>())
                                                       : std::string();
  };
  if (said.contains("done")) found->second.is_done = true;
  if (said.contains("error")) found->second.error = text_of("error");
  if (said.contains("notice")) found->second.notices.push_back(text_of("notice"));
}

void BridgeProcess::note_death() {
  const std::string status = reap(kEndSeconds);
  const std::string text = "the Python process of the trackers ended with " + status;
  if (++num_deaths_ > kMostRestarts) return fail_all(text);
  for (auto& [journal, news] : news_) news.notices.push_back(text + ", and is started again");
  (void)start();
}

std::string BridgeProcess::reap(int seconds) {
  socket_.reset();
  const auto status = wait_for_end(std::exchange(pid_, -1), std::chrono::seconds(seconds));
  return status.value_or("SIGKILL, since it did not end within " + std::to_string(seconds) + " s");
}

void BridgeProcess::fail_all(const std::string& error) {
  for (auto& [journal, news] : news_) news.error = error;
}

BridgeProcess::News BridgeProcess::news_of(const std::string& journal) {
  receive();
  const auto found = news_.find(journal);
  return found == news_.end() ? News{} : std::exchange(found->second, {});
}

void BridgeProcess::leave(const std::string& journal) {
  news_.erase(journal);
  if (news_.empty() && pid_ > 0) reap(kEndSeconds);
}

Result<std::vector<std::string>> available_sdks(const std::string& python) {
  auto started = start_python(python, {"probe"}, PythonOutput::kSocket);
  if (!started) return std::move(started).error();
  const auto deadline = std::chrono::steady_clock::now() + kProbeLimit;
  std::string text;
  std::array<char, 1024> bytes;
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waiting{.fd = started->socket.get(), .events = POLLIN, .revents = 0};
    const int ready =
        ::poll(&waiting, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) break;
    const ssize_t count = ::recv(started->socket.get(), bytes.data(), bytes.size(), 0);
    if (count <= 0) break;
    text.append(bytes.data(), static_cast<std::size_t>(count));
  }
  const auto status = wait_for_end(started->pid, kProbeLimit);
  const auto names = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (names.is_array()) return names.get<std::vector<std::string>>();
  return Error(
      ErrorCode::kExecFailed,
      python + " did not say which trackers it has; it ended with " + status.value_or("SIGKILL"),
      "run `" + python + " --version`");
}

}  // namespace accel::tracking
