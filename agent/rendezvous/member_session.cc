#include "agent/rendezvous/member_session.h"

#include <algorithm>
#include <utility>

#include <google/protobuf/util/time_util.h>

#include "agent/access/ticket_book.h"
#include "agent/rendezvous/token_proof.h"
#include "agent/rendezvous/wire.h"

namespace accel::agent {

MemberSession::MemberSession(boost::asio::io_context& loop,
                             std::shared_ptr<grpc::Channel> channel,
                             MemberSessionOptions options,
                             Handlers handlers)
    : options_(std::move(options)),
      handlers_(std::move(handlers)),
      timer_(loop),
      session_(loop,
               std::move(channel),
               {.on_open =
                    [this] {
                      own_nonce_ = random_bytes(kNonceBytes);
                      has_it_proved_ = false;
                      specs_.clear();
                      handle(Connected{});
                    },
                .on_message = [this](v1::CoordMsg& message) { on_message(message); },
                .on_closed = [this](const grpc::Status& status) { on_closed(status); }}) {
  state_.node = options_.node;
  state_.build = "accel";
  state_.session_id = to_hex(random_bytes(16));
  session_.follow_redirects(options_.open_leader);
}

void MemberSession::handle(decltype(MemberEvent::what) what) {
  if (handlers_.slots_taken) state_.slots_taken = handlers_.slots_taken();
  MemberStep next = step(std::move(state_),
                         MemberEvent{.at = SteadyClock().now(),
                                     .fresh_session = to_hex(random_bytes(16)),
                                     .what = std::move(what)});
  state_ = std::move(next.state);
  for (const MemberAction& action : next.actions) carry_out(action);
  schedule_tick();
}

void MemberSession::carry_out(const MemberAction& action) {
  if (const auto* send = std::get_if<SendUp>(&action)) {
    send_up(send->message);
    if (std::holds_alternative<Beat>(send->message.body)) handlers_.on_beat();
  } else if (const auto* again = std::get_if<Reconnect>(&action)) {
    handlers_.on_turned_away(again->reason);
    session_.reset();
  } else {
    handlers_.on_action(action);
  }
}

// The proof is made anew for each connection, because its nonce is.
void MemberSession::send_up(const AgentMessage& message) {
  v1::AgentMsg out = to_proto(message);
  if (out.has_join()) {
    v1::Join& join = *out.mutable_join();
    if (!options_.token_key.empty()) {
      join.set_token_proof(
          prove_token(options_.token_key, nonce_, options_.node.node_id, join.job_uuid()));
    }
    if (options_.job) *join.mutable_spec() = *options_.job;
  }
  if (out.has_hello() && !options_.token_key.empty()) out.mutable_hello()->set_nonce(own_nonce_);
  if (out.has_beat())
    *out.mutable_beat()->mutable_wall() = google::protobuf::util::TimeUtil::GetCurrentTime();
  session_.send(std::move(out));
}

// Before it does not know the token, whoever answers may be anybody: our own proof would be one more that it has seen, and
// its word could stop the workers.
bool MemberSession::is_believed(const v1::CoordMsg& message) {
  if (options_.token_key.empty() || has_it_proved_) return true;
  has_it_proved_ = is_coordinator_proof(
      message.token_proof(), options_.token_key, own_nonce_, options_.node.node_id);
  return has_it_proved_;
}

void MemberSession::turn_away(const v1::CoordMsg& message) {
  std::string why = "the coordinator did not prove the token of the job: it has ";
  why += message.token_proof().empty() ? "none, or is of another version of accel" : "another one";
  if (message.has_refused()) why += "; it refuses this node: " + message.refused().message();
  session_.reset();
  handlers_.on_refused ? handlers_.on_refused(why) : handlers_.on_turned_away(why);
}

void MemberSession::on_message(v1::CoordMsg& message) {
  if (!is_believed(message)) return turn_away(message);
  if (message.has_welcome()) {
    // Of another length, it could be chosen so that our proof is one of a coordinator.
    const bool has_good_nonce = message.welcome().nonce().size() == kNonceBytes;
    if (!options_.token_key.empty() && !has_good_nonce) return session_.reset();
    nonce_ = message.welcome().nonce();
    constexpr std::uint32_t kMostNodes = 1'000'000;
    session_.welcomed(static_cast<int>(std::min(message.welcome().num_nodes(), kMostNodes)));
    handlers_.on_connection(true, "");
  }
  const bool is_stranger =
      message.has_refused() && message.refused().code() == v1::REFUSAL_CODE_UNAUTHENTICATED;
  if (is_stranger && handlers_.on_refused) return handlers_.on_refused(message.refused().message());
  if (!specs_.complete(message)) {
    handlers_.on_turned_away("the coordinator names a job's spec that it has not sent");
    return session_.reset();
  }
  auto decoded = from_proto(message);
  if (decoded) handle(FromCoordinator{*std::move(decoded)});
}

void MemberSession::on_closed(const grpc::Status& status) {
  handlers_.on_connection(false, status.error_message());
  handle(Disconnected{});
}

void MemberSession::find_members(const Assign& assign,
                                 std::function<void(std::vector<std::string>)> done) {
  if (assign.node_index != 0 || assign.num_nodes == 1) return done({});
  session_.get_members(assign.job->job_uuid,
                       [done = std::move(done)](const std::vector<v1::Member>& members) {
                         std::vector<std::string> addresses;
                         for (const v1::Member& member : members)
                           addresses.push_back(member.address());
                         done(std::move(addresses));
                       });
}

void MemberSession::schedule_tick() {
  // Never at once again: what is due cannot always be done (no connection, no lease yet).
  constexpr std::chrono::milliseconds kLeastPause{5};
  timer_.expires_at(std::max(next_wake(state_), SteadyClock().now() + kLeastPause));
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) handle(MemberTick{});
  });
}

void MemberSession::close(std::function<void()> done) {
  timer_.cancel();
  session_.close(std::move(done));
}

}  // namespace accel::agent
