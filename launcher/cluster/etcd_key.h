// EtcdKey: the seat of machine 0, carried out as a key in a real etcd.
//
//   key                              value
//   /accel-launch/<run id>/main      the MainPlace of machine 0, with its launcher's lease
//
// The key is written by a transaction that wants it absent, so it has one writer whatever happens on the way. A thread
// renews the lease; when etcd let it run out, because it or we stood still, the key is written again unless
// another launcher has it.
//
// Threads:  as EtcdSeat; one thread of its own while the key is ours.
// Source:   tests/unit/launcher/cluster/etcd_key_test.cc.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include <accel/result.h>

#include "agent/etcd/etcd_client.h"
#include "launcher/etcd_seat.h"

namespace accel::cluster {

struct EtcdKeyTiming {
  // A launcher that is killed has the key for so long; one that is stopped for longer may lose it.
  std::chrono::seconds lease{10};
  std::chrono::milliseconds renew_every{2'000};
};

class EtcdKey final : public launcher::EtcdSeat {
 public:
  // Errors  kTls; kInvalidArgument, kRendezvousTimeout: the endpoint.
  [[nodiscard]] static Result<std::unique_ptr<EtcdSeat>> open(const launcher::EtcdAccess& access,
                                                              const std::string& run_id,
                                                              EtcdKeyTiming timing = {});
  ~EtcdKey() override { give_up(); }

  [[nodiscard]] const std::string& own_address() const override { return own_address_; }
  [[nodiscard]] Result<std::string> take(const std::string& place) override;
  [[nodiscard]] Result<void> reach(const std::string& host, std::uint16_t port) override;
  void give_up() override;
  [[nodiscard]] std::string successor() const override;

 private:
  EtcdKey(std::shared_ptr<agent::EtcdClient> client,
          std::string key,
          std::string own_address,
          EtcdKeyTiming timing);

  // What stands at the key; empty: nothing. Ours when it is `place`, also when nobody has told us so.
  [[nodiscard]] Result<std::string> read(const std::string& place);
  // Writes `place_` with a new lease unless something stands there, and gives what does then.
  [[nodiscard]] Result<std::string> write();
  void keep(const std::stop_token& stop);

  const std::shared_ptr<agent::EtcdClient> client_;
  const std::string key_;
  const std::string own_address_;
  const EtcdKeyTiming timing_;
  std::string place_;
  std::int64_t lease_ = 0;  // 0: the key is not ours; of the keeper while it runs
  mutable std::mutex mutex_;
  std::string successor_;
  std::jthread keeper_;
};

}  // namespace accel::cluster
