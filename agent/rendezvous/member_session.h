// MemberSession: runs the member's step function over a session with the coordinator.
//
// What comes from the coordinator, and what its user reports, goes into the step function. What it wants said goes up,
// with the proof of the token where one is asked for; what it wants done goes to the user, in order. Where there is a token,
// nothing is taken from a coordinator that has not proved it on this connection.
//
// Threads:  everything on the loop.
// Source:   docs/internals/rendezvous.md.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <grpcpp/grpcpp.h>

#include "accel/v1/job.pb.h"
#include "agent/coordinator/member/member.h"
#include "agent/rendezvous/job_specs.h"
#include "agent/rendezvous/session_client.h"

namespace accel::agent {

struct MemberSessionOptions {
  NodeInfo node;
  std::string token_key;           // empty: no token
  std::optional<v1::JobSpec> job;  // goes with each Join
  SessionClient::OpenChannel open_leader =
      {};  // to a leader that another agent names; none: it is not followed
};

class MemberSession {
 public:
  struct Handlers {
    // What is to be done, but for SendUp and Reconnect.
    std::function<void(const MemberAction&)> on_action;
    std::function<void()> on_beat;  // one was sent: what the next one shall say can be asked for
    std::function<void(bool is_connected, const std::string& why)> on_connection;
    std::function<void(const std::string& why)> on_turned_away;  // another try follows
    // No further try makes sense, for whoever has only this job: one of the two has another token. Empty: as turned away.
    std::function<void(const std::string& why)> on_refused = {};
    // By jobs that run on this node alone; empty: none do.
    std::function<int()> slots_taken = {};
  };
  MemberSession(boost::asio::io_context& loop,
                std::shared_ptr<grpc::Channel> channel,
                MemberSessionOptions options,
                Handlers handlers);

  void connect() { session_.connect(); }
  void move_to(std::shared_ptr<grpc::Channel> channel) { session_.move_to(std::move(channel)); }

  void handle(decltype(MemberEvent::what) what);

  // The addresses of all members, for the node of rank 0: only they may connect to its store. None for the others.
  void find_members(const Assign& assign, std::function<void(std::vector<std::string>)> done);

  [[nodiscard]] const MemberState& state() const { return state_; }
  // Where it goes, when that is not where the configuration says.
  [[nodiscard]] const std::string& leader() const { return session_.leader(); }

  // The coordinator's (PEM); empty: it has not answered, or shows none.
  [[nodiscard]] std::string server_certificate() const { return session_.server_certificate(); }

  // No further message. `done` is called when the last stream is gone.
  void close(std::function<void()> done);

 private:
  void carry_out(const MemberAction& action);
  void send_up(const AgentMessage& message);
  void on_message(v1::CoordMsg& message);
  [[nodiscard]] bool is_believed(const v1::CoordMsg& message);
  void turn_away(const v1::CoordMsg& message);
  void on_closed(const grpc::Status& status);
  void schedule_tick();

  MemberSessionOptions options_;
  Handlers handlers_;
  MemberState state_;
  boost::asio::steady_timer timer_;
  SessionClient session_;
  SpecsHeld specs_;             // of this stream
  std::string nonce_;           // the coordinator's
  std::string own_nonce_;       // of this connection
  bool has_it_proved_ = false;  // the coordinator, on this connection
};

}  // namespace accel::agent
