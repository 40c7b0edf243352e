#include "agent/control/control_service.h"

#include <algorithm>

#include <boost/asio/post.hpp>
#include <unistd.h>

#include "agent/calls/server_call.h"
#include "agent/cluster/job_view.h"
#include "agent/control/control_streams.h"
#include "agent/jobs/diagnosis.h"
#include "agent/jobs/event_diary.h"
#include "agent/jobs/job_request.h"
#include "agent/jobs/job_state.h"
#include "agent/jobs/named_job.h"
#include "agent/logs/log_stream.h"
#include "agent/shims/heard_workers.h"
#include "runtime/printable.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;
using namespace std::chrono_literals;

constexpr std::size_t kMostReason = 256;  // bytes

// Whose share of streams and calls it takes.
std::string sharer_of(const Caller& caller) {
  return caller.role == Role::kLocal ? caller_of(caller.uid) : caller.name;
}

Error no_such_rank(const v1::Job& job, int num_ranks) {
  return Error(ErrorCode::kInvalidArgument,
               "job '" + job.job_id() + "' has none of these ranks on this node",
               "its ranks are 0 to " + std::to_string(num_ranks - 1));
}

}  // namespace

ControlService::ControlService(Parts parts)
    : parts_(std::move(parts)), calls_(parts_.loop, kMostCallsEach) {}

v1::Event ControlService::new_event() {
  v1::Event event;
  event.set_seq(next_event_++);
  event.set_node(parts_.config.node_id);
  const EventMoment now = event_moment_now();
  stamp(*event.mutable_wall(), now.wall);
  event.set_mono_ns(static_cast<std::uint64_t>(now.mono.count()));
  return event;
}

// A job that is watched by its name is the last word when it has ended.
void ControlService::tell(Watcher& watcher, const v1::Event& event) const {
  const AccessPolicy policy(parts_.config, parts_.agent_uid);
  if (!policy.allows(watcher.caller, Deed::kSee, event.job().uid())) return;
  const bool is_last = !watcher.job.empty() && has_ended(event.job());
  watcher.send(event);
  if (is_last) watcher.finish(grpc::Status::OK);
}

// The jobs that are there, each when the one before was taken: together they may be more than a stream may hold.
void ControlService::give_first(Watcher& watcher) {
  while (watcher.is_open() && watcher.is_idle() && !watcher.to_begin_with.empty()) {
    const v1::Job* job = parts_.jobs.find(watcher.to_begin_with.front());
    watcher.to_begin_with.pop_front();
    if (job == nullptr) continue;
    v1::Event event = new_event();
    *event.mutable_job() = *job;
    tell(watcher, event);
  }
}

void ControlService::on_change(const v1::Job& job) {
  v1::Event event = new_event();
  *event.mutable_job() = job;
  const auto watchers = watchers_;
  for (const auto& watcher : watchers) {
    const bool is_watched = watcher->job.empty() || watcher->job == job.job_uuid();
    const auto& first = watcher->to_begin_with;  // given as it is then
    const bool is_to_come = std::find(first.begin(), first.end(), job.job_uuid()) != first.end();
    if (is_watched && !is_to_come) tell(*watcher, event);
  }
}

void ControlService::close_streams() {
  const grpc::Status status(grpc::StatusCode::UNAVAILABLE, "the agent ends");
  for (const auto& watcher : std::set(watchers_)) watcher->finish(status);
  for (const auto& [followed, job] : log_streams_) {
    const auto stream = followed.lock();
    const v1::Job* known = parts_.jobs.find(job);
    const bool has_all = known != nullptr && has_ended(*known);
    if (stream && !has_all) stream->finish(status);
  }
}

Result<Caller> ControlService::caller_of(const CallIdentity& call) const {
  auto caller = authenticate(call, parts_.tickets, parts_.config, parts_.agent_uid);
  if (!caller) parts_.audit_refusal("refused " + call.peer + ": " + caller.error().message());
  return caller;
}

template <typename Stream>
Result<Caller> ControlService::admit(const CallIdentity& call, Stream& stream) {
  auto caller = caller_of(call);
  if (!caller) return caller;
  const std::string sharer = sharer_of(*caller);
  if (const auto full = streams_.take(sharer)) {
    return Error(ErrorCode::kAgentRefused,
                 "no more streams for " + sharer + ": " + *full,
                 "end some of its `accel watch`, `accel logs` and `accel run`");
  }
  stream.call_when_over([this, sharer] { streams_.give_back(sharer); });
  revocable_.add(*caller, stream);
  return caller;
}

