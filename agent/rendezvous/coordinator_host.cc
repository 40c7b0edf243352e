#include "agent/rendezvous/coordinator_host.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>

#include <boost/asio/post.hpp>

#include "agent/access/ticket_book.h"
#include "agent/calls/grpc_status.h"
#include "agent/calls/queued_stream.h"
#include "agent/rendezvous/clock_skew.h"
#include "agent/rendezvous/job_wire.h"
#include "agent/rendezvous/session_client.h"
#include "agent/rendezvous/token_proof.h"
#include "agent/rendezvous/wire.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMaxQueuedMessages = 256;
constexpr std::size_t kMaxProofs = 65'536;
constexpr std::chrono::milliseconds kHostTick{10};

double draw_chance() {
  static std::mt19937_64 generator{std::random_device{}()};
  return std::uniform_real_distribution<double>(0, 1)(generator);
}

// Of its node, which it speaks for.
bool has_certificate(const Caller& caller) {
  return caller.name.starts_with("accel://");
}

// The job that a message is about; empty: none.
std::string job_of(const v1::AgentMsg& message) {
  switch (message.m_case()) {
    case v1::AgentMsg::kJoin:
      return message.join().job_uuid();
    case v1::AgentMsg::kReady:
      return message.ready().job_uuid();
    case v1::AgentMsg::kWorker:
      return message.worker().job_uuid();
    case v1::AgentMsg::kStopped:
      return message.stopped().job_uuid();
    case v1::AgentMsg::kLeave:
      return message.leave().job_uuid();
    case v1::AgentMsg::kAlarm:
      return message.alarm().job_uuid();
    case v1::AgentMsg::kDecline:
      return "";  // takes no part: nothing to prove
    default:
      return "";
  }
}

}  // namespace

class CoordinatorHost::Stream final
    : public QueuedStream<grpc::ServerBidiReactor<v1::AgentMsg, v1::CoordMsg>, v1::CoordMsg> {
 public:
  Stream(CoordinatorHost& host, asio::io_context& loop)
      : QueuedStream(loop, kMaxQueuedMessages), specs(host.packer_), host_(host) {}

  // The next message is read only when the one before it was handled: a flood waits in the kernel.
  void OnReadDone(bool ok) override {
    post([ok](auto& self) {
      auto& stream = static_cast<Stream&>(self);
      if (!ok) return stream.finish(grpc::Status::OK);
      if (!stream.is_open()) return;
      stream.host_.take(stream, stream.incoming_);
      if (stream.is_open()) stream.StartRead(&stream.incoming_);
    });
  }
  void begin() { StartRead(&incoming_); }

  // Our proof of the token goes with the first message after the Hello, whatever that is.
  void send(v1::CoordMsg message) {
    if (!proof.empty()) message.set_token_proof(std::exchange(proof, {}));
    QueuedStream::send(std::move(message));
  }

  ConnectionId id = 0;
  std::string nonce = random_bytes(kNonceBytes);
  std::string proof;    // not sent yet
  std::string session;  // of its Hello
  bool was_refused = false;
  std::string node_id;  // of its Hello
  ClockSkew clock;
  Caller caller;
  SpecsSent specs;
  bool takes_digests = false;  // as its Hello says

 private:
  void on_closed() override {
    if (id == 0 || host_.sessions_.erase(id) == 0) return;
    host_.tell_if_stranger(*this);
    host_.handle(ConnectionLost{id});
  }

  CoordinatorHost& host_;
  v1::AgentMsg incoming_;
};

CoordinatorHost::CoordinatorHost(asio::io_context& loop, CoordinatorHostOptions options)
    : loop_(loop), options_(std::move(options)), timer_(loop) {
  Step founded = found(options_.epoch, options_.config, SteadyClock().now());
  state_ = std::move(founded.state);
  carry_out(std::move(founded.actions));
  schedule_tick();
}

CoordinatorHost::~CoordinatorHost() = default;

// ---- who leads ----

void CoordinatorHost::lead(Reign reign) {
  end_sessions("the coordinator begins anew");
  retire_writer();
  is_leading_ = true;
  leader_ = {};
  term_ = std::move(reign.term);
  state_ = std::move(reign.beginning.state);
  if (reign.store) writer_ = std::make_unique<RecordWriter>(loop_, std::move(reign.store));
  carry_out(std::move(reign.beginning.actions));
  schedule_tick();
}

void CoordinatorHost::follow(Leader leader) {
  leader_ = std::move(leader);
  if (!is_leading_) return;
  is_leading_ = false;
  timer_.cancel();
  wakes_at_ = TimePoint::max();
  retire_writer();
  state_ = State{};
  term_.reset();
  end_sessions("this agent does not lead any more");
}

