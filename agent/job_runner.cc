#include "agent/job_runner.h"

#include <algorithm>
#include <csignal>
#include <ctime>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "agent/job_request.h"
#include "agent/ticket_book.h"
#include "agent/worker_end.h"
#include "runtime/supervisor/exit_report.h"
#include "runtime/supervisor/log_layout.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;
using supervisor::StopMode;

void stamp(google::protobuf::Timestamp& time) {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  time.set_seconds(now.tv_sec);
  time.set_nanos(static_cast<int>(now.tv_nsec));
}

// The folder, made when it is missing. O_NOFOLLOW: a link in its place is an error, not a way elsewhere.
Result<UniqueFd> make_folder(int parent, const std::string& path, mode_t mode) {
  if (::mkdirat(parent, path.c_str(), mode) != 0 && errno != EEXIST) {
    return Error(ErrorCode::kLogUnwritable, "cannot create " + path + ": " + errno_text(errno));
  }
  UniqueFd fd(::openat(parent, path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd)
    return Error(ErrorCode::kLogUnwritable, "cannot open " + path + ": " + errno_text(errno));
  return fd;
}

int null_device() {
  static const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  return fd;
}

}  // namespace

struct JobRunner::Entry {
  Entry(asio::io_context& context) : events(context) {}

  v1::Job job;
  std::string request_key;
  bool was_asked_to_stop = false;
  std::unique_ptr<supervisor::WorkerHost> host;  // gone when the job has ended
  asio::posix::stream_descriptor events;  // a copy of the host's descriptor: closed before the host
};

bool has_ended(const v1::Job& job) {
  return job.state() >= v1::JOB_STATE_SUCCEEDED;
}

JobRunner::JobRunner(asio::io_context& context,
                     JobRunnerOptions options,
                     std::function<void(const v1::Job&)> on_change)
    : context_(context), options_(std::move(options)), on_change_(std::move(on_change)) {}

JobRunner::~JobRunner() = default;

Result<void> JobRunner::prepare_log_folder(const UserAccount& user) const {
  auto top = make_folder(AT_FDCWD, options_.log_dir, 0711);
  if (!top) return std::move(top).error();
  auto own = make_folder(top->get(), std::to_string(user.credentials.uid), 0700);
  if (!own) return std::move(own).error();
  if (options_.changes_user &&
      ::fchown(own->get(), user.credentials.uid, user.credentials.gid) != 0) {
    return Error(ErrorCode::kLogUnwritable,
                 "cannot give the log folder to " + user.name + ": " + errno_text(errno));
  }
  return {};
}

