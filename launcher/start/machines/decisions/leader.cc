#include "launcher/start/machines/decisions/leader.h"

#include <algorithm>
#include <utility>

#include "launcher/start/machines/board/agreement.h"
#include "runtime/text/seconds_text.h"

namespace accel::launcher {
namespace {

using supervisor::StoreExchange;

// A machine whose beat stopped so shortly after the first failure was its cause: the beat before was
// still on its way.
constexpr Duration kCauseWindow = std::chrono::milliseconds(1500);

constexpr Duration kLeastToJoin = std::chrono::seconds(1);  // once there is a store to join

}  // namespace

Leader::Leader(MachineCard card, LeaderOptions options)
    : card_(std::move(card)),
      options_(options),
      members_(static_cast<std::size_t>(card_.num_machines)) {}

void Leader::add_to(StoreExchange& exchange) const {
  using board_key::of;
  exchange.sets.emplace_back(board_key::kHost, to_text(card_));
  if (plan_) exchange.sets.emplace_back(board_key::kPlan, to_text(*plan_));
  if (is_go_) exchange.sets.emplace_back(board_key::kGo, "1");
  if (own_stop_) exchange.swaps.push_back({std::string(board_key::kStop), "", to_text(*own_stop_)});
  if (verdict_) exchange.sets.emplace_back(board_key::kVerdict, to_text(*verdict_));
  exchange.reads.emplace_back(board_key::kStop);
  exchange.reads.emplace_back(board_key::kFault);
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const int rank = static_cast<int>(i);
    if (members_[i].is_void)
      exchange.swaps.push_back({of(board_key::kClaim, rank), members_[i].claim, ""});
    if (phase_ == Phase::kSettled) {
      exchange.reads.push_back(of(board_key::kLeft, rank));
      continue;
    }
    exchange.reads.push_back(of(board_key::kBeat, rank));
    if (phase_ == Phase::kGathering) exchange.reads.push_back(of(board_key::kClaim, rank));
    if (phase_ == Phase::kPreparing) exchange.reads.push_back(of(board_key::kReady, rank));
    if (phase_ == Phase::kPreparing || phase_ == Phase::kRunning)
      exchange.reads.push_back(of(board_key::kEnd, rank));
  }
}

void Leader::look(const Board& board, TimePoint now) {
  if (!began_at_) {
    const Duration most = std::max(Duration{}, options_.join_limit - kLeastToJoin);
    began_at_ = now - std::clamp(options_.waited, Duration{}, most);
    looked_at_ = now;
    if (auto fault = find_fault(card_)) return settle(failed_verdict(*fault, 0), now);
  }
  const Duration pause = now - looked_at_;
  looked_at_ = now;
  if (pause > kLongestLook) {
    for (Member& member : members_) {
      member.beat_at += pause - kLongestLook;
      member.suspended_at += pause - kLongestLook;
    }
  }
  if (!stop_ && board.has(board_key::kStop)) {
    // What cannot be read still stops the job.
    auto note = stop_from(board.at(board_key::kStop));
    stop_ = note ? *std::move(note) : StopNote{.text = note.error().message()};
    stop_at_ = now;
  }
  switch (phase_) {
    case Phase::kGathering:
      return gather(board, now);
    case Phase::kPreparing:
      read_beats(board, now);
      if (auto fault = verdict_from(board.at(board_key::kFault)); fault) return settle(*fault, now);
      if (!stop_) return prepare(board);
      phase_ = Phase::kRunning;
      return run(board, now);
    case Phase::kRunning:
      read_beats(board, now);
      return run(board, now);
    case Phase::kSettled:
      return await_leaving(board, now);
    case Phase::kDone:
      return;
  }
}

// ---- gathering ----

