#include "agent/cluster/cluster_service.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include <boost/asio/post.hpp>
#include <xxhash.h>

#include "agent/calls/grpc_status.h"
#include "agent/calls/server_call.h"
#include "agent/cluster/cluster_client.h"
#include "agent/cluster/job_view.h"
#include "agent/jobs/diagnosis.h"
#include "agent/jobs/job_page.h"
#include "agent/jobs/job_request.h"
#include "agent/jobs/named_job.h"
#include "agent/logs/log_stream.h"
#include "agent/rendezvous/job_wire.h"
#include "agent/rendezvous/token_proof.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMostDiagnosis = 512 * 1024;  // bytes of one answer

// Two views that are the same may have two digests: of that nothing worse comes than an answer that could be shorter.
std::uint64_t digest_of(const v1::Job& view) {
  const std::string text = view.SerializeAsString();
  return XXH3_64bits(text.data(), text.size());
}

bool is_owner(const v1::OnBehalf& who, const std::string& user) {
  return who.may_do_all() || (!who.user().empty() && who.user() == user);
}

// Where the agent that asks has decided, or decides, who may see it.
const v1::OnBehalf& everybody() {
  static const v1::OnBehalf all = [] {
    v1::OnBehalf who;
    who.set_may_do_all(true);
    return who;
  }();
  return all;
}

// choose_named() among the jobs of the coordinator.
Result<const Job*> find_job(const State& state, const std::string& job, const v1::OnBehalf& who) {
  std::vector<const Job*> seen;
  std::vector<NamedJob> names;
  for (const auto& [uuid, known] : state.jobs) {
    const JobDescription& description = *known.description;
    if (!is_owner(who, description.user)) continue;
    seen.push_back(&known);
    names.push_back({.uuid = uuid,
                     .name = description.job_id,
                     .user = description.user,
                     .is_own = !who.user().empty() && description.user == who.user(),
                     .has_ended = is_terminal(known.phase),
                     .order = static_cast<std::int64_t>(known.order)});
  }
  const auto chosen = choose_named(names, job);
  if (!chosen) return chosen.error();
  return seen[*chosen];
}

std::string requester_name(const v1::OnBehalf& who) {
  return who.user().empty() ? "an operator" : who.user();
}

}  // namespace

// What a call says about the node that makes it; taken on gRPC's thread.
struct ClusterService::NodeCall {
  CallIdentity identity;
  CallProof proof;
};

ClusterService::ClusterService(Parts parts)
    : parts_(std::move(parts)),
      call_key_(parts_.config.insecure ? call_key(parts_.token_key) : std::string()),
      nonces_(call_key_, parts_.config.listen, SteadyClock().now()),
      calls_(parts_.coordinator_loop, kMostCallsEach),
      followers_(parts_.coordinator_loop,
                 [this]() -> const State* {
                   const CoordinatorHost* const host = parts_.coordinator;
                   return host != nullptr && host->is_leading() ? &host->state() : nullptr;
                 },
                 {}) {}

ClusterService::NodeCall ClusterService::identify(const Context& context) {
  return {identify_call(context),
          {metadata_of(context, kNodeMetadata),
           metadata_of(context, kNonceMetadata),
           metadata_of(context, kToMetadata),
           metadata_of(context, kSentMetadata),
           metadata_of(context, kProofMetadata)}};
}

// Over TLS nobody hears the proof, and clocks differ: there the caller's nonce does.
Result<void> ClusterService::check_proof(const NodeCall& call, const std::string& name) {
  if (!call_key_.empty()) return nonces_.admit(call.proof, SteadyClock().now());
  const auto& [node, nonce, to, sent_at, proof] = call.proof;
  if (parts_.token_key.empty() || is_proof(proof, parts_.token_key, nonce, node, kProofSubject))
    return {};
  return Error(ErrorCode::kAuthentication,
               name + " did not prove the token of the cluster",
               "give both agents the same token_file");
}

