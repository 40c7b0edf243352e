#include "runtime/supervisor/worker_host.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <utility>

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/open_folder.h"
#include "runtime/own_environment.h"
#include "runtime/supervisor/exit_report.h"
#include "runtime/supervisor/fd_packet.h"
#include "runtime/supervisor/job_cgroup.h"
#include "runtime/supervisor/orphan_sweep.h"
#include "runtime/supervisor/private_folder.h"
#include "runtime/supervisor/shim_state.h"
#include "runtime/supervisor/spawner.h"

namespace accel::supervisor {
namespace {

constexpr std::chrono::milliseconds kKillWait{2'000};
constexpr std::chrono::milliseconds kAdoptLimit{5'000};  // for each answer of a shim

// 128 random bits in hexadecimal digits.
Result<std::string> draw_instance() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  unsigned char bytes[JobSpec::kInstanceLength / 2];
  ssize_t got = -1;
  do {
    got = ::getrandom(bytes, sizeof bytes, 0);
  } while (got < 0 && errno == EINTR);
  if (got != sizeof bytes)  // so few come whole or not at all
    return Error(ErrorCode::kSpawnFailed, "no random bytes for the job: " + errno_text(errno));
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// Waits for a descriptor that never gets ready: a sleep that a test's clock need not know.
void pause_for(Duration time) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(time);
  ::poll(nullptr, 0, static_cast<int>(ms.count()));
}

// Sweeps until nothing is found, or kKillWait is over. The owner of one job reaps whatever falls to
// it; children of other jobs are left to their own hosts.
EndedJob sweep_all(System& system, const SweepScope& scope, OwnerKind owner) {
  OrphanSweep sweep(system, scope, kKillWait);
  SteadyClock clock;
  OrphanSweep::Step step;
  const auto reap = [&] {
    if (owner == OwnerKind::kOneJob) reap_all_children();
    for (const Leftover& found : sweep.found()) {
      ::waitpid(static_cast<pid_t>(found.pid), nullptr, WNOHANG);
    }
  };
  do {
    reap();
    step = sweep.step(clock.now());
    if (step.wait > Duration::zero()) pause_for(step.wait);
  } while (step.verdict == OrphanSweep::Verdict::kScanAgain);
  reap();
  return {sweep.found(), step.verdict == OrphanSweep::Verdict::kClean};
}

// The process behind a host.
struct ShimProcess {
  pid_t pid = 0;
  UniqueFd pidfd;
  bool is_child = true;  // of ours: it can be reaped
  bool holds = false;    // it outlives us
};

class ShimHost final : public WorkerHost {
 public:
  ShimHost(FrameSocket socket,
           ShimProcess shim,
           SweepScope scope,
           OwnerKind owner,
           std::string error_dir,
           System& system)
      : socket_(std::move(socket)),
        shim_(std::move(shim)),
        scope_(std::move(scope)),
        owner_(owner),
        error_dir_(std::move(error_dir)),
        system_(system) {}

  ~ShimHost() override {
    socket_.close();
    if (!is_reaped_ && !shim_.holds) wait_for_shim();
  }

  // What was read before the host was made.
  void put_first(HostEvent event) {
    is_greeted_ = true;
    first_ = std::move(event);
  }

  int event_fd() const override { return socket_.fd(); }

  Result<std::optional<HostEvent>> next_event() override {
    if (first_) return std::exchange(first_, std::nullopt);
    if (!socket_.is_open()) return std::optional<HostEvent>();
    auto received = socket_.receive();
    if (!received) return std::move(received).error();
    if (received->status == FrameSocket::Received::Status::kPeerGone) return shim_lost();
    if (received->status == FrameSocket::Received::Status::kNothing)
      return std::optional<HostEvent>();
    auto event = decode_event(received->frame);
    if (!event) return std::move(event).error();
    if (auto agreed = check_protocol(*event); !agreed) return std::move(agreed).error();
    const auto* refused = std::get_if<Refused>(&*event);
    if (refused != nullptr || std::holds_alternative<JobOutcome>(*event)) {
      socket_.close();
      wait_for_shim();
    }
    if (refused != nullptr) return refused->error;
    return std::optional(*std::move(event));
  }

  // Requests are small and rare. A shim that does not take them is stopped or dead, and the latter
  // is seen by next_event().
  void request(const HostRequest& request) override {
    if (socket_.is_open()) (void)socket_.send(encode(request));
  }

 private:
  Result<void> check_protocol(const HostEvent& event) {
    const auto* hello = std::get_if<Hello>(&event);
    if (hello != nullptr && has_common_protocol(*hello)) is_greeted_ = true;
    if (is_greeted_) return {};
    const std::string theirs = hello == nullptr
                                   ? "none"
                                   : describe_protocols(hello->oldest_protocol, hello->protocol) +
                                         " (build " + hello->build + ")";
    return Error(ErrorCode::kProtocol,
                 "accel-shim speaks protocol " + theirs + ", this program " +
                     describe_protocols(kOldestProtocol, kProtocolVersion));
  }

  // The shim has ended without an outcome. Its workers die with it; what they had started is now
  // ours.
  Error shim_lost() {
    socket_.close();
    const auto status = wait_for_shim();
    const std::string base = find_cgroup_base(system_);
    const std::string cgroup =
        base.empty() ? "" : job_cgroup_path(base, scope_.job_id, scope_.node_id, scope_.instance);
    if (!cgroup.empty()) scope_.cgroups = rank_cgroups(cgroup);
    const EndedJob ended = sweep_all(system_, scope_, owner_);
    if (!error_dir_.empty()) remove_private_folder(error_dir_);
    if (!cgroup.empty()) (void)remove_job_cgroup(cgroup);
    std::string how = "ended";
    if (status && status->code == CLD_EXITED) {
      how += " with exit code " + std::to_string(status->status);
    } else if (status) {
      how = "was ended by " + signal_name(status->status);
    }
    Error error(ErrorCode::kShimLost, "accel-shim " + how + " before the job was done");
    for (const Leftover& killed : ended.killed) {
      error.with_detail("killed", std::to_string(killed.pid) + " " + killed.command);
    }
    if (!ended.is_clean) error.with_detail("left", "some of them did not end after SIGKILL");
    return error;
  }

  // std::nullopt: it is no child of ours, so nobody tells us how it ended.
  std::optional<WaitStatus> wait_for_shim() {
    is_reaped_ = true;
    if (!shim_.is_child) {
      pollfd process = {shim_.pidfd.get(), POLLIN, 0};
      while (::poll(&process, 1, -1) < 0 && errno == EINTR) {
      }
      return std::nullopt;
    }
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(shim_.pid), &info, WEXITED) != 0 && errno == EINTR) {
    }
    return WaitStatus{.pid = shim_.pid, .code = info.si_code, .status = info.si_status};
  }

