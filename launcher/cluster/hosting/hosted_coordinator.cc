#include "launcher/cluster/hosting/hosted_coordinator.h"

#include <algorithm>
#include <utility>

#include <boost/asio/post.hpp>

#include "launcher/cluster/meeting/endpoint.h"
#include "launcher/start/machines/main/etcd_meeting.h"

namespace accel::cluster {

namespace asio = boost::asio;

bool may_go_on_elsewhere(const launcher::ElasticSettings& settings) {
  return !settings.etcd.endpoint.empty() && !settings.hard_fencing;
}

HostedCoordinator::HostedCoordinator(asio::io_context& loop,
                                     const launcher::ElasticRequest& request,
                                     MeetingPlace& place,
                                     Handlers handlers)
    : loop_(loop), request_(request), place_(place), handlers_(std::move(handlers)), watch_(loop) {}

Result<std::unique_ptr<CoordinatorSeat>> HostedCoordinator::listen(const MeetingPlace& place,
                                                                   const std::string& at) {
  SeatOptions options;
  options.listen = at;
  options.tls = place.tls;
  options.insecure = request_.settings.insecure;
  options.token_key = place.token_key;
  options.on_report = [this](const agent::Report& report) { on_report(report); };
  options.on_line = handlers_.say;
  return CoordinatorSeat::take(loop_, std::move(options));
}

Result<void> HostedCoordinator::begin(std::uint64_t known_epoch) {
  if (!place_.listen) return {};
  if (place_.seat) {
    take_offered(known_epoch);
  } else {
    auto seat = listen(place_, *place_.listen);
    // Another launcher of this machine was quicker: it is the host.
    if (!seat && place_.endpoint.port() != 0 && !is_ours_and_free(place_.endpoint)) return {};
    if (!seat) return std::move(seat).error();
    seat_ = *std::move(seat);
  }
  if (place_.is_open && !place_.is_local)
    handlers_.say("the nodes meet at " + *place_.listen +
                  "; this port has no authentication, as with torchrun");
  return place_.endpoint.port() == 0 ? publish_endpoint() : Result<void>();
}

Result<void> HostedCoordinator::publish_endpoint() {
  const auto endpoints = own_endpoints(seat_->port());
  place_.endpoint = *supervisor::parse_tcp_endpoint(endpoints.front());
  return place_.folder->publish(endpoints);
}

void HostedCoordinator::take_offered(std::uint64_t known_epoch) {
  seat_ = std::move(offered_);
  seat_->host().lead(
      {.beginning = agent::found(std::max(place_.seat->term(), known_epoch + 1), {}, clock_.now()),
       .store = nullptr,
       .term = nullptr});
  watch_seat();
}

void HostedCoordinator::on_report(const agent::Report& report) {
  handlers_.say(describe_report(report));
  if (report.kind == agent::ReportKind::kOutdated && place_.seat) {
    const std::string why = report.text;
    return asio::post(loop_, [this, why] {
      handlers_.on_end(Error(ErrorCode::kCoordinatorLost,
                             "etcd has forgotten what it knew of this job: " + why,
                             "start the job again"));
    });
  }
  // Before the other nodes hear of it: the next run of this name may begin at once.
  const auto* hosted = job();
  if (hosted != nullptr && agent::is_terminal(hosted->phase) && place_.seat) place_.seat->give_up();
}

const agent::Job* HostedCoordinator::job() const {
  if (!seat_) return nullptr;
  const auto& jobs = seat_->host().state().jobs;
  const auto found = jobs.find(request_.settings.job);
  return found == jobs.end() ? nullptr : &found->second;
}

void HostedCoordinator::stop_job(supervisor::Milliseconds grace) {
  seat_->host().handle(agent::StopJob{.job_uuid = request_.settings.job, .grace = grace});
}

void HostedCoordinator::end_revoked(const agent::RevocationList& revoked) {
  if (seat_) seat_->host().end_revoked(revoked);
}

void HostedCoordinator::retire(std::unique_ptr<CoordinatorSeat> seat) {
  if (!seat) return;
  retired_.push_back(std::move(seat));
  ++num_ending_;
  retired_.back()->end([this] { on_ended(); });
}

void HostedCoordinator::on_ended() {
  if (--num_ending_ == 0 && on_closed_) on_closed_();
}

void HostedCoordinator::watch_seat() {
  constexpr std::chrono::seconds kLookEvery{1};
  watch_.expires_after(kLookEvery);
  watch_.async_wait([this](const boost::system::error_code& error) {
    if (error || handlers_.is_ending() || !place_.seat) return;
    const auto lost = launcher::find_lost_seat(*place_.seat);
    lost ? on_lost(*lost) : watch_seat();
  });
}

// Another launcher has the seat that etcd did not hear from us for: its nodes and ours meet there.
void HostedCoordinator::on_lost(const Error& lost) {
  const auto* hosted = job();
  const bool moves = may_go_on_elsewhere(request_.settings);
  if (!moves && (hosted == nullptr || !hosted->was_started)) return handlers_.on_end(lost);
  if (!moves) return handlers_.say(lost.message() + ": nodes that come from now on join there");
  handlers_.say(lost.message() + ": the nodes meet there");
  step_down();
}

void HostedCoordinator::close(std::function<void()> done) {
  watch_.cancel();
  const auto* hosted = job();
  const bool goes_on = place_.seat && may_go_on_elsewhere(request_.settings);
  // With etcd the others go on without us, as soon as what runs has stopped.
  if (goes_on && hosted != nullptr && hosted->phase == agent::JobPhase::kStopping) {
    constexpr std::chrono::milliseconds kLookEvery{20};
    watch_.expires_after(kLookEvery);
    return watch_.async_wait([this, done = std::move(done)](const auto& error) {
      if (!error) close(done);
    });
  }
  decline();
  const bool is_over = hosted != nullptr && agent::is_terminal(hosted->phase);
  if (goes_on && !is_over) {
    step_down();
  } else if (seat_) {
    ++num_ending_;
    seat_->close([this] { on_ended(); });
  }
  if (num_ending_ == 0) return done();
  on_closed_ = std::move(done);
}

}  // namespace accel::cluster
