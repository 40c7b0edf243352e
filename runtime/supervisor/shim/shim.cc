#include "runtime/supervisor/shim/shim.h"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/system_error.hpp>
#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/supervisor/kernel/exhausted.h"
#include "runtime/supervisor/kernel/shim_signals.h"
#include "runtime/supervisor/owner/last_word.h"
#include "runtime/supervisor/owner/owner_door.h"
#include "runtime/supervisor/owner/owner_link.h"
#include "runtime/supervisor/shim/supervisor.h"

namespace accel::supervisor {
namespace {

namespace asio = boost::asio;

constexpr int kExitUnusable = 70;

struct ShimArguments {
  int socket = -1;
  int spec = -1;
  pid_t owner = 0;
  int forks = -1;
  pid_t fork_server = 0;  // 0: there is none
};

Error misuse(std::string what) {
  return Error(ErrorCode::kProtocol, std::move(what));
}

Result<ShimArguments> parse_arguments(int argc, char** argv) {
  ShimArguments arguments;
  int* const numbers[] = {&arguments.socket,
                          &arguments.spec,
                          &arguments.owner,
                          &arguments.forks,
                          &arguments.fork_server};
  if (argc != 4 && argc != 6) return misuse("accel-shim is started by accel-launch, not by hand");
  for (int i = 0; i < argc - 1; ++i) {
    const char* text = argv[i + 1];
    const char* end = text + std::strlen(text);
    const auto parsed = std::from_chars(text, end, *numbers[i]);
    if (parsed.ec != std::errc{} || parsed.ptr != end || *numbers[i] < 1) {
      return misuse("accel-shim got '" + std::string(text) + "' where a number belongs");
    }
  }
  for (const int fd : {arguments.socket, arguments.spec, arguments.forks}) {
    if (fd >= 0) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  return arguments;
}

Result<JobSpec> read_spec(int fd) {
  std::string json;
  char buffer[16 * 1024];
  const UniqueFd owned(fd);
  while (true) {
    const ssize_t got = ::pread(fd, buffer, sizeof buffer, static_cast<off_t>(json.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return misuse("accel-shim cannot read the job: " + errno_text(errno));
    if (got == 0) return job_spec_from_json(json);
    json.append(buffer, static_cast<std::size_t>(got));
  }
}

// Reads signals as they come and hands them to the supervisor. Those that stop a job are the owner's business as long
// as there is one: who signals every process of a job, as SLURM does, has signalled the owner too, and two would count
// as a second request.
class SignalSource {
 public:
  SignalSource(asio::io_context& context,
               const sigset_t& set,
               Supervisor& supervisor,
               const OwnerLink& link)
      : stream_(context, ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK)),
        supervisor_(supervisor),
        link_(link) {
    wait();
  }
  void cancel() { stream_.close(); }

 private:
  void wait() {
    stream_.async_wait(asio::posix::descriptor_base::wait_read,
                       [this](const boost::system::error_code& error) {
                         if (error) return;
                         read_all();
                         if (stream_.is_open()) wait();
                       });
  }

  void read_all() {
    signalfd_siginfo info{};
    while (stream_.is_open() &&
           ::read(stream_.native_handle(), &info, sizeof info) == sizeof info) {
      const int signal = static_cast<int>(info.ssi_signo);
      if (signal == SIGCHLD) {
        supervisor_.children_changed();
      } else if (signal == SIGQUIT) {
        supervisor_.handle(DumpStacks{});
      } else if (!link_.has_owner()) {
        supervisor_.handle(Stop{.mode = StopMode::kTerminate, .signal = signal});
      }
    }
  }

  asio::posix::stream_descriptor stream_;
  Supervisor& supervisor_;
  const OwnerLink& link_;
};

// A store has a connection for each client, so the shim takes as many descriptors as it may. Workers keep
// the user's limit: programs that use select() or close everything up to it rely on a small one.
rlimit raise_open_files() {
  rlimit users{};
  ::getrlimit(RLIMIT_NOFILE, &users);
  const rlimit raised = {.rlim_cur = users.rlim_max, .rlim_max = users.rlim_max};
  ::setrlimit(RLIMIT_NOFILE, &raised);
  return users;
}

// Waits for the next owner when the policy says so; else, or when none comes in time, the job ends.
class OwnerWatch {
 public:
  OwnerWatch(asio::io_context& context, OwnerPolicy policy, OwnerLink& link, Supervisor& supervisor)
      : policy_(std::move(policy)), link_(link), supervisor_(supervisor), hold_(context) {}

  // Errors  those of OwnerDoor::open().
  Result<void> open_door(asio::io_context& context, const JobSpec& spec) {
    if (policy_.on_loss == OwnerLoss::kKill) return {};
    auto door = OwnerDoor::open(
        context,
        {.folder = policy_.runtime_dir,
         .job_id = spec.job_id,
         .node_id = spec.node_id,
         .instance = spec.instance,
         .token = policy_.token,
         .build = kBuildVersion},
        [this]() -> Result<void> {
          if (!link_.has_owner()) return {};
          return Error(ErrorCode::kShimRefused, "the job has an owner");
        },
        [this](FrameSocket socket, UniqueFd owner) {
          hold_.cancel();
          link_.attach(std::move(socket), std::move(owner), supervisor_.snapshot());
        });
    if (!door) return std::move(door).error();
    door_ = *std::move(door);
    return {};
  }

  void owner_lost() {
    if (!door_) return supervisor_.owner_lost();
    hold_.expires_after(policy_.hold);
    hold_.async_wait([this](const boost::system::error_code& error) {
      if (error || link_.has_owner()) return;
      door_.reset();
      link_.give_up();
      supervisor_.owner_lost("no owner came back within " +
                             std::to_string(policy_.hold.count() / 1000) + " s: the job was ended");
    });
  }

 private:
  OwnerPolicy policy_;
  OwnerLink& link_;
  Supervisor& supervisor_;
  asio::steady_timer hold_;
  std::unique_ptr<OwnerDoor> door_;
};

// The last event is on the disk before it is sent: the owner may die without having read it.
void leave_last_word(const JobSpec& job, const HostEvent& event) {
  const bool is_last =
      std::holds_alternative<JobOutcome>(event) || std::holds_alternative<Refused>(event);
  if (!is_last || job.owner.on_loss != OwnerLoss::kHold) return;
  if (const auto left = write_last_word(job.owner.runtime_dir, job.job_id, event); !left)
    std::fprintf(stderr, "%s\n", left.error().render("accel-shim").c_str());
}

// The job, until its last event is sent.
// Throws  std::system_error, boost::system::system_error: no more threads or descriptors can be had.
void supervise(asio::io_context& context,
               OwnerLink& link,
               const ShimArguments& arguments,
               const JobSpec& job,
               const sigset_t& signals,
               pid_t owner_group) {
  const auto quit = [&] { context.stop(); };
  Supervisor supervisor(
      context,
      {.spec = job,
       .owner = arguments.owner,
       .owner_group = owner_group,
       .worker_open_files = raise_open_files(),
       .forks = arguments.fork_server > 0
                    ? std::make_shared<ForkServer>(UniqueFd(arguments.forks), arguments.fork_server)
                    : nullptr},
      [&](const HostEvent& event) {
        leave_last_word(job, event);
        link.send(event);
      },
      [&] { link.flush(quit); });
  SignalSource source(context, signals, supervisor, link);
  OwnerWatch watch(context, job.owner, link, supervisor);
  const auto opened = watch.open_door(context, job);  // the owner may be gone already
  link.listen({.on_request = [&](const HostRequest& request) { supervisor.handle(request); },
               .on_lost = [&] { watch.owner_lost(); }});
  link.send(Hello{.build = kBuildVersion, .pid = ::getpid()});
  if (!opened) {
    link.give_up();  // nobody could find us
    link.send(Refused{opened.error()});
    link.flush(quit);
  } else {
    supervisor.start();
  }
  context.run();
}

// Written at once: the loop may hold calls into a supervisor that is gone. What workers there are die with the shim.
void refuse(OwnerLink& link, const JobSpec& job, int error_number) {
  const Refused refused{exhausted_error("accel-shim cannot go on", error_number)};
  leave_last_word(job, refused);
  link.send(refused);
}

Result<void> run(const ShimArguments& arguments) {
  const sigset_t signals = take_shim_signals();
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
  ::prctl(PR_SET_NAME, "accel-shim");
  FrameSocket socket{UniqueFd(arguments.socket)};
  UniqueFd owner(static_cast<int>(::syscall(SYS_pidfd_open, arguments.owner, 0)));
  if (::getppid() != arguments.owner) return misuse("the owner of accel-shim is gone");
  auto spec = read_spec(arguments.spec);
  if (!spec) return std::move(spec).error();
  const pid_t owner_group = ::getpgid(arguments.owner);
  asio::io_context context(1);
  const JobSpec job = *std::move(spec);
  const bool holds = job.owner.on_loss == OwnerLoss::kHold;
  OwnerLink link(context, std::move(socket), std::move(owner), holds);
  try {
    supervise(context, link, arguments, job, signals, owner_group);
  } catch (const boost::system::system_error& error) {
    refuse(link, job, error.code().value());
  } catch (const std::system_error& error) {
    refuse(link, job, error.code().value());
  }
  return {};
}

}  // namespace

int run_shim(int argc, char** argv) {
  const auto arguments = parse_arguments(argc, argv);
  Result<void> result = arguments ? Result<void>() : Result<void>(arguments.error());
  try {
    if (arguments) result = run(*arguments);
  } catch (const boost::system::system_error& error) {  // before the owner could be told
    result = exhausted_error("accel-shim cannot start", error.code().value());
  }
  if (result) return 0;
  std::fprintf(stderr, "%s\n", result.error().render("accel-shim").c_str());
  return kExitUnusable;
}

}  // namespace accel::supervisor