  FrameSocket socket_;
  ShimProcess shim_;
  SweepScope scope_;
  OwnerKind owner_;
  const std::string error_dir_;
  System& system_;
  std::optional<HostEvent> first_;
  bool is_greeted_ = false;
  bool is_reaped_ = false;
};

// ---- taking a shim over ----

Error not_running(const ShimState& state, const std::string& state_file) {
  return Error(
      ErrorCode::kShimLost,
      "accel-shim " + std::to_string(state.pid) + " of job " + state.job_id + " no longer runs",
      "remove " + state_file);
}

// Connects to the socket beside `state_file`; the process behind it must be the shim.
Result<FrameSocket> connect_to(const std::string& state_file, const ShimState& state) {
  const auto failed = [&](const std::string& what) {
    return Error(ErrorCode::kShimLost,
                 "cannot reach accel-shim " + std::to_string(state.pid) + ": " + what + ": " +
                     errno_text(errno));
  };
  const std::string folder = std::filesystem::path(state_file).parent_path().string();
  const UniqueFd place = open_folder(folder);
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!place || !fd) return failed(folder);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string path = "/proc/self/fd/" + std::to_string(place.get()) + "/" + state.socket;
  if (path.size() >= sizeof address.sun_path) return failed("the name of its socket is too long");
  path.copy(address.sun_path, path.size());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return failed("connect");
  }
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(fd.get(), SOL_SOCKET, SO_PEERCRED, &who, &size) != 0)
    return failed("SO_PEERCRED");
  if (who.pid != state.pid) {
    return Error(ErrorCode::kShimState,
                 "the socket of accel-shim " + std::to_string(state.pid) + " belongs to process " +
                     std::to_string(who.pid));
  }
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  return FrameSocket(std::move(fd));
}

