// launching_program: starts workers from inside itself in the ways that its arguments name; run by
// tests/integration/inproc/run.py, and built without torch.
//
//   launching_program WAY WHAT RANKS [--threads N] [--restarts N] [--prefix TEMPLATE] [--grace MS] [--notebook]
//                     [--precision P] [--env NAME=VALUE] [--nodes N RANK] [--meet BACKEND ENDPOINT]
//                     [--handle note|stop] [--again] [--folder PATH]
//     WAY    early (init_launcher), registered, now (fork in place), captures (a lambda that captures)
//     WHAT   the function, see kFunctions; "report" writes one line for each rank
//     --handle  a handler of SIGTERM, which writes a line; "stop": and a request through the stop_token follows
//     --folder  goes there before the launch, and takes 027 for its umask
//     --again   a second launch after the first, of report
//
// Writes "done" to stdout and ends with 0, or "caught CODE RANK EXIT SIGNAL: MESSAGE" and 3.

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <semaphore>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <pthread.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <accel/launchers.h>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "-" : value;
}

const std::string g_object = "constructed";  // by a constructor that runs before main()

// Writes past all buffers when static objects are destroyed.
struct Farewell {
  ~Farewell() { (void)!::write(STDOUT_FILENO, "destroyed\n", 10); }
} g_farewell;

bool is_rank(int rank) {
  return variable("RANK") == std::to_string(rank);
}

void report() {
  std::string text = "rank";
  for (const char* name : {"RANK",
                           "LOCAL_RANK",
                           "WORLD_SIZE",
                           "MASTER_ADDR",
                           "FORK_LAUNCHED",
                           "ACCELERATE_USE_CPU",
                           "ACCELERATE_MIXED_PRECISION",
                           "GLOO_SOCKET_IFNAME",
                           "NPROC",
                           "NODE_RANK",
                           "TORCHELASTIC_RUN_ID",
                           "TORCHELASTIC_RESTART_COUNT",
                           "TORCHELASTIC_USE_AGENT_STORE",
                           "launch_note"}) {
    text += std::string(" ") + name + "=" + variable(name);
  }
  text += " object=" + g_object;
  std::printf("%s\n", text.c_str());
}

void fail_to_throw() {
  if (is_rank(1)) throw std::runtime_error("boom");
  ::pause();
}
void segfault() {
  if (is_rank(1)) ::raise(SIGSEGV);
  ::pause();
}
void exit_seven() {
  if (is_rank(1)) ::_exit(7);
  ::pause();
}
void throw_text() {
  if (is_rank(1)) throw std::string("no data");
  ::pause();
}
void end_thread() {
  if (is_rank(1)) ::pthread_exit(nullptr);
  ::pause();
}
void exit_nine() {
  std::printf("rank %s leaves\n", variable("RANK").c_str());
  if (is_rank(1)) std::exit(9);
  ::pause();
}
// Where it is, and what a file that it makes may be.
void tell_place() {
  const mode_t mask = ::umask(0);
  std::printf("in %s with %03o\n", std::filesystem::current_path().c_str(), mask);
}
void fail_once() {
  if (is_rank(0) && variable("TORCHELASTIC_RESTART_COUNT") == "0") throw std::runtime_error("once");
  std::printf("rank %s went on\n", variable("RANK").c_str());
}
// Each rank leaves a child in a session of its own, without the job's tags, and waits.
void leave_children() {
  if (::fork() == 0) {
    ::setsid();
    while (true) ::pause();
  }
  std::printf("waiting %d\n", ::getpid());
  std::fflush(stdout);
  while (true) ::pause();
}
// Waits for SIGTERM and tells of it; of the first generation of a job with restarts, it fails then.
void save_at_sigterm() {
  if (variable("TORCHELASTIC_RESTART_COUNT") == "0") {
    sigset_t set;
    ::sigemptyset(&set);
    ::sigaddset(&set, SIGTERM);
    ::sigprocmask(SIG_BLOCK, &set, nullptr);
    std::printf("waiting %d\n", ::getpid());
    std::fflush(stdout);
    int signal = 0;
    ::sigwait(&set, &signal);
    std::printf("rank %s saved\n", variable("RANK").c_str());
    std::fflush(stdout);
    if (variable("TORCHELASTIC_MAX_RESTARTS") != "0") throw std::runtime_error("saved");
    return;
  }
  std::printf("rank %s went on\n", variable("RANK").c_str());
}
// "1 is socket:[7]": a standard stream of the process that is a descriptor of its own work; empty: none.
std::string lost_stream(const std::string& pid) {
  for (const char* number : {"0", "1", "2"}) {
    std::error_code failure;
    const auto target =
        std::filesystem::read_symlink("/proc/" + pid + "/fd/" + number, failure).string();
    if (failure || target.starts_with("socket:") || target.starts_with("anon_inode:") ||
        target.starts_with("/memfd:")) {
      return std::string(number) + " is " + (failure ? failure.message() : target);
    }
  }
  return "";
}
void look_at_streams() {
  for (const std::string& pid : {std::string("self"), std::to_string(::getppid())}) {
    if (const std::string lost = lost_stream(pid); !lost.empty()) throw std::runtime_error(lost);
  }
}
void launch_again() {
  accel::debug_launcher(report, 2);
}