Result<Caller> ClusterService::caller_of(const NodeCall& call, Context& context) {
  auto caller = authenticate_remote(call.identity, parts_.config, parts_.agent_uid);
  if (caller && !admits(Place::kClusterCall, caller->role)) {
    caller = Error(ErrorCode::kAgentRefused, caller->name + " has not the role node");
  }
  if (caller) {
    if (auto proved = check_proof(call, caller->name); !proved) caller = proved.error();
  }
  if (caller && !call_key_.empty()) {
    context.AddInitialMetadata(kAnswerMetadata,
                               prove_answer(call_key_, call.proof.nonce, call.proof.node));
  }
  if (!caller)
    parts_.audit_refusal("refused " + call.identity.peer + ": " + caller.error().message());
  return caller;
}

grpc::ServerUnaryReactor* ClusterService::answer_as_node(Context* context, Handle handle) {
  auto* reactor = context->DefaultReactor();
  asio::post(parts_.loop,
             [this, reactor, context, call = identify(*context), handle = std::move(handle)] {
               const auto caller = caller_of(call, *context);
               if (!caller) return reactor->Finish(to_status(caller.error()));
               handle(*caller, finisher(reactor));
             });
  return reactor;
}

grpc::ServerUnaryReactor* ClusterService::answer_as_coordinator(Context* context,
                                                                const std::string& user,
                                                                Handle handle) {
  auto* reactor = context->DefaultReactor();
  asio::post(
      parts_.coordinator_loop,
      [this, reactor, context, user, call = identify(*context), handle = std::move(handle)] {
        const auto caller = caller_of(call, *context);
        if (!caller) return reactor->Finish(to_status(caller.error()));
        const std::string sharer = user.empty() ? caller->name : "user " + user;
        const bool has_room = calls_.add(
            sharer,
            [finish = finisher(reactor), caller = *caller, handle](const CallTurns::Over& over) {
              handle(caller, [finish, over](const Result<void>& done) { finish(done); });
            });
        if (!has_room) reactor->Finish(to_status(too_many_calls(sharer)));
      });
  return reactor;
}

Result<const Job*> ClusterService::job_of(const std::string& job, const v1::OnBehalf& who) const {
  if (parts_.coordinator == nullptr) {
    // By its configuration: to wait does not help.
    return Error(ErrorCode::kAgentRefused,
                 "node '" + parts_.config.node_id + "' does not host the coordinator",
                 "give `coordinator` the `listen` address of the agent that shall host it");
  }
  if (!parts_.coordinator->is_leading()) {
    return Error(ErrorCode::kCoordinatorLost,
                 "node '" + parts_.config.node_id + "' does not lead, or not any more",
                 "try again in some seconds: another agent is being elected");
  }
  return find_job(parts_.coordinator->state(), job, who);
}

Result<const NodeJobs::Part*> ClusterService::part_of(const std::string& job,
                                                      const v1::OnBehalf& who) const {
  const NodeJobs::Part* part = node_ == nullptr ? nullptr : node_->find(job);
  if (part == nullptr || !is_owner(who, part->user.name)) return unknown_job(job);
  return part;
}

// ---- where the coordinator is ----

grpc::ServerUnaryReactor* ClusterService::Submit(Context* context,
                                                 const v1::SubmitReq* request,
                                                 v1::Job* job) {
  return answer_as_coordinator(
      context,
      request->spec().user(),
      [this, request, job](const Caller& caller, const Finish& finish) {
        const v1::JobSpec& spec = request->spec();
        if (parts_.coordinator == nullptr || !parts_.coordinator->is_leading())
          return finish(job_of("", everybody()).error());
        if (auto checked = check_job_request(spec); !checked) return finish(checked);
        if (spec.user().empty() || !is_valid_id(spec.job_uuid()) || !is_valid_id(spec.job_id())) {
          return finish(
              Error(ErrorCode::kInvalidArgument, "a job needs its user, its id and its uuid"));
        }
        parts_.audit("submit " + spec.job_id() + " as " + spec.user() + " for " + caller.name);
        answer_later(spec.job_uuid(), spec.job_uuid(), *job, finish);
        JobDescription description = describe_job(spec);
        description.recruits = true;
        parts_.coordinator->handle(agent::StartJob{.request_id = spec.job_uuid(),
                                                   .job = std::move(description),
                                                   .is_of_operator = request->who().may_do_all()});
      });
}

