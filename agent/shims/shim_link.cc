#include "agent/shims/shim_link.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include <fcntl.h>

namespace accel::agent {
namespace {

namespace asio = boost::asio;

constexpr std::uint64_t kBytesOfAUnit = 4'096;

// Records are written, and synced, by the loop.
bool may_be_recorded(const supervisor::HostEvent& event) {
  return std::holds_alternative<supervisor::GenerationStarted>(event) ||
         std::holds_alternative<supervisor::Snapshot>(event);
}

// Whether it can be said of a job with so many workers here.
class Plausible {
 public:
  explicit Plausible(int num_workers) : num_workers_(num_workers) {}

  bool operator()(const supervisor::GenerationStarted& started) const {
    return is_count(started.pids.size());
  }
  bool operator()(const supervisor::WorkerExit& exit) const { return is_rank(exit.local_rank); }
  bool operator()(const supervisor::Restarting& restarting) const {
    return is_rank(restarting.because.local_rank);
  }
  bool operator()(const supervisor::Hung& hung) const { return is_count(hung.silent_ranks.size()); }
  bool operator()(const supervisor::Snapshot& snapshot) const {
    return are_workers(snapshot.workers) && are_workers(snapshot.exits);
  }
  bool operator()(const supervisor::GenerationEnded& ended) const {
    return are_workers(ended.outcome.exits);
  }
  bool operator()(const supervisor::JobOutcome& outcome) const {
    return are_workers(outcome.exits);
  }
  template <typename Other>
  bool operator()(const Other&) const {
    return true;
  }

 private:
  bool is_count(std::size_t count) const { return count <= static_cast<std::size_t>(num_workers_); }
  bool is_rank(int rank) const { return rank >= 0 && rank < num_workers_; }
  template <typename Items>
  bool are_workers(const Items& items) const {
    return is_count(items.size()) && std::all_of(items.begin(), items.end(), [&](const auto& item) {
             return is_rank(item.local_rank);
           });
  }

  int num_workers_;
};

// Beyond the times of the policy, for sweeps on a busy machine.
constexpr std::chrono::milliseconds kStopSlack{10'000};

}  // namespace

Duration stop_limit(const supervisor::StopPolicy& policy, std::chrono::milliseconds grace) {
  return grace + policy.kill_wait + policy.linger + policy.drain + kStopSlack;
}

const Clock& ShimLink::steady_clock() {
  static const SteadyClock clock;
  return clock;
}

ShimLink::ShimLink(asio::io_context& loop, const Clock& clock)
    : clock_(clock),
      events_(loop),
      budget_(kBurst, Duration(std::chrono::seconds(1)) / kUnitsEach),
      pause_(loop),
      limit_(loop) {}

void ShimLink::open(std::unique_ptr<supervisor::WorkerHost> host,
                    Handlers handlers,
                    int num_workers) {
  host_ = std::move(host);
  handlers_ = std::move(handlers);
  num_workers_ = num_workers;
  events_.assign(::fcntl(host_->event_fd(), F_DUPFD_CLOEXEC, 3));
  wait();
}

void ShimLink::close() {
  has_acted();
  pause_.cancel();
  boost::system::error_code ignored;
  events_.close(ignored);
  is_waiting_ = false;
  host_.reset();
}

void ShimLink::read() {
  const std::uint64_t first = host_ ? host_->bytes_received() : 0;
  for (int i = 0; host_ && i < kEventsATurn && host_->bytes_received() - first < kBytesATurn; ++i) {
    if (const Duration pause = budget_.wait(clock_.now()); pause > Duration::zero())
      return rest(pause);
    const std::uint64_t before = host_->bytes_received();
    auto event = host_->next_event();
    if (!event) return handlers_.on_lost(event.error());
    if (!*event) return wait();
    const auto bytes = (host_->bytes_received() - before) / kBytesOfAUnit;
    budget_.take(
        1 + static_cast<std::int64_t>(bytes) + (may_be_recorded(**event) ? kRecordUnits : 0),
        clock_.now());
    if (!std::visit(Plausible(num_workers_), **event)) {
      refuse(**event);
    } else {
      handlers_.on_event(**event);
    }
  }
  if (host_) wait();
}

void ShimLink::refuse(const supervisor::HostEvent& claim) {
  const std::string why = "spoke of workers that the job does not have";
  if (!std::holds_alternative<supervisor::JobOutcome>(claim)) return kill(why + ", and was killed");
  // Its last word: it has ended.
  handlers_.on_lost(Error(ErrorCode::kProtocol, "accel-shim " + why));
}

void ShimLink::wait() {
  if (std::exchange(is_waiting_, true)) return;
  events_.async_wait(asio::posix::descriptor_base::wait_read,
                     [this, life = std::weak_ptr(life_)](const boost::system::error_code& error) {
                       if (error || life.expired()) return;
                       is_waiting_ = false;
                       read();
                     });
}

void ShimLink::rest(Duration pause) {
  pause_.expires_after(pause);
  pause_.async_wait([this, life = std::weak_ptr(life_)](const boost::system::error_code& error) {
    if (!error && !life.expired()) read();
  });
}

void ShimLink::request(const supervisor::HostRequest& request) {
  if (host_) host_->request(request);
}

void ShimLink::must_act_within(Duration time) {
  if (!host_) return;
  const TimePoint until = clock_.now() + time;
  if (act_until_ && *act_until_ <= until) return;
  act_until_ = until;
  limit_.expires_after(time);
  limit_.async_wait([this, life = std::weak_ptr(life_)](const boost::system::error_code& error) {
    if (!error && !life.expired()) look_at_deadline();
  });
}

void ShimLink::has_acted() {
  act_until_.reset();
  limit_.cancel();
}

// A timer that had run out before it was set anew calls too.
void ShimLink::look_at_deadline() {
  if (!host_ || !act_until_ || clock_.now() < *act_until_) return;
  kill("did not do in time what it was told, and was killed");
}

void ShimLink::kill(const std::string& why) {
  has_acted();
  if (host_) host_->kill_shim(why);
}

}  // namespace accel::agent