ACCEL_LAUNCH_FUNCTION(report);
ACCEL_LAUNCH_FUNCTION(fail_to_throw);
ACCEL_LAUNCH_FUNCTION(segfault);
ACCEL_LAUNCH_FUNCTION(exit_seven);
ACCEL_LAUNCH_FUNCTION(throw_text);
ACCEL_LAUNCH_FUNCTION(end_thread);
ACCEL_LAUNCH_FUNCTION(exit_nine);
ACCEL_LAUNCH_FUNCTION(tell_place);
ACCEL_LAUNCH_FUNCTION(fail_once);
ACCEL_LAUNCH_FUNCTION(leave_children);
ACCEL_LAUNCH_FUNCTION(save_at_sigterm);
ACCEL_LAUNCH_FUNCTION(look_at_streams);
ACCEL_LAUNCH_FUNCTION(launch_again);

const std::map<std::string, void (*)()> kFunctions = {
    {"report", +[] { report(); }},
    {"fail_to_throw", +[] { fail_to_throw(); }},
    {"segfault", +[] { segfault(); }},
    {"exit_seven", +[] { exit_seven(); }},
    {"throw_text", +[] { throw_text(); }},
    {"end_thread", +[] { end_thread(); }},
    {"exit_nine", +[] { exit_nine(); }},
    {"tell_place", +[] { tell_place(); }},
    {"fail_once", +[] { fail_once(); }},
    {"leave_children", +[] { leave_children(); }},
    {"save_at_sigterm", +[] { save_at_sigterm(); }},
    {"look_at_streams", +[] { look_at_streams(); }},
    {"launch_again", +[] { launch_again(); }}};

struct Arguments {
  std::string way;
  std::string what;
  int ranks = 2;
  int threads = 0;
  bool is_notebook = false;
  bool is_repeated = false;
  std::string folder;
  std::string handle;
  accel::NotebookLauncherOptions options;
};

Arguments parse(int argc, char** argv) {
  Arguments arguments = {.way = argv[1], .what = argv[2], .ranks = std::atoi(argv[3])};
  arguments.options.num_processes = arguments.ranks;
  arguments.options.use_port = "0";
  for (int i = 4; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--notebook") {
      arguments.is_notebook = true;
    } else if (flag == "--threads") {
      arguments.threads = std::atoi(argv[++i]);
    } else if (flag == "--restarts") {
      arguments.options.max_restarts = std::atoi(argv[++i]);
    } else if (flag == "--grace") {
      arguments.options.stop_grace = std::chrono::milliseconds(std::atoi(argv[++i]));
    } else if (flag == "--prefix") {
      arguments.options.log_line_prefix_template = argv[++i];
    } else if (flag == "--precision") {
      arguments.options.mixed_precision = argv[++i];
    } else if (flag == "--env") {
      const std::string pair = argv[++i];
      arguments.options.env[pair.substr(0, pair.find('='))] = pair.substr(pair.find('=') + 1);
    } else if (flag == "--nodes") {
      arguments.options.num_nodes = std::atoi(argv[++i]);
      arguments.options.node_rank = std::atoi(argv[++i]);
    } else if (flag == "--meet") {
      arguments.options.rdzv_backend = argv[++i];
      arguments.options.rdzv_endpoint = argv[++i];
    } else if (flag == "--handle") {
      arguments.handle = argv[++i];
    } else if (flag == "--folder") {
      arguments.folder = argv[++i];
    } else if (flag == "--again") {
      arguments.is_repeated = true;
    }
  }
  return arguments;
}

