// EtcdStateStore: the coordinator's records in etcd, written by the leader alone.
//
// Each write is one transaction on two conditions: the leader's key was created at the revision that is this leader's
// epoch, and the record is as this leader left it. The first keeps out leaders that were voted out, however late their
// write arrives; the second keeps out a write of our own that was given up and repeated, and arrives after a newer one.
//
// A write that nobody answers is tried again until the term is over. So only the end of the leadership leaves it open
// whether a record was kept; who leads next finds out by reading.
//
// Threads:  one thread at a time; calls block, a write at most until the end of the term and one more round of calls.
// Cost:     one transaction for each write. etcd refuses records above 1.5 MiB (docs/internals/rendezvous.md).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "agent/coordinator/election/reign.h"
#include "agent/coordinator/journal/state_store.h"
#include "agent/etcd/etcd_client.h"

namespace accel::agent {

// "/accel/<cluster>/..."
[[nodiscard]] std::string leader_key(const std::string& cluster);
[[nodiscard]] std::string records_prefix(const std::string& cluster);

class EtcdStateStore final : public StateStore {
 public:
  // Reads the records. `epoch`: the create_revision of the leader's key. Errors  those of EtcdClient.
  [[nodiscard]] static Result<std::unique_ptr<EtcdStateStore>> open(
      std::shared_ptr<EtcdClient> client,
      const std::string& cluster,
      std::uint64_t epoch,
      std::shared_ptr<const LeadTerm> term);

  [[nodiscard]] std::vector<Record> records() const override;

  // Errors  kLeadershipLost; those of EtcdClient but kEtcdUnreachable.
  [[nodiscard]] Result<void> write(const Record& record, bool sync) override;

 private:
  struct Kept {
    std::string value;              // empty: forgotten
    std::int64_t mod_revision = 0;  // 0: not there
  };
  EtcdStateStore() = default;
  Result<void> load();
  [[nodiscard]] etcdserverpb::TxnRequest transaction_of(const Record& record,
                                                        const Kept& present) const;

  std::shared_ptr<EtcdClient> client_;
  std::string leader_key_;
  std::string prefix_;
  std::int64_t epoch_ = 0;
  std::shared_ptr<const LeadTerm> term_;
  std::map<std::string, Kept> kept_;
};

}  // namespace accel::agent
