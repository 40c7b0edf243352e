// CoordinatorHost: runs the coordinator's step function behind the Rendezvous service.
//
// Each session stream is one connection of the step function. What comes in is checked and posted to the loop; actions
// are carried out there, in order. Records go to the store of the present reign, on a thread of its own; jobs that a
// node brings along with its Join (those of accel-launch) are created from it.
//
//   leading --follow()--> following --lead()--> leading
//
// Constructed, it leads without a store. While it follows, it hears nobody: sessions are told who leads, if that is
// known, and end.
//
// A job whose nodes must know a token takes nothing from a session before a Join with a valid proof, but Hello and Beat;
// and those tell nothing of who leads, but from a node with a certificate.
//
// Threads:  everything on the loop but the RPC methods, which post to it.
// Source:   docs/internals/rendezvous.md, docs/admin/security.md.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <grpcpp/grpcpp.h>

#include "accel/v1/rendezvous.grpc.pb.h"
#include "agent/access/access_policy.h"
#include "agent/calls/call_identity.h"
#include "agent/coordinator/decisions/coordinator.h"
#include "agent/coordinator/election/reign.h"
#include "agent/rendezvous/job_specs.h"
#include "agent/rendezvous/record_writer.h"
#include "agent/tls/revocation_list.h"

namespace accel::agent {

struct CoordinatorHostOptions {
  CoordinatorConfig config;
  std::uint64_t epoch = 1;
  std::string token_key;               // empty: no proof is asked for
  bool takes_jobs_from_joins = false;  // accel-launch: the first node brings the job
  Place place = Place::kAgentSession;  // who may have a session
  // Who is at the other end of a session. Errors  kAuthentication.
  std::function<Result<Caller>(const CallIdentity&)> authenticate;
  std::function<void(const Report&)> report;
  std::function<void(const JobReply&)> reply;  // to StartJob of this process; empty: nobody waits
  std::function<void(const std::string&)> audit;
  // Somebody else leads, as a refused write or an agent has shown: it follows already, and nobody.
  std::function<void(const std::string& why)> deposed = {};
  // The state may be another now, in more than when a node was heard; in the middle of carrying it out.
  std::function<void()> changed = {};
};

class CoordinatorHost final : public v1::Rendezvous::CallbackService {
 public:
  static constexpr int kMaxSessions = 16'384;

  CoordinatorHost(boost::asio::io_context& loop, CoordinatorHostOptions options);
  ~CoordinatorHost() override;

  // Begins anew, with what the reign begins with. Sessions of before end: the nodes come back by themselves.
  void lead(Reign reign);

  // Decides nothing any more.
  void follow(Leader leader);

  // Not any more when its term is over, though nobody has told it so yet: a process that was stopped wakes up like this.
  [[nodiscard]] bool is_leading() const {
    return is_leading_ && !(term_ && term_->is_over(SteadyClock().now()));
  }

  // An event from this process: StartJob, StopJob, ScaleJob, DrainNode, ...
  void handle(decltype(Event::what) what);

  // Ends the sessions of nodes whose certificate is on the list: they are lost, unless they come back with another one.
  void end_revoked(const RevocationList& revoked);

  [[nodiscard]] const State& state() const { return state_; }
  // How far the wall clocks of the nodes that have a session are ahead of this machine's.
  [[nodiscard]] std::map<NodeId, std::chrono::milliseconds> clock_offsets() const;
  [[nodiscard]] int num_sessions() const { return static_cast<int>(sessions_.size()); }

  // Ends every session; the nodes see a coordinator that is gone.
  void close();

  grpc::ServerBidiReactor<v1::AgentMsg, v1::CoordMsg>* Session(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* GetMembers(grpc::CallbackServerContext* context,
                                       const v1::MembersReq* request,
                                       v1::MembersPage* page) override;

 private:
  class Stream;

  void take(Stream& stream, const v1::AgentMsg& message);
  void compare_clocks(Stream& stream, const google::protobuf::Timestamp& wall);
  void redirect(Stream& stream) const;
  void tell_if_stranger(const Stream& stream) const;
  void refuse(Stream& stream, v1::RefusalCode code, const std::string& why);
  bool is_proved(Stream& stream, const v1::AgentMsg& message);
  [[nodiscard]] bool has_proved(const SessionId& session) const;
  [[nodiscard]] bool is_known(const Stream& stream, const SessionId& session) const;
  void create_job_of(const v1::Join& join);
  void carry_out(Actions actions);
  void keep(const Persist& persist);
  void end_sessions(const std::string& why);
  void retire_writer();
  void schedule_tick();
  void wake_at(TimePoint at);

  boost::asio::io_context& loop_;
  CoordinatorHostOptions options_;
  boost::asio::steady_timer timer_;
  TimePoint wakes_at_ = TimePoint::max();  // of timer_
  TimePoint looked_at_{};                  // when next_wake() was asked last
  State state_;
  bool is_leading_ = true;
  Leader leader_;  // while it follows
  std::shared_ptr<const LeadTerm> term_;
  std::unique_ptr<RecordWriter> writer_;
  std::set<std::shared_ptr<RecordWriter>> retired_;  // with a write under way
  bool is_unwritable_ = false;                       // said so
  SpecPacker packer_;
  ConnectionId next_connection_ = 1;
  std::map<ConnectionId, std::shared_ptr<Stream>> sessions_;
  std::set<std::pair<std::string, std::string>> proved_;  // session id, job uuid
};

}  // namespace accel::agent
