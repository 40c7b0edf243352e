// Election: which of several agents hosts the coordinator, decided by one key in etcd. A pure step function.
//
// The key holds the leader's address and lives as long as the leader's lease. Its create_revision, which only grows,
// is the leader epoch: agents refuse what carries a lower one, and each write to etcd is made on the condition that
// the key still has it. So two coordinators never both change anything; the rules on time below keep two from both
// *believing* that they lead.
//
//   phase        enters on                            leaves on                                    to
//   LOOKING      start; what was known is void        key read: another's                          FOLLOWING
//                                                     key read: of a lease that was ours           RESIGNING
//                                                     key read: none                               GRANTING
//                                                     cannot be read: read again after `retry`
//   FOLLOWING    the key is another's; it is watched  the key goes                                 GRANTING
//                                                     the key becomes a third's                    FOLLOWING
//                                                     the watch breaks: read again                 FOLLOWING
//   GRANTING     nobody leads                         a lease is granted                           CAMPAIGNING
//                                                     it is not                                    LOOKING
//   CAMPAIGNING  a lease is ours                      the key was put: nobody had it               OPENING
//                                                     somebody had it; no answer                   RESIGNING
//   OPENING      the key is ours                      records read, epoch written                  LEADING
//                                                     they cannot be                               RESIGNING
//   LEADING      records are read                     (the next line)                              RESIGNING
//   the last three                                    the term is over; the lease, or the key, is gone; a write was
//                                                     refused; a higher epoch was seen             RESIGNING
//   RESIGNING    a lease was ours                     it is revoked, or that failed                LOOKING
//   ENDED        Quit, and the lease is revoked or that failed
//
// The term runs for 5/6 of the lease's time to live, from the *sending* of the last request that kept it alive; etcd's
// clock starts later, at its arrival, and runs longer. So a leader that hears nothing steps down before another may
// be elected. The sixth that is left is for clocks that run at different speeds and for what is under way when the term
// ends; who is slower than that is kept out by the epoch.
//
// The lease is as long as two limits allow. Of the leader's *crash* nobody knows before the lease is over, and jobs with
// hard fencing kill their workers 10 s after the last acked beat. While etcd itself elects (1 to 2 s, and again when
// votes are split) nothing can be kept alive, and the term should outlast that.
//
// Threads:  a pure function; ElectionState belongs to one thread at a time.
// Source:   docs/internals/rendezvous.md, "Who leads".
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/coordinator/election/reign.h"
#include "agent/coordinator/messages/job_description.h"
#include "runtime/clock.h"

namespace accel::agent {

// Names the request that an answer is for; answers to older ones change nothing.
using CallId = std::uint64_t;
using LeaseId = std::int64_t;

struct LeaderKey {
  Leader leader;
  LeaseId lease = 0;
};

// ---- what happens ----

struct Looked {
  CallId call = 0;
  std::optional<LeaderKey> key;
  std::uint64_t revision = 0;  // of etcd, when it was read
};
struct Granted {
  CallId call = 0;
  LeaseId lease = 0;
  Milliseconds ttl{0};
};
struct Won {
  CallId call = 0;
  std::uint64_t epoch = 0;
};
struct Opened {
  CallId call = 0;
};
struct Revoked {
  CallId call = 0;
};
// No answer, or a refusal, to any of them.
struct CallFailed {
  CallId call = 0;
  std::string why;
};
struct KeptAlive {
  CallId call = 0;
  Milliseconds ttl{0};  // 0: there is no such lease any more
};
struct KeepAliveFailed {
  CallId call = 0;
  std::string why;
};
// The key was put by `key`'s leader, or (none) it is gone.
struct KeySeen {
  CallId watch = 0;
  std::optional<LeaderKey> key;
};
struct WatchBroke {
  CallId watch = 0;
};
// A write was refused, or an agent follows a higher epoch.
struct Deposed {
  std::string why;
};
struct ElectionTick {};
struct Quit {};

struct ElectionEvent {
  TimePoint at;
  std::variant<ElectionTick,
               Looked,
               Granted,
               Won,
               Opened,
               Revoked,
               CallFailed,
               KeptAlive,
               KeepAliveFailed,
               KeySeen,
               WatchBroke,
               Deposed,
               Quit>
      what;
};

// ---- what is to be done ----

struct Look {
  CallId call = 0;
};
struct Grant {
  CallId call = 0;
  Milliseconds ttl{0};
};
// Puts the key with this lease if nobody has it: Won, or CallFailed.
struct Campaign {
  CallId call = 0;
  LeaseId lease = 0;
};
// Reads the records, writes the epoch, keeps the Reign for Lead.
struct Open {
  CallId call = 0;
  std::uint64_t epoch = 0;
};
struct Revoke {
  CallId call = 0;
  LeaseId lease = 0;
};
struct KeepAlive {
  CallId call = 0;
  LeaseId lease = 0;
};
// In place of the watch before it.
struct WatchKey {
  CallId watch = 0;
  std::uint64_t from_revision = 0;
};
// The term of this leader lasts until then: whoever acts for it looks at the clock.
struct Extend {
  TimePoint until;
};
struct Lead {};
// Stops leading, if it did. An empty address: nobody is known to lead.
struct Follow {
  Leader leader;
};
// For the log.
struct Tell {
  std::string line;
};
struct Ended {};

using ElectionAction = std::variant<Look,
                                    Grant,
                                    Campaign,
                                    Open,
                                    Revoke,
                                    KeepAlive,
                                    WatchKey,
                                    Extend,
                                    Lead,
                                    Follow,
                                    Tell,
                                    Ended>;

// ---- what it knows ----

struct ElectionConfig {
  Milliseconds ttl{6'000};
  Milliseconds keep_alive_every{1'000};
  Milliseconds retry{500};         // after a failure
  Milliseconds look_every{5'000};  // should a watch be dead without saying so
};

enum class ElectionPhase {
  kLooking,
  kFollowing,
  kGranting,
  kCampaigning,
  kOpening,
  kLeading,
  kResigning,
  kEnded,
};
[[nodiscard]] std::string_view name_of(ElectionPhase phase);

struct ElectionState {
  ElectionConfig config;
  std::string own_address;
  ElectionPhase phase = ElectionPhase::kLooking;
  CallId last_call = 0;
  CallId call = 0;  // waits for its answer; 0: none
  TimePoint call_sent_at{};
  TimePoint look_at{};  // not before
  LeaseId lease = 0;
  LeaseId old_lease = 0;  // revoked perhaps
  Milliseconds ttl{0};
  TimePoint term_until{};
  CallId keep_alive = 0;
  TimePoint keep_alive_sent_at{};
  TimePoint keep_alive_at{};
  std::string keep_alive_trouble;  // why the last one failed; empty: it did not
  CallId watch = 0;
  std::uint64_t epoch = 0;     // ours
  std::optional<Leader> told;  // the last Follow; none: Lead
  std::string trouble;         // told last, so that it is told once
  bool wants_end = false;
};

struct ElectionStep {
  ElectionState state;
  std::vector<ElectionAction> actions;  // carried out in this order
};

// The first event may be a Tick.
[[nodiscard]] ElectionStep step(ElectionState state, const ElectionEvent& event);

// When step() wants a Tick at the latest.
[[nodiscard]] TimePoint next_wake(const ElectionState& state);

}  // namespace accel::agent
