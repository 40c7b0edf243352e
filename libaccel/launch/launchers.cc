// Three ways to workers (accel/launchers.h has the table), one way from there on: a JobSpec, an accel-shim that runs it,
// and this thread that waits for the outcome.

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <accel/launchers.h>

#include "libaccel/launch/environment_guard.h"
#include "libaccel/launch/file_mask.h"
#include "libaccel/launch/forker.h"
#include "libaccel/launch/launch_job.h"
#include "libaccel/launch/launch_registry.h"
#include "libaccel/launch/launch_watch.h"
#include "libaccel/launch/main_hook.h"
#include "libaccel/launch/own_host.h"
#include "libaccel/launch/process_role.h"
#include "libaccel/launch/standard_streams.h"
#include "libaccel/launch/worker_entry.h"
#include "runtime/own_environment.h"
#include "runtime/supervisor/owner/worker_host.h"
#include "runtime/unique_fd.h"
#include "runtime/user_folders.h"

namespace accel {
namespace launch {
namespace {

using supervisor::JobSpec;
using supervisor::WorkerHost;

// Of init_launcher(), until the program ends.
Forker*& early_forker() {
  static Forker* forker = nullptr;
  return forker;
}

std::atomic<bool> g_is_launching = false;

class LaunchTurn {
 public:
  LaunchTurn() : was_launching_(g_is_launching.exchange(true)) {}
  ~LaunchTurn() {
    if (!was_launching_) g_is_launching = false;
  }
  LaunchTurn(const LaunchTurn&) = delete;
  LaunchTurn& operator=(const LaunchTurn&) = delete;
  [[nodiscard]] bool was_launching() const { return was_launching_; }

 private:
  bool was_launching_;
};

std::string own_path() {
  std::error_code failure;
  return std::filesystem::read_symlink("/proc/self/exe", failure).string();
}

// The folder of the file that this code is in: libaccel.so, or the program.
std::filesystem::path library_folder() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<void*>(&library_folder), &info) == 0) return {};
  std::error_code failure;
  return std::filesystem::canonical(info.dli_fname, failure).parent_path();
}

// $ACCEL_SHIM, beside the program, in the bin folder of the library's prefix, on PATH.
Result<std::string> shim_path(const EnvMap& environment) {
  if (const auto named = environment.find("ACCEL_SHIM");
      named != environment.end() && !named->second.empty()) {
    return supervisor::find_shim(named->second);
  }
  const std::filesystem::path folders[] = {std::filesystem::path(own_path()).parent_path(),
                                           library_folder() / ".." / "bin",
                                           library_folder() / ".." / ".." / "bin"};
  for (const std::filesystem::path& folder : folders) {
    const std::string path = (folder / "accel-shim").lexically_normal().string();
    if (::access(path.c_str(), X_OK) == 0) return path;
  }
  const auto path = environment.find("PATH");
  if (path != environment.end()) {
    if (auto found = supervisor::find_program("accel-shim", path->second)) return *found;
  }
  return Error(ErrorCode::kShimMissing,
               "accel-shim is neither beside the program (" + folders[0].string() +
                   "), nor in the bin folder of libaccel (" +
                   folders[1].lexically_normal().string() + "), nor on PATH",
               "install accel's programs, or name accel-shim with ACCEL_SHIM");
}

LaunchPlace launch_place() {
  std::uint64_t random = 0;
  (void)::getrandom(&random, sizeof random, 0);
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx", static_cast<unsigned long long>(random));
  LaunchPlace place;
  place.environment = own_environment();
  place.program = own_path();
  place.is_own_host = is_own_host;
  place.job_id = "inproc-" + std::to_string(::getpid()) + "-" + digits;
  place.private_folder = temporary_folder(place.environment) + "/accel-" + place.job_id;
  return place;
}

// ---- the three ways ----

enum class Way { kEarlyForker, kExecute, kForkNow };

