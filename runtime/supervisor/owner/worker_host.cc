#include "runtime/supervisor/owner/worker_host.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <thread>
#include <utility>
#include <variant>

#include <fcntl.h>
#include <linux/capability.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "runtime/open_folder.h"
#include "runtime/own_environment.h"
#include "runtime/supervisor/kernel/private_folder.h"
#include "runtime/supervisor/owner/delegated_cgroup.h"
#include "runtime/supervisor/owner/shim_state.h"
#include "runtime/supervisor/protocol/fd_packet.h"
#include "runtime/supervisor/protocol/lease.h"
#include "runtime/supervisor/spawn/exit_report.h"
#include "runtime/supervisor/spawn/job_cgroup.h"
#include "runtime/supervisor/spawn/spawner.h"
#include "runtime/supervisor/stop/orphan_reaper.h"
#include "runtime/supervisor/stop/orphan_sweep.h"
#include "runtime/unix_address.h"

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
  if (owner == OwnerKind::kManyJobs) reap_orphans(system, kKillWait);
  return {.killed = sweep.found(), .is_clean = step.verdict == OrphanSweep::Verdict::kClean};
}

// Now, as the start times of processes are counted.
std::uint64_t ticks_since_boot() {
  const auto ticks = static_cast<std::uint64_t>(::sysconf(_SC_CLK_TCK));
  return static_cast<std::uint64_t>(boot_time() / std::chrono::milliseconds(1)) * ticks / 1000;
}

// Nothing when there is no cgroup to be seen.
std::optional<EndedJob> end_in_cgroup(System& system, const std::string& cgroup) {
  if (cgroup.empty()) return std::nullopt;
  auto end = end_cgroup(system, cgroup, kKillWait);
  if (!end) return std::nullopt;
  reap_orphans(system, kKillWait);
  return EndedJob{.killed = std::move(end->killed),
                  .num_left = end->num_left,
                  .is_clean = end->num_left == 0,
                  .has_cgroup = true};
}

uid_t user_of(const ShimHostOptions& options) {
  return options.credentials ? options.credentials->uid : ::geteuid();
}

Error no_descriptors() {
  return Error(ErrorCode::kSpawnFailed,
               "no descriptors to watch accel-shim with: " + errno_text(errno),
               "raise the limit on open files (`ulimit -n`)");
}

// The process behind a host.
struct ShimProcess {
  pid_t pid = 0;
  UniqueFd pidfd;
  bool is_child = true;  // of ours: it can be reaped
  bool holds = false;    // it outlives us
};

// What a host gives its owner last: the shim's last word, or what is wrong with the shim.
using LastEvent = std::variant<HostEvent, Error>;

class ShimHost final : public WorkerHost {
 public:
  ShimHost(FrameSocket socket,
           ShimProcess shim,
           SweepScope scope,
           std::string error_dir,
           uid_t user,
           const ShimHostOptions& options)
      : socket_(std::move(socket)),
        shim_(std::move(shim)),
        scope_(std::move(scope)),
        owner_(options.owner),
        patience_(options.patience),
        cgroup_(options.cgroup),
        error_dir_(std::move(error_dir)),
        is_end_proved_(can_read_tags_of(user)),
        system_(*options.system) {
    if (owner_ != OwnerKind::kManyJobs) return;
    is_ended_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    events_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
    for (const int fd : {socket_.fd(), is_ended_fd_.get()}) {
      epoll_event readable{};
      readable.events = EPOLLIN;
      ::epoll_ctl(events_.get(), EPOLL_CTL_ADD, fd, &readable);
    }
  }

  ~ShimHost() override {
    socket_.close();
    if (end_.joinable()) {
      end_.join();
    } else if (!is_reaped_ && !shim_.holds) {
      wait_for_shim();
      (void)end_in_cgroup(system_, cgroup_);
    }
    if (shim_.is_child && !is_reaped_) forget_watched(shim_.pid);  // it holds
  }

