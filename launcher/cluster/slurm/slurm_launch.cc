// The starter's life.
//
//   starting srun --nodes join--> the job runs --its end--> farewells --all steps of srun ended--> ended
//                                   |  ^---a new launcher---'  (a node's launcher was lost)
//                                   '--SIGINT, SIGTERM, SIGHUP, SIGUSR1: the whole job is stopped; again: killed
//
// The nodes' launchers get SIGTERM from SLURM too (scancel, time limit): then they leave by themselves, and the job is
// over when the last step of srun has ended.

#include "launcher/cluster/slurm/slurm_launch.h"

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/rendezvous/job_wire.h"
#include "agent/rendezvous/token_proof.h"
#include "agent/tls/tls_credentials.h"
#include "launcher/cluster/hosting/coordinator_seat.h"
#include "launcher/cluster/meeting/endpoint.h"
#include "launcher/cluster/meeting/job_folder.h"
#include "launcher/cluster/meeting/launch_description.h"
#include "launcher/cluster/slurm/srun_command.h"
#include "launcher/flags/flag_spelling.h"
#include "launcher/run/notice_line.h"
#include "runtime/printable.h"
#include "runtime/supervisor/shim/job_record.h"
#include "runtime/supervisor/spawn/exit_report.h"
#include "runtime/supervisor/spawn/program_answer.h"
#include "runtime/supervisor/spawn/spawner.h"

extern char** environ;

namespace accel::cluster {
namespace {

namespace asio = boost::asio;
using agent::JobPhase;
using std::chrono::seconds;

constexpr const char* kOwnName = "accel-starter";  // on our certificate
constexpr int kMostTries = 3;      // for a launcher in place of a lost one, each time
constexpr seconds kFirstPause{1};  // before such a try, doubling
constexpr seconds kLastOutput{5};  // srun's, after every node has said farewell
constexpr seconds kSlowest{30};    // the nodes' end after their grace

EnvMap environment_of_process() {
  EnvMap env;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals != std::string_view::npos && equals > 0)
      env.try_emplace(std::string(text.substr(0, equals)), text.substr(equals + 1));
  }
  return env;
}

// As a worker's own launcher would end.
int exit_code_of(const std::optional<agent::Failure>& failure) {
  if (!failure || failure->kind != agent::FailureKind::kWorker || failure->code == 0) return 1;
  const bool is_signal = failure->cause == supervisor::ExitCause::kSignaled ||
                         failure->cause == supervisor::ExitCause::kOutOfMemory;
  return is_signal && failure->code < 128 ? 128 + failure->code : failure->code;
}

// One srun.
struct Step {
  Step(asio::io_context& loop, supervisor::SpawnedProcess spawned, std::string on_node)
      : process(std::move(spawned)), end(loop), node(std::move(on_node)) {}

  supervisor::SpawnedProcess process;
  asio::posix::stream_descriptor end;  // readable when it has ended
  std::string node;                    // empty: all of them
};

class SlurmLaunch {
 public:
  explicit SlurmLaunch(launcher::ElasticRequest request)
      : request_(std::move(request)),
        program_(launcher::name_of(request_.settings.program)),
        signals_(loop_),
        wake_(loop_) {}

