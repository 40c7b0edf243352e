// RevocableStreams: the open streams of callers with a certificate, to be ended when it is revoked.
//
// Threads:  everything on the loop, where the streams are.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "agent/access/access_policy.h"
#include "agent/calls/grpc_status.h"
#include "agent/tls/revocation_list.h"

namespace accel::agent {

class RevocableStreams {
 public:
  // `stream` is a QueuedStream. Callers without a certificate are not kept.
  template <typename Stream>
  void add(const Caller& caller, Stream& stream) {
    if (caller.certificate.empty()) return;
    std::erase_if(streams_, [](const Entry& entry) { return entry.stream.expired(); });
    const std::shared_ptr<Stream> shared =
        std::static_pointer_cast<Stream>(stream.shared_from_this());
    streams_.push_back({caller.name, caller.certificate, shared, [](void* held, grpc::Status why) {
                          static_cast<Stream*>(held)->finish(std::move(why));
                        }});
  }

  void end_revoked(const RevocationList& revoked) const {
    for (const Entry& entry : streams_) {
      const auto stream = entry.stream.lock();
      if (stream && revoked.contains(entry.certificate))
        entry.finish(stream.get(), to_status(revoked_error(entry.name)));
    }
  }

 private:
  struct Entry {
    std::string name;
    std::string certificate;  // PEM
    std::weak_ptr<void> stream;
    void (*finish)(void* stream, grpc::Status why);
  };
  std::vector<Entry> streams_;
};

}  // namespace accel::agent
