// The Control service on jobs of many nodes: the caller is identified here, the coordinator and the other agents are
// asked on its behalf.

#include <algorithm>
#include <chrono>
#include <set>

#include "agent/calls/grpc_status.h"
#include "agent/cluster/cluster_client.h"
#include "agent/cluster/cluster_logs.h"
#include "agent/control/control_streams.h"
#include "agent/jobs/job_request.h"
#include "agent/rendezvous/token_proof.h"

namespace accel::agent {
namespace {

// No account of this node: nobody here but root and operators may see the job.
constexpr std::uint32_t kNobodysUid = 0xFFFF'FFFF;
constexpr std::chrono::seconds kLookAgain{1};  // for a job to watch, while nobody answers
constexpr int kMostDiagnosed = 48;             // nodes: each may answer with 512 KiB
constexpr const char* kUsersMissing =
    "jobs of many nodes may be missing: the user database does not answer for all of their users";

Error users_silent(const std::string& job) {
  return Error(ErrorCode::kAgentRefused,
               "the user database does not answer, so it is not known whose job '" + job + "' is",
               "see whether `getent passwd` answers on this node, and try again");
}

// The same request again must give the same job, whichever way it comes.
std::string make_uuid(const std::string& user, const std::string& request_id) {
  if (request_id.empty()) return to_hex(random_bytes(16));
  return to_hex(token_key(user + '\0' + request_id)).substr(0, 32);
}

v1::Event missing_jobs(v1::Event event, const Error& error) {
  event.set_notice("jobs of many nodes are missing: " + error.message());
  return event;
}

}  // namespace

// A caller who asks again may see it when it is known whose it is.
Error ControlService::not_seen(const v1::Job& job) const {
  if (parts_.users.has_answer(job.user())) return unknown_job(job.job_id());
  return users_silent(job.job_id());
}

void ControlService::fill_uid(v1::Job& job) const {
  const auto owner = parts_.users.find(job.user());
  job.set_uid(owner ? owner->credentials.uid : kNobodysUid);
}

bool ControlService::may_be_elsewhere(const Error& error) const {
  return parts_.cluster != nullptr && error.code() == ErrorCode::kJobUnknown;
}

v1::OnBehalf ControlService::behalf_of(const Caller& caller) const {
  v1::OnBehalf who;
  const AccessPolicy policy(parts_.config, parts_.agent_uid);
  who.set_may_do_all(policy.allows_operation(caller));
  if (caller.role != Role::kLocal) return who;
  const auto own = parts_.users.find(caller.uid);
  if (own) who.set_user(own->name);
  return who;
}

// The accounts of the caller and of the job's user are known when `done` is called.
void ControlService::find_elsewhere(const Caller& caller,
                                    const std::string& job,
                                    Deed deed,
                                    std::function<void(Result<v1::Job>)> done) const {
  const auto take = [this, caller, deed, done](v1::Job found) {
    fill_uid(found);
    const AccessPolicy policy(parts_.config, parts_.agent_uid);
    if (!policy.allows(caller, Deed::kSee, found.uid())) return done(not_seen(found));
    if (!policy.allows(caller, deed, found.uid())) {
      return done(
          Error(ErrorCode::kAgentRefused, caller.name + " may look at jobs, not change them"));
    }
    done(std::move(found));
  };
  ask_for(caller, job, [this, job, take, done](const Result<v1::JobsReq>& request) {
    if (!request) return done(request.error());
    parts_.cluster->jobs(*request, [this, job, take, done](const Result<v1::JobList>& list) {
      if (!list) return done(list.error());
      if (list->jobs_size() != 1) return done(unknown_job(job));
      const UserKey owner = list->jobs(0).user();
      parts_.users.look_up({owner}, [take, found = list->jobs(0)] { take(found); });
    });
  });
}

// A name is one of the caller's own, where it has names of its own.
void ControlService::ask_for(const Caller& caller,
                             const std::string& job,
                             std::function<void(const Result<v1::JobsReq>&)> ask) const {
  std::vector<UserKey> users;
  if (caller.role == Role::kLocal) users.emplace_back(caller.uid);
  parts_.users.look_up(users, [this, caller, job, ask = std::move(ask)] {
    v1::JobsReq request;
    request.set_job(job);
    *request.mutable_who() = behalf_of(caller);
    if (caller.role != Role::kLocal)
      request.mutable_who()->set_may_do_all(true);  // as a viewer may
    const bool is_known = request.who().may_do_all() || parts_.users.has_answer(caller.uid);
    if (is_known || job.empty()) return ask(request);
    ask(users_silent(job));
  });
}

void ControlService::submit(const Caller& caller,
                            const v1::StartReq& request,
                            v1::Job* job,
                            const Finish& finish) {
  if (parts_.cluster == nullptr) {
    return finish(Error(ErrorCode::kAgentRefused,
                        "this agent knows no coordinator: it runs jobs on one node alone",
                        "set `coordinator` in the configuration of every agent"));
  }
  find_account(caller, request.spec(), [=, this, &request](const Result<UserAccount>& account) {
    submit_as(caller, account, request, job, finish);
  });
}

void ControlService::submit_as(const Caller& caller,
                               Result<UserAccount> account,
                               const v1::StartReq& request,
                               v1::Job* job,
                               const Finish& finish) {
  const AccessPolicy policy(parts_.config, parts_.agent_uid);
  if (account) {
    auto allowed = policy.check_cluster_user(account->name, account->credentials.uid);
    if (!allowed) account = std::move(allowed).error();
  }
  if (!account) {
    parts_.audit("submit refused for " + caller.name + ": " + account.error().message());
    return finish(account.error());
  }
  v1::SubmitReq submit;
  v1::JobSpec& spec = *submit.mutable_spec();
  spec = request.spec();
  // Whatever the caller wrote there: this agent vouches for the user that it saw.
  spec.set_user(account->name);
  *submit.mutable_who() = behalf_of(caller);
  spec.set_job_uuid(make_uuid(account->name, request.request_id()));
  if (spec.job_id().empty()) spec.set_job_id(make_job_id(spec));
  if (parts_.jobs.find(spec.job_id(), account->credentials.uid) != nullptr) {
    return finish(Error(ErrorCode::kInvalidArgument,
                        "there is a job '" + spec.job_id() + "' already",
                        "choose another --name"));
  }
  spec.set_min_nodes(std::max(1U, spec.min_nodes()));
  spec.set_max_nodes(std::max(spec.min_nodes(), spec.max_nodes()));
  spec.set_procs_per_node(std::max(1U, spec.procs_per_node()));
  parts_.audit("submit " + spec.job_id() + " as " + account->name + " for " + caller.name);
  parts_.cluster->submit(submit, [this, job, finish](Result<v1::Job> made) {
    if (!made) return finish(made.error());
    *job = *std::move(made);
    fill_uid(*job);
    finish({});
  });
}

// One page of the coordinator's for one of ours.
void ControlService::list_elsewhere(const Caller& caller,
                                    const std::string& after,
                                    const TakeJobs& done) const {
  ask_for(caller, "", [this, caller, after, done](const Result<v1::JobsReq>& asked) {
    if (!asked) return done(asked.error());
    v1::JobsReq request = *asked;
    request.set_after(after);
    parts_.cluster->page_of_jobs(request, [this, caller, done](const Result<v1::JobList>& page) {
      page ? take_page(caller, *page, done) : done(page.error());
    });
  });
}

void ControlService::take_page(const Caller& caller,
                               const v1::JobList& page,
                               const TakeJobs& done) const {
  std::set<UserKey> users;
  for (const v1::Job& job : page.jobs()) users.insert(job.user());
  parts_.users.look_up({users.begin(), users.end()}, [this, caller, done, page] {
    const AccessPolicy policy(parts_.config, parts_.agent_uid);
    JobsElsewhere seen = {
        .jobs = {},
        .last = page.jobs().empty() ? "" : page.jobs().rbegin()->job_uuid(),
        .more = page.more(),
        .notice = {},
    };
    for (v1::Job job : page.jobs()) {
      fill_uid(job);
      if (policy.allows(caller, Deed::kSee, job.uid())) {
        seen.jobs.push_back(std::move(job));
      } else if (!parts_.users.has_answer(job.user())) {
        seen.notice = kUsersMissing;
      }
    }
    done(seen);
  });
}

void ControlService::stop_elsewhere(const Caller& caller,
                                    const v1::StopReq& request,
                                    v1::Job* job,
                                    const Finish& finish) {
  find_elsewhere(caller,
                 request.job(),
                 Deed::kControl,
                 [this, caller, job, finish, request](const Result<v1::Job>& found) {
                   if (!found) return finish(found.error());
                   parts_.audit("stop " + found->job_id() + (request.kill() ? " (kill)" : "") +
                                " for " + caller.name);
                   v1::StopPartsReq stop;
                   *stop.mutable_who() = behalf_of(caller);
                   *stop.mutable_request() = request;
                   stop.mutable_request()->set_job(found->job_uuid());
                   parts_.cluster->stop(stop, [this, job, finish](Result<v1::Job> stopped) {
                     if (!stopped) return finish(stopped.error());
                     *job = *std::move(stopped);
                     fill_uid(*job);
                     finish({});
                   });
                 });
}

void ControlService::scale_elsewhere(const Caller& caller,
                                     const v1::ScaleReq& request,
                                     v1::Job* job,
                                     const Finish& finish) {
  find_elsewhere(caller,
                 request.job(),
                 Deed::kControl,
                 [this, caller, job, finish, request](const Result<v1::Job>& found) {
                   if (!found) return finish(found.error());
                   parts_.audit("scale " + found->job_id() + " for " + caller.name);
                   v1::ScalePartsReq scale;
                   *scale.mutable_who() = behalf_of(caller);
                   *scale.mutable_request() = request;
                   scale.mutable_request()->set_job(found->job_uuid());
                   parts_.cluster->scale(scale, [this, job, finish](Result<v1::Job> scaled) {
                     if (!scaled) return finish(scaled.error());
                     *job = *std::move(scaled);
                     fill_uid(*job);
                     finish({});
                   });
                 });
}

grpc::ServerUnaryReactor* ControlService::ScaleJob(Context* context,
                                                   const v1::ScaleReq* request,
                                                   v1::Job* job) {
  return answer_later(context, [this, request, job](const Caller& caller, const Finish& finish) {
    const auto found = job_for(caller, request->job(), Deed::kControl);
    if (!found && may_be_elsewhere(found.error())) {
      return scale_elsewhere(caller, *request, job, finish);
    }
    if (!found) return finish(found.error());
    finish(Error(ErrorCode::kInvalidArgument,
                 "job '" + (*found)->job_id() + "' runs on one node",
                 "submit it with `accel run --nnodes MIN:MAX`"));
  });
}

// Each node is asked; the first that cannot is the answer.
void ControlService::signal_elsewhere(const Caller& caller,
                                      const v1::SignalReq& request,
                                      v1::Job* job,
                                      const Finish& finish) {
  find_elsewhere(
      caller,
      request.job(),
      Deed::kControl,
      [this, caller, job, finish, number = request.signal()](const Result<v1::Job>& found) {
        if (!found) return finish(found.error());
        parts_.audit("signal " + std::to_string(number) + " to " + found->job_id() + " for " +
                     caller.name);
        *job = *found;
        struct Round {
          int num_waiting = 1;
          Result<void> result;
        };
        auto round = std::make_shared<Round>();
        const auto done_one = [round, finish] {
          if (--round->num_waiting == 0) finish(round->result);
        };
        v1::PartSignalReq part;
        *part.mutable_who() = behalf_of(caller);
        part.mutable_request()->set_job(found->job_uuid());
        part.mutable_request()->set_signal(number);
        for (const v1::JobNode& node : found->nodes()) {
          if (node.is_gone() || node.endpoint().empty()) continue;
          ++round->num_waiting;
          parts_.cluster->signal(
              node.endpoint(),
              part,
              [round, done_one, id = node.node_id()](const Result<v1::Done>& done) {
                if (!done && round->result) {
                  round->result =
                      Error(done.error().code(), "node " + id + ": " + done.error().message());
                }
                done_one();
              });
        }
        done_one();
      });
}

void ControlService::ledger_elsewhere(const Caller& caller,
                                      const std::string& job,
                                      v1::Ledger* ledger,
                                      const Finish& finish) {
  find_elsewhere(caller, job, Deed::kSee, [this, ledger, finish](const Result<v1::Job>& found) {
    if (!found) return finish(found.error());
    v1::JobRef ref;
    ref.set_job(found->job_uuid());
    parts_.cluster->ledger(ref, [ledger, finish](Result<v1::Ledger> told) {
      if (!told) return finish(told.error());
      *ledger = *std::move(told);
      finish({});
    });
  });
}

// The nodes are asked at once; what they say comes in the order of their answers.
void ControlService::diagnose_elsewhere(const Caller& caller,
                                        const std::string& job,
                                        const DiagnosisTaker& taker) {
  find_elsewhere(caller, job, Deed::kControl, [this, caller, taker](const Result<v1::Job>& found) {
    if (!found) return taker.finish(found.error());
    parts_.audit("diagnose " + found->job_id() + " for " + caller.name);
    const auto num_waiting = std::make_shared<int>(1);
    const auto say = [taker](const std::string& title, const std::string& text) {
      v1::DiagChunk chunk;
      chunk.set_title(title);
      chunk.set_text(text);
      taker.take(std::move(chunk));
    };
    const auto done_one = [taker, num_waiting] {
      if (--*num_waiting == 0) taker.finish({});
    };
    v1::PartDiagReq part;
    *part.mutable_who() = behalf_of(caller);
    part.mutable_request()->set_job(found->job_uuid());
    int num_asked = 0;
    for (const v1::JobNode& node : found->nodes()) {
      const std::string title = "node " + node.node_id();
      if (node.is_gone() || node.endpoint().empty()) {
        say(title, node.is_gone() ? "is gone\n" : "its agent listens nowhere\n");
        continue;
      }
      if (++num_asked > kMostDiagnosed) continue;
      ++*num_waiting;
      parts_.cluster->diagnose(
          node.endpoint(), part, [say, done_one, title](const Result<v1::DiagReport>& report) {
            if (!report) say(title, report.error().message() + "\n");
            if (report && report->chunks().empty()) say(title, "no worker runs there now\n");
            for (int i = 0; report && i < report->chunks_size(); ++i)
              say(title + ", " + report->chunks(i).title(), report->chunks(i).text());
            done_one();
          });
    }
    if (num_asked > kMostDiagnosed) {
      say("other nodes",
          "only " + std::to_string(kMostDiagnosed) + " of " + std::to_string(num_asked) +
              " nodes are asked\n");
    }
    done_one();
  });
}

void ControlService::take_watched(const std::shared_ptr<Watcher>& watcher, v1::Job job) {
  fill_uid(job);
  const AccessPolicy policy(parts_.config, parts_.agent_uid);
  const bool is_meant = !watcher->job.empty();
  if (is_meant && !policy.allows(watcher->caller, Deed::kSee, job.uid()))
    return watcher->finish(to_status(not_seen(job)));
  v1::Event event = new_event();
  *event.mutable_job() = std::move(job);
  tell(*watcher, event);
}

// A job that is named is looked for first, for as long as nobody answers; then it is followed by its uuid.
void ControlService::watch_elsewhere(const std::shared_ptr<Watcher>& watcher) {
  watchers_.insert(watcher);
  if (watcher->job.empty()) return follow_elsewhere(watcher, {});
  find_elsewhere(watcher->caller,
                 watcher->job,
                 Deed::kSee,
                 [this, weak = std::weak_ptr(watcher)](const Result<v1::Job>& job) {
                   const auto to = weak.lock();
                   if (!to || !to->is_open()) return;
                   if (job) return follow_elsewhere(to, *job);
                   if (job.error().code() != ErrorCode::kCoordinatorLost)
                     return to->finish(to_status(job.error()));
                   if (!to->pause) to->send(missing_jobs(new_event(), job.error()));
                   to->pause.emplace(parts_.loop, kLookAgain);
                   to->pause->async_wait([this, weak](const boost::system::error_code& error) {
                     const auto again = weak.lock();
                     if (!error && again && again->is_open()) watch_elsewhere(again);
                   });
                 });
}

void ControlService::follow_elsewhere(const std::shared_ptr<Watcher>& watcher, const v1::Job& job) {
  const auto weak = std::weak_ptr(watcher);
  watcher->cluster = parts_.cluster_watch->follow(
      job.job_uuid(),
      {.on_job =
           [this, weak, argv = job.argv()](v1::Job now) {
             *now.mutable_argv() = argv;
             const UserKey user = now.user();
             parts_.users.look_up({user}, [this, weak, now = std::move(now)] {
               if (const auto to = weak.lock()) take_watched(to, now);
             });
           },
       .on_gone =
           [weak, uuid = job.job_uuid()] {
             if (const auto to = weak.lock()) to->finish(to_status(unknown_job(uuid)));
           },
       .on_error =
           [this, weak](const Error& error) {
             if (const auto to = weak.lock()) to->send(missing_jobs(new_event(), error));
           }});
}

void ControlService::logs_elsewhere(const Caller& caller,
                                    const v1::LogReq& request,
                                    const std::shared_ptr<LogStream>& stream) {
  find_elsewhere(
      caller,
      request.job(),
      Deed::kSee,
      [this, caller, request, stream](const Result<v1::Job>& found) {
        if (!found) return stream->finish(to_status(found.error()));
        v1::PartLogsReq parts;
        *parts.mutable_who() = behalf_of(caller);
        // Who may see the job was decided here; the nodes know users, not viewers.
        parts.mutable_who()->set_may_do_all(true);
        *parts.mutable_request() = request;
        parts.mutable_request()->clear_resume();  // places on one node
        parts.mutable_request()->set_job(found->job_uuid());
        std::make_shared<ClusterLogs>(
            parts_.loop, *parts_.cluster, *parts_.cluster_watch, stream, std::move(parts))
            ->begin(*found);
      });
}

}  // namespace accel::agent
