// EtcdKey: the seat of machine 0, carried out as a key in a real etcd.
//
//   key                              value
//   /accel-launch/<run id>/main      the MainPlace of machine 0, with its launcher's lease
//
// The key is written by a transaction that wants it absent, so it has one writer whatever happens on the way. A thread
// renews the lease; when etcd let it run out, because it or we stood still, or somebody took the key away, the key is
// written again unless another launcher has it. The thread gives the key up too, so that an etcd which does not answer
// holds up nobody else.
//
// Threads:  as EtcdSeat; one thread of its own while the key is ours.
// Source:   tests/unit/launcher/cluster/etcd_key_test.cc.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include <accel/result.h>

#include "agent/etcd/etcd_client.h"
#include "launcher/cluster_entry/etcd_seat.h"

namespace accel::cluster {

struct EtcdKeyTiming {
  // A launcher that is killed has the key for so long; one that is stopped for longer may lose it.
  std::chrono::seconds lease{10};
  std::chrono::milliseconds renew_every{2'000};
  std::chrono::milliseconds give_up_within{250};  // give_up() waits no longer
  agent::EtcdTiming calls{};
  // A write waits for etcd's disk, whose fsync may take seconds while much else is written; to ask again begins anew.
  std::chrono::milliseconds write_limit{3'000};
};

class EtcdKey final : public launcher::EtcdSeat {
 public:
  // Errors  kTls; kInvalidArgument, kRendezvousTimeout: the endpoint.
  [[nodiscard]] static Result<std::unique_ptr<EtcdSeat>> open(const launcher::EtcdAccess& access,
                                                              const std::string& run_id,
                                                              EtcdKeyTiming timing = {});
  // Waits until etcd has heard of it, or did not answer.
  ~EtcdKey() override { end_keeper(); }

  [[nodiscard]] const std::string& own_address() const override { return own_address_; }
  [[nodiscard]] Result<std::string> take(const std::string& place) override;
  [[nodiscard]] Result<void> reach(const std::string& host, std::uint16_t port) override;
  [[nodiscard]] std::uint64_t term() const override { return term_; }
  void give_up() override;
  [[nodiscard]] std::string successor() const override;

 private:
  EtcdKey(std::shared_ptr<agent::EtcdClient> client,
          std::shared_ptr<agent::EtcdClient> writer,
          std::string key,
          std::string own_address,
          EtcdKeyTiming timing);

  // What stands at the key; empty: nothing. Ours when it is `place`, also when nobody has told us so.
  [[nodiscard]] Result<std::string> read(const std::string& place);
  // Writes `place_` with a new lease unless something stands there, and gives what does then.
  [[nodiscard]] Result<std::string> write();
  void own(const agent::EtcdClient::Holder& holder);
  void keep(const std::stop_token& stop);
  // Who has the key in our place; none: nobody, as far as etcd says.
  [[nodiscard]] std::optional<std::string> renew();
  void end_keeper();

  const std::shared_ptr<agent::EtcdClient> client_;
  const std::shared_ptr<agent::EtcdClient> writer_;  // with the write limit
  const std::string key_;
  const std::string own_address_;
  const EtcdKeyTiming timing_;
  std::string place_;
  std::int64_t lease_ = 0;  // 0: the key is not ours; of the keeper while it runs
  std::atomic<std::uint64_t> term_{0};
  mutable std::mutex mutex_;
  std::condition_variable over_;
  bool is_over_ = false;  // the keeper has nothing left to do
  std::string successor_;
  std::jthread keeper_;
};

}  // namespace accel::cluster