void Leader::gather(const Board& board, TimePoint now) {
  if (board.has(board_key::kFault)) {
    const auto fault = verdict_from(board.at(board_key::kFault));
    return settle(fault ? *fault : failed_verdict(fault.error(), -1), now);
  }
  if (stop_) return settle(verdict_on_stop(*stop_), now);
  read_claims(board, now);
  read_beats(board, now);
  const auto has_card = [](const Member& member) { return member.card.has_value(); };
  if (std::ranges::all_of(members_, has_card)) {
    std::vector<MachineCard> cards;
    for (const Member& member : members_) cards.push_back(*member.card);
    if (auto why = find_disagreement(cards, options_.program))
      return settle(failed_verdict(*why, 0), now);
    plan_ = make_plan(cards, options_.restart_count);
    is_before_begin_ = false;
    phase_ = Phase::kPreparing;
    return;
  }
  if (now - *began_at_ < options_.join_limit) return;
  settle(failed_verdict(Error(ErrorCode::kRendezvousTimeout,
                              std::to_string(num_joined()) + " of " +
                                  std::to_string(card_.num_machines) + " machines joined within " +
                                  seconds_text(options_.join_limit) + "; missing: " + missing(),
                              "start " + std::string(name_of(options_.program)) +
                                  " on the missing machines, or raise " +
                                  spelled("rdzv_conf", options_.program) + " join_timeout"),
                        0),
         now);
}

void Leader::read_claims(const Board& board, TimePoint now) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    const std::string& claim = board.at(board_key::of(board_key::kClaim, static_cast<int>(i)));
    if (claim == member.claim) continue;
    member = Member{.card = std::nullopt, .claim = claim, .beat = {}, .beat_at = now, .end = {}};
    if (claim.empty()) continue;
    auto card = card_from(claim);
    const bool is_good = card && card->rank == static_cast<int>(i) &&
                         card->generation == card_.generation && !find_disagreement(card_, *card);
    if (is_good) member.card = *std::move(card);
    member.is_void = !is_good;
  }
}

void Leader::read_beats(const Board& board, TimePoint now) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    if (!member.card || member.is_lost) continue;
    const int rank = static_cast<int>(i);
    const std::string& beat = board.at(board_key::of(board_key::kBeat, rank));
    const bool is_new = beat != member.beat;
    if (is_new) member.suspended_at = now;
    const bool is_suspended =
        beat == kSuspendedBeat && now - member.suspended_at < options_.suspended_limit;
    if (is_new || is_suspended) {
      member.beat = beat;
      member.beat_at = now;
    }
    if (!member.end && now - member.beat_at >= options_.lost_after) lose(rank, now);
  }
}

void Leader::lose(int rank, TimePoint now) {
  Member& member = members_[static_cast<std::size_t>(rank)];
  if (phase_ == Phase::kGathering) {
    member.card.reset();
    member.is_void = true;
    return;
  }
  member.is_lost = true;
  if (stop_) return;
  own_stop_ = StopNote{.kind = StopKind::kLost,
                       .machine = rank,
                       .exit_code = error_info(ErrorCode::kNodeLost).exit_status,
                       .text = "it does not answer any more"};
  stop_ = own_stop_;
  stop_at_ = now;
}

std::string Leader::missing() const {
  std::string names;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].card) continue;
    names += (names.empty() ? "machine " : ", machine ") + std::to_string(i);
  }
  return names;
}

int Leader::num_joined() const {
  return static_cast<int>(std::ranges::count_if(
      members_, [](const Member& member) { return member.card.has_value(); }));
}

// ---- preparing and running ----

void Leader::prepare(const Board& board) {
  for (std::size_t i = 0; i < members_.size(); ++i)
    members_[i].is_ready = board.has(board_key::of(board_key::kReady, static_cast<int>(i)));
  if (!std::ranges::all_of(members_, &Member::is_ready)) return;
  is_go_ = true;
  phase_ = Phase::kRunning;
}