  // False: descriptors ran out.
  [[nodiscard]] bool can_be_waited_for() const {
    return owner_ != OwnerKind::kManyJobs || (events_ && is_ended_fd_);
  }

  // What was read before the host was made.
  void put_first(HostEvent event) {
    is_greeted_ = true;
    first_ = std::move(event);
  }

  int event_fd() const override { return events_ ? events_.get() : socket_.fd(); }

  Result<std::optional<HostEvent>> next_event() override {
    if (first_) return std::exchange(first_, std::nullopt);
    if (end_.joinable()) return take_last();
    if (!socket_.is_open()) return std::optional<HostEvent>();
    auto received = socket_.receive();
    if (!received) return end_with(std::move(received).error());
    using Status = FrameSocket::Received::Status;
    if (received->status == Status::kPeerGone) return end_with("ended");
    if (received->status == Status::kNothing) return std::optional<HostEvent>();
    bytes_received_ += received->frame.size();
    auto event = decode_event(received->frame);
    if (!event) return end_with(std::move(event).error());
    if (auto agreed = check_protocol(*event); !agreed) return end_with(std::move(agreed).error());
    const auto* refused = std::get_if<Refused>(&*event);
    if (refused != nullptr || std::holds_alternative<JobOutcome>(*event))
      return end_with(*std::move(event));
    return std::optional(*std::move(event));
  }

  // Requests are small and rare. A shim that does not take them is stopped or dead, and the latter
  // is seen by next_event().
  void request(const HostRequest& request) override {
    if (socket_.is_open()) (void)socket_.send(encode(request));
  }

  void kill_shim(const std::string& why) override {
    if (!socket_.is_open()) return;
    system_.signal_process(shim_.pidfd.get(), SIGKILL);
    if (owner_ == OwnerKind::kManyJobs) (void)end_with(why);
  }

  std::uint64_t bytes_received() const override { return bytes_received_; }
  int num_unkillable() const override { return num_unkillable_; }
  bool is_end_proved() const override { return is_end_proved_; }

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

  // ---- the end ----

  // The shim's last word; what it said that is no frame of ours; or what it did without a word ("ended").
  using Cause = std::variant<HostEvent, Error, std::string>;

  Result<std::optional<HostEvent>> end_with(Cause cause) {
    if (owner_ != OwnerKind::kManyJobs) {
      // One's own shim that cannot be understood is left to the destructor.
      if (auto* error = std::get_if<Error>(&cause)) return std::move(*error);
      socket_.close();
      last_ = see_out(std::move(cause));
      return give_last();
    }
    socket_.close();
    is_reaped_ = true;
    end_ = std::thread([this, cause = std::move(cause)]() mutable {
      last_ = see_out(std::move(cause));
      (void)::eventfd_write(is_ended_fd_.get(), 1);
    });
    return std::optional<HostEvent>();
  }

  Result<std::optional<HostEvent>> take_last() {
    eventfd_t count = 0;
    if (::eventfd_read(is_ended_fd_.get(), &count) != 0) return std::optional<HostEvent>();
    end_.join();
    return give_last();
  }

  Result<std::optional<HostEvent>> give_last() {
    if (auto* error = std::get_if<Error>(&*last_)) return std::move(*error);
    auto& event = std::get<HostEvent>(*last_);
    if (auto* refused = std::get_if<Refused>(&event)) return std::move(refused->error);
    return std::optional(std::move(event));
  }

  LastEvent see_out(Cause cause) {
    if (auto* event = std::get_if<HostEvent>(&cause)) {
      has_nothing_to_do_ = true;
      wait_for_shim();
      if (const auto ended = end_in_cgroup(system_, cgroup_)) add_to(*event, *ended);
      return std::move(*event);
    }
    auto* error = std::get_if<Error>(&cause);
    if (error != nullptr) system_.signal_process(shim_.pidfd.get(), SIGKILL);
    Error lost = shim_lost(error != nullptr ? "" : std::get<std::string>(cause));
    return error != nullptr ? std::move(*error) : std::move(lost);
  }