grpc::ServerUnaryReactor* ControlService::answer(
    Context* context, std::function<Result<void>(const Caller&)> handle) {
  return answer_later(context,
                      [handle = std::move(handle)](const Caller& caller, const Finish& finish) {
                        finish(handle(caller));
                      });
}

grpc::ServerUnaryReactor* ControlService::answer_later(
    Context* context, std::function<void(const Caller&, Finish)> handle) {
  auto* reactor = context->DefaultReactor();
  asio::post(
      parts_.loop, [this, reactor, call = identify_call(*context), handle = std::move(handle)] {
        const auto caller = caller_of(call);
        if (!caller) return reactor->Finish(to_status(caller.error()));
        const std::string sharer = sharer_of(*caller);
        const bool has_room = calls_.add(
            sharer,
            [finish = finisher(reactor), caller = *caller, handle](const CallTurns::Over& over) {
              handle(caller, [finish, over](const Result<void>& done) { finish(done); });
            });
        if (!has_room) reactor->Finish(to_status(too_many_calls(sharer)));
      });
  return reactor;
}

Result<const v1::Job*> ControlService::job_for(const Caller& caller,
                                               const std::string& job,
                                               Deed deed) const {
  const AccessPolicy policy(parts_.config, parts_.agent_uid);
  const auto own = caller.role == Role::kLocal ? std::optional<uid_t>(caller.uid) : std::nullopt;
  const auto found = find_named(parts_.jobs.all(), job, own, [&](const v1::Job& each) {
    return policy.allows(caller, Deed::kSee, each.uid());
  });
  if (!found) return found;
  if (!policy.allows(caller, deed, (*found)->uid())) {
    return Error(ErrorCode::kAgentRefused, caller.name + " may look at jobs, not change them");
  }
  return found;
}

void ControlService::find_account(const Caller& caller,
                                  const v1::JobSpec& spec,
                                  const TakeAccount& take) const {
  const UserKey user = caller.role == Role::kLocal ? UserKey(caller.uid) : UserKey(spec.user());
  parts_.users.look_up(
      {user}, [this, caller, spec, take] { take(account_for(caller, spec)); }, 0s);
}

Result<UserAccount> ControlService::account_for(const Caller& caller,
                                                const v1::JobSpec& spec) const {
  const AccessPolicy policy(parts_.config, parts_.agent_uid);
  const bool is_remote = caller.role != Role::kLocal;
  std::string own_name;
  if (!is_remote) {
    const auto own = parts_.users.find(caller.uid);
    if (!own) return own;
    own_name = own->name;
  }
  const auto name = policy.user_for(caller, own_name, spec.user());
  if (!name) return name.error();
  auto account = parts_.users.find(is_remote ? UserKey(*name) : UserKey(caller.uid));
  if (!account) return account;
  if (auto allowed = policy.check_uid(account->credentials.uid, is_remote); !allowed)
    return std::move(allowed).error();
  return account;
}

Result<void> ControlService::start_as(const Caller& caller,
                                      const Result<UserAccount>& account,
                                      const v1::StartReq& request,
                                      v1::Job* job) {
  if (!account) {
    parts_.audit("start refused for " + caller.name + ": " + account.error().message());
    return account.error();
  }
  const auto started = parts_.jobs.start(request.spec(), *account, request.request_id());
  if (!started) return started.error();
  *job = **started;
  parts_.audit("start " + job->job_id() + " as " + account->name + " for " + caller.name);
  return {};
}

grpc::ServerUnaryReactor* ControlService::StartJob(Context* context,
                                                   const v1::StartReq* request,
                                                   v1::Job* job) {
  return answer_later(context, [this, request, job](const Caller& caller, const Finish& finish) {
    const v1::JobSpec& spec = request->spec();
    if (auto checked = check_job_request(spec); !checked) return finish(checked);
    if (spec.min_nodes() > 1 || spec.max_nodes() > 1) return submit(caller, *request, job, finish);
    find_account(caller, spec, [=, this](const Result<UserAccount>& account) {
      finish(start_as(caller, account, *request, job));
    });
  });
}

