#include "agent/cluster/job_followers.h"

#include <algorithm>
#include <random>
#include <utility>

namespace accel::agent {
namespace {

std::uint64_t draw_log_id() {
  std::random_device random;
  return std::uniform_int_distribution<std::uint64_t>(1)(random);
}

}  // namespace

JobFollowers::JobFollowers(boost::asio::io_context& loop,
                           std::function<const State*()> state,
                           Pace pace)
    : state_(std::move(state)), pace_(pace), timer_(loop) {}

// A job that was accepted a moment ago is there, whenever the last look was.
bool JobFollowers::must_look(const v1::ChangesReq& request, TimePoint now) const {
  if (!has_changed_) return false;
  if (now >= looked_at_ + pace_.look_every) return true;
  return std::any_of(request.fresh().begin(), request.fresh().end(), [this](const auto& uuid) {
    return !log_->contains(uuid);
  });
}

void JobFollowers::look(const State& state, TimePoint now) {
  looked_at_ = now;
  has_changed_ = false;
  log_->look(state);
}

void JobFollowers::ask(const Caller& caller,
                       const v1::ChangesReq& request,
                       v1::JobChanges& answer,
                       Finish finish) {
  const State* const state = state_();
  if (state == nullptr) {
    return finish(Error(ErrorCode::kCoordinatorLost,
                        "this agent does not lead, or not any more",
                        "try again in some seconds: another agent is being elected"));
  }
  const TimePoint now = SteadyClock().now();
  if (!log_ || epoch_ != state->epoch) {
    log_.emplace(draw_log_id());
    epoch_ = state->epoch;
    has_changed_ = true;
    looked_at_ = TimePoint{};
  }
  if (must_look(request, now)) look(*state, now);
  // It has another question now: what it is told to the one before does not matter to it.
  if (auto before = waiting_.extract(caller.name)) {
    *before.mapped().answer = log_->answer(before.mapped().request);
    before.mapped().finish({});
  }
  v1::JobChanges found = log_->answer(request);
  if (has_news(found)) {
    answer = std::move(found);
    return finish({});
  }
  waiting_[caller.name] = {caller, request, &answer, std::move(finish), now + pace_.hold};
  arm();
}

void JobFollowers::change() {
  if (std::exchange(has_changed_, true) || waiting_.empty()) return;
  arm();
}

// To those for whom there is news, and to those that have waited long enough.
void JobFollowers::tell(TimePoint now) {
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    v1::JobChanges found = log_->answer(at->second.request);
    if (!has_news(found) && now < at->second.until) {
      ++at;
      continue;
    }
    auto told = waiting_.extract(at++);
    *told.mapped().answer = std::move(found);
    told.mapped().finish({});
  }
}

void JobFollowers::arm() {
  if (waiting_.empty()) {
    timer_.cancel();
    return;
  }
  TimePoint next = has_changed_ ? looked_at_ + pace_.look_every : TimePoint::max();
  for (const auto& [name, waiting] : waiting_) next = std::min(next, waiting.until);
  timer_.expires_at(next);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || waiting_.empty()) return;
    const TimePoint now = SteadyClock().now();
    const State* const state = state_();
    if (has_changed_ && state != nullptr && now >= looked_at_ + pace_.look_every) look(*state, now);
    tell(now);
    arm();
  });
}

void JobFollowers::end(const Error& why) {
  timer_.cancel();
  log_.reset();
  for (auto& [name, waiting] : std::exchange(waiting_, {})) waiting.finish(why);
}

void JobFollowers::end_revoked(const RevocationList& revoked) {
  for (auto at = waiting_.begin(); at != waiting_.end();) {
    const Caller& caller = at->second.caller;
    if (caller.certificate.empty() || !revoked.contains(caller.certificate)) {
      ++at;
      continue;
    }
    auto ended = waiting_.extract(at++);
    ended.mapped().finish(revoked_error(ended.mapped().caller.name));
  }
}

}  // namespace accel::agent
