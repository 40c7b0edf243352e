#include "agent/etcd/etcd_state_store.h"

#include <thread>
#include <utility>

namespace accel::agent {
namespace {

using etcdserverpb::Compare;
using etcdserverpb::RangeRequest;
using etcdserverpb::TxnRequest;
using etcdserverpb::TxnResponse;

constexpr std::int64_t kPage = 200;
constexpr std::chrono::milliseconds kWriteRetry{100};  // between tries
constexpr std::size_t kLongestRecord = 1'500'000;  // etcd's own limit for a transaction is 1.5 MiB

Error lost_leadership(const std::string& why) {
  return Error(ErrorCode::kLeadershipLost, "this agent leads no more: " + why);
}

}  // namespace

std::string leader_key(const std::string& cluster) {
  return "/accel/" + cluster + "/leader";
}

std::string records_prefix(const std::string& cluster) {
  return "/accel/" + cluster + "/records/";
}

Result<std::unique_ptr<EtcdStateStore>> EtcdStateStore::open(std::shared_ptr<EtcdClient> client,
                                                             const std::string& cluster,
                                                             std::uint64_t epoch,
                                                             std::shared_ptr<const LeadTerm> term) {
  std::unique_ptr<EtcdStateStore> store(new EtcdStateStore());
  store->client_ = std::move(client);
  store->leader_key_ = leader_key(cluster);
  store->prefix_ = records_prefix(cluster);
  store->epoch_ = static_cast<std::int64_t>(epoch);
  store->term_ = std::move(term);
  if (auto loaded = store->load(); !loaded) {
    return std::move(loaded).error().while_doing("reading the coordinator's records from etcd");
  }
  return store;
}

// All pages as of the revision of the first.
Result<void> EtcdStateStore::load() {
  RangeRequest request;
  request.set_key(prefix_);
  request.set_range_end(prefix_end(prefix_));
  request.set_limit(kPage);
  while (true) {
    auto page = client_->range(request);
    if (!page) return std::move(page).error();
    for (const mvccpb::KeyValue& pair : page->kvs()) {
      kept_[pair.key().substr(prefix_.size())] = {pair.value(), pair.mod_revision()};
    }
    if (!page->more() || page->kvs().empty()) return {};
    request.set_key(page->kvs().rbegin()->key() + '\0');
    request.set_revision(page->header().revision());
  }
}

std::vector<Record> EtcdStateStore::records() const {
  std::vector<Record> all;
  for (const auto& [key, kept] : kept_) {
    if (!kept.value.empty()) all.push_back({key, kept.value});
  }
  return all;
}

TxnRequest EtcdStateStore::transaction_of(const Record& record, const Kept& present) const {
  const std::string key = prefix_ + record.key;
  TxnRequest txn;
  Compare& leads = *txn.add_compare();
  leads.set_key(leader_key_);
  leads.set_target(Compare::CREATE);
  leads.set_create_revision(epoch_);
  Compare& unchanged = *txn.add_compare();
  unchanged.set_key(key);
  unchanged.set_target(Compare::MOD);
  unchanged.set_mod_revision(present.mod_revision);
  if (record.value.empty()) {
    txn.add_success()->mutable_request_delete_range()->set_key(key);
  } else {
    auto& put = *txn.add_success()->mutable_request_put();
    put.set_key(key);
    put.set_value(record.value);
  }
  // Which of the two it was.
  txn.add_failure()->mutable_request_range()->set_key(leader_key_);
  txn.add_failure()->mutable_request_range()->set_key(key);
  return txn;
}

Result<void> EtcdStateStore::write(const Record& record, bool) {
  if (record.value.size() > kLongestRecord) {
    return Error(ErrorCode::kInvalidArgument,
                 "record " + record.key + " has " + std::to_string(record.value.size()) +
                     " bytes; etcd keeps " + std::to_string(kLongestRecord) + " at most",
                 "submit the job with a smaller environment, or keep the records in a journal");
  }
  Kept& present = kept_[record.key];
  while (true) {
    if (term_ && term_->is_over(SteadyClock().now())) {
      return lost_leadership("etcd did not answer for five sixths of the lease");
    }
    auto answer = client_->txn(transaction_of(record, present));
    if (!answer) {
      if (answer.error().code() != ErrorCode::kEtcdUnreachable || !term_) {
        return std::move(answer).error();
      }
      std::this_thread::sleep_for(kWriteRetry);
      continue;
    }
    if (answer->succeeded()) {
      present = {record.value, record.value.empty() ? 0 : answer->header().revision()};
      return {};
    }
    if (answer->responses_size() != 2)
      return Error(ErrorCode::kProtocol, "etcd answered a transaction with something else");
    const auto& leaders = answer->responses(0).response_range();
    if (leaders.kvs().empty() || leaders.kvs(0).create_revision() != epoch_) {
      return lost_leadership(leaders.kvs().empty() ? "its key in etcd is gone"
                                                   : leaders.kvs(0).value() + " leads");
    }
    // Only a try of our own can have changed it: one without an answer, or the same one at another member.
    const auto& found = answer->responses(1).response_range();
    present =
        found.kvs().empty() ? Kept{} : Kept{found.kvs(0).value(), found.kvs(0).mod_revision()};
    if (present.value == record.value) return {};
  }
}

}  // namespace accel::agent
