#include "launcher/cluster/meeting/etcd_place.h"

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <utility>

#include "launcher/cluster/meeting/endpoint.h"
#include "launcher/cluster/meeting/etcd_key.h"
#include "launcher/start/machines/main/etcd_meeting.h"
#include "runtime/text/endpoint_text.h"
#include "runtime/text/host_name.h"
#include "runtime/text/random_digits.h"

namespace accel::cluster {
namespace {

using launcher::ElasticSettings;

// SIGTERM once it is asked for, else 0.
int pause_until(const std::stop_token& stop, Duration length) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  stopped.wait_for(lock, stop, length, [] { return false; });
  return stop.stop_requested() ? SIGTERM : 0;
}

Result<TcpEndpoint> address_of(const std::string& host,
                               std::uint16_t port,
                               TimePoint end,
                               const std::stop_token& stop) {
  const auto addresses = resolve_patiently(endpoint_text(host, port), end, stop);
  if (!addresses) return addresses.error();
  return addresses->front();
}

}  // namespace

Result<EtcdOffer> open_etcd(const ElasticSettings& settings,
                            TimePoint end,
                            const std::stop_token& stop) {
  auto papers = with_papers(settings);
  if (!papers) return std::move(papers).error();
  auto seat = EtcdKey::open(settings.etcd, settings.job);
  if (!seat) return std::move(seat).error();
  const auto own = address_of((*seat)->own_address(), 0, end, stop);
  if (!own) return own.error();
  EtcdOffer offer{*std::move(papers), *std::move(seat), "[::]:0"};
  offer.place.is_local = own->address().is_loopback();
  if (offer.place.is_local) offer.listen = to_text(*own);
  if (auto exposed = find_exposure(offer.place, settings)) return *std::move(exposed);
  return offer;
}

Result<MeetingPlace> meet_at_etcd(EtcdOffer offer,
                                  std::uint16_t port,
                                  const ElasticSettings& settings,
                                  TimePoint end,
                                  const std::stop_token& stop,
                                  const std::function<void(const std::string&)>& say) {
  const launcher::MainPlace own = {.id = random_digits(32),
                                   .host = host_name(),
                                   .address = offer.seat->own_address(),
                                   .port = port,
                                   .has_coordinator = true};
  const auto met =
      launcher::meet_by_etcd(*offer.seat,
                             own,
                             end - SteadyClock().now(),
                             {.now = [] { return SteadyClock().now(); },
                              .pause = [&](Duration length) { return pause_until(stop, length); },
                              .say = say,
                              .program = settings.program});
  if (!met) return met.error();
  if (met->signal != 0) return Error(ErrorCode::kRendezvousTimeout, "the launcher ends");
  const auto address = address_of(met->main.address, met->main.port, end, stop);
  if (!address) return address.error();
  MeetingPlace place = std::move(offer.place);
  place.host_id = met->main.id;
  place.endpoint = *address;
  place.is_local = address->address().is_loopback();
  if (auto exposed = find_exposure(place, settings)) return *std::move(exposed);
  if (met->is_ours) {
    place.listen = to_text(*address);
    place.seat = std::move(offer.seat);
  } else {
    say("the nodes meet at " + met->main.describe());
  }
  return place;
}

}  // namespace accel::cluster