// The next event, which the shim must send at once.
Result<HostEvent> expect_event(FrameSocket& socket) {
  while (true) {
    auto received = socket.receive();
    if (!received) return std::move(received).error();
    using Status = FrameSocket::Received::Status;
    if (received->status == Status::kFrame) return decode_event(received->frame);
    pollfd readable = {socket.fd(), POLLIN, 0};
    const bool is_gone = received->status == Status::kPeerGone;
    const auto limit = static_cast<int>(kAdoptLimit.count());
    if (is_gone || (::poll(&readable, 1, limit) <= 0 && errno != EINTR)) {
      return Error(ErrorCode::kShimLost,
                   is_gone ? "accel-shim closed the connection" : "accel-shim does not answer");
    }
  }
}

Result<HostEvent> prove(FrameSocket& socket, const std::string& token) {
  auto greeting = expect_event(socket);
  if (!greeting) return std::move(greeting).error();
  const auto* hello = std::get_if<Hello>(&*greeting);
  if (hello == nullptr || !has_common_protocol(*hello)) {
    const std::string theirs = hello == nullptr
                                   ? "none"
                                   : describe_protocols(hello->oldest_protocol, hello->protocol) +
                                         " (build " + hello->build + ")";
    return Error(
        ErrorCode::kProtocol,
        "accel-shim speaks protocol " + theirs + ", this program " +
            describe_protocols(kOldestProtocol, kProtocolVersion) + " (build " + kBuildVersion +
            ")",
        "take the job over with a build that speaks both; its workers go on until the hold "
        "ends");
  }
  (void)socket.send(encode(HostRequest(Adopt{.build = kBuildVersion, .token = token})));
  auto first = expect_event(socket);
  if (!first) return std::move(first).error();
  if (const auto* refused = std::get_if<Refused>(&*first)) return refused->error;
  return first;
}

}  // namespace

Result<std::unique_ptr<WorkerHost>> adopt_shim(const std::string& state_file,
                                               const std::string& token,
                                               ShimHostOptions options) {
  System& system = *options.system;
  const auto state = read_shim_state(state_file);
  if (!state) return state.error();
  // The pidfd first: what is_running() sees after it is the process that the pidfd names.
  const auto pid = static_cast<pid_t>(state->pid);
  UniqueFd pidfd = system.open_process(pid);
  if (!pidfd || !is_running(system, *state)) return not_running(*state, state_file);
  auto socket = connect_to(state_file, *state);
  if (!socket) return std::move(socket).error();
  auto first = prove(*socket, token);
  if (!first) {
    return std::move(first).error().while_doing("taking over job " + state->job_id);
  }
  ShimProcess process = {.pid = pid, .pidfd = std::move(pidfd), .is_child = false, .holds = true};
  SweepScope scope = {.ancestor = -1,
                      .job_id = state->job_id,
                      .node_id = state->node_id,
                      .instance = state->instance,
                      .started_at = state->start_time};
  auto host = std::make_unique<ShimHost>(
      *std::move(socket), std::move(process), std::move(scope), OwnerKind::kManyJobs, "", system);
  host->put_first(*std::move(first));
  return std::unique_ptr<WorkerHost>(std::move(host));
}

EndedJob end_job(const std::string& job_id,
                 const std::string& node_id,
                 const std::string& instance,
                 System& system) {
  const SweepScope scope = {
      .ancestor = -1, .job_id = job_id, .node_id = node_id, .instance = instance};
  return sweep_all(system, scope, OwnerKind::kManyJobs);
}

Result<std::string> find_shim(const std::string& given) {
  std::string path = given;
  if (path.empty()) {
    const char* named = std::getenv("ACCEL_SHIM");
    if (named != nullptr && *named != '\0') path = named;
  }
  if (path.empty()) {
    std::error_code error;
    const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
    if (error) return Error(ErrorCode::kShimMissing, "/proc/self/exe cannot be read");
    path = (self.parent_path() / "accel-shim").string();
  }
  if (::access(path.c_str(), X_OK) != 0) {
    return Error(ErrorCode::kShimMissing, "cannot execute " + path + ": " + errno_text(errno));
  }
  return path;
}

