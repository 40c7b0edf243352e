// A request is the JSON of what SpawnRequest says in numbers and strings, in a memfd (an environment may be larger than
// a packet), and the descriptors in a fixed order: that memfd, the three streams, the pipe for the report of a failed
// step, the cgroup when there is one, then those to keep. The answer is {pid, errno} with the worker's pidfd.
//
// The worker waits for a word of the server before it does anything: only when `between` has been reaped is the shim
// its parent, and PR_SET_PDEATHSIG means the parent of the moment.

#include "runtime/supervisor/spawn/fork_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/supervisor/kernel/quiet_process.h"
#include "runtime/supervisor/protocol/fd_packet.h"
#include "runtime/supervisor/protocol/json_fields.h"

namespace accel::supervisor {
namespace {

constexpr int kAnswerLimitMs =
    20'000;  // to copy the page tables of a large program is a matter of milliseconds
constexpr std::size_t kFixedFds = 5;

struct Answer {
  pid_t pid = 0;
  int error_number = 0;
};

// ---- a request as JSON ----

std::string encode_request(const SpawnRequest& request) {
  Json json = Json::object();
  json["env"] = to_field(request.env);
  json["cwd"] = to_field(request.cwd);
  json["keep_fds"] = to_field(request.keep_fds);
  json["cpus"] = to_field(request.cpus);
  json["memory_nodes"] = to_field(request.memory_nodes);
  json["bind_memory"] = request.bind_memory;
  json["session"] = to_field(request.session);
  json["join_group"] = to_field(request.join_group);
  json["own_terminal"] = request.own_terminal;
  json["die_with_parent"] = request.die_with_parent;
  json["has_cgroup"] = request.cgroup_fd >= 0;
  if (request.open_files) {
    json["open_files"] = {request.open_files->rlim_cur, request.open_files->rlim_max};
  }
  Json limits = Json::array();
  for (const ResourceLimit& limit : request.limits) limits.push_back({limit.resource, limit.value});
  json["limits"] = std::move(limits);
  return json.dump();
}

std::uint64_t number_at(const Json& array, std::size_t at) {
  if (!array.is_array() || at >= array.size()) throw FieldError("is not a pair");
  std::uint64_t value = 0;
  from_field(array[at], value);
  return value;
}

struct DecodedRequest {
  SpawnRequest request;
  bool has_cgroup = false;
};

Result<DecodedRequest> decode_request_text(const std::string& text) {
  return decode_json(text, "a request to fork", [](const Json& json) {
    DecodedRequest decoded;
    SpawnRequest& request = decoded.request;
    read_member(json, "env", request.env);
    read_member(json, "cwd", request.cwd);
    read_member(json, "keep_fds", request.keep_fds);
    read_member(json, "cpus", request.cpus);
    read_member(json, "memory_nodes", request.memory_nodes);
    read_member(json, "bind_memory", request.bind_memory);
    read_member(json, "session", [&](const Json& field) {
      from_enum_field(field, request.session, Session::kJoin);
    });
    read_member(json, "join_group", request.join_group);
    read_member(json, "own_terminal", request.own_terminal);
    read_member(json, "die_with_parent", request.die_with_parent);
    read_member(json, "has_cgroup", decoded.has_cgroup);
    if (json.contains("open_files")) {
      request.open_files = rlimit{.rlim_cur = number_at(json["open_files"], 0),
                                  .rlim_max = number_at(json["open_files"], 1)};
    }
    read_member(json, "limits", [&](const Json& limits) {
      if (!limits.is_array()) throw FieldError("is not an array");
      for (const Json& limit : limits)
        request.limits.push_back({static_cast<int>(number_at(limit, 0)), number_at(limit, 1)});
    });
    return decoded;
  });
}

// ---- the worker ----

void set_environment(const EnvMap& env) {
  ::clearenv();
  for (const auto& [name, value] : env) ::setenv(name.c_str(), value.c_str(), 1);
}

// What a fork needs; the descriptors of a request in their places.
struct ForkJob {
  DecodedRequest decoded;
  std::vector<UniqueFd> fds;