void ClusterService::answer_later(const std::string& request_id,
                                  const std::string& uuid,
                                  v1::Job& view,
                                  const Finish& finish) {
  waiting_.emplace(request_id, [this, uuid, &view, finish](const Result<void>& accepted) {
    if (!accepted) return finish(accepted);
    const auto made = job_of(uuid, everybody());
    if (!made) return finish(made.error());
    view = view_of(parts_.coordinator->state(), **made);
    finish({});
  });
}

void ClusterService::take_reply(const JobReply& reply) {
  const auto [first, last] = waiting_.equal_range(reply.request_id);
  std::vector<Finish> told;
  for (auto entry = first; entry != last; ++entry) told.push_back(std::move(entry->second));
  waiting_.erase(first, last);
  if (told.empty()) return;
  Result<void> accepted;
  if (!reply.accepted) accepted = Error(ErrorCode::kAgentRefused, reply.message, reply.remedy);
  // The coordinator is still carrying out what it decided.
  asio::post(parts_.coordinator_loop, [told = std::move(told), accepted] {
    for (const auto& tell : told) tell(accepted);
  });
}

void ClusterService::give_up_waiting(const std::string& why) {
  const Error error(ErrorCode::kCoordinatorLost,
                    why + ", and it is open whether that was written down",
                    "ask again: with the same request_id no second job is made");
  for (const auto& [id, tell] : std::exchange(waiting_, {})) tell(error);
  followers_.end(Error(ErrorCode::kCoordinatorLost, why));
}

grpc::ServerUnaryReactor* ClusterService::Jobs(Context* context,
                                               const v1::JobsReq* request,
                                               v1::JobList* list) {
  return answer_as_coordinator(
      context, request->who().user(), [this, request, list](const Caller&, const Finish& finish) {
        if (parts_.coordinator == nullptr || !parts_.coordinator->is_leading())
          return finish(job_of("", everybody()).error());
        const State& state = parts_.coordinator->state();
        if (request->job().empty()) {
          JobPage page(*list);
          auto next = request->after().empty() ? state.jobs.begin()
                                               : state.jobs.upper_bound(request->after());
          for (bool has_room = true; has_room && next != state.jobs.end(); ++next) {
            v1::Job view = view_of(state, next->second);
            view.clear_argv();  // may be long; many must fit
            has_room = page.add(std::move(view));
          }
          return finish({});
        }
        const auto job = job_of(request->job(), request->has_who() ? request->who() : everybody());
        if (!job) return finish(job.error());
        v1::Job view = view_of(state, **job);
        list->set_digest(digest_of(view));
        list->set_is_unchanged(list->digest() == request->known());
        if (!list->is_unchanged()) *list->add_jobs() = std::move(view);
        finish({});
      });
}

grpc::ServerUnaryReactor* ClusterService::Changes(Context* context,
                                                  const v1::ChangesReq* request,
                                                  v1::JobChanges* answer) {
  return answer_as_coordinator(
      context, "", [this, request, answer](const Caller& caller, const Finish& finish) {
        if (parts_.coordinator == nullptr) return finish(job_of("", everybody()).error());
        followers_.ask(caller, *request, *answer, finish);
      });
}

