#include "agent/cluster/cluster_watch.h"

#include <set>
#include <utility>

#include <boost/asio/post.hpp>

namespace accel::agent {
namespace {

constexpr std::chrono::seconds kWatchRetry{1};

}  // namespace

ClusterWatch::ClusterWatch(boost::asio::io_context& loop, ClusterClient& client)
    : pause_(loop), client_(client) {}

void ClusterWatch::Follower::tell(const v1::Job& job) {
  std::string text = job.SerializeAsString();
  if (std::exchange(told[job.job_uuid()], text) != text) handlers.on_job(job);
}

ClusterWatch::Following ClusterWatch::follow(const std::string& uuid, Handlers handlers) {
  auto follower = std::make_shared<Follower>(Follower{uuid, std::move(handlers)});
  followers_.push_back(follower);
  // Not from within this call: whoever follows has nothing to hold yet.
  boost::asio::post(pause_.get_executor(),
                    [this, alive = std::weak_ptr(alive_), weak = std::weak_ptr(follower)] {
                      const auto begun = weak.lock();
                      if (!begun || alive.expired()) return;
                      const std::vector<std::string> uuids =
                          begun->uuid.empty() ? views_.uuids() : std::vector{begun->uuid};
                      for (const std::string& known : uuids) {
                        if (const v1::Job* const job = views_.find(known))
                          begun->tell(v1::Job(*job));
                      }
                      error_ ? begun->handlers.on_error(*error_) : ask();
                    });
  return follower;
}

std::vector<std::shared_ptr<ClusterWatch::Follower>> ClusterWatch::followers() {
  std::vector<std::shared_ptr<Follower>> live;
  std::erase_if(followers_, [&](const auto& weak) {
    auto follower = weak.lock();
    const bool is_over = !follower || follower->is_over;
    if (!is_over) live.push_back(std::move(follower));
    return is_over;
  });
  return live;
}

void ClusterWatch::ask() {
  std::set<std::string> wanted;
  bool all = false;
  for (const auto& follower : followers()) {
    follower->uuid.empty() ? void(all = true) : void(wanted.insert(follower->uuid));
  }
  const bool is_idle = wanted.empty() && !all;
  views_.want(std::move(wanted), all);
  if (is_idle) return;
  client_.changes(views_.request(),
                  [this, alive = std::weak_ptr(alive_), number = ++num_asked_](
                      const Result<v1::JobChanges>& answer) {
                    if (!alive.expired() && number == num_asked_) take(answer);
                  });
}

void ClusterWatch::take(const Result<v1::JobChanges>& answer) {
  const auto news = answer ? views_.take(*answer) : std::nullopt;
  if (!news) {
    if (!answer) tell_error(answer.error());
    return ask_later();
  }
  if (std::exchange(error_, std::nullopt)) {
    for (const auto& follower : followers()) {
      if (follower->handlers.on_recovered) follower->handlers.on_recovered();
    }
  }
  tell(*news);
  ask();
}

void ClusterWatch::tell(const KnownViews::News& news) {
  for (const std::string& uuid : news.changed) {
    const v1::Job* const known = views_.find(uuid);
    if (known == nullptr) continue;
    const v1::Job job = *known;
    for (const auto& follower : followers()) {
      if (follower->uuid.empty() || follower->uuid == uuid) follower->tell(job);
    }
  }
  for (const std::string& uuid : news.gone) {
    for (const auto& follower : followers()) {
      follower->told.erase(uuid);
      if (follower->uuid != uuid) continue;
      follower->is_over = true;
      follower->handlers.on_gone();
    }
  }
}

void ClusterWatch::tell_error(const Error& error) {
  const bool is_said = error_ && error_->message() == error.message();
  error_ = error;
  if (is_said) return;
  for (const auto& follower : followers()) follower->handlers.on_error(error);
}

void ClusterWatch::ask_later() {
  pause_.expires_after(kWatchRetry);
  pause_.async_wait([this, alive = std::weak_ptr(alive_)](const boost::system::error_code& error) {
    if (!error && !alive.expired()) ask();
  });
}

}  // namespace accel::agent
