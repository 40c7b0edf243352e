// PeerChannels: this agent's connections to other agents: one for each that it asks, and none that nobody uses.
//
// All of them share one object of credentials: gRPC has a thread for each, which reads the files of its certificate again
// and again.
//
// Threads:  everything on the loop. gRPC's threads serve all channels; none is one channel's own.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include <grpcpp/grpcpp.h>

#include <accel/result.h>

#include "accel/v1/cluster.grpc.pb.h"
#include "agent/config/agent_config.h"
#include "runtime/clock.h"

namespace accel::agent {

// How long a connection to another agent is kept without a call: longer than the pauses of a watch, shorter than what
// anybody would notice who comes back.
inline constexpr std::chrono::seconds kIdleChannel{60};

class PeerChannels {
 public:
  using Stub = std::shared_ptr<v1::Cluster::Stub>;
  using Open = std::function<Result<std::shared_ptr<grpc::Channel>>(const std::string& endpoint)>;

  explicit PeerChannels(Open open) : open_(std::move(open)) {}

  // A connection of its own for a session, with this node's certificate. Errors  kTls.
  [[nodiscard]] Result<std::shared_ptr<grpc::Channel>> open(const std::string& endpoint) const {
    return open_(endpoint);
  }

  // For calls. Whoever holds the stub uses its connection. Errors  kTls.
  [[nodiscard]] Result<Stub> stub(const std::string& endpoint, TimePoint now);

  // Closes those that nobody has used for kIdleChannel.
  void close_idle(TimePoint now);

  // Calls from now on make connections of their own.
  void forget_all() { kept_.clear(); }

  [[nodiscard]] std::size_t size() const { return kept_.size(); }

 private:
  struct Kept {
    Stub stub;
    TimePoint used_at{};
  };

  Open open_;
  std::map<std::string, Kept> kept_;  // by endpoint
};

// Opens them with the certificate of the configuration, which has to live as long.
[[nodiscard]] PeerChannels::Open open_with_certificate(const AgentConfig& config);

}  // namespace accel::agent