grpc::ServerUnaryReactor* ClusterService::Stop(Context* context,
                                               const v1::StopPartsReq* request,
                                               v1::Job* job) {
  return answer_as_coordinator(
      context,
      request->who().user(),
      [this, request, job](const Caller& caller, const Finish& finish) {
        const auto found = job_of(request->request().job(), request->who());
        if (!found) return finish(found.error());
        const std::string uuid = (*found)->description->job_uuid;
        const bool kill = request->request().kill();
        const auto grace = grace_of(request->request());
        if (!grace) return finish(grace.error());
        parts_.audit("stop " + (*found)->description->job_id + (kill ? " (kill)" : "") + " for " +
                     requester_name(request->who()) + ", " + caller.name);
        // As on one node: who asks a second time means it.
        const bool is_again =
            (*found)->phase == JobPhase::kStopping && (*found)->stop.end == JobPhase::kCancelled;
        const std::string request_id = "stop " + uuid;
        answer_later(request_id, uuid, *job, finish);
        parts_.coordinator->handle(agent::StopJob{
            .job_uuid = uuid, .kill = kill || is_again, .grace = *grace, .request_id = request_id});
      });
}

grpc::ServerUnaryReactor* ClusterService::Scale(Context* context,
                                                const v1::ScalePartsReq* request,
                                                v1::Job* job) {
  return answer_as_coordinator(
      context,
      request->who().user(),
      [this, request, job](const Caller& caller, const Finish& finish) {
        const auto found = job_of(request->request().job(), request->who());
        if (!found) return finish(found.error());
        const auto least = request->request().nodes();
        const auto most =
            request->request().max_nodes() == 0 ? least : request->request().max_nodes();
        constexpr std::uint32_t kMostNodes = 100'000;
        if (least < 1 || most < least || most > kMostNodes) {
          return finish(Error(ErrorCode::kInvalidArgument,
                              "nodes must be 1 <= MIN <= MAX <= 100000, not " +
                                  std::to_string(least) + ":" + std::to_string(most)));
        }
        if (is_terminal((*found)->phase)) {
          return finish(Error(ErrorCode::kInvalidArgument,
                              "job '" + (*found)->description->job_id + "' has ended",
                              "start it again with `accel run`"));
        }
        const std::string uuid = (*found)->description->job_uuid;
        parts_.audit("scale " + (*found)->description->job_id + " to " + std::to_string(least) +
                     ":" + std::to_string(most) + " for " + requester_name(request->who()) + ", " +
                     caller.name);
        parts_.coordinator->handle(agent::ScaleJob{.job_uuid = uuid,
                                                   .min_nodes = static_cast<int>(least),
                                                   .max_nodes = static_cast<int>(most)});
        const auto now = job_of(uuid, everybody());
        if (now) *job = view_of(parts_.coordinator->state(), **now);
        finish({});
      });
}

grpc::ServerUnaryReactor* ClusterService::JobLedger(Context* context,
                                                    const v1::JobRef* request,
                                                    v1::Ledger* ledger) {
  return answer_as_coordinator(
      context, {}, [this, request, ledger](const Caller&, const Finish& finish) {
        const auto job = job_of(request->job(), everybody());
        if (!job) return finish(job.error());
        *ledger = view_of((*job)->ledger, SteadyClock().now());
        ledger->set_job_id((*job)->description->job_id);
        finish({});
      });
}

// ---- this node's parts ----

grpc::ServerUnaryReactor* ClusterService::PartSignal(Context* context,
                                                     const v1::PartSignalReq* request,
                                                     v1::Done*) {
  return answer_as_node(context, [this, request](const Caller& caller, const Finish& finish) {
    const auto part = part_of(request->request().job(), request->who());
    if (!part) return finish(part.error());
    const int signal = request->request().signal();
    if (signal < 1 || signal >= NSIG) {
      return finish(Error(ErrorCode::kInvalidArgument,
                          "signal " + std::to_string(signal) + " does not exist"));
    }
    parts_.audit("signal " + std::to_string(signal) + " to " + (*part)->spec.job_id() + " for " +
                 requester_name(request->who()) + ", " + caller.name);
    node_->signal(**part, signal);
    finish({});
  });
}