accel::LaunchFunction function_of(const Arguments& arguments) {
  if (arguments.way == "registered") return arguments.what;
  const auto function = kFunctions.at(arguments.what);
  if (arguments.way == "captures")
    return [function, text = std::string("captured")] {
      if (text == "captured") function();
    };
  return function;
}

void launch_once(const Arguments& arguments) {
  if (arguments.is_notebook && arguments.way == "captures") {
    const auto call = [](const std::string& what, int one) {
      if (one == 1) kFunctions.at(what)();
    };
    accel::notebook_launcher(call, std::tuple(arguments.what, 1), arguments.options);
  } else if (arguments.is_notebook) {
    accel::notebook_launcher(function_of(arguments), arguments.options);
  } else {
    accel::debug_launcher(function_of(arguments), arguments.ranks);
  }
}

std::counting_semaphore<1000> g_handled{0};

void handle_sigterm(int) {
  constexpr char kLine[] = "handled\n";
  (void)!::write(STDERR_FILENO, kLine, sizeof kLine - 1);
  g_handled.release();
}

void launch(Arguments arguments) {
  if (!arguments.handle.empty()) std::signal(SIGTERM, handle_sigterm);
  std::stop_source source;
  std::jthread stopping;
  if (arguments.handle == "stop") {
    arguments.options.stop = source.get_token();
    stopping = std::jthread([&source] {
      g_handled.acquire();
      source.request_stop();
    });
  }
  launch_once(arguments);
  if (arguments.is_repeated) accel::debug_launcher(report, 2);
}

}  // namespace

int main(int argc, char** argv) {
  const Arguments arguments = parse(argc, argv);
  std::atexit([] { (void)!::write(STDOUT_FILENO, "atexit\n", 7); });
  if (arguments.way == "early") accel::init_launcher(argc, argv);
  if (!arguments.folder.empty()) {
    std::filesystem::current_path(arguments.folder);
    ::umask(027);
  }
  std::printf("main runs once\n");  // still in the buffer when the copies are made
  std::atomic<bool> is_over = false;
  std::vector<std::thread> threads;
  for (int i = 0; i < arguments.threads; ++i) threads.emplace_back([&] { is_over.wait(false); });
  int status = 0;
  try {
    launch(arguments);
    std::printf("done\n");
  } catch (const accel::LaunchError& error) {
    std::printf("caught %s %d %d %d: %s\n",
                std::string(accel::error_info(error.code()).id).c_str(),
                error.rank(),
                error.exit_code(),
                error.signal(),
                error.message().c_str());
    status = 3;
  } catch (const accel::Error& error) {
    std::printf("refused %s\ntry %s\n", error.what(), error.remedy().c_str());
    status = 4;
  }
  int subreaper = 0;
  ::prctl(PR_GET_CHILD_SUBREAPER, &subreaper);
  std::printf(
      "subreaper %d children %d\n", subreaper, ::waitpid(-1, nullptr, WNOHANG) == 0 ? 1 : 0);
  std::printf("precision afterwards %s\n", variable("ACCELERATE_MIXED_PRECISION").c_str());
  if (const std::string lost = lost_stream("self"); !lost.empty()) status = 5;
  is_over = true;
  is_over.notify_all();
  for (std::thread& thread : threads) thread.join();
  return status;
}
