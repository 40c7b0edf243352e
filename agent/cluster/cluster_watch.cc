#include "agent/cluster/cluster_watch.h"

#include <utility>

namespace accel::agent {
namespace {

constexpr std::chrono::seconds kWatchRetry{1};

}  // namespace

ClusterWatch::ClusterWatch(boost::asio::io_context& loop,
                           ClusterClient& client,
                           v1::JobsReq request,
                           Handlers handlers)
    : pause_(loop), client_(client), request_(std::move(request)), handlers_(std::move(handlers)) {}

void ClusterWatch::close() {
  is_closed_ = true;
  pause_.cancel();
  handlers_ = {};
}

void ClusterWatch::ask() {
  client_.jobs(request_, [self = shared_from_this()](const Result<v1::JobList>& list) {
    if (!self->is_closed_) self->take(list);
  });
}

void ClusterWatch::take(const Result<v1::JobList>& list) {
  if (list) {
    last_error_.clear();
    request_.set_known(list->digest());
    for (const v1::Job& job : list->jobs()) {
      if (is_closed_) return;
      std::string text = job.SerializeAsString();
      if (std::exchange(told_[job.job_uuid()], text) != text) handlers_.on_job(job);
    }
  } else if (std::exchange(last_error_, list.error().message()) != list.error().message()) {
    handlers_.on_error(list.error());
  }
  if (is_closed_) return;
  pause_.expires_after(kWatchRetry);
  pause_.async_wait([self = shared_from_this()](const boost::system::error_code& error) {
    if (!error && !self->is_closed_) self->ask();
  });
}

}  // namespace accel::agent