void ClusterService::diagnose_into(v1::DiagReport& report,
                                   uid_t user,
                                   std::vector<v1::Worker> workers,
                                   const Finish& finish) {
  // It is there for as long as it has a next worker to look at.
  const auto self = std::make_shared<std::weak_ptr<Diagnosis>>();
  const auto room = std::make_shared<std::size_t>(kMostDiagnosis);
  const auto diagnosis = std::make_shared<Diagnosis>(
      parts_.files,
      user,
      std::move(workers),
      Diagnosis::Handlers{.on_chunk =
                              [&report, self, room](v1::DiagChunk chunk) {
                                if (chunk.text().size() > *room)
                                  chunk.set_text("left out: the report is full\n");
                                *room -= std::min(*room, chunk.text().size());
                                *report.add_chunks() = std::move(chunk);
                                self->lock()->next();
                              },
                          .on_end = [finish] { finish({}); }});
  *self = diagnosis;
  diagnosis->next();
}

grpc::ServerUnaryReactor* ClusterService::PartDiagnose(Context* context,
                                                       const v1::PartDiagReq* request,
                                                       v1::DiagReport* report) {
  return answer_as_node(context, [this, request, report](const Caller&, const Finish& finish) {
    const auto part = part_of(request->request().job(), request->who());
    if (!part) return finish(part.error());
    node_->dump_stacks(**part);
    std::vector<v1::Worker> workers;
    if ((*part)->workers) {
      const auto& pids = (*part)->workers->pids();
      for (std::size_t rank = 0; rank < pids.size(); ++rank) {
        v1::Worker& worker = workers.emplace_back();
        worker.set_rank(static_cast<std::uint32_t>((*part)->first_rank) +
                        static_cast<std::uint32_t>(rank));
        worker.set_local_rank(static_cast<std::uint32_t>(rank));
        worker.set_pid(pids[rank]);
      }
    }
    diagnose_into(*report, (*part)->user.credentials.uid, std::move(workers), finish);
  });
}

grpc::ServerWriteReactor<v1::LogChunk>* ClusterService::PartLogs(Context* context,
                                                                 const v1::PartLogsReq* request) {
  auto stream = std::make_shared<LogStream>(parts_.loop, parts_.files);
  stream->live_until_done();
  asio::post(parts_.loop, [this, stream, context, call = identify(*context), wanted = *request] {
    const auto caller = caller_of(call, *context);
    if (!caller) return stream->finish(to_status(caller.error()));
    revocable_.add(*caller, *stream);
    const v1::LogReq& ask = wanted.request();
    const auto found = part_of(ask.job(), wanted.who());
    if (!found) return stream->finish(to_status(found.error()));
    const NodeJobs::Part& part = **found;
    LogReader::Source source = {
        .folder = node_->options().log_dir + "/" + std::to_string(part.user.credentials.uid),
        .job_id = part.spec.job_id(),
        .owner = part.user.credentials.uid,
        .local_ranks = {},
        .out = ask.stream() != v1::STREAM_ERR,
        .err = ask.stream() != v1::STREAM_OUT,
        .from = ask.from(),
        .first_generation =
            static_cast<int>(ask.follow() ? wanted.from_generation() : part.generation)};
    const int num_ranks = static_cast<int>(std::max(1U, part.spec.procs_per_node()));
    source.local_ranks = local_ranks(ask.ranks(), part.first_rank, num_ranks);
    if (source.local_ranks.empty()) return stream->finish(grpc::Status::OK);
    const std::string uuid = part.spec.job_uuid();
    stream->begin(std::move(source), [this, uuid, follow = ask.follow()] {
      const NodeJobs::Part* now = node_ == nullptr ? nullptr : node_->find(uuid);
      if (now == nullptr) return LogStream::Standing{.is_last_look = true};
      return LogStream::Standing{.generation = static_cast<int>(now->generation),
                                 .first_rank = now->first_rank,
                                 .is_last_look = now->has_ended || !follow};
    });
  });
  return stream.get();
}

}  // namespace accel::agent