  Result<int> run() {
    for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) signals_.add(signal);
    wait_for_signal();
    if (auto seated = take_seat(); !seated) return std::move(seated).error();
    if (auto started = start_step(""); !started) return std::move(started).error();
    loop_.run();
    if (error_) return *error_;
    return status_.value_or(1);
  }

 private:
  using NodeList = std::vector<std::string>;

  Result<void> take_seat() {
    auto folder = JobFolder::make(request_.settings.job_folder);
    if (!folder) return std::move(folder).error();
    folder_.emplace(*std::move(folder));
    const auto token = agent::read_token(folder_->token_file());
    if (!token) return token.error();
    const auto papers = folder_->certificate(kOwnName);
    if (!papers) return papers.error();
    auto files = agent::tls_files_in(*papers);
    if (!files) return std::move(files).error();
    SeatOptions options;
    options.listen = "[::]:0";
    options.tls = *std::move(files);
    options.token_key = agent::token_key(*token);
    options.takes_jobs_from_joins = false;
    options.on_report = [this](const agent::Report& report) { on_report(report); };
    options.on_line = [this](const std::string& line) { say(line); };
    auto seat = CoordinatorSeat::take(loop_, std::move(options));
    if (!seat) return std::move(seat).error();
    seat_ = *std::move(seat);
    seat_->host().handle(agent::StartJob{.request_id = request_.settings.job,
                                         .job = agent::describe_job(describe_launch(request_))});
    return folder_->publish(own_endpoints(seat_->port()));
  }

  void say(const std::string& line) const {
    if (!request_.settings.quiet) launcher::tell(program_, line);
  }

  // ---- steps of srun ----

  Result<void> start_step(const std::string& node) {
    supervisor::SpawnRequest request;
    request.argv = srun_command(request_.settings.node_command, request_.settings.max_nodes, node);
    request.env = srun_environment(environment_of_process(), request_.settings.job_folder);
    const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    request.stdio[0] = nothing.get();
    // Ctrl-C is for us: srun would take two of them as an order to kill.
    request.session = supervisor::Session::kNewGroup;
    auto spawned = supervisor::spawn(request);
    if (const auto* failure = std::get_if<supervisor::ExecFailure>(&spawned)) {
      return Error(
          ErrorCode::kSpawnFailed,
          "srun cannot be started: " + failure->stage + ": " + errno_text(failure->error_number),
          "run " + program_ +
              " where SLURM's commands are; or start one launcher a node from there: `srun "
              "--ntasks-per-node=1 --cpu-bind=none " +
              program_ + " ...`");
    }
    auto step = std::make_shared<Step>(
        loop_, std::move(std::get<supervisor::SpawnedProcess>(spawned)), node);
    step->end.assign(::fcntl(step->process.pidfd(), F_DUPFD_CLOEXEC, 3));
    steps_.push_back(step);
    step->end.async_wait(asio::posix::descriptor_base::wait_read,
                         [this, step](const boost::system::error_code& error) {
                           if (!error) on_step_ended(step);
                         });
    return {};
  }

  void on_step_ended(const std::shared_ptr<Step>& step) {
    int wait_status = 0;
    ::waitpid(step->process.pid(), &wait_status, 0);
    int code = supervisor::exit_code_of(wait_status);
    if (const auto failure = step->process.exec_failure()) {
      say("srun: " + failure->stage + ": " + errno_text(failure->error_number));
      code = 126;
    }
    std::erase(steps_, step);
    worst_step_ = std::max(worst_step_, code);
    if (!step->node.empty() && code != 0 && !is_over_) try_again(step->node);
    look();
  }

  void kill_steps(int signal) {
    for (const auto& step : steps_) ::kill(step->process.pid(), signal);
  }

  // ---- the coordinator's word ----

  // Inside a step of the coordinator: what follows from it waits until that is over.
  void on_report(const agent::Report& report) {
    if (!is_over_) say(describe_report(report));
    if (report.kind == agent::ReportKind::kNodeLost) {
      asio::post(loop_, [this, node = report.node_id] { on_node_lost(node); });
    } else if (report.kind == agent::ReportKind::kNodeBack) {
      tries_.erase(report.node_id);
    }
    asio::post(loop_, [this] { look(); });
  }

  const agent::Job* job() const {
    const auto& jobs = seat_->host().state().jobs;
    const auto found = jobs.find(request_.settings.job);
    return found == jobs.end() ? nullptr : &found->second;
  }

  bool is_live(const std::string& node) const {
    const auto& nodes = seat_->host().state().nodes;
    const auto found = nodes.find(node);
    return found != nodes.end() && found->second.liveness != agent::Liveness::kLost;
  }

  void on_node_lost(const std::string& node) {
    if (!is_over_ && stop_signal_ == 0) try_again(node);
    look();
  }

  void try_again(const std::string& node) {
    if (stop_signal_ != 0 || is_live(node) || pending_.contains(node)) return;
    const bool has_step = std::any_of(
        steps_.begin(), steps_.end(), [&](const auto& step) { return step->node == node; });
    if (has_step) return;
    int& tries = tries_[node];
    if (tries >= kMostTries) {
      say("node " + node + ": SLURM starts no launcher there any more");
      return;
    }
    auto pause = std::make_shared<asio::steady_timer>(loop_);
    pause->expires_after(kFirstPause * (1 << tries++));
    pending_[node] = pause;
    pause->async_wait([this, node, pause](const boost::system::error_code& error) {
      if (error) return;
      pending_.erase(node);
      if (!is_over_ && stop_signal_ == 0 && !is_live(node)) {
        say("node " + node + ": a new launcher is started there");
        if (auto started = start_step(node); !started) say(started.error().message());
      }
      look();
    });
  }

  // How many nodes the job has or may yet get.
  int num_hopeful() const {
    std::set<std::string> hopeful;
    for (const auto& [id, node] : seat_->host().state().nodes) {
      if (node.liveness != agent::Liveness::kLost && !node.has_left) hopeful.insert(id);
    }
    for (const auto& [node, pause] : pending_) hopeful.insert(node);
    for (const auto& step : steps_) {
      if (!step->node.empty()) hopeful.insert(step->node);
    }
    return static_cast<int>(hopeful.size());
  }

  // ---- what follows ----

  void look() {
    if (is_closing_) return;
    const agent::Job* known = job();
    if (known != nullptr && agent::is_terminal(known->phase) && !is_over_) end_job(*known);
    if (!is_over_ && known != nullptr && known->was_started && stop_signal_ == 0 &&
        !tries_.empty() && num_hopeful() < request_.settings.min_nodes) {
      give_up();
    }
    if (steps_.empty() && pending_.empty()) close();
  }

  void end_job(const agent::Job& ended) {
    is_over_ = true;
    pending_.clear();
    if (ended.phase == JobPhase::kSucceeded) {
      status_ = 0;
    } else if (ended.phase == JobPhase::kFailed) {
      status_ = exit_code_of(ended.last_failure);
      say("the job failed: " + ended.text);
    } else {
      status_.reset();  // known when the nodes have ended: have all of them saved?
    }
    slowest_end_ = SteadyClock().now() + request_.spec.stop.grace + kSlowest;
    wait_for_steps();
  }

  void give_up() {
    const int most = request_.settings.min_nodes;
    error_ = Error(ErrorCode::kNodeLost,
                   std::to_string(num_hopeful()) + " of " + std::to_string(most) +
                       " nodes are left, and SLURM starts no launcher on the others");
    seat_->host().handle(agent::StopJob{.job_uuid = request_.settings.job});
  }

  // srun ends by itself when its tasks have, but it knows nothing of a node whose power went.
  void wait_for_steps() {
    const bool are_gone = seat_->host().num_sessions() == 0;
    const TimePoint now = SteadyClock().now();
    if (!last_output_end_ && (are_gone || now >= slowest_end_))
      last_output_end_ = now + kLastOutput;
    if (last_output_end_ && now >= *last_output_end_) {
      kill_steps(is_terminated_ ? SIGKILL : SIGTERM);
      is_terminated_ = true;
      last_output_end_ = now + kLastOutput;
    }
    wake_.expires_after(std::chrono::milliseconds(50));
    wake_.async_wait([this](const boost::system::error_code& error) {
      if (!error && !is_closing_) wait_for_steps();
    });
  }

  void close() {
    is_closing_ = true;
    wake_.cancel();
    if (!is_over_ && stop_signal_ == 0 && !error_) {
      say("every node's launcher has ended, and the job has not");
      status_ = worst_step_ == 0 ? 1 : worst_step_;
    }
    if (!status_) status_ = stopped_status();
    seat_->close([this] {
      signals_.cancel();
      loop_.stop();
    });
  }

  // Of a job that was stopped: queue it again only when every node has saved.
  int stopped_status() const {
    const int requeue = request_.spec.stop.requeue_exit_code;
    if (requeue != 0 && worst_step_ == requeue) return requeue;
    return supervisor::exit_code_after(stop_signal_ == 0 ? SIGTERM : stop_signal_);
  }

  void wait_for_signal() {
    signals_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) return;
      on_signal(signal);
      wait_for_signal();
    });
  }

  void on_signal(int signal) {
    const bool is_again = stop_signal_ != 0;
    if (!is_again) {
      stop_signal_ = signal;
      status_.reset();
      pending_.clear();
      say(supervisor::signal_name(signal) + ": every node is told to stop");
    }
    if (seat_)
      seat_->host().handle(agent::StopJob{
          .job_uuid = request_.settings.job, .kill = is_again, .grace = granted(signal)});
    look();
  }

  supervisor::Milliseconds granted(int signal) const {
    return launcher::granted_grace(
        request_.spec.stop.grace, signal, request_.settings.allocation_end);
  }

  launcher::ElasticRequest request_;
  const std::string program_;
  asio::io_context loop_{1};
  asio::signal_set signals_;
  asio::steady_timer wake_;
  std::optional<JobFolder> folder_;
  std::unique_ptr<CoordinatorSeat> seat_;
  std::vector<std::shared_ptr<Step>> steps_;
  std::map<std::string, std::shared_ptr<asio::steady_timer>> pending_;  // by node
  std::map<std::string, int> tries_;                                    // since it was last there
  int worst_step_ = 0;                                                  // exit code
  int stop_signal_ = 0;
  std::optional<int> status_;
  std::optional<Error> error_;
  TimePoint slowest_end_{};
  std::optional<TimePoint> last_output_end_;
  bool is_terminated_ = false;
  bool is_over_ = false;
  bool is_closing_ = false;
};

}  // namespace

int start_slurm_nodes(launcher::ElasticRequest request) {
  const std::string program(launcher::name_of(request.settings.program));
  SlurmLaunch launch(std::move(request));
  const auto status = launch.run();
  if (status) return *status;
  std::fprintf(stderr, "%s\n", launcher::rendered(status.error(), program).c_str());
  return error_info(status.error().code()).exit_status;
}

}  // namespace accel::cluster