void CoordinatorHost::end_revoked(const RevocationList& revoked) {
  const auto sessions = sessions_;
  for (const auto& [id, stream] : sessions) {
    const Caller& caller = stream->caller;
    if (caller.certificate.empty() || !revoked.contains(caller.certificate)) continue;
    const Error why = revoked_error(caller.name);
    options_.audit("ended a session: " + why.message());
    stream->finish(to_status(why));
  }
}

// A write may be under way, for as long as its disk takes.
void CoordinatorHost::retire_writer() {
  is_unwritable_ = false;
  if (!writer_) return;
  const std::shared_ptr<RecordWriter> writer = std::move(writer_);
  retired_.insert(writer);
  writer->close([this, old = std::weak_ptr(writer)] { retired_.erase(old.lock()); });
}

void CoordinatorHost::end_sessions(const std::string& why) {
  proved_.clear();
  for (const auto& [id, stream] : std::exchange(sessions_, {})) {
    stream->finish({grpc::StatusCode::UNAVAILABLE, why});
  }
}

void CoordinatorHost::keep(const Persist& persist) {
  writer_->write(
      persist.record,
      persist.sync,
      [this, ticket = persist.ticket, key = persist.record.key](const Result<void>& written) {
        if (!written && written.error().code() == ErrorCode::kLeadershipLost) {
          follow({});
          if (options_.deposed) options_.deposed(written.error().message());
          return;
        }
        if (!written && !is_unwritable_)
          options_.audit("record " + key + " cannot be written: " + written.error().message());
        is_unwritable_ = !written;
        handle(Persisted{.ticket = ticket, .ok = written.has_value()});
      });
}

// ---- events and actions ----

void CoordinatorHost::handle(decltype(Event::what) what) {
  // A process that was stopped for a while wakes up here: what it knows may be old, and somebody else may lead.
  if (!is_leading()) return;
  Step next = step(std::move(state_),
                   {.at = SteadyClock().now(), .chance = draw_chance(), .what = std::move(what)});
  state_ = std::move(next.state);
  carry_out(std::move(next.actions));
  schedule_tick();
}

void CoordinatorHost::carry_out(Actions actions) {
  std::vector<std::uint64_t> written;
  std::optional<std::string> deposed_by;
  if (options_.changed && !only_answers_beats(actions)) options_.changed();
  for (Action& action : actions) {
    if (auto* send = std::get_if<Send>(&action)) {
      const auto stream = sessions_.find(send->connection);
      if (stream == sessions_.end()) continue;
      SpecsSent* const specs = stream->second->takes_digests ? &stream->second->specs : nullptr;
      v1::CoordMsg message = to_proto(send->message, specs);
      if (message.has_welcome()) {
        message.mutable_welcome()->set_nonce(stream->second->nonce);
        message.mutable_welcome()->set_num_nodes(static_cast<std::uint32_t>(state_.nodes.size()));
      }
      stream->second->send(std::move(message));
    } else if (const auto* close = std::get_if<CloseConnection>(&action)) {
      const auto stream = sessions_.find(close->connection);
      if (stream != sessions_.end()) stream->second->finish(grpc::Status::OK);
    } else if (const auto* persist = std::get_if<Persist>(&action)) {
      if (writer_) {
        keep(*persist);
      } else {
        written.push_back(persist->ticket);
      }
    } else if (const auto* report = std::get_if<Report>(&action)) {
      options_.report(*report);
      if (report->kind == ReportKind::kOutdated && options_.deposed) deposed_by = report->text;
    } else if (const auto* reply = std::get_if<JobReply>(&action)) {
      if (!reply->accepted)
        options_.audit("job " + reply->job_uuid + " refused: " + reply->message);
      if (options_.reply) options_.reply(*reply);
    }
  }
  if (deposed_by) {
    follow({});
    return options_.deposed(*deposed_by);
  }
  for (const std::uint64_t ticket : written) handle(Persisted{.ticket = ticket, .ok = true});
}

void CoordinatorHost::schedule_tick() {
  if (!is_leading_) return;
  // The nearest moment is found by looking at every node, and with thousands of them an event comes every fraction of a
  // millisecond. So one look serves all events of the next kHostTick.
  const TimePoint now = SteadyClock().now();
  const TimePoint next_look = looked_at_ + kHostTick;
  if (now < next_look) {
    if (wakes_at_ > next_look) wake_at(next_look);
    return;
  }
  looked_at_ = now;
  wake_at(next_wake(state_));
}

void CoordinatorHost::wake_at(TimePoint at) {
  wakes_at_ = at;
  timer_.expires_at(at);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    wakes_at_ = TimePoint::max();
    const TimePoint now = SteadyClock().now();
    if (next_wake(state_) <= now) return handle(Tick{});
    looked_at_ = TimePoint{};
    schedule_tick();
  });
}

