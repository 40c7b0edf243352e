#include "agent/coordinator/election/election.h"

#include <algorithm>
#include <utility>

namespace accel::agent {
namespace {

bool holds_lease(ElectionPhase phase) {
  return phase == ElectionPhase::kCampaigning || phase == ElectionPhase::kOpening ||
         phase == ElectionPhase::kLeading;
}

// The key is looked at while its holder is known: nothing else is under way then.
bool looks_on(ElectionPhase phase) {
  return phase == ElectionPhase::kLooking || phase == ElectionPhase::kFollowing ||
         phase == ElectionPhase::kLeading;
}

class ElectionTurn {
 public:
  ElectionTurn(ElectionStep& result, const ElectionEvent& event)
      : state_(result.state), actions_(result.actions), event_(event), now_(event.at) {}

  void run() {
    if (state_.phase == ElectionPhase::kEnded) return;
    // Before anything that the event says: after a pause of the process it may be long over.
    if (holds_lease(state_.phase) && now_ >= state_.term_until) {
      resign("no answer from etcd for five sixths of the lease" +
             (state_.keep_alive_trouble.empty() ? "" : "; last: " + state_.keep_alive_trouble));
    }
    std::visit([this](const auto& what) { on(what); }, event_.what);
    pursue();
  }

 private:
  // ---- what is due ----

  void pursue() {
    if (state_.phase == ElectionPhase::kEnded) return;
    if (looks_on(state_.phase) && state_.call == 0 && now_ >= state_.look_at) {
      actions_.emplace_back(Look{begin_call()});
    }
    if (holds_lease(state_.phase) && state_.keep_alive == 0 && now_ >= state_.keep_alive_at) {
      state_.keep_alive = ++state_.last_call;
      state_.keep_alive_sent_at = now_;
      actions_.emplace_back(KeepAlive{state_.keep_alive, state_.lease});
    }
  }

  CallId begin_call() {
    state_.call = ++state_.last_call;
    state_.call_sent_at = now_;
    return state_.call;
  }

  // Whether it answers the request that is waited for.
  bool ends_call(CallId call) {
    if (call != state_.call || call == 0) return false;
    state_.call = 0;
    return true;
  }

  // ---- changes of phase ----

  void enter_looking(Milliseconds pause) {
    state_.phase = ElectionPhase::kLooking;
    state_.call = 0;
    state_.look_at = now_ + pause;
  }

  void enter_granting() {
    follow({});
    state_.phase = ElectionPhase::kGranting;
    actions_.emplace_back(Grant{begin_call(), state_.config.ttl});
  }

  void follow(const Leader& leader) {
    // An earlier life of this agent left the key: nobody leads until it goes.
    const Leader known = leader.address == state_.own_address ? Leader{} : leader;
    if (state_.told == known) return;
    state_.told = known;
    actions_.emplace_back(Follow{known});
  }

  void resign(const std::string& why) {
    if (state_.phase == ElectionPhase::kLeading)
      actions_.emplace_back(Tell{"leads no more: " + why});
    follow({});
    state_.phase = ElectionPhase::kResigning;
    state_.watch = 0;
    state_.keep_alive = 0;
    state_.epoch = 0;
    state_.term_until = {};
    state_.old_lease = std::exchange(state_.lease, 0);
    actions_.emplace_back(Revoke{begin_call(), state_.old_lease});
  }

  void watch_from(std::uint64_t revision) {
    state_.watch = ++state_.last_call;
    actions_.emplace_back(WatchKey{state_.watch, revision});
  }

  void extend(TimePoint sent_at, Milliseconds ttl) {
    state_.ttl = ttl;
    state_.term_until = std::max(state_.term_until, sent_at + ttl * 5 / 6);
    actions_.emplace_back(Extend{state_.term_until});
  }

  // What the key says, read or watched.
  void learn(const std::optional<LeaderKey>& key) {
    if (state_.phase == ElectionPhase::kLeading) {
      const bool is_ours = key && key->leader.epoch == state_.epoch;
      if (!is_ours) resign(key ? key->leader.address + " leads" : "the leader's key was removed");
      return;
    }
    if (!key) return enter_granting();
    if (key->lease != 0 && key->lease == state_.old_lease) {
      // Revoking it failed, or the put came late.
      state_.phase = ElectionPhase::kResigning;
      actions_.emplace_back(Revoke{begin_call(), state_.old_lease});
      return;
    }
    state_.phase = ElectionPhase::kFollowing;
    follow(key->leader);
  }

  void tell_trouble(const std::string& why) {
    if (why == state_.trouble) return;
    state_.trouble = why;
    actions_.emplace_back(Tell{why});
  }

  // ---- what happens ----

  void on(const ElectionTick&) {}

  void on(const Looked& looked) {
    if (!ends_call(looked.call)) return;
    state_.trouble.clear();
    state_.look_at = now_ + state_.config.look_every;
    learn(looked.key);
    const bool is_watching =
        state_.phase == ElectionPhase::kFollowing || state_.phase == ElectionPhase::kLeading;
    if (is_watching && state_.watch == 0) watch_from(looked.revision + 1);
  }

