// JobFollowers: agents that wait for a change of the jobs that their users follow. The coordinator's half.
//
//   ask() --there is news--> answered
//     '--none--> waits --the state changes: news at the next look--> answered
//                  '--20 s, another ask() of the same caller, the end of the reign--> answered, or refused
//
// One look for everybody, `look_every` after the one before: a rendezvous of thousands of nodes changes the state with
// each message. While nobody waits, nothing is looked at.
//
// Threads:  everything on the coordinator's loop.
// Source:   docs/internals/rendezvous.md, "Who follows a job".
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <accel/result.h>

#include "agent/access/access_policy.h"
#include "agent/cluster/job_changes.h"
#include "agent/tls/revocation_list.h"
#include "runtime/clock.h"

namespace accel::agent {

// How long a question waits for news; whoever asks waits longer.
inline constexpr std::chrono::seconds kHoldForNews{20};

class JobFollowers {
 public:
  struct Pace {
    std::chrono::milliseconds look_every{100};
    std::chrono::milliseconds hold = kHoldForNews;
  };
  using Finish = std::function<void(const Result<void>&)>;

  // `state`: as it is at the moment; nullptr where nobody leads.
  JobFollowers(boost::asio::io_context& loop, std::function<const State*()> state, Pace pace);

  // `answer` lives until `finish`, which is called once. Errors  kCoordinatorLost.
  void ask(const Caller& caller,
           const v1::ChangesReq& request,
           v1::JobChanges& answer,
           Finish finish);

  // The state may be another now.
  void change();

  // Refuses those that wait. Who asks next asks another coordinator.
  void end(const Error& why);
  void end_revoked(const RevocationList& revoked);

  [[nodiscard]] std::size_t num_waiting() const { return waiting_.size(); }

 private:
  struct Waiting {
    Caller caller;
    v1::ChangesReq request;
    v1::JobChanges* answer = nullptr;
    Finish finish;
    TimePoint until;
  };
  [[nodiscard]] bool must_look(const v1::ChangesReq& request, TimePoint now) const;
  void look(const State& state, TimePoint now);
  void tell(TimePoint now);
  void arm();

  const std::function<const State*()> state_;
  const Pace pace_;
  boost::asio::steady_timer timer_;
  std::optional<ViewLog> log_;  // of `epoch_`
  std::uint64_t epoch_ = 0;
  bool has_changed_ = true;  // since the last look
  TimePoint looked_at_{};
  std::map<std::string, Waiting> waiting_;  // by the caller's name
};

}  // namespace accel::agent
