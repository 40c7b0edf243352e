#include "runtime/supervisor/worker_host.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/supervisor/exit_report.h"
#include "runtime/supervisor/job_cgroup.h"
#include "runtime/supervisor/orphan_sweep.h"
#include "runtime/supervisor/private_folder.h"
#include "runtime/supervisor/spawner.h"

namespace accel::supervisor {
namespace {

constexpr std::chrono::milliseconds kKillWait{2'000};

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

Result<UniqueFd> write_memfd(const std::string& content) {
  UniqueFd fd(::memfd_create("accel-job", MFD_CLOEXEC));
  std::size_t written = 0;
  while (fd && written < content.size()) {
    const ssize_t put = ::write(fd.get(), content.data() + written, content.size() - written);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) break;
    written += static_cast<std::size_t>(put);
  }
  if (!fd || written < content.size()) {
    return Error(ErrorCode::kSpawnFailed, "cannot hand the job over: " + errno_text(errno));
  }
  return fd;
}

EnvMap own_environment() {
  EnvMap env;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    env.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return env;
}

class ShimHost final : public WorkerHost {
 public:
  ShimHost(FrameSocket socket,
           SpawnedProcess shim,
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
    if (!is_reaped_) wait_for_shim();
  }

  int event_fd() const override { return socket_.fd(); }

  Result<std::optional<HostEvent>> next_event() override {
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
    const WaitStatus status = wait_for_shim();
    const std::string base = find_cgroup_base(system_);
    const std::string cgroup =
        base.empty() ? "" : job_cgroup_path(base, scope_.job_id, scope_.node_id);
    if (!cgroup.empty()) scope_.cgroups = rank_cgroups(cgroup);
    OrphanSweep sweep(system_, scope_, kKillWait);
    SteadyClock clock;
    OrphanSweep::Step step;
    do {
      reap_strays(sweep);
      step = sweep.step(clock.now());
      if (step.wait > Duration::zero()) pause_for(step.wait);
    } while (step.verdict == OrphanSweep::Verdict::kScanAgain);
    reap_strays(sweep);
    remove_private_folder(error_dir_);
    if (!cgroup.empty()) (void)remove_job_cgroup(cgroup);
    const std::string how = status.code == CLD_EXITED
                                ? "ended with exit code " + std::to_string(status.status)
                                : "was ended by " + signal_name(status.status);
    Error error(ErrorCode::kShimLost, "accel-shim " + how + " before the job was done");
    for (const Leftover& killed : sweep.found()) {
      error.with_detail("killed", std::to_string(killed.pid) + " " + killed.command);
    }
    if (step.verdict == OrphanSweep::Verdict::kGaveUp) {
      error.with_detail("left", "some of them did not end after SIGKILL");
    }
    return error;
  }

  // What has fallen to us and has ended. Children of other jobs are left to their own hosts.
  void reap_strays(const OrphanSweep& sweep) const {
    if (owner_ == OwnerKind::kOneJob) {
      reap_all_children();
      return;
    }
    for (const Leftover& found : sweep.found()) {
      ::waitpid(static_cast<pid_t>(found.pid), nullptr, WNOHANG);
    }
  }

  // Waits for a descriptor that never gets ready: a sleep that a test's clock need not know.
  static void pause_for(Duration time) {
    const auto ms = std::chrono::ceil<std::chrono::milliseconds>(time);
    ::poll(nullptr, 0, static_cast<int>(ms.count()));
  }

  WaitStatus wait_for_shim() {
    is_reaped_ = true;
    siginfo_t info{};
    while (::waitid(P_PID, static_cast<id_t>(shim_.pid()), &info, WEXITED) != 0 && errno == EINTR) {
    }
    return {.pid = shim_.pid(), .code = info.si_code, .status = info.si_status};
  }

  FrameSocket socket_;
  SpawnedProcess shim_;
  SweepScope scope_;
  OwnerKind owner_;
  const std::string error_dir_;
  System& system_;
  bool is_greeted_ = false;
  bool is_reaped_ = false;
};

}  // namespace

Result<std::unique_ptr<WorkerHost>> start_shim(const JobSpec& spec, ShimHostOptions options) {
  const auto path = find_shim(options.shim_path);
  if (!path) return path.error();
  auto memfd = write_memfd(to_json(spec));
  if (!memfd) return std::move(memfd).error();
  auto sockets = FrameSocket::make_pair();
  if (!sockets) return std::move(sockets).error();
  auto& [ours, theirs] = *sockets;
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  SpawnRequest request;
  request.argv = {
      *path, std::to_string(theirs.fd()), std::to_string(memfd->get()), std::to_string(::getpid())};
  request.env = options.env ? *std::move(options.env) : own_environment();
  request.credentials = std::move(options.credentials);
  std::copy(std::begin(options.stdio), std::end(options.stdio), std::begin(request.stdio));
  request.keep_fds = {theirs.fd(), memfd->get()};
  // A session of its own keeps the terminal's signals away. A worker that is to have the terminal
  // must be in the terminal's session, so then the shim stays there too.
  request.session = spec.console.foreground ? Session::kNewGroup : Session::kNew;
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
  SweepScope scope = {ancestor, spec.job_id, spec.node_id, entry ? entry->start_time : 0};
  return std::unique_ptr<WorkerHost>(std::make_unique<ShimHost>(std::move(ours),
                                                                std::move(shim),
                                                                std::move(scope),
                                                                options.owner,
                                                                spec.log.error_dir,
                                                                *options.system));
}

}  // namespace accel::supervisor
