// Launchers: start the ranks of a training from inside a running program.
//
// debug_launcher() and notebook_launcher() run one function in several processes and wait for all of them. The processes
// are workers of an accel-shim, like the workers of accel-launch. The shim hosts the store, restarts workers, puts prefixes before
// their lines, and ends all of them when the calling program ends in any way. The calling program becomes neither their
// parent nor a subreaper.
//
// Where the processes come from:
//   init_launcher() was called   copies of the program at that moment; any function without captures
//   else, a registered function  the program is executed again; only the function runs, main() does not
//                                (if the program itself, not only one of its libraries, links libaccel)
//   else, one thread             copies of the program at the launch; any function, also with captures
//   else                         an error with the number of threads
//
//   ACCEL_LAUNCH_FUNCTION(train);                 // void train(), at namespace scope
//   int main(int argc, char** argv) {
//     accel::init_launcher(argc, argv);           // optional; then the first thing that main() does
//     accel::debug_launcher(train, 2);
//   }
//
// A worker has the variables of the environment contract (docs/reference/env_contract.md) and FORK_LAUNCHED=1. It runs neither
// main() nor atexit() functions nor destructors of static objects, and ends when its function returns or calls exit(). It
// starts in the current folder and with the current umask of the program. Its standard input is empty.
//
// Threads:  call init_launcher() while the program has one thread. Call the launchers from any thread, one at a time; they
//           block it. Meanwhile SIGINT, SIGTERM and SIGHUP, unless the program handles or ignores them, first stop the workers
//           (SIGINT or SIGTERM, then SIGKILL after `stop_grace`; a second one kills at once) and then act on the program as
//           usual. They have no effect on the processes in between (accel-forker, accel-shim).
// Streams:  missing standard streams of the program become /dev/null, and stay so.
// Cost:     10 to 30 ms and one process besides the workers; init_launcher() one fork of the program.
// Source:   docs/guides/launchers.md; tests/unit/launch/, tests/integration/inproc/.
#pragma once

#include <chrono>
#include <concepts>
#include <functional>
#include <map>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include <accel/error.h>
#include <accel/export.h>

namespace accel {

// The code of the workers: a function, a lambda, or the name of a registered function.
class ACCEL_EXPORT LaunchFunction {
 public:
  LaunchFunction(std::string_view registered_name) : name_(registered_name) {}  // NOLINT: implicit
  LaunchFunction(const char* registered_name) : name_(registered_name) {}       // NOLINT: implicit
  LaunchFunction(std::string registered_name)                                   // NOLINT: implicit
      : name_(std::move(registered_name)) {}

  template <typename F>
  requires(std::invocable<F&> && !std::same_as<std::remove_cvref_t<F>, LaunchFunction>)
      LaunchFunction(F&& function) {  // NOLINT: implicit
    if constexpr (std::is_convertible_v<F, void (*)()>) pointer_ = function;
    body_ = std::forward<F>(function);
  }

  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] void (*pointer() const noexcept)() {
    return pointer_;
  }  // null: it captures something
  [[nodiscard]] const std::function<void()>& body() const noexcept { return body_; }

 private:
  std::string name_;
  void (*pointer_)() = nullptr;
  std::function<void()> body_;
};

