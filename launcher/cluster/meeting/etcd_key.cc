#include "launcher/cluster/meeting/etcd_key.h"

#include <algorithm>
#include <stop_token>
#include <utility>

#include "launcher/cluster/meeting/endpoint.h"
#include "runtime/text/endpoint_text.h"

namespace accel::cluster {
namespace {

using agent::EtcdClient;
using namespace std::chrono_literals;

constexpr auto kNameLimit = 5s;
constexpr auto kReachLimit = 1s;

}  // namespace

Result<std::unique_ptr<launcher::EtcdSeat>> EtcdKey::open(const launcher::EtcdAccess& access,
                                                          const std::string& run_id,
                                                          EtcdKeyTiming timing) {
  const agent::EtcdSettings settings = {
      .endpoints = {access.endpoint},
      .tls = {.authority = access.authority, .certificate = access.certificate, .key = access.key}};
  auto client = EtcdClient::make(settings, timing.calls);
  if (!client) return std::move(client).error();
  agent::EtcdTiming patient = timing.calls;
  patient.call_limit = std::max(patient.call_limit, timing.write_limit);
  auto writer = EtcdClient::make(settings, patient);
  if (!writer) return std::move(writer).error();
  std::string address = access.own_address;
  if (address.empty()) {
    const auto found = resolve_endpoint(access.endpoint, kNameLimit);
    if (!found) return found.error();
    const std::string host = without_brackets(split_endpoint(access.endpoint).host);
    address = own_address_towards(found->front(), is_loopback_name(host));
  }
  return std::unique_ptr<launcher::EtcdSeat>(new EtcdKey(*std::move(client),
                                                         *std::move(writer),
                                                         "/accel-launch/" + run_id + "/main",
                                                         std::move(address),
                                                         timing));
}

EtcdKey::EtcdKey(std::shared_ptr<EtcdClient> client,
                 std::shared_ptr<EtcdClient> writer,
                 std::string key,
                 std::string own_address,
                 EtcdKeyTiming timing)
    : client_(std::move(client)),
      writer_(std::move(writer)),
      key_(std::move(key)),
      own_address_(std::move(own_address)),
      timing_(timing) {}

Result<std::string> EtcdKey::take(const std::string& place) {
  {
    const std::lock_guard hold(mutex_);
    const bool is_kept = keeper_.joinable() && !keeper_.get_stop_token().stop_requested();
    if (is_kept && !is_over_ && successor_.empty()) return place_;
  }
  end_keeper();
  place_ = place;
  auto standing = read(place);
  if (standing && standing->empty()) standing = write();
  if (standing && lease_ != 0)
    keeper_ = std::jthread([this](const std::stop_token& stop) { keep(stop); });
  return standing;
}

Result<void> EtcdKey::reach(const std::string& host, std::uint16_t port) {
  const std::string text = endpoint_text(host, port);
  const auto addresses = resolve_endpoint(text, kReachLimit);
  if (!addresses) return Error(ErrorCode::kStoreUnreachable, addresses.error().message());
  if (first_reachable(*addresses, kReachLimit, {})) return {};
  return Error(ErrorCode::kStoreUnreachable, "nothing takes connections at " + text);
}

Result<std::string> EtcdKey::read(const std::string& place) {
  const auto found = client_->look_at(key_);
  if (!found) return found.error();
  if (!found->holder) return std::string();
  if (found->holder->value == place && lease_ == 0) own(*found->holder);
  return found->holder->value;
}

Result<std::string> EtcdKey::write() {
  const auto lease = writer_->grant(timing_.lease);
  if (!lease) return lease.error();
  auto holder = writer_->claim(key_, place_, lease->id);
  if (!holder) return std::move(holder).error();  // the lease ends by itself, and the key with it
  if (holder->lease == lease->id) {
    own(*holder);
  } else {
    (void)writer_->revoke(lease->id);
  }
  return std::move(holder->value);
}

void EtcdKey::own(const EtcdClient::Holder& holder) {
  lease_ = holder.lease;
  term_ = holder.revision;
}

void EtcdKey::keep(const std::stop_token& stop) {
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested() && successor_.empty()) {
    stopped.wait_for(lock, stop, timing_.renew_every, [] { return false; });
    lock.unlock();
    const auto other = stop.stop_requested() ? std::nullopt : renew();
    lock.lock();
    if (other) successor_ = *other;
  }
  lock.unlock();
  if (const auto lease = std::exchange(lease_, 0); lease != 0) (void)writer_->revoke(lease);
  lock.lock();
  is_over_ = true;
  over_.notify_all();
}

std::optional<std::string> EtcdKey::renew() {
  const auto renewed = client_->keep_alive(lease_);
  if (!renewed) return std::nullopt;
  const bool is_there = renewed->ttl.count() > 0;
  const std::int64_t before = is_there ? lease_ : std::exchange(lease_, 0);
  auto standing = read(place_);
  if (standing && standing->empty()) standing = write();
  if (is_there && lease_ != before) (void)writer_->revoke(before);
  if (!standing || *standing == place_) return std::nullopt;
  return *standing;
}

void EtcdKey::end_keeper() {
  if (!keeper_.joinable()) return;
  keeper_.request_stop();
  keeper_.join();
  is_over_ = false;
  successor_.clear();
}

void EtcdKey::give_up() {
  if (!keeper_.joinable()) return;
  keeper_.request_stop();
  std::unique_lock hold(mutex_);
  over_.wait_for(hold, timing_.give_up_within, [this] { return is_over_; });
}

std::string EtcdKey::successor() const {
  const std::lock_guard hold(mutex_);
  return successor_;
}

}  // namespace accel::cluster