  void on(const Granted& granted) {
    if (!ends_call(granted.call)) return;
    state_.phase = ElectionPhase::kCampaigning;
    state_.lease = granted.lease;
    state_.term_until = {};
    state_.keep_alive_trouble.clear();
    extend(state_.call_sent_at, granted.ttl);
    state_.keep_alive_at = now_ + state_.config.keep_alive_every;
    actions_.emplace_back(Campaign{begin_call(), state_.lease});
  }

  void on(const Won& won) {
    if (!ends_call(won.call)) return;
    state_.phase = ElectionPhase::kOpening;
    state_.epoch = won.epoch;
    actions_.emplace_back(Open{begin_call(), won.epoch});
  }

  void on(const Opened& opened) {
    if (!ends_call(opened.call)) return;
    state_.phase = ElectionPhase::kLeading;
    state_.told.reset();
    // Reads the key at once, and watches it from there: somebody may have removed it meanwhile.
    state_.look_at = now_;
    state_.watch = 0;
    actions_.emplace_back(Tell{"leads as epoch " + std::to_string(state_.epoch)});
    actions_.emplace_back(Lead{});
  }

  void on(const Revoked& revoked) {
    if (!ends_call(revoked.call)) return;
    state_.old_lease = 0;
    leave_resigning(Milliseconds(0));
  }

  void leave_resigning(Milliseconds pause) {
    if (!state_.wants_end) return enter_looking(pause);
    state_.phase = ElectionPhase::kEnded;
    actions_.emplace_back(Ended{});
  }

  void on(const CallFailed& failed) {
    if (!ends_call(failed.call)) return;
    tell_trouble(failed.why);
    if (state_.phase == ElectionPhase::kResigning) return leave_resigning(state_.config.retry);
    if (holds_lease(state_.phase) && state_.phase != ElectionPhase::kLeading) {
      return resign(failed.why);
    }
    if (state_.phase == ElectionPhase::kGranting) return enter_looking(state_.config.retry);
    state_.look_at = now_ + state_.config.retry;
  }

  void on(const KeptAlive& kept) {
    if (kept.call != state_.keep_alive || kept.call == 0) return;
    state_.keep_alive = 0;
    if (kept.ttl.count() <= 0) return resign("etcd has ended the lease");
    state_.keep_alive_trouble.clear();
    state_.keep_alive_at = state_.keep_alive_sent_at + state_.config.keep_alive_every;
    extend(state_.keep_alive_sent_at, kept.ttl);
  }

  void on(const KeepAliveFailed& failed) {
    if (failed.call != state_.keep_alive || failed.call == 0) return;
    state_.keep_alive = 0;
    state_.keep_alive_trouble = failed.why;
    // It may have taken its second already.
    state_.keep_alive_at = std::max(now_, state_.keep_alive_sent_at + state_.config.retry);
  }

  void on(const KeySeen& seen) {
    if (seen.watch != state_.watch || seen.watch == 0) return;
    if (!looks_on(state_.phase)) return;
    // What is being read meanwhile may be older.
    if (state_.call != 0) {
      state_.call = 0;
      state_.look_at = now_;
    }
    learn(seen.key);
  }

  void on(const WatchBroke& broke) {
    if (broke.watch != state_.watch || broke.watch == 0) return;
    state_.watch = 0;
    if (state_.call == 0) state_.look_at = std::min(state_.look_at, now_ + state_.config.retry);
  }

  void on(const Deposed& deposed) {
    if (holds_lease(state_.phase)) resign(deposed.why);
  }

  void on(const Quit&) {
    state_.wants_end = true;
    if (holds_lease(state_.phase)) return resign("this agent ends");
    if (state_.phase == ElectionPhase::kResigning) return;
    follow({});
    state_.phase = ElectionPhase::kEnded;
    actions_.emplace_back(Ended{});
  }

  ElectionState& state_;
  std::vector<ElectionAction>& actions_;
  const ElectionEvent& event_;
  TimePoint now_;
};

}  // namespace

ElectionStep step(ElectionState state, const ElectionEvent& event) {
  ElectionStep result{std::move(state), {}};
  ElectionTurn(result, event).run();
  return result;
}

TimePoint next_wake(const ElectionState& state) {
  TimePoint next = TimePoint::max();
  if (state.phase == ElectionPhase::kEnded) return next;
  if (looks_on(state.phase) && state.call == 0) next = std::min(next, state.look_at);
  if (holds_lease(state.phase)) {
    next = std::min(next, state.term_until);
    if (state.keep_alive == 0) next = std::min(next, state.keep_alive_at);
  }
  return next;
}

std::string_view name_of(ElectionPhase phase) {
  switch (phase) {
    case ElectionPhase::kLooking:
      return "looking";
    case ElectionPhase::kFollowing:
      return "following";
    case ElectionPhase::kGranting:
      return "granting";
    case ElectionPhase::kCampaigning:
      return "campaigning";
    case ElectionPhase::kOpening:
      return "opening";
    case ElectionPhase::kLeading:
      return "leading";
    case ElectionPhase::kResigning:
      return "resigning";
    case ElectionPhase::kEnded:
      return "ended";
  }
  return "unknown";
}

}  // namespace accel::agent
