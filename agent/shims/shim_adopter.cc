#include "agent/shims/shim_adopter.h"

#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "runtime/clock.h"
#include "runtime/supervisor/kernel/process_table.h"
#include "runtime/supervisor/owner/delegated_cgroup.h"
#include "runtime/supervisor/owner/last_word.h"
#include "runtime/supervisor/owner/shim_state.h"
#include "runtime/supervisor/stop/orphan_sweep.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;
using supervisor::ShimState;

constexpr std::chrono::milliseconds kAdoptRetry{100};  // between two tries

// Whether a shim may be among what is left: in the seat of its cgroup, or by its tags.
bool has_processes(const ShimAdopter::Wanted& wanted) {
  if (!wanted.cgroup.empty() && supervisor::is_seat_taken(real_system(), wanted.cgroup))
    return true;
  const supervisor::SweepScope scope = {.ancestor = -1,
                                        .job_id = wanted.job_id,
                                        .node_id = wanted.node_id,
                                        .instance = wanted.instance};
  System& system = real_system();
  return !supervisor::find_strays(system, scope, supervisor::read_process_table(system)).empty();
}

// The shim was killed: whatever it left is killed too.
ShimAdopter::Found lost_shim(const ShimAdopter::Wanted& wanted, Error error) {
  const auto ended =
      supervisor::end_job(wanted.job_id, wanted.node_id, wanted.instance, wanted.cgroup);
  for (const auto& killed : ended.killed)
    error.with_detail("killed", std::to_string(killed.pid) + " " + killed.command);
  if (!ended.is_clean) error.with_detail("left", "some of them did not end after SIGKILL");
  const bool is_proved = ended.has_cgroup || supervisor::can_read_tags_of(wanted.owner);
  return {.host = nullptr,
          .last_word = {},
          .lost = std::move(error),
          .num_unkillable = ended.num_left,
          .is_end_proved = is_proved};
}

// One try. An error means: again later.
Result<ShimAdopter::Found> try_once(const ShimAdopter::Wanted& wanted, bool is_last_try) {
  const std::string state_file = wanted.folder + "/" + supervisor::state_file_name(wanted.job_id);
  const auto adopt = [&] {
    supervisor::ShimHostOptions options;
    options.credentials = supervisor::Credentials{.uid = wanted.owner, .gid = 0, .groups = {}};
    options.cgroup = wanted.cgroup;
    return supervisor::adopt_shim(state_file, wanted.token, std::move(options));
  };
  auto host = adopt();
  if (host) return ShimAdopter::Found{.host = *std::move(host), .last_word = {}, .lost = {}};
  // First who is there, then the last word: a shim writes it before it goes.
  const auto state = supervisor::read_shim_state(state_file);
  const bool is_shim_alive = state && supervisor::is_running(real_system(), *state);
  const bool is_anybody_alive = is_shim_alive || has_processes(wanted);
  auto word = supervisor::read_last_word(wanted.folder, wanted.job_id, wanted.owner);
  if (word && *word && !is_shim_alive) {
    if (!wanted.cgroup.empty())
      (void)supervisor::end_job(wanted.job_id, wanted.node_id, wanted.instance, wanted.cgroup);
    return ShimAdopter::Found{.host = nullptr, .last_word = std::move(*word), .lost = {}};
  }
  // It was dying when it was asked. That it is gone is what there is to say, not how its connection ended.
  if (state && !is_shim_alive) {
    if (auto gone = adopt(); !gone) host = std::move(gone);
  }
  // A state file of a shim that is gone is final; without one the shim may be about to write it.
  const bool is_over = !is_anybody_alive || (state && !is_shim_alive) || is_last_try;
  if (is_over) return lost_shim(wanted, word ? std::move(host).error() : std::move(word).error());
  return std::move(host).error();
}

}  // namespace

struct ShimAdopter::Search {
  Search(asio::io_context& loop, Wanted what, TimePoint end)
      : wanted(std::move(what)), give_up_at(end), pause(loop) {}

  Wanted wanted;
  TimePoint give_up_at;
  asio::steady_timer pause;
  std::function<void(Found)> done;
  std::function<void(const Error&)> tell;
  std::string told;
};

ShimAdopter::~ShimAdopter() {
  is_closing_ = true;
  threads_.join();
}

void ShimAdopter::take(Wanted wanted,
                       std::function<void(Found)> done,
                       std::function<void(const Error&)> tell) {
  SteadyClock clock;
  const TimePoint end = clock.now() + wanted.patience;
  auto search = std::make_shared<Search>(loop_, std::move(wanted), end);
  search->done = std::move(done);
  search->tell = std::move(tell);
  searches_[{search->wanted.job_id, search->wanted.instance}] = search;
  look(std::move(search));
}

void ShimAdopter::hurry(const std::string& job_id, const std::string& instance) {
  const auto found = searches_.find({job_id, instance});
  const auto search = found == searches_.end() ? nullptr : found->second.lock();
  if (search) search->give_up_at = TimePoint::min();
}

void ShimAdopter::look(std::shared_ptr<Search> search) {
  SteadyClock clock;
  const bool is_last_try = clock.now() >= search->give_up_at;
  asio::post(threads_, [this, search, is_last_try] {
    if (is_closing_) return;
    auto found = std::make_shared<Result<Found>>(try_once(search->wanted, is_last_try));
    asio::post(loop_, [this, search, found] {
      if (*found) {
        searches_.erase({search->wanted.job_id, search->wanted.instance});
        return search->done(std::move(**found));
      }
      look_again(search, found->error());
    });
  });
}

void ShimAdopter::look_again(std::shared_ptr<Search> search, const Error& why) {
  if (std::exchange(search->told, why.message()) != why.message()) search->tell(why);
  search->pause.expires_after(kAdoptRetry);
  search->pause.async_wait([this, search](const boost::system::error_code& error) {
    if (!error) look(search);
  });
}

}  // namespace accel::agent