  // What a shim that took itself for done has left.
  void add_to(HostEvent& last_word, const EndedJob& ended) {
    num_unkillable_ = ended.num_left;
    auto* outcome = std::get_if<JobOutcome>(&last_word);
    if (outcome == nullptr) return;
    outcome->leftovers.insert(outcome->leftovers.end(), ended.killed.begin(), ended.killed.end());
    if (!ended.is_clean) outcome->notices.emplace_back("some of them did not end after SIGKILL");
  }

  // The shim has ended without an outcome. Its workers die with it; what they had started is now
  // ours.
  EndedJob end_what_is_left() {
    if (auto ended = end_in_cgroup(system_, cgroup_)) {
      num_unkillable_ = ended->num_left;
      is_end_proved_ = true;
      return *std::move(ended);
    }
    const std::string base = find_cgroup_base(system_);
    const std::string cgroup =
        base.empty() ? "" : job_cgroup_path(base, scope_.job_id, scope_.node_id, scope_.instance);
    if (!cgroup.empty()) scope_.cgroups = folders_in(cgroup);
    const auto began = ticks_since_boot();
    EndedJob ended = sweep_all(system_, scope_, owner_);
    if (!ended.is_clean) num_unkillable_ = count_older_than(began);
    if (!cgroup.empty()) (void)remove_job_cgroup(cgroup);
    return ended;
  }

  Error shim_lost(std::string how) {
    const auto status = wait_for_shim();
    const EndedJob ended = end_what_is_left();
    if (!error_dir_.empty()) remove_private_folder(error_dir_);
    if (how == "ended" && status && status->code == CLD_EXITED) {
      how += " with exit code " + std::to_string(status->status);
    } else if (how == "ended" && status) {
      how = "was ended by " + signal_name(status->status);
    }
    Error error(ErrorCode::kShimLost, "accel-shim " + how + " before the job was done");
    for (const Leftover& killed : ended.killed) {
      error.with_detail("killed", std::to_string(killed.pid) + " " + killed.command);
    }
    if (!ended.is_clean) error.with_detail("left", "some of them did not end after SIGKILL");
    return error;
  }

  // What began before the sweep has got its SIGKILL; what is younger came while it ran.
  int count_older_than(std::uint64_t ticks) {
    const auto strays = find_strays(system_, scope_, read_process_table(system_));
    return static_cast<int>(std::count_if(
        strays.begin(), strays.end(), [&](const auto& stray) { return stray.start_time < ticks; }));
  }

  // std::nullopt: it is no child of ours, so nobody tells us how it ended; or not even SIGKILL has ended it.
  std::optional<WaitStatus> wait_for_shim() {
    is_reaped_ = true;
    const bool ended = has_ended();
    if (!shim_.is_child) return std::nullopt;
    forget_watched(shim_.pid);  // before its number can be another one's
    if (!ended) return std::nullopt;
    siginfo_t info{};
    int waited = -1;
    do {
      waited = ::waitid(P_PID, static_cast<id_t>(shim_.pid), &info, WEXITED);
    } while (waited != 0 && errno == EINTR);
    if (waited != 0) return std::nullopt;
    return WaitStatus{.pid = shim_.pid, .code = info.si_code, .status = info.si_status};
  }

  // Whoever has but one job waits as long as its shim has something to do.
  bool has_ended() {
    if (owner_ != OwnerKind::kManyJobs && !has_nothing_to_do_)
      return ends_within(std::chrono::milliseconds(-1));
    if (ends_within(patience_)) return true;
    system_.signal_process(shim_.pidfd.get(), SIGKILL);
    return ends_within(kKillWait);
  }

