// EtcdClient: the calls to etcd that accel makes, each answered by the first member of its cluster that can.
//
// A member that does not answer within a second is passed over for the next one; an error comes when none has. Then
// the call may have been carried out all the same, or may be yet: whoever changes something must make it safe to do
// twice, and late.
//
//   key                                value
//   /accel/<cluster>/leader            address of the leader, with the leader's lease
//   /accel/<cluster>/records/<key>     the coordinator's records (agent/coordinator/records.h)
//
// Threads:  any, several at once; calls block.
// Source:   proto/etcd/rpc.proto; docs/rendezvous.md, "Who leads".
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <grpcpp/grpcpp.h>

#include <accel/result.h>

#include "agent/agent_config.h"
#include "etcd/rpc.grpc.pb.h"

namespace accel::agent {

inline constexpr std::chrono::seconds kEtcdCallLimit{1};

class EtcdClient {
 public:
  // Reads the TLS files; connects later. Errors  kTls.
  [[nodiscard]] static Result<std::shared_ptr<EtcdClient>> make(const EtcdSettings& settings);

  // Errors  of all: kEtcdUnreachable, with what each member said; kDiskFull: etcd's quota is used up;
  //         kAuthentication; kInvalidArgument for anything else that etcd refuses.

  [[nodiscard]] Result<etcdserverpb::RangeResponse> range(
      const etcdserverpb::RangeRequest& request);
  [[nodiscard]] Result<etcdserverpb::TxnResponse> txn(const etcdserverpb::TxnRequest& request);

  struct Lease {
    std::int64_t id = 0;
    std::chrono::seconds ttl{0};  // 0: there is no such lease
  };
  [[nodiscard]] Result<Lease> grant(std::chrono::seconds ttl);
  [[nodiscard]] Result<Lease> keep_alive(std::int64_t lease);
  // Also when there is no such lease any more.
  [[nodiscard]] Result<void> revoke(std::int64_t lease);

  // The member that is asked first, for a watch.
  [[nodiscard]] std::shared_ptr<grpc::Channel> channel() const;

 private:
  struct Member {
    std::string endpoint;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<etcdserverpb::KV::Stub> keys;
    std::unique_ptr<etcdserverpb::Lease::Stub> leases;
  };
  EtcdClient() = default;
  [[nodiscard]] Result<void> call(
      const std::function<grpc::Status(Member&, grpc::ClientContext&)>& ask);

  std::vector<Member> members_;
  std::atomic<std::size_t> first_{0};  // the one that answered last
};

// EtcdWatch: tells every change of one key, from a revision on, until it breaks or goes.
class EtcdWatch {
 public:
  struct Handlers {  // called on the watch's own thread
    std::function<void(const mvccpb::Event&)> on_event;
    std::function<void()> on_broken;  // the last call
  };
  EtcdWatch(const EtcdClient& client,
            const std::string& key,
            std::int64_t from_revision,
            Handlers handlers);
  // Nothing is told any more.
  ~EtcdWatch();

 private:
  void run(const std::string& key, std::int64_t from_revision);

  std::unique_ptr<etcdserverpb::Watch::Stub> stub_;
  Handlers handlers_;
  grpc::ClientContext context_;
  std::thread thread_;
};

// The end of the range of all keys that begin with `prefix`.
[[nodiscard]] std::string prefix_end(std::string prefix);

}  // namespace accel::agent