Result<const v1::Job*> JobRunner::start(v1::JobSpec request,
                                        const UserAccount& user,
                                        const std::string& request_id) {
  const std::string key =
      request_id.empty() ? "" : std::to_string(user.credentials.uid) + "/" + request_id;
  if (const auto known = by_request_.find(key); !key.empty() && known != by_request_.end()) {
    return &known->second->job;
  }
  if (is_draining_) {
    return Error(ErrorCode::kAgentRefused,
                 "this node is drained: it starts no jobs",
                 "use another node, or `accel undrain`");
  }
  if (num_running() >= options_.max_jobs) {
    return Error(
        ErrorCode::kAgentRefused,
        "this agent runs " + std::to_string(options_.max_jobs) + " jobs already (max_jobs)",
        "wait for one to end, or raise max_jobs");
  }
  if (request.job_id().empty()) request.set_job_id(make_job_id(request));
  if (find(request.job_id()) != nullptr) {
    return Error(ErrorCode::kInvalidArgument,
                 "there is a job '" + request.job_id() + "' already",
                 "choose another --name");
  }
  if (auto folder = prepare_log_folder(user); !folder) return std::move(folder).error();

  const int num_workers = std::max(1, static_cast<int>(request.procs_per_node()));
  const LocalPart part = {.num_ranks = num_workers, .world_size = num_workers};
  std::vector<std::string> scrubbed;
  const std::string log_dir = options_.log_dir + "/" + std::to_string(user.credentials.uid);
  const bool is_other_user = user.credentials.uid != ::geteuid();
  const auto spec = make_job_spec(request, part, user, log_dir, is_other_user, scrubbed);
  supervisor::ShimHostOptions host;
  host.shim_path = options_.shim_path;
  host.owner = supervisor::OwnerKind::kManyJobs;
  if (options_.changes_user) host.credentials = user.credentials;
  host.env = EnvMap{{"PATH", "/usr/local/bin:/usr/bin:/bin"}};
  std::fill(std::begin(host.stdio), std::end(host.stdio), null_device());
  auto started = supervisor::start_shim(spec, std::move(host));
  if (!started) return std::move(started).error();

  auto& made = *entries_.emplace_back(std::make_unique<Entry>(context_));
  made.host = *std::move(started);
  made.request_key = key;
  if (!key.empty()) by_request_[key] = &made;
  v1::Job& job = made.job;
  job.set_job_id(spec.job_id);
  job.set_job_uuid(to_hex(random_bytes(16)));
  job.set_user(user.name);
  job.set_uid(user.credentials.uid);
  job.set_state(v1::JOB_STATE_PENDING);
  *job.mutable_argv() = request.argv();
  stamp(*job.mutable_started());
  if (!scrubbed.empty()) {
    std::string names;
    for (const auto& name : scrubbed) names += (names.empty() ? "" : ", ") + name;
    job.set_report("left out of the environment, because the agent runs as another user: " + names +
                   "\n");
  }
  made.events.assign(::fcntl(made.host->event_fd(), F_DUPFD_CLOEXEC, 3));
  wait(made);
  forget_oldest();
  on_change_(job);
  return &job;
}

void JobRunner::wait(Entry& entry) {
  entry.events.async_wait(asio::posix::descriptor_base::wait_read,
                          [this, &entry](const boost::system::error_code& error) {
                            if (!error) take_events(entry);
                          });
}

void JobRunner::take_events(Entry& entry) {
  while (entry.host) {
    auto event = entry.host->next_event();
    if (!event) return end(entry, event.error());
    if (!*event) return wait(entry);
    on_event(entry, **event);
  }
}

void JobRunner::on_event(Entry& entry, const supervisor::HostEvent& event) {
  v1::Job& job = entry.job;
  if (const auto* started = std::get_if<supervisor::GenerationStarted>(&event)) {
    job.set_generation(static_cast<std::uint64_t>(started->generation));
    job.set_restarts(static_cast<std::uint32_t>(started->generation));
    if (!entry.was_asked_to_stop) job.set_state(v1::JOB_STATE_RUNNING);
    job.clear_workers();
    for (std::size_t i = 0; i < started->pids.size(); ++i) {
      v1::Worker& worker = *job.add_workers();
      worker.set_rank(static_cast<std::uint32_t>(i));
      worker.set_local_rank(static_cast<std::uint32_t>(i));
      worker.set_pid(started->pids[i]);
    }
  } else if (const auto* exit = std::get_if<supervisor::WorkerExit>(&event)) {
    if (exit->local_rank < job.workers_size()) {
      v1::Worker& worker = *job.mutable_workers(exit->local_rank);
      worker.set_pid(0);
      *worker.mutable_exit() = describe_end(*exit);
    }
  } else if (const auto* notice = std::get_if<supervisor::Notice>(&event)) {
    job.set_report(job.report() + notice->text + "\n");
  } else if (const auto* outcome = std::get_if<supervisor::JobOutcome>(&event)) {
    return end(entry, *outcome);
  } else if (!std::holds_alternative<supervisor::Restarting>(event)) {
    return;
  }
  on_change_(job);
}

void JobRunner::end(Entry& entry, const supervisor::JobOutcome& outcome) {
  boost::system::error_code ignored;
  entry.events.close(ignored);
  entry.host.reset();
  v1::Job& job = entry.job;
  const bool is_cancelled = !outcome.success && entry.was_asked_to_stop && !outcome.first_failure;
  job.set_state(outcome.success ? v1::JOB_STATE_SUCCEEDED
                : is_cancelled  ? v1::JOB_STATE_CANCELLED
                                : v1::JOB_STATE_FAILED);
  job.set_exit_code(outcome.exit_code);
  job.set_reason(outcome.reason);
  job.set_restarts(static_cast<std::uint32_t>(outcome.restarts));
  job.set_report(job.report() + describe_outcome(outcome));
  stamp(*job.mutable_ended());
  on_change_(job);
}

