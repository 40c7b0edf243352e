#include "libaccel/engine/shm/group/shm_group.h"

#include <utility>

#include <unistd.h>

namespace accel::shm {
namespace {

using std::chrono::milliseconds;

constexpr int kSpinsOfOwnCore = 2'000;
constexpr int kSpinsOfSharedCore = 50;

}  // namespace

// ---- joining and leaving ----

ShmGroup::ShmGroup(GroupMemory memory, GroupOptions options)
    : memory_(std::move(memory)),
      options_(std::move(options)),
      point_to_point_(memory_, options_.rank, options_.shape.world_size, options_.most_aside),
      peers_(options_.processes) {}

Result<std::unique_ptr<ShmGroup>> ShmGroup::join(const UniqueFd& memory, GroupOptions options) {
  auto mapped = GroupMemory::map(memory.get(), options.shape);
  if (!mapped) return std::move(mapped).error();
  return join(*std::move(mapped), std::move(options));
}

Result<std::unique_ptr<ShmGroup>> ShmGroup::join(GroupMemory memory, GroupOptions options) {
  if (options.rank < 0 || options.rank >= options.shape.world_size) {
    return Error(ErrorCode::kInvalidArgument,
                 "rank " + std::to_string(options.rank) + " is not one of " +
                     std::to_string(options.shape.world_size));
  }
  if (auto reserved = memory.reserve(options.rank); !reserved) return std::move(reserved).error();
  RankLine& line = memory.line(options.rank);
  std::uint64_t nobody = 0;
  if (!line.layout.compare_exchange_strong(nobody, options.shape.fingerprint())) {
    return Error(ErrorCode::kInvalidArgument,
                 "rank " + std::to_string(options.rank) + " has joined this group already");
  }
  line.pid.store(::getpid());
  line.start_time.store(start_time_of(::getpid()));
  std::unique_ptr<ShmGroup> group(new ShmGroup(std::move(memory), std::move(options)));
  read_own_cores(group->memory_.cores(group->rank()));
  enter(line, RankState::kJoined);
  publish(line, group->phase_ = 1);
  if (auto joined = group->wait_for_all_to_join(); !joined) return std::move(joined).error();
  return group;
}

Result<void> ShmGroup::wait_for_all_to_join() {
  const auto deadline = std::chrono::steady_clock::now() + options_.join_timeout;
  std::string absent;
  for (int rank = 0; rank < world_size(); ++rank) {
    RankLine& line = memory_.line(rank);
    std::optional<Loss> loss;
    const bool is_here = sleep_until(line, 1, kLookEvery, [&] {
      loss = loss_before(1);
      return !loss && std::chrono::steady_clock::now() < deadline;
    });
    if (loss && !is_here) return broken(error_of(*loss));
    if (!is_here) {
      absent += (absent.empty() ? "" : ", ") + std::to_string(rank);
      continue;
    }
    if (line.layout.load() != options_.shape.fingerprint()) {
      return broken(Error(ErrorCode::kInvalidArgument,
                          "rank " + std::to_string(rank) +
                              " has joined with another number of ranks or size of slots"));
    }
    peers_.watch(rank, {.pid = line.pid.load(), .start_time = line.start_time.load()});
  }
  if (absent.empty()) {
    choose_spins();
    return {};
  }
  return broken(Error(ErrorCode::kPeerLost,
                      "of " + std::to_string(world_size()) +
                          " ranks these have not joined within " +
                          std::to_string(options_.join_timeout.count()) + " ms: " + absent));
}

void ShmGroup::choose_spins() {
  if (options_.spins > 0) return;
  std::vector<const CoreSet*> cores;
  for (int rank = 0; rank < world_size(); ++rank) cores.push_back(&memory_.cores(rank));
  options_.spins = has_core_of_its_own(cores, rank()) ? kSpinsOfOwnCore : kSpinsOfSharedCore;
}

ShmGroup::~ShmGroup() {
  if (!is_broken_) enter(memory_.line(rank()), RankState::kLeft);
}

void ShmGroup::abort() noexcept {
  is_aborted_.store(true);
  enter(memory_.line(rank()), RankState::kBroken);
}

// ---- one step ----

Result<void> ShmGroup::check_usable() {
  if (!is_broken_ && !is_aborted_.load(std::memory_order_relaxed)) return {};
  return broken(Error(ErrorCode::kPeerLost,
                      "the group of " + std::to_string(world_size()) +
                          " ranks has ended, after an error or by abort()"));
}

Result<std::byte*> ShmGroup::begin_step() {
  if (auto usable = check_usable(); !usable) return std::move(usable).error();
  for (int rank = 0; rank < world_size(); ++rank) {
    if (auto waited = wait_for_phase(rank, phase_); !waited) return std::move(waited).error();
  }
  ++phase_;
  return memory_.slot(rank(), phase_ & 1U);
}

void ShmGroup::publish_step(const Call& call) {
  call_ = call;
  memory_.call(rank(), phase_ & 1U) = call;
  memory_.location(rank(), phase_ & 1U) = std::exchange(location_, BufferLocation());
  publish(memory_.line(rank()), phase_);
}

Result<const std::byte*> ShmGroup::slot_of(int rank) {
  if (auto waited = wait_for_phase(rank, phase_); !waited) return std::move(waited).error();
  const Call& theirs = memory_.call(rank, phase_ & 1U);
  if (theirs != call_) return broken(mismatch(rank, theirs));
  return memory_.slot(rank, phase_ & 1U);
}

Result<void> ShmGroup::check_all_calls() {
  for (int rank = 0; rank < world_size(); ++rank) {
    if (auto slot = slot_of(rank); !slot) return std::move(slot).error();
  }
  return {};
}

Result<std::vector<BufferLocation>> ShmGroup::locations_of_all() {
  std::vector<BufferLocation> locations;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (const auto slot = slot_of(rank); !slot) return slot.error();
    locations.push_back(memory_.location(rank, phase_ & 1U));
  }
  return locations;
}