Error too_many_threads(std::string_view launcher, int num_threads, bool has_early_forker) {
  const std::string threads = "this program has " + std::to_string(num_threads) + " threads";
  if (has_early_forker) {
    return Error(
        ErrorCode::kUsage,
        std::string(launcher) +
            " got a function with captures, which only a copy of the program "
            "as it is now could call, and " +
            threads,
        "give it a function without captures, and what it needs in environment variables or files");
  }
  return Error(
      ErrorCode::kUsage,
      std::string(launcher) + " would have to copy the program, and " + threads +
          ": the copies would lack all but one, and what the others have locked",
      "call accel::init_launcher(argc, argv) first in main(), or register the function with "
      "ACCEL_LAUNCH_FUNCTION, or launch before threads are started");
}

// The function is registered, but what is executed again would run main().
Error main_out_of_reach(std::string_view launcher, int num_threads) {
  return Error(
      ErrorCode::kUsage,
      std::string(launcher) +
          " can neither execute the program again, because libaccel was brought by another library "
          "and cannot keep a worker from main(), nor copy it, because it has " +
          std::to_string(num_threads) + " threads",
      "call accel::init_launcher(argc, argv) first in main(), or link the program itself to "
      "libaccel, or launch before threads are started");
}

// The function under the name by which another execution of the program finds it; empty: it cannot.
Result<std::string> registered_name(const LaunchFunction& function) {
  if (function.name().empty())
    return function.pointer() == nullptr ? std::string() : name_of(function.pointer());
  if (find_function(function.name()) != nullptr) return function.name();
  std::string known;
  for (const std::string& name : registered_names()) known += (known.empty() ? "" : ", ") + name;
  return Error(ErrorCode::kInvalidArgument,
               "no function is registered for launches as '" + function.name() +
                   "' (there is: " + (known.empty() ? "none" : known) + ")",
               "add ACCEL_LAUNCH_FUNCTION(" + function.name() + ") beside the function");
}

Result<Way> choose_way(std::string_view launcher,
                       const LaunchFunction& function,
                       const std::string& registered) {
  const bool is_portable = !registered.empty() || function.pointer() != nullptr;
  if (early_forker() != nullptr && is_portable) return Way::kEarlyForker;
  if (!registered.empty() && is_main_hooked()) return Way::kExecute;
  const int num_threads = count_threads();
  if (num_threads == 1) return Way::kForkNow;
  if (!registered.empty()) return main_out_of_reach(launcher, num_threads);
  return too_many_threads(launcher, num_threads, early_forker() != nullptr);
}

// A job on its way: the forker of this launch alone lives as long as its host.
struct RunningJob {
  std::optional<Forker> forker;
  std::unique_ptr<WorkerHost> host;
};