void Leader::run(const Board& board, TimePoint now) {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const std::string& text = board.at(board_key::of(board_key::kEnd, static_cast<int>(i)));
    if (text.empty() || members_[i].end) continue;
    const auto end = end_from(text);
    members_[i].end = end ? *end : EndNote{.success = false, .has_saved = false, .exit_code = 1};
  }
  const auto is_over = [](const Member& member) { return member.end || member.is_lost; };
  if (!std::ranges::all_of(members_, is_over)) return;
  if (stop_) return settle(verdict_on_stop(*stop_), now);
  const auto succeeded = [](const Member& member) { return member.end && member.end->success; };
  if (std::ranges::all_of(members_, succeeded))
    return settle({.kind = VerdictKind::kSucceeded, .text = "succeeded", .remedy = {}}, now);
  // Its stop note is still to come: it is written with the end, or before it.
  const auto failed = std::ranges::find_if_not(members_, succeeded) - members_.begin();
  settle(verdict_on_stop({.machine = static_cast<int>(failed), .text = "its workers failed"}), now);
}

std::optional<int> Leader::first_lost() const {
  const Member* first = nullptr;
  for (const Member& member : members_) {
    if (member.is_lost && (first == nullptr || member.beat_at < first->beat_at)) first = &member;
  }
  if (first == nullptr || first->beat_at > stop_at_ + kCauseWindow) return std::nullopt;
  return first->card->rank;
}

Verdict Leader::verdict_on_stop(const StopNote& note) const {
  const auto lost = first_lost();
  if (lost && note.kind != StopKind::kSignal) {
    Verdict verdict = failed_verdict(
        Error(ErrorCode::kNodeLost,
              describe(*lost) + " does not answer any more: its launcher or its network is gone",
              "look at that machine, then start the job again on all of them"),
        *lost);
    return verdict;
  }
  Verdict verdict = {.kind = VerdictKind::kFailed,
                     .code = static_cast<int>(ErrorCode::kWorkerFailed),
                     .exit_code = note.exit_code,
                     .machine = note.machine,
                     .text = describe(note.machine) + ": " + note.text,
                     .remedy = {}};
  if (note.kind == StopKind::kSignal) {
    verdict.kind = VerdictKind::kStopped;
    if (have_all_saved()) verdict.exit_code = members_.front().end->exit_code;
  } else if (note.kind == StopKind::kNotReady) {
    verdict.code = static_cast<int>(ErrorCode::kPreflightFailed);
  } else if (note.may_restart && options_.restart_count < options_.max_restarts) {
    verdict.kind = VerdictKind::kRestart;
  } else if (note.may_restart && options_.max_restarts > 0) {
    verdict.code = static_cast<int>(ErrorCode::kRestartsExhausted);
  }
  return verdict;
}

bool Leader::have_all_saved() const {
  return std::ranges::all_of(
      members_, [](const Member& member) { return member.end && member.end->has_saved; });
}

std::string Leader::describe(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  if (index < members_.size() && members_[index].card) return members_[index].card->describe();
  return "machine " + std::to_string(rank);
}

// ---- the end ----

void Leader::settle(Verdict verdict, TimePoint now) {
  verdict_ = std::move(verdict);
  settled_at_ = now;
  phase_ = Phase::kSettled;
}

void Leader::await_leaving(const Board& board, TimePoint now) {
  bool are_members_gone = true;
  bool are_all_gone = true;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    Member& member = members_[i];
    member.has_left = board.has(board_key::of(board_key::kLeft, static_cast<int>(i)));
    if (i == 0 || member.has_left || member.is_lost) continue;
    are_all_gone = false;
    if (member.card) are_members_gone = false;
  }
  const Duration waited = now - settled_at_;
  if (waited >= options_.last_words) are_members_gone = true;
  // A stop by our own user is no news for machines that are not there yet; and those that did not come
  // in time need not be waited for again.
  const bool is_news = verdict_->kind == VerdictKind::kFailed &&
                       verdict_->code != static_cast<int>(ErrorCode::kRendezvousTimeout);
  const bool waits_for_late = is_before_begin_ && is_news && waited < options_.late_joiners;
  if (are_all_gone || (are_members_gone && !waits_for_late)) phase_ = Phase::kDone;
}

}  // namespace accel::launcher