grpc::ServerUnaryReactor* ControlService::StopJob(Context* context,
                                                  const v1::StopReq* request,
                                                  v1::Job* job) {
  return answer_later(context, [this, request, job](const Caller& caller, const Finish& finish) {
    stop_job(caller, *request, job, finish);
  });
}

void ControlService::stop_job(const Caller& caller,
                              const v1::StopReq& request,
                              v1::Job* job,
                              const Finish& finish) {
  const auto found = job_for(caller, request.job(), Deed::kControl);
  if (!found && may_be_elsewhere(found.error()))
    return stop_elsewhere(caller, request, job, finish);
  if (!found) return finish(found.error());
  const auto grace = grace_of(request);
  if (!grace) return finish(grace.error());
  parts_.audit("stop " + (*found)->job_id() + (request.kill() ? " (kill)" : "") + " for " +
               caller.name);
  parts_.jobs.stop(
      (*found)->job_uuid(),
      {.mode = request.kill() ? supervisor::StopMode::kKill : supervisor::StopMode::kTerminate,
       .signal = request.kill() ? SIGKILL : SIGTERM,
       .grace = grace->value_or(supervisor::Milliseconds(-1))});
  *job = **found;
  finish({});
}

// A second stop of a job of many nodes is no harder than the first.
void ControlService::stop_once(const Caller& caller,
                               const v1::StopReq& request,
                               v1::Job* job,
                               const Finish& finish) {
  const auto found = job_for(caller, request.job(), Deed::kControl);
  if (!found || request.kill() || !parts_.jobs.is_asked_to_stop(**found))
    return stop_job(caller, request, job, finish);
  finish(Error(ErrorCode::kAgentRefused,
               "job '" + (*found)->job_id() +
                   "' is stopping already: nothing was done, since another stop kills its workers",
               "wait for its grace, or ask for SIGKILL"));
}

grpc::ServerUnaryReactor* ControlService::SignalJob(Context* context,
                                                    const v1::SignalReq* request,
                                                    v1::Job* job) {
  return answer_later(context, [this, request, job](const Caller& caller, const Finish& finish) {
    const auto found = job_for(caller, request->job(), Deed::kControl);
    if (!found && may_be_elsewhere(found.error())) {
      return signal_elsewhere(caller, *request, job, finish);
    }
    if (!found) return finish(found.error());
    parts_.audit("signal " + std::to_string(request->signal()) + " to " + (*found)->job_id() +
                 " for " + caller.name);
    *job = **found;
    finish(parts_.jobs.signal((*found)->job_uuid(), request->signal()));
  });
}

void ControlService::add_steps(const v1::Job& known, v1::Job& shown) {
  show_steps(shown, parts_.jobs.counters_of(known));
  parts_.jobs.look_at(known);
}

grpc::ServerUnaryReactor* ControlService::GetJob(Context* context,
                                                 const v1::JobRef* request,
                                                 v1::Job* job) {
  return answer_later(context, [this, request, job](const Caller& caller, const Finish& finish) {
    const auto found = job_for(caller, request->job(), Deed::kSee);
    if (found) {
      *job = **found;
      if (request->with_steps()) add_steps(**found, *job);
      return finish({});
    }
    if (!may_be_elsewhere(found.error())) return finish(found.error());
    find_elsewhere(caller, request->job(), Deed::kSee, [job, finish](Result<v1::Job> elsewhere) {
      if (!elsewhere) return finish(elsewhere.error());
      *job = *std::move(elsewhere);
      finish({});
    });
  });
}

grpc::ServerUnaryReactor* ControlService::ListJobs(Context* context,
                                                   const v1::ListReq* request,
                                                   v1::JobList* list) {
  return answer_later(context, [this, request, list](const Caller& caller, const Finish& finish) {
    const AccessPolicy policy(parts_.config, parts_.agent_uid);
    std::vector<v1::Job> jobs;
    for (const v1::Job* job : parts_.jobs.all()) {
      if (!policy.allows(caller, Deed::kSee, job->uid())) continue;
      jobs.push_back(*job);
      if (request->with_steps()) add_steps(*job, jobs.back());
    }
    list->set_node_id(parts_.config.node_id);
    list->set_draining(parts_.jobs.is_draining());
    if (parts_.cluster == nullptr) {
      fill_page(std::move(jobs), request->after(), *list);
      return finish({});
    }
    join_page(
        std::move(jobs),
        request->after(),
        *list,
        [this, caller](const std::string& after, const TakeJobs& take) {
          list_elsewhere(caller, after, take);
        },
        [finish] { finish({}); });
  });
}