  // Below 0: without limit.
  [[nodiscard]] bool ends_within(std::chrono::milliseconds limit) {
    pollfd process = {shim_.pidfd.get(), POLLIN, 0};
    int ready = -1;
    do {
      ready = ::poll(&process, 1, static_cast<int>(limit.count()));
    } while (ready < 0 && errno == EINTR);
    return ready > 0;
  }

  FrameSocket socket_;
  ShimProcess shim_;
  SweepScope scope_;
  OwnerKind owner_;
  std::chrono::milliseconds patience_;
  const std::string cgroup_;
  const std::string error_dir_;
  bool is_end_proved_;
  System& system_;
  std::optional<HostEvent> first_;
  bool is_greeted_ = false;
  bool is_reaped_ = false;
  bool has_nothing_to_do_ = false;  // the shim has said its last word
  std::uint64_t bytes_received_ = 0;
  int num_unkillable_ = 0;
  UniqueFd events_;       // kManyJobs: of socket_ and is_ended_fd_
  UniqueFd is_ended_fd_;  // kManyJobs: an event when last_ is there
  std::thread
      end_;  // kManyJobs: sees the shim out; has last_, num_unkillable_ and is_end_proved_ until it is joined
  std::optional<LastEvent> last_;
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
  const auto address =
      unix_address("/proc/self/fd/" + std::to_string(place.get()) + "/" + state.socket);
  if (!address) return failed("the name of its socket is too long");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0) {
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
  options.owner = OwnerKind::kManyJobs;
  auto host = std::make_unique<ShimHost>(
      *std::move(socket), std::move(process), std::move(scope), "", user_of(options), options);
  if (!host->can_be_waited_for()) return no_descriptors();
  host->put_first(*std::move(first));
  return std::unique_ptr<WorkerHost>(std::move(host));
}

EndedJob end_job(const std::string& job_id,
                 const std::string& node_id,
                 const std::string& instance,
                 const std::string& cgroup,
                 System& system) {
  if (auto ended = end_in_cgroup(system, cgroup)) return *std::move(ended);
  const SweepScope scope = {
      .ancestor = -1, .job_id = job_id, .node_id = node_id, .instance = instance};
  return sweep_all(system, scope, OwnerKind::kManyJobs);
}

bool can_read_tags_of(uid_t user) {
  return user == ::geteuid() || (::geteuid() == 0 && ::prctl(PR_CAPBSET_READ, CAP_SYS_PTRACE) == 1);
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
  ShimHostOptions options;
  options.owner = OwnerKind::kProgram;
  options.system = &system;
  return std::make_unique<ShimHost>(std::move(socket),
                                    std::move(process),
                                    std::move(scope),
                                    spec.log.error_dir,
                                    user_of(options),
                                    options);
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
  UniqueFd seat;
  if (!options.cgroup.empty()) {
    seat = open_folder(options.cgroup + "/" + std::string(kCgroupSeat));
    if (!seat) {
      return Error(ErrorCode::kSpawnFailed,
                   "cannot use the cgroup " + options.cgroup + ": " + errno_text(errno));
    }
  }
  const uid_t user = user_of(options);
  SpawnRequest request;
  request.cgroup_fd = seat.get();
  request.argv = {
      *path, std::to_string(theirs.fd()), std::to_string(memfd->get()), std::to_string(::getpid())};
  request.env = options.env ? *std::move(options.env) : own_environment();
  request.credentials = std::move(options.credentials);
  request.drops_oom_protection = options.owner == OwnerKind::kManyJobs;  // it is the agent's
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
  SpawnResult result = spawn_watched(request);
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
  ShimProcess process = {.pid = shim.pid(), .pidfd = shim.take_pidfd(), .holds = holds};
  auto host = std::make_unique<ShimHost>(
      std::move(ours), std::move(process), std::move(scope), spec.log.error_dir, user, options);
  if (!host->can_be_waited_for()) return no_descriptors();
  return std::unique_ptr<WorkerHost>(std::move(host));
}

}  // namespace accel::supervisor