Result<UniqueFd> job_memfd(JobSpec& spec) {
  if (spec.instance.empty()) {
    auto drawn = draw_instance();
    if (!drawn) return std::move(drawn).error();
    spec.instance = *std::move(drawn);
  }
  UniqueFd memfd = memfd_with(to_json(spec));
  if (!memfd) {
    return Error(ErrorCode::kSpawnFailed,
                 "cannot hand the job over: " + errno_text(errno),
                 errno == EFBIG ? "raise the limit on the size of files with `ulimit -f`" : "");
  }
  return memfd;
}

std::unique_ptr<WorkerHost> watch_shim(
    const JobSpec& spec, FrameSocket socket, pid_t pid, UniqueFd pidfd, System& system) {
  const auto entry = read_process(system, pid);
  SweepScope scope = {.ancestor = -1,
                      .job_id = spec.job_id,
                      .node_id = spec.node_id,
                      .instance = spec.instance,
                      .started_at = entry ? entry->start_time : 0};
  ShimProcess process = {.pid = pid, .pidfd = std::move(pidfd), .is_child = false};
  return std::make_unique<ShimHost>(std::move(socket),
                                    std::move(process),
                                    std::move(scope),
                                    OwnerKind::kProgram,
                                    spec.log.error_dir,
                                    system);
}

Result<std::unique_ptr<WorkerHost>> start_shim(const JobSpec& wanted, ShimHostOptions options) {
  JobSpec spec = wanted;
  const auto path = find_shim(options.shim_path);
  if (!path) return path.error();
  auto memfd = job_memfd(spec);
  if (!memfd) return std::move(memfd).error();
  auto sockets = FrameSocket::make_pair();
  if (!sockets) return std::move(sockets).error();
  auto& [ours, theirs] = *sockets;
  const bool holds = spec.owner.on_loss == OwnerLoss::kHold;
  if (options.owner != OwnerKind::kProgram) ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  SpawnRequest request;
  request.argv = {
      *path, std::to_string(theirs.fd()), std::to_string(memfd->get()), std::to_string(::getpid())};
  request.env = options.env ? *std::move(options.env) : own_environment();
  request.credentials = std::move(options.credentials);
  if (holds) {  // so that end_job() finds the shim itself too
    request.env["ACCEL_JOB_ID"] = spec.job_id;
    request.env["ACCEL_JOB_INSTANCE"] = spec.instance;
    if (!spec.node_id.empty()) request.env["ACCEL_NODE_ID"] = spec.node_id;
  }
  std::copy(std::begin(options.stdio), std::end(options.stdio), std::begin(request.stdio));
  request.keep_fds = {theirs.fd(), memfd->get()};
  // A session of its own keeps the terminal's signals away. A worker that is to have the terminal
  // must be in the terminal's session, so then the shim stays there too.
  request.session = spec.console.foreground ? Session::kNewGroup : Session::kNew;
  // A signal to the whole group is not to end it while it starts: it waits until the shim reads signals.
  request.blocks_signals = true;
  request.die_with_parent = false;  // it has to outlive us long enough to sweep
  SpawnResult result = spawn(request);
  if (const auto* failure = std::get_if<ExecFailure>(&result)) {
    return Error(
        ErrorCode::kSpawnFailed,
        "cannot start " + *path + ": " + failure->stage + ": " + errno_text(failure->error_number));
  }
  auto& shim = std::get<SpawnedProcess>(result);
  const auto entry = read_process(*options.system, shim.pid());
  const pid_t ancestor = options.owner == OwnerKind::kOneJob ? ::getpid() : -1;
  SweepScope scope = {.ancestor = ancestor,
                      .job_id = spec.job_id,
                      .node_id = spec.node_id,
                      .instance = spec.instance,
                      .started_at = entry ? entry->start_time : 0};
  ShimProcess process = {.pid = shim.pid(), .holds = holds};
  return std::unique_ptr<WorkerHost>(std::make_unique<ShimHost>(std::move(ours),
                                                                std::move(process),
                                                                std::move(scope),
                                                                options.owner,
                                                                spec.log.error_dir,
                                                                *options.system));
}

}  // namespace accel::supervisor