grpc::ServerUnaryReactor* ControlService::GetLedger(Context* context,
                                                    const v1::JobRef* request,
                                                    v1::Ledger* ledger) {
  return answer_later(context, [this, request, ledger](const Caller& caller, const Finish& finish) {
    const auto found = job_for(caller, request->job(), Deed::kSee);
    if (!found && may_be_elsewhere(found.error())) {
      return ledger_elsewhere(caller, request->job(), ledger, finish);
    }
    if (!found) return finish(found.error());
    *ledger = view_of(parts_.jobs.ledger_of(**found), SteadyClock().now());
    ledger->set_job_id((*found)->job_id());
    finish({});
  });
}

grpc::ServerUnaryReactor* ControlService::DrainNode(Context* context,
                                                    const v1::NodeReq* request,
                                                    v1::Done*) {
  return answer(context,
                [this, request](const Caller& caller) { return drain_node(caller, *request); });
}

Result<void> ControlService::drain_node(const Caller& caller, const v1::NodeReq& request) {
  const AccessPolicy policy(parts_.config, parts_.agent_uid);
  if (!policy.allows_operation(caller))
    return Error(ErrorCode::kAgentRefused, caller.name + " may not drain nodes");
  if (!request.node_id().empty() && request.node_id() != parts_.config.node_id) {
    return Error(ErrorCode::kInvalidArgument,
                 "this agent is node '" + parts_.config.node_id + "'",
                 "ask the agent of that node");
  }
  parts_.audit("drain for " + caller.name);
  parts_.jobs.set_draining(true);
  const std::string why = printable(request.reason().substr(0, kMostReason));
  if (request.stop_jobs()) {
    parts_.jobs.stop_all(supervisor::StopMode::kTerminate);
    if (parts_.leave_jobs) parts_.leave_jobs("it is drained" + (why.empty() ? "" : ": " + why));
  }
  if (parts_.drain_mark == nullptr) return {};
  auto kept = parts_.drain_mark->set(why);
  if (kept) return {};
  return Error(kept.error().code(),
               "the node is drained, but will not be after a restart of its agent: " +
                   kept.error().message());
}

grpc::ServerUnaryReactor* ControlService::UndrainNode(Context* context,
                                                      const v1::NodeReq*,
                                                      v1::Done*) {
  return answer(context, [this](const Caller& caller) -> Result<void> {
    const AccessPolicy policy(parts_.config, parts_.agent_uid);
    if (!policy.allows_operation(caller))
      return Error(ErrorCode::kAgentRefused, caller.name + " may not undrain nodes");
    parts_.audit("undrain for " + caller.name);
    if (parts_.drain_mark != nullptr) {
      if (auto removed = parts_.drain_mark->remove(); !removed) return removed;
    }
    parts_.jobs.set_draining(false);
    return {};
  });
}

grpc::ServerWriteReactor<v1::Event>* ControlService::Watch(Context* context,
                                                           const v1::WatchReq* request) {
  auto watcher = std::make_shared<Watcher>(*this, parts_.loop);
  watcher->live_until_done();
  asio::post(parts_.loop, [this, watcher, call = identify_call(*context), wanted = *request] {
    const auto caller = admit(call, *watcher);
    if (!caller) return watcher->finish(to_status(caller.error()));
    watcher->caller = *caller;
    if (!wanted.job().empty()) {
      const auto found = job_for(*caller, wanted.job(), Deed::kSee);
      if (!found && may_be_elsewhere(found.error())) {
        watcher->job = wanted.job();
        return watch_elsewhere(watcher);
      }
      if (!found) return watcher->finish(to_status(found.error()));
      watcher->job = (*found)->job_uuid();
    }
    watchers_.insert(watcher);
    for (const v1::Job* job : parts_.jobs.all()) {
      if (watcher->job.empty() || watcher->job == job->job_uuid())
        watcher->to_begin_with.push_back(job->job_uuid());
    }
    give_first(*watcher);
    if (watcher->job.empty() && parts_.cluster != nullptr) watch_elsewhere(watcher);
  });
  return watcher.get();
}