// The names are the same as in accelerate.notebook_launcher().
struct NotebookLauncherOptions {
  // The number of workers on this node; must be given. 1 on one node without restarts calls the function in the program
  // itself, with mixed_precision and env. Then there is no worker to prefix or to stop, and exceptions arrive unchanged.
  std::optional<int> num_processes;
  std::string mixed_precision = "no";  // "no", "fp16", "bf16", "fp8": ACCELERATE_MIXED_PRECISION
  // The port of the store. If the default is taken, a free port replaces it; another port that is taken is an error. "0": any
  // free port.
  std::string use_port = "29500";
  std::string master_addr = "127.0.0.1";  // of node 0, for several nodes
  int node_rank = 0;
  int num_nodes = 1;  // the same call is made on each; rank 0 hosts the store then
  // "static"; "c10d", the same with node_rank 0 at the endpoint; on one node also "etcd" and "etcd-v2". For elastic jobs use
  // accel-launch.
  std::string rdzv_backend = "static";
  // "HOST:PORT" of node 0 (c10d: 29400 for "HOST"); replaces master_addr and use_port. Empty: uses those.
  std::string rdzv_endpoint;
  std::string rdzv_id = "none";  // TORCHELASTIC_RUN_ID
  int max_restarts = 0;          // of all workers after one has failed; one node only
  // The prefix of each line of a worker; ${role_name}, ${local_rank} and ${rank} are replaced. Empty: no prefix.
  std::string log_line_prefix_template;
  std::map<std::string, std::string> env;        // more variables, or other values, for the workers
  std::chrono::milliseconds stop_grace{10'000};  // from a request to stop to SIGKILL
  std::stop_token stop;                          // a request ends the workers; the launcher throws
};

// The failure of a launch: the first failing rank. code() is kWorkerFailed, kWorkerSignaled, kWorkerOutOfMemory, ...;
// message() has the rank and the signal, the exit code, or the exception.
class ACCEL_EXPORT LaunchError : public Error {
 public:
  LaunchError(const Error& error, int rank, int exit_code, int signal, std::string worker_message)
      : Error(error),
        rank_(rank),
        exit_code_(exit_code),
        signal_(signal),
        worker_message_(std::move(worker_message)) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }            // -1: none, it was stopped
  [[nodiscard]] int exit_code() const noexcept { return exit_code_; }  // 0 after a signal
  [[nodiscard]] int signal() const noexcept { return signal_; }        // 0: it exited
  // "std::runtime_error: no such file": type and what() of the exception, or the thrown text, cut at 10,000 bytes. Only the type of
  // other thrown values; empty without an exception.
  [[nodiscard]] const std::string& worker_message() const noexcept { return worker_message_; }

 private:
  int rank_;
  int exit_code_;
  int signal_;
  std::string worker_message_;
};

// Forks the process of which workers will be copies. Call it first in main(), before threads, GPUs and Accelerators. A second
// call, and a call in a worker, do nothing. Functions in libraries that are loaded later cannot be launched.
// Errors  kUsage: the program has more than one thread (with their number); kSpawnFailed; kFileIo: standard streams are
//         missing and there is no /dev/null.
ACCEL_EXPORT void init_launcher(int argc, char** argv);

// Runs `function` in num_processes processes on this machine's CPUs, on the loopback interface, at a free port.
// Returns when all of them have ended without an error.
// Errors  LaunchError: a rank failed, and the others were ended; or the program was asked to stop.
//         kUsage: called in a worker, while an Accelerator or PartialState exists here, during another launch, or with too
//         many threads (see above). kInvalidArgument: fewer than one process, an unknown name. kShimMissing, kSpawnFailed,
//         kShimLost; kFileIo: no file can be made in $TMPDIR (or /tmp), or copies cannot start in the program's folder.
ACCEL_EXPORT void debug_launcher(const LaunchFunction& function, int num_processes = 2);

// The same with the machine's devices and with options. First writes to stdout, as Accelerate does, "Launching training on 2 CPUs."
// Errors as debug_launcher(); kInvalidArgument names the option; kPortInUse.
ACCEL_EXPORT void notebook_launcher(const LaunchFunction& function,
                                    const NotebookLauncherOptions& options);

// The same with arguments: each worker calls function(args...) with its own copies.
template <typename F, typename... Args>
requires std::invocable<F&, Args&...>
void notebook_launcher(F function,
                       std::tuple<Args...> args,
                       const NotebookLauncherOptions& options) {
  notebook_launcher([function = std::move(function),
                     args = std::move(args)]() mutable { std::apply(function, args); },
                    options);
}

// Registers `function` under `name` for programs that are executed again as workers. It must run before main(), from the
// constructor of an object at namespace scope, which ACCEL_LAUNCH_FUNCTION makes. Errors kInvalidArgument: the name is taken
// or empty.
ACCEL_EXPORT void register_launch_function(std::string name, void (*function)());

#define ACCEL_LAUNCH_FUNCTION(function)                                 \
  [[maybe_unused]] static const bool accel_launch_function_##function = \
      (::accel::register_launch_function(#function, &function), true)

}  // namespace accel