  [[nodiscard]] int error_fd() const { return fds[4].get(); }
};

[[noreturn]] void run_worker(ForkJob& job, int go, const std::function<int()>& entry) {
  char word = 0;
  if (::read(go, &word, 1) != 1) ::_exit(127);
  ::close(go);
  SpawnRequest& request = job.decoded.request;
  std::size_t next = kFixedFds;
  if (job.decoded.has_cgroup) request.cgroup_fd = job.fds[next++].get();
  for (int i = 0; i < 3; ++i) request.stdio[i] = job.fds[1 + static_cast<std::size_t>(i)].get();
  const std::vector<int> named = request.keep_fds;
  request.keep_fds.clear();
  while (next < job.fds.size()) request.keep_fds.push_back(job.fds[next++].get());
  if (const auto channel = request.env.find("ACCEL_CHANNEL"); channel != request.env.end())
    channel->second = renumber_channel(channel->second, named, request.keep_fds);
  enter_worker(request, job.error_fd(), ::getppid());
  set_environment(request.env);
  for (const int fd : request.keep_fds) {
    for (UniqueFd& owned : job.fds) {
      if (owned.get() == fd) (void)owned.release();
    }
  }
  job.fds.clear();  // the pipe of the report among them: nothing has failed
  ::_exit(entry());
}

// The worker's pid, or minus errno.
pid_t fork_twice(
    ForkJob& job, int server, int go_read, int go_write, const std::function<int()>& entry) {
  int told[2];
  if (::pipe2(told, O_CLOEXEC) != 0) return -errno;
  UniqueFd tells(told[1]);
  UniqueFd hears(told[0]);
  const pid_t between = ::fork();
  if (between < 0) return -errno;
  if (between == 0) {
    const pid_t worker = ::fork();
    if (worker == 0) {
      ::close(server);
      ::close(go_write);
      ::close(told[0]);
      ::close(told[1]);
      run_worker(job, go_read, entry);
    }
    const pid_t answer = worker < 0 ? -errno : worker;
    (void)!::write(told[1], &answer, sizeof answer);
    ::_exit(0);
  }
  int status = 0;
  while (::waitpid(between, &status, 0) < 0 && errno == EINTR) {
  }
  tells.reset();  // else the end of a `between` that was killed would never be seen
  pid_t answer = -ECHILD;
  return ::read(hears.get(), &answer, sizeof answer) == sizeof answer ? answer : -ECHILD;
}

// Whether the server goes on.
bool serve_one(int socket, const std::function<int()>& entry) {
  char request = 0;
  ForkJob job;
  if (!receive_packet(socket, &request, sizeof request, job.fds)) return false;
  if (job.fds.size() < kFixedFds) return false;
  auto decoded = decode_request_text(read_memfd(job.fds[0].get()));
  if (!decoded) return false;
  job.decoded = *std::move(decoded);
  const std::size_t fds_wanted =
      kFixedFds + (job.decoded.has_cgroup ? 1 : 0) + job.decoded.request.keep_fds.size();
  if (job.fds.size() != fds_wanted) return false;
  int go[2];
  Answer answer;
  if (::pipe2(go, O_CLOEXEC) != 0) {
    answer.error_number = errno;
    return send_packet(socket, &answer, sizeof answer, {});
  }
  UniqueFd go_read(go[0]);
  const UniqueFd go_write(go[1]);
  const pid_t pid = fork_twice(job, socket, go[0], go[1], entry);
  go_read.reset();
  if (pid < 0) {
    answer.error_number = -pid;
    return send_packet(socket, &answer, sizeof answer, {});
  }
  // It waits for our word, so its number cannot have been used again.
  const UniqueFd pidfd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  answer.pid = pid;
  answer.error_number = pidfd ? 0 : errno;
  const bool is_sent = send_packet(
      socket, &answer, sizeof answer, pidfd ? std::vector<int>{pidfd.get()} : std::vector<int>{});
  const char word = 1;
  if (is_sent && pidfd) (void)!::write(go_write.get(), &word, 1);
  return is_sent;
}

}  // namespace

SpawnResult ForkServer::spawn(const SpawnRequest& request) {
  const auto lost = [](int error_number) { return ExecFailure{"fork server", error_number}; };
  const UniqueFd text = memfd_with(encode_request(request));
  std::array<int, 2> pipe{};
  if (!text || ::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0)
    return ExecFailure{"pipe2", errno};
  UniqueFd error_read(pipe[0]);
  const UniqueFd error_write(pipe[1]);
  std::vector<int> fds = {
      text.get(), request.stdio[0], request.stdio[1], request.stdio[2], error_write.get()};
  if (request.cgroup_fd >= 0) fds.push_back(request.cgroup_fd);
  fds.insert(fds.end(), request.keep_fds.begin(), request.keep_fds.end());
  const char word = 1;
  if (fds.size() > kMostPacketFds) return lost(EINVAL);
  if (!send_packet(socket_.get(), &word, sizeof word, fds)) return lost(errno);
  pollfd answered = {socket_.get(), POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&answered, 1, kAnswerLimitMs);
  } while (ready < 0 && errno == EINTR);
  Answer answer;
  std::vector<UniqueFd> received;
  if (ready <= 0) return lost(ETIMEDOUT);
  if (!receive_packet(socket_.get(), &answer, sizeof answer, received)) return lost(EPIPE);
  if (answer.error_number != 0) return ExecFailure{"fork", answer.error_number};
  if (received.size() != 1) return lost(EPROTO);
  return SpawnedProcess(answer.pid, std::move(received[0]), std::move(error_read));
}

void serve_forks(UniqueFd socket, const std::function<int()>& entry) {
  const QuietSpan quiet;
  forget_handlers();
  while (serve_one(socket.get(), entry)) {
  }
  ::_exit(0);
}

std::string renumber_channel(const std::string& channel,
                             const std::vector<int>& from,
                             const std::vector<int>& to) {
  std::string out;
  for (std::size_t begin = 0, field = 0; begin <= channel.size(); ++field) {
    const std::size_t end = std::min(channel.find(':', begin), channel.size());
    std::string text = channel.substr(begin, end - begin);
    for (std::size_t i = 0; field > 0 && i < from.size() && i < to.size(); ++i) {
      if (text != std::to_string(from[i])) continue;
      text = std::to_string(to[i]);
      break;
    }
    out += (field > 0 ? ":" : "") + text;
    begin = end + 1;
  }
  return out;
}

}  // namespace accel::supervisor