void JobRunner::end(Entry& entry, const Error& error) {
  boost::system::error_code ignored;
  entry.events.close(ignored);
  entry.host.reset();
  v1::Job& job = entry.job;
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_exit_code(error_info(error.code()).exit_status);
  job.set_reason(error.message());
  job.set_report(job.report() + error.render("accel-agent") + "\n");
  stamp(*job.mutable_ended());
  on_change_(job);
}

JobRunner::Entry* JobRunner::entry(const std::string& job) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return entry->job.job_id() == job || entry->job.job_uuid() == job;
  });
  return found == entries_.end() ? nullptr : found->get();
}

const v1::Job* JobRunner::find(const std::string& job) const {
  const Entry* found = const_cast<JobRunner*>(this)->entry(job);
  return found == nullptr ? nullptr : &found->job;
}

std::vector<const v1::Job*> JobRunner::all() const {
  std::vector<const v1::Job*> jobs;
  for (const auto& entry : entries_) jobs.push_back(&entry->job);
  return jobs;
}

std::string JobRunner::log_folder_of(const v1::Job& job) const {
  return options_.log_dir + "/" + std::to_string(job.uid());
}

void JobRunner::stop(const std::string& job, StopMode mode, int signal) {
  Entry* found = entry(job);
  if (found == nullptr || !found->host) return;
  const bool is_again = found->was_asked_to_stop;
  found->was_asked_to_stop = true;
  found->host->request(supervisor::Stop{
      .mode = is_again && mode != StopMode::kKill ? StopMode::kKill : mode, .signal = signal});
  if (found->job.state() == v1::JOB_STATE_STOPPING) return;
  found->job.set_state(v1::JOB_STATE_STOPPING);
  on_change_(found->job);
}

void JobRunner::stop_all(StopMode mode) {
  for (const auto& entry : entries_) {
    if (!entry->host) continue;
    if (mode == StopMode::kKill || !entry->was_asked_to_stop)
      stop(entry->job.job_id(), mode, SIGTERM);
  }
}

void JobRunner::dump_stacks(const std::string& job) {
  Entry* found = entry(job);
  if (found != nullptr && found->host) found->host->request(supervisor::DumpStacks{});
}

// The worker's number cannot be reused while the shim has not said that it ended: it reaps only after that. What the
// agent may not signal (the job's user changed its uid) is an error of the call.
Result<void> JobRunner::signal(const std::string& job, int signal) {
  Entry* found = entry(job);
  if (found == nullptr) return Error(ErrorCode::kJobUnknown, "there is no job '" + job + "'");
  if (signal < 1 || signal >= NSIG) {
    return Error(ErrorCode::kInvalidArgument,
                 "signal " + std::to_string(signal) + " does not exist");
  }
  for (const v1::Worker& worker : found->job.workers()) {
    if (worker.pid() <= 0) continue;
    const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, worker.pid(), 0)));
    if (!process) continue;
    struct stat info {};
    const std::string folder = "/proc/" + std::to_string(worker.pid());
    if (::stat(folder.c_str(), &info) != 0 || info.st_uid != found->job.uid()) continue;
    ::syscall(SYS_pidfd_send_signal, process.get(), signal, nullptr, 0);
  }
  return {};
}

int JobRunner::num_running() const {
  return static_cast<int>(std::count_if(
      entries_.begin(), entries_.end(), [](const auto& entry) { return entry->host != nullptr; }));
}

void JobRunner::forget_oldest() {
  int num_finished = static_cast<int>(entries_.size()) - num_running();
  for (auto entry = entries_.begin();
       entry != entries_.end() && num_finished > options_.keep_finished;) {
    if ((*entry)->host) {
      ++entry;
      continue;
    }
    by_request_.erase((*entry)->request_key);
    entry = entries_.erase(entry);
    --num_finished;
  }
}

}  // namespace accel::agent
