// SessionClient: this node's session with the coordinator: one stream at a time, made anew when it breaks.
//
//   idle --connect()--> open --stream ends, for whatever reason--> waiting --back-off over--> open
//                        '--told who leads: open, to that one--^
//
// An agent that does not lead names the one that does (Redirect). It is asked at once, a few times in a row; when its
// stream ends, the first address is asked again.
//
// Threads:  everything on the loop; gRPC's callbacks post to it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <grpcpp/grpcpp.h>

#include "accel/v1/rendezvous.grpc.pb.h"
#include "agent/calls/open_calls.h"
#include "agent/rendezvous/reconnect_pause.h"

namespace accel::agent {

// Why a session ended whose coordinator said good-bye, and will not be there again.
inline constexpr const char* kCoordinatorEnds = "the coordinator ends";

class SessionClient {
 public:
  struct Handlers {
    std::function<void()> on_open;                       // messages may be sent
    std::function<void(v1::CoordMsg&)> on_message;       // it may be changed
    std::function<void(const grpc::Status&)> on_closed;  // another stream follows by itself
  };
  SessionClient(boost::asio::io_context& loop,
                std::shared_ptr<grpc::Channel> channel,
                Handlers handlers);
  // Cancels what get_members() has begun; the loop may go after it.
  ~SessionClient();

  // Makes the channel to a leader that was named; nullptr: it is not followed. Without it, no leader is.
  using OpenChannel = std::function<std::shared_ptr<grpc::Channel>(const std::string& address)>;
  void follow_redirects(OpenChannel open_channel) { open_channel_ = std::move(open_channel); }

  // Whom it asks, when another agent named it; empty: the first address.
  [[nodiscard]] const std::string& leader() const { return asked_; }

  void connect();

  // The coordinator's (PEM); empty: it has not answered, or shows none.
  [[nodiscard]] std::string server_certificate() const;

  // The coordinator is elsewhere from now on: the stream ends, and the next one goes there.
  void move_to(std::shared_ptr<grpc::Channel> channel);

  // The coordinator has answered: the next loss is not one of a series. `num_nodes`: as many as it knows.
  void welcomed(int num_nodes);

  // Dropped when no stream is open.
  void send(v1::AgentMsg message);

  // Ends the stream; the next one comes after the back-off.
  void reset();

  // No further stream. `done` is called when the last one is gone.
  void close(std::function<void()> done);

  // All members of a job, page by page, for the node that hosts its store. None when one of the pages cannot be had.
  void get_members(const std::string& job_uuid, std::function<void(std::vector<v1::Member>)> done);

 private:
  class Stream;
  void on_stream_closed(const grpc::Status& status);
  void wait_to_connect();
  void on_redirect(const std::string& leader);
  void use(std::shared_ptr<grpc::Channel> channel);

  boost::asio::io_context& loop_;
  const std::shared_ptr<OpenCalls> calls_ = std::make_shared<OpenCalls>(loop_);
  std::shared_ptr<grpc::Channel> home_;     // the first address
  std::shared_ptr<grpc::Channel> channel_;  // home_, or to a leader that was named
  OpenChannel open_channel_;
  std::string leader_;     // named, to be asked next
  std::string asked_;      // of channel_; empty: home_
  int num_redirects_ = 0;  // in a row
  std::unique_ptr<v1::Rendezvous::Stub> stub_;
  Handlers handlers_;
  boost::asio::steady_timer retry_;
  ReconnectFacts pause_;
  std::mt19937_64 draw_{std::random_device{}()};
  std::shared_ptr<Stream> stream_;
  bool is_closing_ = false;
  std::function<void()> on_last_closed_;
};

}  // namespace accel::agent