Result<std::unique_ptr<WorkerHost>> start_by_fork(JobSpec spec, Forker& forker, ForkOrder order) {
  auto memfd = supervisor::job_memfd(spec);
  if (!memfd) return std::move(memfd).error();
  auto sockets = supervisor::FrameSocket::make_pair();
  if (!sockets) return std::move(sockets).error();
  auto& [ours, theirs] = *sockets;
  const UniqueFd folder(::open(".", O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) {
    return Error(ErrorCode::kFileIo,
                 "the folder that workers would begin in cannot be opened: " + errno_text(errno),
                 "change to another folder before the launch");
  }
  order.folder = folder.get();
  order.mask = own_file_mask();
  order.socket = theirs.fd();
  order.spec = memfd->get();
  auto shim = forker.launch(order);
  if (!shim) return std::move(shim).error();
  theirs.close();
  return supervisor::watch_shim(spec, std::move(ours), shim->pid, std::move(shim->pidfd));
}

Result<RunningJob> start_job(std::string_view launcher,
                             const LaunchFunction& function,
                             JobSpec spec) {
  const auto registered = registered_name(function);
  if (!registered) return registered.error();
  const auto way = choose_way(launcher, function, *registered);
  if (!way) return way.error();
  auto shim = shim_path(spec.env);
  if (!shim) return std::move(shim).error();
  RunningJob job;
  Result<std::unique_ptr<WorkerHost>> host = std::unique_ptr<WorkerHost>();
  if (*way == Way::kExecute) {
    for (auto& worker : spec.workers) worker.env[kFunctionVariable] = *registered;
    host = supervisor::start_shim(spec,
                                  {.shim_path = *shim, .owner = supervisor::OwnerKind::kProgram});
  } else if (*way == Way::kEarlyForker) {
    host = start_by_fork(std::move(spec),
                         *early_forker(),
                         {.shim_path = *shim,
                          .shim_env = own_environment(),
                          .function_name = *registered,
                          .function = function.pointer()});
  } else {
    auto forker = Forker::start(function.body() ? function.body() : find_function(*registered));
    if (!forker) return std::move(forker).error();
    job.forker.emplace(*std::move(forker));
    host = start_by_fork(
        std::move(spec), *job.forker, {.shim_path = *shim, .shim_env = own_environment()});
  }
  if (!host) return std::move(host).error();
  job.host = *std::move(host);
  return job;
}

void run_job(std::string_view launcher,
             const LaunchFunction& function,
             Result<JobSpec> spec,
             const std::stop_token& stop) {
  if (!spec) throw std::move(spec).error();
  fill_standard_streams().value();
  const int num_workers = spec->identity.world_size;
  auto job = or_throw(start_job(launcher, function, *std::move(spec)));
  auto outcome = [&] {
    HeldSignals signals;
    auto watched = watch_job(*job.host, signals, stop);
    job.host.reset();
    return watched;
  }();
  if (!outcome) throw std::move(outcome).error();
  if (!outcome->success) throw launch_error(*outcome, num_workers);
}

// An empty file of our own, gone with this value.
class TemporaryFile {
 public:
  explicit TemporaryFile(const EnvMap& environment)
      : path_(temporary_folder(environment) + "/accel-debug-XXXXXX") {
    const UniqueFd file(::mkstemp(path_.data()));
    if (!file) {
      throw Error(
          ErrorCode::kFileIo,
          "cannot make the file " + path_ + " for the ranks to meet at: " + errno_text(errno),
          "name a folder that files can be made in with TMPDIR");
    }
  }
  ~TemporaryFile() { ::unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void require_turn(const LaunchTurn& turn, std::string_view launcher) {
  end_unless_function_runs();
  check_may_launch(
      {.is_worker = is_worker(), .has_state = has_state(), .is_launching = turn.was_launching()},
      process_env(),
      launcher)
      .value();
}

// Flushed, so that no copy of the program writes it again.
void say_what_begins(int num_processes) {
  if (num_processes == 1) {
    std::puts("Launching training on CPU.");
  } else {
    std::printf("Launching training on %d CPUs.\n", num_processes);
  }
  std::fflush(stdout);
}

// One process needs no other than this one; it has the variables that a worker would get from the options.
void call_in_place(const LaunchFunction& function, const NotebookLauncherOptions& options) {
  const EnvironmentGuard variables = set_variables(variables_of(options));
  if (function.body()) return function.body()();
  const std::string name = or_throw(registered_name(function));
  find_function(name)();
}

}  // namespace
}  // namespace launch

void init_launcher(int, char**) {
  launch::end_unless_function_runs();
  if (launch::is_worker() || launch::early_forker() != nullptr) return;
  const int num_threads = launch::count_threads();
  if (num_threads != 1) {
    throw Error(ErrorCode::kUsage,
                "init_launcher() was called when the program had " + std::to_string(num_threads) +
                    " threads: copies of it would lack all but one",
                "make it the first call in main(), before anything that starts threads");
  }
  launch::fill_standard_streams().value();
  launch::early_forker() = new launch::Forker(or_throw(launch::Forker::start()));
}

void debug_launcher(const LaunchFunction& function, int num_processes) {
  const launch::LaunchTurn turn;
  launch::require_turn(turn, "debug_launcher");
  const launch::LaunchPlace place = launch::launch_place();
  const launch::TemporaryFile meeting(place.environment);
  launch::run_job(
      "debug_launcher", function, launch::plan_debug_job(place, num_processes, meeting.path()), {});
}

void notebook_launcher(const LaunchFunction& function, const NotebookLauncherOptions& options) {
  const launch::LaunchTurn turn;
  launch::require_turn(turn, "notebook_launcher");
  auto spec = launch::plan_notebook_job(launch::launch_place(), options);
  const bool is_alone = spec.has_value() && spec->identity.world_size == 1;
  if (spec.has_value()) launch::say_what_begins(*options.num_processes);
  if (is_alone && options.max_restarts == 0) return launch::call_in_place(function, options);
  launch::run_job("notebook_launcher", function, std::move(spec), options.stop);
}

}  // namespace accel
