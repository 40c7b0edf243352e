#include "launcher/cluster/etcd_key.h"

#include <condition_variable>
#include <stop_token>
#include <utility>

#include "launcher/bracketed.h"
#include "launcher/cluster/endpoint.h"

namespace accel::cluster {
namespace {

using agent::EtcdClient;
using etcdserverpb::Compare;
using namespace std::chrono_literals;

constexpr auto kNameLimit = 5s;
constexpr auto kReachLimit = 1s;

std::string joined(const std::string& host, std::uint16_t port) {
  return launcher::bracketed(host) + ":" + std::to_string(port);
}

bool is_loopback_name(const std::string& endpoint) {
  return endpoint.starts_with("localhost:") || endpoint.starts_with("127.") ||
         endpoint.starts_with("[::1]:");
}

// What the first range of an answer found; empty: nothing.
template <typename Range>
std::string value_in(const Range& range) {
  return range.kvs().empty() ? "" : range.kvs(0).value();
}

}  // namespace

Result<std::unique_ptr<launcher::EtcdSeat>> EtcdKey::open(const launcher::EtcdAccess& access,
                                                          const std::string& run_id,
                                                          EtcdKeyTiming timing) {
  auto client = EtcdClient::make(
      {.endpoints = {access.endpoint},
       .tls = {
           .authority = access.authority, .certificate = access.certificate, .key = access.key}});
  if (!client) return std::move(client).error();
  std::string address = access.own_address;
  if (address.empty()) {
    const auto found = resolve_endpoint(access.endpoint, kNameLimit);
    if (!found) return found.error();
    address = own_address_towards(found->front(), is_loopback_name(access.endpoint));
  }
  return std::unique_ptr<launcher::EtcdSeat>(new EtcdKey(
      *std::move(client), "/accel-launch/" + run_id + "/main", std::move(address), timing));
}

EtcdKey::EtcdKey(std::shared_ptr<EtcdClient> client,
                 std::string key,
                 std::string own_address,
                 EtcdKeyTiming timing)
    : client_(std::move(client)),
      key_(std::move(key)),
      own_address_(std::move(own_address)),
      timing_(timing) {}

Result<std::string> EtcdKey::take(const std::string& place) {
  place_ = place;
  auto standing = read(place);
  if (standing && standing->empty()) standing = write();
  if (standing && lease_ != 0 && !keeper_.joinable())
    keeper_ = std::jthread([this](const std::stop_token& stop) { keep(stop); });
  return standing;
}

Result<void> EtcdKey::reach(const std::string& host, std::uint16_t port) {
  const std::string text = joined(host, port);
  const auto addresses = resolve_endpoint(text, kReachLimit);
  if (!addresses) return Error(ErrorCode::kStoreUnreachable, addresses.error().message());
  if (first_reachable(*addresses, kReachLimit, {})) return {};
  return Error(ErrorCode::kStoreUnreachable, "nothing takes connections at " + text);
}

Result<std::string> EtcdKey::read(const std::string& place) {
  etcdserverpb::RangeRequest request;
  request.set_key(key_);
  const auto answer = client_->range(request);
  if (!answer) return answer.error();
  const std::string standing = value_in(*answer);
  if (standing == place && lease_ == 0) lease_ = answer->kvs(0).lease();
  return standing;
}

Result<std::string> EtcdKey::write() {
  const auto lease = client_->grant(timing_.lease);
  if (!lease) return lease.error();
  etcdserverpb::TxnRequest txn;
  Compare& absent = *txn.add_compare();
  absent.set_key(key_);
  absent.set_target(Compare::CREATE);
  absent.set_create_revision(0);
  auto& put = *txn.add_success()->mutable_request_put();
  put.set_key(key_);
  put.set_value(place_);
  put.set_lease(lease->id);
  txn.add_failure()->mutable_request_range()->set_key(key_);
  const auto answer = client_->txn(txn);
  if (!answer) return answer.error();  // the lease ends by itself, and the key with it
  if (answer->succeeded()) {
    lease_ = lease->id;
    return place_;
  }
  const auto& found = answer->responses(0).response_range();
  // The request may have been carried out before, when its answer was lost.
  if (!found.kvs().empty() && found.kvs(0).lease() == lease->id) {
    lease_ = lease->id;
    return place_;
  }
  (void)client_->revoke(lease->id);
  return value_in(found);
}

void EtcdKey::keep(const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  while (!stopped.wait_for(lock, stop, timing_.renew_every, [] { return false; })) {
    if (stop.stop_requested()) return;
    const auto renewed = client_->keep_alive(lease_);
    if (!renewed || renewed->ttl.count() > 0) continue;
    const auto standing = write();
    if (!standing || *standing == place_) continue;
    lease_ = 0;
    const std::lock_guard hold(mutex_);
    successor_ = *standing;
    return;
  }
}

void EtcdKey::give_up() {
  if (keeper_.joinable()) {
    keeper_.request_stop();
    keeper_.join();
  }
  if (const auto lease = std::exchange(lease_, 0); lease != 0) (void)client_->revoke(lease);
}

std::string EtcdKey::successor() const {
  const std::lock_guard hold(mutex_);
  return successor_;
}

}  // namespace accel::cluster