grpc::ServerWriteReactor<v1::LogChunk>* ControlService::Logs(Context* context,
                                                             const v1::LogReq* request) {
  auto stream = std::make_shared<LogStream>(parts_.loop, parts_.files);
  stream->live_until_done();
  asio::post(parts_.loop, [this, stream, call = identify_call(*context), wanted = *request] {
    const auto caller = admit(call, *stream);
    if (!caller) return stream->finish(to_status(caller.error()));
    std::erase_if(log_streams_, [](const auto& entry) { return entry.first.expired(); });
    auto& [followed, of] = log_streams_.emplace_back(stream, "");
    const auto found = job_for(*caller, wanted.job(), Deed::kSee);
    if (!found && may_be_elsewhere(found.error())) return logs_elsewhere(*caller, wanted, stream);
    if (!found) return stream->finish(to_status(found.error()));
    const v1::Job& job = **found;
    of = job.job_uuid();
    const int num_ranks = parts_.jobs.num_ranks_of(job);
    LogReader::Source source = {
        .folder = parts_.jobs.log_folder_of(job),
        .job_id = job.job_id(),
        .owner = job.uid(),
        .local_ranks = local_ranks(wanted.ranks(), 0, num_ranks),
        .out = wanted.stream() != v1::STREAM_ERR,
        .err = wanted.stream() != v1::STREAM_OUT,
        .from = wanted.from(),
        .first_generation = wanted.follow() ? 0 : static_cast<int>(job.generation()),
        .resume = {wanted.resume().begin(), wanted.resume().end()}};
    if (source.local_ranks.empty()) return stream->finish(to_status(no_such_rank(job, num_ranks)));
    stream->begin(std::move(source), [this, uuid = job.job_uuid(), follow = wanted.follow()] {
      const v1::Job* now = parts_.jobs.find(uuid);
      if (now == nullptr) return LogStream::Standing{.is_last_look = true};
      return LogStream::Standing{.generation = static_cast<int>(now->generation()),
                                 .is_last_look = has_ended(*now) || !follow};
    });
  });
  return stream.get();
}

grpc::ServerWriteReactor<v1::DiagChunk>* ControlService::Diagnose(Context* context,
                                                                  const v1::DiagReq* request) {
  auto stream = std::make_shared<DiagnoseStream>(parts_.loop);
  stream->live_until_done();
  asio::post(parts_.loop, [this, stream, call = identify_call(*context), job = request->job()] {
    const auto caller = admit(call, *stream);
    if (!caller) return stream->finish(to_status(caller.error()));
    diagnose_job(*caller,
                 job,
                 {.take = [stream](v1::DiagChunk chunk) { stream->send(std::move(chunk)); },
                  // Each keeps the other until the stream is over.
                  .begin =
                      [stream](std::shared_ptr<Diagnosis> here) {
                        stream->here = std::move(here);
                        stream->here->next();
                      },
                  .finish =
                      [stream](const Result<void>& done) {
                        stream->finish(done ? grpc::Status::OK : to_status(done.error()));
                      }});
  });
  return stream.get();
}

void ControlService::diagnose_job(const Caller& caller,
                                  const std::string& job,
                                  const DiagnosisTaker& taker) {
  const auto found = job_for(caller, job, Deed::kControl);
  if (!found && may_be_elsewhere(found.error())) return diagnose_elsewhere(caller, job, taker);
  if (!found) return taker.finish(found.error());
  parts_.audit("diagnose " + (*found)->job_id() + " for " + caller.name);
  parts_.jobs.dump_stacks((*found)->job_uuid());
  const auto& workers = (*found)->workers();
  taker.begin(std::make_shared<Diagnosis>(
      parts_.files,
      static_cast<uid_t>((*found)->uid()),
      std::vector<v1::Worker>(workers.begin(), workers.end()),
      Diagnosis::Handlers{.on_chunk = taker.take,
                          .on_end = [finish = taker.finish] { finish({}); }}));
}

}  // namespace accel::agent
