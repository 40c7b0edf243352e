#include "launcher/cluster/hosting/host_search.h"

#include <utility>

#include <boost/asio/post.hpp>

namespace accel::cluster {

// Only the last work counts.
template <typename Work, typename Take>
void HostSearch::run(Work work, Take take) {
  thread_.request_stop();
  if (thread_.joinable())
    earlier_.push_back(std::move(thread_));  // to join it could hold up the loop
  thread_ = std::jthread(
      [this, work = std::move(work), take, number = ++number_](const std::stop_token& stop) {
        auto found = std::make_shared<decltype(work(stop))>(work(stop));
        boost::asio::post(loop_, [this, found = std::move(found), take, number]() mutable {
          number == number_ ? (this->*take)(std::move(*found)) : let_go(std::move(found));
        });
      });
}

void HostSearch::let_go(std::shared_ptr<void> thing) {
  earlier_.emplace_back([thing = std::move(thing)]() mutable { thing.reset(); });
}

void HostSearch::drop(MeetingPlace place) {
  if (place.seat) let_go(std::shared_ptr<void>(std::move(place.seat)));
}

void HostSearch::begin(TimePoint until) {
  until_ = until;
  run([this, until](const std::stop_token& stop) { return open_etcd(settings_, until, stop); },
      &HostSearch::on_offer);
}

void HostSearch::stop() {
  ++number_;
  thread_.request_stop();
  handlers_.retire(std::exchange(seat_, nullptr));
}

void HostSearch::on_offer(Result<EtcdOffer> offer) {
  if (!offer) return handlers_.on_found(std::move(offer).error(), nullptr);
  auto seat = handlers_.listen(offer->place, offer->listen);
  if (!seat) return handlers_.on_found(std::move(seat).error(), nullptr);
  handlers_.retire(std::exchange(seat_, *std::move(seat)));
  const auto port = static_cast<std::uint16_t>(seat_->port());
  auto given = std::make_shared<EtcdOffer>(*std::move(offer));
  run(
      [this, given, port, until = until_](const std::stop_token& stop) {
        return meet_at_etcd(
            std::move(*given), port, settings_, until, stop, [this](const std::string& line) {
              boost::asio::post(loop_, [this, line] { handlers_.say(line); });
            });
      },
      &HostSearch::on_met);
}

void HostSearch::on_met(Result<MeetingPlace> found) {
  auto seat = std::exchange(seat_, nullptr);
  if (!found || !found->seat) handlers_.retire(std::move(seat));
  handlers_.on_found(std::move(found), std::move(seat));
}

}  // namespace accel::cluster
