#include "agent/calls/peer_channels.h"

#include <utility>

#include "agent/calls/client_channel.h"
#include "agent/tls/tls_credentials.h"

namespace accel::agent {

Result<PeerChannels::Stub> PeerChannels::stub(const std::string& endpoint, TimePoint now) {
  const auto known = kept_.find(endpoint);
  if (known != kept_.end()) {
    known->second.used_at = now;
    return known->second.stub;
  }
  auto channel = open_(endpoint);
  if (!channel) return std::move(channel).error();
  Stub stub = v1::Cluster::NewStub(*channel);
  kept_[endpoint] = {stub, now};
  return stub;
}

void PeerChannels::close_idle(TimePoint now) {
  for (auto& [endpoint, kept] : kept_) {
    if (kept.stub.use_count() > 1) kept.used_at = now;
  }
  std::erase_if(kept_,
                [now](const auto& entry) { return now - entry.second.used_at >= kIdleChannel; });
}

PeerChannels::Open open_with_certificate(const AgentConfig& config) {
  return [&config, credentials = std::shared_ptr<grpc::ChannelCredentials>()](
             const std::string& endpoint) mutable -> Result<std::shared_ptr<grpc::Channel>> {
    if (credentials == nullptr) {
      auto made = client_credentials(config.tls, config.insecure);
      if (!made) return std::move(made).error();
      credentials = *std::move(made);
    }
    return grpc::CreateCustomChannel(endpoint, credentials, client_channel_arguments());
  };
}

}  // namespace accel::agent
