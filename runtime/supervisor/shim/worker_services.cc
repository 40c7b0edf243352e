#include "runtime/supervisor/shim/worker_services.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include <boost/asio/post.hpp>

#include "runtime/printable.h"
#include "runtime/supervisor/watch/step_report.h"
#include "runtime/system.h"

namespace accel::supervisor {
namespace {

ChannelOptions channel_options(const JobSpec& spec, const ServiceOptions& options) {
  ChannelOptions channels;
  channels.job_id = spec.job_id;
  channels.on_report = [notice = options.notice](int rank, const std::string& text) {
    notice("rank " + std::to_string(rank) + ": " + text);
  };
  channels.on_violation = [notice = options.notice](int rank, const Error& error) {
    notice("rank " + std::to_string(rank) + ": " + error.message());
  };
  channels.on_commit = options.commit;
  return channels;
}

Session session_for(TerminalSetup terminal) {
  return terminal == TerminalSetup::kForeground ? Session::kJoin : Session::kNew;
}

}  // namespace

WorkerServices::WorkerServices(boost::asio::io_context& context,
                               const JobSpec& spec,
                               ServiceOptions options)
    : context_(context),
      spec_(spec),
      options_(std::move(options)),
      channels_(context, channel_options(spec, options_)) {}

WorkerServices::~WorkerServices() {
  remove_error_folder();
}

Result<void> WorkerServices::start() {
  LogRouterOptions options;
  options.job_id = spec_.job_id;
  options.log = spec_.log;
  options.console = spec_.console;
  options.role = spec_.identity.role;
  options.workers = spec_.workers;
  options.owner_pid = options_.owner;
  options.on_notice = [this](std::string text) {
    boost::asio::post(context_, [this, text = std::move(text)] { options_.notice(text); });
  };
  auto logs = LogRouter::start(std::move(options));
  if (!logs) return std::move(logs).error();
  logs_ = *std::move(logs);
  make_error_folder();
  return {};
}

// A job without it runs as well: its report may lack a traceback.
void WorkerServices::make_error_folder() {
  if (!spec_.log.dir.empty() || spec_.log.error_dir.empty()) return;
  auto folder = PrivateFolder::create(spec_.log.error_dir);
  if (!folder) return options_.notice(folder.error().message());
  error_folder_.emplace(*std::move(folder));
}

// The folders of jobs whose launcher and shim were killed go with it.
void WorkerServices::remove_error_folder() {
  if (!error_folder_) return;
  const std::string parent = std::filesystem::path(error_folder_->path()).parent_path().string();
  error_folder_.reset();
  remove_abandoned_folders(parent);
}

std::string WorkerServices::error_file(int local_rank) const {
  if (!error_folder_) return logs_->error_file(local_rank, plan_.number);
  return error_folder_->path() + "/error_" + std::to_string(plan_.number) + "_" +
         std::to_string(local_rank) + ".json";
}

Result<void> WorkerServices::open_store(StorePolicy policy) {
  store_.reset();
  StoreOptions options;
  options.policy = std::move(policy);
  options.on_notice = [this](const Error& error) { options_.notice(error.message()); };
  auto store = StoreServer::listen(context_, std::move(options));
  if (!store) return std::move(store).error();
  store_ = *std::move(store);
  return {};
}

Result<void> WorkerServices::begin_generation(GenerationPlan plan) {
  if (!plan.keeps_store) store_.reset();
  channels_.end_generation();
  plan_ = std::move(plan);
  if (!plan_.store) return {};
  auto opened = open_store(*plan_.store);
  if (opened) return {};
  return std::move(opened).error().while_doing("starting the store of generation " +
                                               std::to_string(plan_.number));
}

void WorkerServices::renumber(int first_rank) {
  logs_->renumber(first_rank);
}

void WorkerServices::use_store_at(const std::string& address, std::uint16_t port) {
  store_address_ = address;
  store_port_ = port;
}

void WorkerServices::end_generation() {
  store_.reset();
  channels_.end_generation();
}

WorkerIdentity WorkerServices::identity_of(const WorkerSpec& worker,
                                           const std::string& channel) const {
  WorkerIdentity identity = spec_.identity;
  identity.global_rank = worker.global_rank;
  identity.local_rank = worker.local_rank;
  identity.restart_count = plan_.restart_count;
  identity.generation = plan_.number;
  identity.max_restarts = spec_.restart.max_restarts;
  identity.job_id = spec_.job_id;
  identity.node_id = spec_.node_id;
  identity.instance = spec_.instance;
  if (!worker.is_starter) {
    identity.channel = channel;
    identity.error_file = error_file(worker.local_rank);
  }
  if (!store_address_.empty()) identity.master_addr = store_address_;
  if (store_port_ != 0) {
    identity.master_port = store_port_;
  } else if (store_) {
    identity.master_port = store_->port();
  }
  return identity;
}

Result<PreparedWorker> WorkerServices::prepare(const WorkerSpec& worker) {
  PreparedWorker prepared;
  auto stdio = logs_->open(worker.local_rank, plan_.number);
  if (!stdio) return std::move(stdio).error();
  prepared.stdio = *std::move(stdio);
  auto channel = channels_.open(worker.global_rank, plan_.number);
  if (!channel) return std::move(channel).error();
  prepared.channel = *std::move(channel);

  SpawnRequest& request = prepared.request;
  request.argv = worker.argv;
  request.env = render_worker_env(identity_of(worker, prepared.channel.env_value), spec_.env_mode);
  if (worker.has_virtual_local_rank) {
    request.env["LOCAL_RANK"] = "0";
    request.env["ACCEL_LOCAL_RANK"] = std::to_string(worker.local_rank);
  }
  request.env.insert(worker.env.begin(), worker.env.end());
  request.env.insert(spec_.env.begin(), spec_.env.end());
  request.cwd = spec_.cwd;
  request.cpus = worker.cpus;
  request.memory_nodes = worker.memory_nodes;
  request.bind_memory = worker.bind_memory;
  request.open_files = options_.open_files;
  const std::pair<int, std::uint64_t> limits[] = {{RLIMIT_NOFILE, spec_.limits.open_files},
                                                  {RLIMIT_CORE, spec_.limits.core_bytes},
                                                  {RLIMIT_MEMLOCK, spec_.limits.locked_bytes}};
  for (const auto& [resource, value] : limits) {
    if (value > 0) request.limits.push_back({resource, value});
  }
  request.stdio[0] = prepared.stdio.in.get();
  request.stdio[1] = prepared.stdio.out.get();
  request.stdio[2] = prepared.stdio.err.get();
  if (!worker.is_starter)
    request.keep_fds = {prepared.channel.memory.get(), prepared.channel.socket.get()};
  request.session = session_for(prepared.stdio.terminal);
  request.join_group = options_.owner_group;
  request.own_terminal = prepared.stdio.terminal == TerminalSetup::kOwnSession;
  return prepared;
}

// The job's tags are how the sweep finds what a check leaves behind.
SpawnRequest WorkerServices::prepare_checks() const {
  SpawnRequest request;
  request.env = spec_.env;
  request.env["ACCEL_JOB_ID"] = spec_.job_id;
  if (!spec_.instance.empty()) request.env["ACCEL_JOB_INSTANCE"] = spec_.instance;
  if (!spec_.node_id.empty()) request.env["ACCEL_NODE_ID"] = spec_.node_id;
  request.cwd = spec_.cwd;
  request.open_files = options_.open_files;
  return request;
}

void WorkerServices::worker_ended(int local_rank, std::function<void()> done) {
  logs_->drain(local_rank, [this, done = std::move(done)] { boost::asio::post(context_, done); });
}

void WorkerServices::fill_in_texts(WorkerExit& exit) const {
  WorkerTail tail = logs_->tail(exit.local_rank);
  exit.tail = tail.err.empty() ? std::move(tail.out) : std::move(tail.err);
  const auto last = channels_.last_error(exit.global_rank);
  if (last && *last) exit.last_error = (*last)->text;
}

void WorkerServices::pass_on_notices(int global_rank) {
  for (const std::string& text : channels_.take_notices(global_rank))
    options_.notice("rank " + std::to_string(global_rank) + ": " + text);
}

int WorkerServices::store_port() const {
  return store_ ? store_->port() : 0;
}

void WorkerServices::write_stacks(int local_rank, const std::string& stacks) {
  logs_->write_stacks(local_rank, plan_.number, stacks);
}

std::optional<HeartbeatSample> WorkerServices::heartbeat(int global_rank) const {
  return channels_.heartbeat(global_rank);
}

std::vector<RankCalls> WorkerServices::calls() const {
  std::vector<RankCalls> known;
  for (const WorkerSpec& worker : spec_.workers) {
    if (auto calls = channels_.calls(worker.global_rank)) known.push_back(*std::move(calls));
  }
  return known;
}

std::optional<StepTimes> WorkerServices::step_times(int global_rank) const {
  return channels_.step_times(global_rank);
}

void WorkerServices::tell_step_times(int global_rank) {
  const auto times = step_times(global_rank);
  if (!times) return;
  options_.notice("rank " + std::to_string(global_rank) + ": " + step_times_text(*times));
}

bool WorkerServices::made_progress() const {
  const auto& commit = channels_.last_commit();
  if (commit && commit->generation == plan_.number) return true;
  return std::any_of(spec_.workers.begin(), spec_.workers.end(), [this](const WorkerSpec& worker) {
    const auto sample = channels_.heartbeat(worker.global_rank);
    return sample && sample->beats > 1;  // the first only says where it stands
  });
}

bool WorkerServices::handles_preemption(int global_rank) const {
  return channels_.declares(global_rank, WorkerAbility::kHandlesPreemption);
}

std::optional<std::uint64_t> WorkerServices::saved_step(int global_rank) const {
  return channels_.saved_step(global_rank);
}

void WorkerServices::ask_for_preemption() {
  channels_.request_all(WorkerRequest::kPreempt);
}

void WorkerServices::ask_for_stacks() {
  channels_.request_all(WorkerRequest::kDumpStacks);
}

void WorkerServices::end_inputs() {
  logs_->end_inputs();
}

void WorkerServices::resize_window(int rows, int columns) {
  logs_->resize_window(rows, columns);
}

void WorkerServices::show_status(const ShowStatus& status,
                                 std::function<void(std::uint64_t)> shown) {
  constexpr std::size_t kMostStatusBytes = 4096;
  if (!logs_) return;
  logs_->show_status(printable(status.text.substr(0, kMostStatusBytes)),
                     status.despite_returns,
                     [this, number = status.number, shown = std::move(shown)] {
                       boost::asio::post(context_, [number, shown] { shown(number); });
                     });
}

void WorkerServices::suspend() {
  if (store_) store_->suspend_timeouts();
}

void WorkerServices::resume() {
  if (store_) store_->resume_timeouts();
}

void WorkerServices::begin_close(std::function<void()> on_change) {
  end_generation();
  if (!logs_) return;
  logs_->begin_close(
      [this, on_change = std::move(on_change)] { boost::asio::post(context_, on_change); });
}

bool WorkerServices::is_drained() const {
  return !logs_ || logs_->is_drained();
}

std::uint64_t WorkerServices::drain_progress() const {
  return logs_ ? logs_->progress() : 0;
}

void WorkerServices::end_close(const std::string& why) {
  if (logs_) (void)logs_->end_close(why);
  remove_error_folder();
}

}  // namespace accel::supervisor