Result<std::vector<BufferLocation>> ShmGroup::meet(const Call& call) {
  if (auto begun = begin_step(); !begun) return std::move(begun).error();
  publish_step(call);
  return locations_of_all();
}

void ShmGroup::end_collective() noexcept {
  memory_.line(rank()).ended_phase.store(phase_, std::memory_order_release);
}

Result<void> ShmGroup::wait_for_phase(int rank, std::uint32_t phase) {
  RankLine& line = memory_.line(rank);
  if (look_for(line, phase, options_.spins)) return {};
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  std::optional<Error> error;
  // Who waits here may have transfers that others wait for.
  const milliseconds look_every = point_to_point_.is_empty() ? kLookEvery : kLookWithLetters;
  const bool is_there = sleep_until(line, phase, look_every, [&] {
    if (auto moved = point_to_point_.progress(); !moved) error = std::move(moved).error();
    if (!error && is_look_due()) error = error_of_others(phase);
    if (!error && std::chrono::steady_clock::now() >= deadline) error = lateness_of(rank);
    return !error;
  });
  if (is_there) return {};
  return broken(*std::move(error));
}

// ---- who is lost ----

bool ShmGroup::is_look_due() {
  if (is_aborted_.load()) return true;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_look_) return false;
  next_look_ = now + kLookEvery;
  return true;
}

std::optional<ShmGroup::Loss> ShmGroup::loss_of(int rank) {
  if (is_aborted_.load()) return Loss{.rank = rank, .how = Loss::kAborted};
  const RankState state = memory_.line(rank).state.load();
  if (state == RankState::kLeft) return Loss{.rank = rank, .how = Loss::kLeft};
  // Its error may be that of another one, its death is its own.
  if (!peers_.is_alive(rank)) return Loss{.rank = rank, .how = Loss::kDied};
  if (state == RankState::kBroken) return Loss{.rank = rank, .how = Loss::kBroken};
  return {};
}

std::optional<ShmGroup::Loss> ShmGroup::loss_before(std::uint32_t phase) {
  std::optional<Loss> worst;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (rank == this->rank()) continue;
    const std::optional<Loss> loss = loss_of(rank);
    // What it has ended before its own end is whole.
    if (!loss || is_reached(memory_.line(rank).ended_phase.load(), phase)) continue;
    if (!worst || loss->how < worst->how) worst = loss;
  }
  return worst;
}

std::optional<Error> ShmGroup::error_of_others(std::uint32_t phase) {
  const std::optional<Loss> loss = loss_before(phase);
  if (!loss) return {};
  // The cause of an error of another one may be seen from here: this call beside its own.
  for (int rank = 0; rank < world_size(); ++rank) {
    if (!look_for(memory_.line(rank), phase_, 0)) continue;
    const Call& theirs = memory_.call(rank, phase_ & 1U);
    if (theirs != call_) return mismatch(rank, theirs);
  }
  return error_of(*loss);
}

// ---- errors ----

Error ShmGroup::broken(Error error) {
  is_broken_ = true;
  enter(memory_.line(rank()), RankState::kBroken);
  await_copies();
  return error;
}

int ShmGroup::name_of(int rank) const {
  const auto location = static_cast<std::size_t>(rank);
  return location < options_.names.size() ? options_.names[location] : rank;
}

std::string ShmGroup::label_of(int rank) const {
  return "rank " + std::to_string(name_of(rank));
}

std::string ShmGroup::text_of(const Loss& loss) {
  switch (loss.how) {
    case Loss::kAborted:
      return "is not waited for any more: the group was ended here";
    case Loss::kDied:
      return "has died";
    case Loss::kBroken:
      return "has met an error";
    case Loss::kLeft:
      break;
  }
  return "has left the group";
}

Error ShmGroup::error_of(const Loss& loss) const {
  return loss_of(loss.rank, text_of(loss), "");
}

Error ShmGroup::loss_of(int rank, const std::string& what, std::string remedy) const {
  const std::int32_t pid = memory_.line(rank).pid.load();
  return Error(ErrorCode::kPeerLost,
               label_of(rank) + (pid == 0 ? " " : " (process " + std::to_string(pid) + ") ") + what,
               std::move(remedy))
      .while_doing("a collective between " + std::to_string(world_size()) +
                   " ranks of this node, as " + label_of(this->rank()));
}

Error ShmGroup::lateness_of(int rank) const {
  const bool is_anybody = rank == kAnyRank;
  const std::string remedy =
      "check that every rank calls the same collectives; raise "
      "InitProcessGroupKwargs.timeout for slow ranks";
  if (!is_anybody) return loss_of(rank, "did not come within the timeout", remedy);
  return Error(ErrorCode::kPeerLost, "no rank has sent a message within the timeout", remedy);
}

Error ShmGroup::mismatch(int rank, const Call& theirs) const {
  return Error(ErrorCode::kShapeMismatch,
               label_of(this->rank()) + " calls " + shm::text_of(call_) + ", and " +
                   label_of(rank) + " " + shm::text_of(theirs));
}

}  // namespace accel::shm
