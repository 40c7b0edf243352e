#include "agent/rendezvous/node_member.h"

#include <algorithm>

#include <boost/asio/post.hpp>

#include "agent/rendezvous/token_proof.h"
#include "agent/rendezvous/wire.h"
#include "agent/ticket_book.h"

namespace accel::agent {

namespace asio = boost::asio;
NodeMember::NodeMember(asio::io_context& loop,
                       std::shared_ptr<grpc::Channel> channel,
                       NodeMemberOptions options,
                       Handlers handlers)
    : loop_(loop),
      options_(std::move(options)),
      handlers_(std::move(handlers)),
      timer_(loop),
      session_(loop,
               std::move(channel),
               {.on_open = [this] { handle(Connected{}); },
                .on_message = [this](const v1::CoordMsg& message) { on_message(message); },
                .on_closed =
                    [this](const grpc::Status& status) {
                      handlers_.on_connection(false, status.error_message());
                      handle(Disconnected{});
                    }}),
      workers_(loop,
               options_.workers,
               {.on_parked = [this](WorkersParked event) { handle(std::move(event)); },
                .on_exited = [this](WorkerExited event) { handle(std::move(event)); },
                .on_gone =
                    [this](WorkersGone event) {
                      handle(std::move(event));
                      if (is_leaving_) finish();
                    },
                .on_steps = [this](StepsMade event) { handle(std::move(event)); },
                .on_notice = [this](const std::string& line) { handlers_.on_line(line); },
                .on_finished = [this] { handlers_.on_finished(); }}) {
  state_.node = options_.node;
  state_.build = "accel";
  state_.session_id = to_hex(random_bytes(16));
  session_.follow_redirects(options_.open_channel);
}

void NodeMember::start() {
  handle(WantJob{Join{.job_uuid = options_.job.job_uuid(),
                      .slots = static_cast<int>(options_.workers.spec.workers.size()),
                      .preferred_index = options_.preferred_index}});
  session_.connect();
}

void NodeMember::leave(const std::string& reason) {
  if (is_leaving_) return;
  is_leaving_ = true;
  const auto job = state_.jobs.find(options_.job.job_uuid());
  const std::uint64_t generation = job == state_.jobs.end() ? 0 : job->second.generation;
  handle(WantLeave{.job_uuid = options_.job.job_uuid(), .reason = reason});
  // What the coordinator has to say about it does not matter to this node any more.
  workers_.stop({.job_uuid = options_.job.job_uuid(),
                 .generation = generation,
                 .grace = options_.workers.spec.stop.grace,
                 .reason = StopReason::kCancelled});
}

void NodeMember::finish() {
  workers_.finish();
}

void NodeMember::close(std::function<void()> done) {
  timer_.cancel();
  session_.close(std::move(done));
}

void NodeMember::handle(decltype(MemberEvent::what) what) {
  MemberStep next = step(std::move(state_),
                         MemberEvent{.at = SteadyClock().now(),
                                     .fresh_session = to_hex(random_bytes(16)),
                                     .what = std::move(what)});
  state_ = std::move(next.state);
  for (MemberAction& action : next.actions) carry_out(action);
  schedule_tick();
}

void NodeMember::carry_out(MemberAction& action) {
  if (const auto* send = std::get_if<SendUp>(&action)) {
    send_up(send->message);
    // For the next beat: what this one says is a beat old.
    if (std::holds_alternative<Beat>(send->message.body)) workers_.ask_steps();
  } else if (const auto* order = std::get_if<ParkWorkers>(&action)) {
    park(*order);
  } else if (const auto* renewal = std::get_if<RenewLease>(&action)) {
    workers_.renew(*renewal);
  } else if (const auto* release = std::get_if<ReleaseWorkers>(&action)) {
    workers_.release(*release);
  } else if (const auto* stop = std::get_if<StopWorkers>(&action)) {
    workers_.stop(*stop);
  } else if (const auto* tell = std::get_if<TellJob>(&action)) {
    handlers_.on_notice(tell->notice);
  } else if (const auto* quarantine = std::get_if<TellQuarantine>(&action)) {
    handlers_.on_line("this node is set aside: " + quarantine->quarantine.reason);
  } else if (const auto* again = std::get_if<Reconnect>(&action)) {
    handlers_.on_line(again->reason);
    session_.reset();
  }
}

// The proof is made anew for each connection, because its nonce is.
void NodeMember::send_up(const AgentMessage& message) {
  v1::AgentMsg out = to_proto(message);
  if (out.has_join()) {
    v1::Join& join = *out.mutable_join();
    if (!options_.token_key.empty()) {
      join.set_token_proof(
          prove_token(options_.token_key, nonce_, options_.node.node_id, join.job_uuid()));
    }
    *join.mutable_spec() = options_.job;
  }
  session_.send(std::move(out));
}

void NodeMember::on_message(const v1::CoordMsg& message) {
  if (message.has_welcome()) {
    nonce_ = message.welcome().nonce();
    session_.welcomed();
    handlers_.on_connection(true, "");
  }
  if (message.has_refused() && message.refused().code() == v1::REFUSAL_CODE_UNAUTHENTICATED) {
    return handlers_.on_refused(message.refused().message());
  }
  auto decoded = from_proto(message);
  if (decoded) handle(FromCoordinator{*std::move(decoded)});
}

// The node of rank 0 asks who the others are: only they may connect to its store.
void NodeMember::park(const ParkWorkers& order) {
  if (order.assign.node_index != 0 || order.assign.num_nodes == 1) return workers_.park(order, {});
  session_.get_members(options_.job.job_uuid(),
                       [this, order](const std::vector<v1::Member>& members) {
                         std::vector<std::string> addresses;
                         for (const v1::Member& member : members)
                           addresses.push_back(member.address());
                         workers_.park(order, std::move(addresses));
                       });
}

void NodeMember::schedule_tick() {
  // Never at once again: what is due cannot always be done (no connection, no lease yet).
  constexpr std::chrono::milliseconds kLeastPause{5};
  timer_.expires_at(std::max(next_wake(state_), SteadyClock().now() + kLeastPause));
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) handle(MemberTick{});
  });
}

}  // namespace accel::agent