void CoordinatorHost::close() {
  is_leading_ = false;  // the nodes are not lost: their sessions end because it does
  timer_.cancel();
  const auto sessions = sessions_;
  for (const auto& [id, stream] : sessions) {
    stream->finish({grpc::StatusCode::UNAVAILABLE, kCoordinatorEnds});
  }
}

// ---- what comes in ----

// A node that another token was given to does not believe us, and goes.
void CoordinatorHost::tell_if_stranger(const Stream& stream) const {
  const bool is_asked = options_.place == Place::kJobSession && !options_.token_key.empty();
  if (is_asked && is_leading_ && !stream.was_refused && !stream.node_id.empty() &&
      !has_proved(stream.session))
    options_.audit(stream.caller.name + ": node '" + stream.node_id +
                   "' went, and did not prove the token of the job");
}

void CoordinatorHost::refuse(Stream& stream, v1::RefusalCode code, const std::string& why) {
  stream.was_refused = true;
  options_.audit("refused " + stream.caller.name + ": " + why);
  v1::CoordMsg message;
  message.mutable_refused()->set_code(code);
  message.mutable_refused()->set_message(why);
  stream.send(std::move(message));
  stream.finish({grpc::StatusCode::UNAUTHENTICATED, why});
}

bool CoordinatorHost::has_proved(const SessionId& session) const {
  const auto proved = proved_.lower_bound({session, ""});
  return proved != proved_.end() && proved->first == session;
}

// Who leads is not for strangers to say.
bool CoordinatorHost::is_known(const Stream& stream, const SessionId& session) const {
  return options_.token_key.empty() || has_certificate(stream.caller) || has_proved(session);
}

// A session that has proved a job's token once is believed: its id is 128 random bits that only it knows.
bool CoordinatorHost::is_proved(Stream& stream, const v1::AgentMsg& message) {
  const std::string job = job_of(message);
  if (options_.token_key.empty() || job.empty()) return true;
  const auto key = std::pair(message.fence().session_id(), job);
  if (message.has_join()) {
    const bool is_good = is_proof(
        message.join().token_proof(), options_.token_key, stream.nonce, stream.node_id, job);
    if (is_good && proved_.size() < kMaxProofs) proved_.insert(key);
    return is_good;
  }
  return proved_.contains(key);
}

void CoordinatorHost::create_job_of(const v1::Join& join) {
  if (!options_.takes_jobs_from_joins || !join.has_spec() || state_.jobs.contains(join.job_uuid()))
    return;
  v1::JobSpec spec = join.spec();
  spec.set_job_uuid(join.job_uuid());
  handle(StartJob{.request_id = join.job_uuid(), .job = describe_job(spec)});
}

