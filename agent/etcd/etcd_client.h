// EtcdClient: the calls to etcd that accel makes, each answered by the first member of its cluster that can.
//
// The member that answered last is asked first. When it refuses the connection, breaks it or says that it has no leader,
// the next one is asked at once; when it says nothing for a while, the next one is asked *beside* it. Members to which no
// connection could be made lately come last. The first answer counts and the other calls are cancelled; an error comes
// when no member has answered within its time.
//
// So a call may be carried out twice, also when it succeeded, and a call without an answer may be carried out yet:
// whoever changes something must make it safe to do twice, and late.
//
//   key                                value
//   /accel/<cluster>/leader            address of the leader, with the leader's lease
//   /accel/<cluster>/records/<key>     the coordinator's records (agent/coordinator/messages/records.h)
//   /accel-launch/<run id>/main        who is machine 0, or hosts (launcher/cluster/meeting/etcd_key.h), with its lease
//
// Threads:  any, several at once; calls block.
// Source:   proto/etcd/rpc.proto; docs/internals/rendezvous.md, "Who leads".
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

#include "agent/config/agent_config.h"
#include "etcd/rpc.grpc.pb.h"

namespace accel::agent {

struct EtcdTiming {
  // From the first member that is asked; the last ones have `ask_next_after` at least. A request that a member has sent
  // on to a leader which is dead is lost, so to wait for it longer gains nothing.
  std::chrono::milliseconds call_limit{1'000};
  // A member without an answer for so long is no longer the only one asked. etcd answers within some 10 ms.
  std::chrono::milliseconds ask_next_after{300};
};

class EtcdClient {
 public:
  // Reads the TLS files; connects later. Errors  kTls.
  [[nodiscard]] static Result<std::shared_ptr<EtcdClient>> make(const EtcdSettings& settings,
                                                                EtcdTiming timing = {});

  // Errors  of all: kEtcdUnreachable, with what each member said; kDiskFull: etcd's quota is used up;
  //         kAuthentication; kInvalidArgument for anything else that etcd refuses.

  [[nodiscard]] Result<etcdserverpb::RangeResponse> range(
      const etcdserverpb::RangeRequest& request);
  [[nodiscard]] Result<etcdserverpb::TxnResponse> txn(const etcdserverpb::TxnRequest& request);

  struct Lease {
    std::int64_t id = 0;
    std::chrono::seconds ttl{0};  // 0: there is no such lease
  };
  // A second one, when two members were asked, ends by itself after `ttl`.
  [[nodiscard]] Result<Lease> grant(std::chrono::seconds ttl);
  [[nodiscard]] Result<Lease> keep_alive(std::int64_t lease);
  // Also when there is no such lease any more.
  [[nodiscard]] Result<void> revoke(std::int64_t lease);

  struct Holder {
    std::string value;
    std::int64_t lease = 0;
    std::uint64_t revision = 0;  // at which the key was made
  };
  struct KeyState {
    std::optional<Holder> holder;
    std::uint64_t revision = 0;  // of etcd, when it was read
  };
  [[nodiscard]] Result<KeyState> look_at(const std::string& key);
  // Puts `value` with `lease` unless something stands there, and gives what does then: with another lease it is not ours.
  [[nodiscard]] Result<Holder> claim(const std::string& key,
                                     const std::string& value,
                                     std::int64_t lease);

  // The member that is asked first, for a watch.
  [[nodiscard]] std::shared_ptr<grpc::Channel> channel() const;

 private:
  struct Member {
    std::string endpoint;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<etcdserverpb::KV::Stub> keys;
    std::unique_ptr<etcdserverpb::Lease::Stub> leases;
  };
  // Begins a call to one member; `done` is called once, on a thread of gRPC's.
  template <typename Response>
  using Ask = std::function<void(Member& member,
                                 grpc::ClientContext* context,
                                 Response* response,
                                 std::function<void(grpc::Status)> done)>;

  explicit EtcdClient(EtcdTiming timing) : timing_(timing) {}
  template <typename Response>
  [[nodiscard]] Result<Response> call(const Ask<Response>& ask);
  [[nodiscard]] std::vector<std::size_t> order_of_asking() const;

  EtcdTiming timing_;
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

[[nodiscard]] EtcdClient::Holder holder_in(const mvccpb::KeyValue& pair);

// The end of the range of all keys that begin with `prefix`.
[[nodiscard]] std::string prefix_end(std::string prefix);

}  // namespace accel::agent