void CoordinatorHost::compare_clocks(Stream& stream, const google::protobuf::Timestamp& wall) {
  using std::chrono::milliseconds;
  constexpr std::int64_t kEndOfYear9999 =
      253'402'300'799;  // the last second that a Timestamp may mean
  if (wall.seconds() < 0 || wall.seconds() > kEndOfYear9999) return;
  const milliseconds theirs(wall.seconds() * 1'000 + wall.nanos() / 1'000'000);
  const auto ours =
      std::chrono::duration_cast<milliseconds>(std::chrono::system_clock::now().time_since_epoch());
  std::string text = stream.clock.observe(theirs, ours);
  if (!text.empty())
    options_.report({.kind = ReportKind::kClockOff,
                     .job_uuid = "",
                     .node_id = stream.node_id,
                     .text = std::move(text)});
}

std::map<NodeId, std::chrono::milliseconds> CoordinatorHost::clock_offsets() const {
  std::map<NodeId, std::chrono::milliseconds> offsets;
  for (const auto& [id, stream] : sessions_) {
    if (const auto seen = stream->clock.seen()) offsets[stream->node_id] = *seen;
  }
  return offsets;
}

void CoordinatorHost::take(Stream& stream, const v1::AgentMsg& message) {
  if (message.has_hello()) {
    const std::string& node = message.hello().node().node_id();
    if (!is_valid_id(node))
      return refuse(stream, v1::REFUSAL_CODE_FAILED_PRECONDITION, "the node has no valid id");
    // A certificate speaks for the node of its name alone.
    const bool is_own = !has_certificate(stream.caller) || stream.caller.name.ends_with("/" + node);
    if (!is_own)
      return refuse(stream,
                    v1::REFUSAL_CODE_UNAUTHENTICATED,
                    "the certificate is not of node '" + node + "'");
    stream.node_id = node;
    stream.session = message.fence().session_id();
    const std::string& nonce = message.hello().nonce();
    if (!options_.token_key.empty() && nonce.size() == kNonceBytes)
      stream.proof = prove_coordinator(options_.token_key, nonce, node);
    stream.takes_digests = message.hello().v().proto_max() >= kSpecDigestProtocol;
  } else if (stream.node_id.empty()) {
    return refuse(stream, v1::REFUSAL_CODE_FAILED_PRECONDITION, "a session begins with Hello");
  }
  const auto& fence = message.fence();
  if (fence.leader_epoch() > state_.epoch && !is_known(stream, fence.session_id())) {
    const std::string why = "node '" + stream.node_id + "' follows leader epoch " +
                            std::to_string(fence.leader_epoch()) + ", this is " +
                            std::to_string(state_.epoch) + ", and proved no token";
    options_.audit("refused " + stream.caller.name + ": " + why);
    // One of the job, which has followed a later leader, looks for that one now.
    return stream.finish({grpc::StatusCode::UNAVAILABLE, why});
  }
  if (!is_proved(stream, message)) {
    // Said to the coordinator before this one, and said again before the Join: it comes once more after it.
    if (!message.has_join()) return;
    return refuse(stream,
                  v1::REFUSAL_CODE_UNAUTHENTICATED,
                  "node '" + stream.node_id + "' did not prove the token of the job");
  }
  if (message.has_join()) create_job_of(message.join());
  if (message.has_beat() && message.beat().has_wall())
    compare_clocks(stream, message.beat().wall());
  auto decoded = from_proto(message);
  if (decoded) handle(FromAgent{.connection = stream.id, .message = *std::move(decoded)});
}

void CoordinatorHost::redirect(Stream& stream) const {
  if (leader_.address.empty())
    return stream.finish({grpc::StatusCode::UNAVAILABLE, "nobody leads at present"});
  v1::CoordMsg message;
  message.mutable_redirect()->set_leader(leader_.address);
  message.mutable_redirect()->set_epoch(leader_.epoch);
  stream.send(std::move(message));
  stream.finish({grpc::StatusCode::UNAVAILABLE, leader_.address + " leads"});
}

grpc::ServerBidiReactor<v1::AgentMsg, v1::CoordMsg>* CoordinatorHost::Session(
    grpc::CallbackServerContext* context) {
  auto stream = std::make_shared<Stream>(*this, loop_);
  stream->live_until_done();
  asio::post(loop_, [this, stream, call = identify_call(*context)] {
    const auto caller = options_.authenticate(call);
    if (!caller) {
      options_.audit("refused " + call.peer + ": " + caller.error().message());
      return stream->finish(to_status(caller.error()));
    }
    if (!admits(options_.place, caller->role)) {
      const std::string why =
          caller->name + " has not the role " + std::string(roles_at(options_.place));
      options_.audit("refused: " + why);
      return stream->finish({grpc::StatusCode::PERMISSION_DENIED, why});
    }
    if (!is_leading()) return redirect(*stream);
    if (num_sessions() >= kMaxSessions)
      return stream->finish({grpc::StatusCode::RESOURCE_EXHAUSTED, "too many sessions"});
    stream->caller = *caller;
    stream->id = next_connection_++;
    sessions_[stream->id] = stream;
    stream->begin();
  });
  return stream.get();
}

grpc::ServerUnaryReactor* CoordinatorHost::GetMembers(grpc::CallbackServerContext* context,
                                                      const v1::MembersReq* request,
                                                      v1::MembersPage* page) {
  auto* reactor = context->DefaultReactor();
  asio::post(loop_, [this, reactor, request, page, call = identify_call(*context)] {
    const auto caller = options_.authenticate(call);
    if (!caller) return reactor->Finish(to_status(caller.error()));
    if (!admits(options_.place, caller->role))
      return reactor->Finish({grpc::StatusCode::PERMISSION_DENIED, "not a node"});
    if (!is_leading())
      return reactor->Finish({grpc::StatusCode::UNAVAILABLE, "this agent does not lead"});
    constexpr std::uint32_t kMostAPage = 1'000;
    const std::uint32_t limit =
        request->limit() == 0 ? kMostAPage : std::min(request->limit(), kMostAPage);
    const auto members = members_page(state_, request->job_uuid(), request->from(), limit);
    for (const MemberView& view : members) {
      v1::Member& member = *page->add_members();
      member.set_node_id(view.node_id);
      member.set_address(view.address);
      member.set_first_rank(static_cast<std::uint32_t>(view.first_rank));
      member.set_count(static_cast<std::uint32_t>(view.num_ranks));
    }
    if (members.size() == limit) page->set_next(request->from() + limit);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

}  // namespace accel::agent
