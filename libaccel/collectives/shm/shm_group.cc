#include "libaccel/collectives/shm/shm_group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include <unistd.h>

#include "libaccel/collectives/shm/reduction.h"

namespace accel::shm {
namespace {

using std::chrono::milliseconds;

// How long a death may go unseen, at most; a death costs its parent longer than this to tell anybody.
constexpr milliseconds kLookEvery{100};
// The same while this rank has letters to move for others.
constexpr milliseconds kLookWithLetters{1};
constexpr const char* kLate = "did not come within the timeout";
constexpr const char* kLateRemedy =
    "check that every rank calls the same collectives; raise "
    "InitProcessGroupKwargs.timeout for slow ranks";
// Above it, more than two ranks reduce a slice each instead of everything: the second hand-over costs less than
// the reading that it saves.
constexpr std::size_t kDirectBytes = 16 * 1024;

enum class Kind : std::uint32_t {
  kNone,
  kBarrier,
  kAllReduce,
  kReduce,
  kReduceScatter,
  kBroadcast,
  kAllGather,
  kGather,
  kScatter,
  kAllToAll,
};

constexpr std::array<const char*, 10> kKindNames = {"nothing",
                                                    "barrier",
                                                    "all_reduce",
                                                    "reduce",
                                                    "reduce_scatter",
                                                    "broadcast",
                                                    "all_gather",
                                                    "gather",
                                                    "scatter",
                                                    "all_to_all"};

Call call_of(Kind kind, std::size_t bytes, int root = 0) {
  return {.kind = static_cast<std::uint32_t>(kind),
          .root = static_cast<std::uint32_t>(root),
          .bytes = bytes};
}

Call call_of(Kind kind, std::size_t bytes, DataType type, ReduceOp op, int root = 0) {
  Call call = call_of(kind, bytes, root);
  call.type = 1 + static_cast<std::uint32_t>(type);
  call.op = 1 + static_cast<std::uint32_t>(op);
  return call;
}

// What another process wrote: a name that does not exist is said as its number.
std::string text_of(const Call& call) {
  std::string text =
      call.kind < kKindNames.size() ? kKindNames[call.kind] : "call " + std::to_string(call.kind);
  text += " of " + std::to_string(call.bytes) + " bytes";
  if (call.type >= 1 && call.type <= kNumDataTypes && call.op >= 1 && call.op <= kNumReduceOps) {
    text += ", " + std::string(name_of(static_cast<ReduceOp>(call.op - 1))) + " of " +
            std::string(name_of(static_cast<DataType>(call.type - 1)));
  }
  const bool is_rooted = call.kind == static_cast<std::uint32_t>(Kind::kReduce) ||
                         call.kind == static_cast<std::uint32_t>(Kind::kBroadcast) ||
                         call.kind == static_cast<std::uint32_t>(Kind::kGather) ||
                         call.kind == static_cast<std::uint32_t>(Kind::kScatter);
  return is_rooted ? text + ", root " + std::to_string(call.root) : text;
}

// The first of `parts` even parts of `count` begins at 0; part `parts` would begin at `count`.
std::size_t begin_of_part(std::size_t count, int part, int parts) {
  return count * static_cast<std::size_t>(part) / static_cast<std::size_t>(parts);
}

// One step for each `most` bytes of `all`, and one when there are none: the others may have another size.
template <typename Step>
Result<void> for_each_chunk(std::size_t all, std::size_t most, Step step) {
  std::size_t done = 0;
  do {
    const std::size_t bytes = std::min(most, all - done);
    if (Result<void> taken = step(done, bytes); !taken) return taken;
    done += bytes;
  } while (done < all);
  return {};
}

void copy_bytes(std::byte* out, const std::byte* in, std::size_t bytes) {
  if (bytes > 0 && out != in) std::memcpy(out, in, bytes);
}

}  // namespace

// ---- joining and leaving ----

ShmGroup::ShmGroup(GroupMemory memory, GroupOptions options)
    : memory_(std::move(memory)),
      options_(options),
      mail_(memory_, options.rank, options.shape.world_size) {}

Result<std::unique_ptr<ShmGroup>> ShmGroup::join(const UniqueFd& memory, GroupOptions options) {
  auto mapped = GroupMemory::map(memory.get(), options.shape);
  if (!mapped) return std::move(mapped).error();
  return join(*std::move(mapped), options);
}

Result<std::unique_ptr<ShmGroup>> ShmGroup::join(GroupMemory memory, GroupOptions options) {
  if (options.rank < 0 || options.rank >= options.shape.world_size) {
    return Error(ErrorCode::kInvalidArgument,
                 "rank " + std::to_string(options.rank) + " is not one of " +
                     std::to_string(options.shape.world_size));
  }
  RankLine& line = memory.line(options.rank);
  std::uint64_t nobody = 0;
  if (!line.layout.compare_exchange_strong(nobody, options.shape.fingerprint())) {
    return Error(ErrorCode::kInvalidArgument,
                 "rank " + std::to_string(options.rank) + " has joined this group already");
  }
  line.pid.store(::getpid());
  line.start_time.store(start_time_of(::getpid()));
  std::unique_ptr<ShmGroup> group(new ShmGroup(std::move(memory), options));
  enter(line, RankState::kJoined);
  publish(line, group->phase_ = 1);
  if (auto joined = group->wait_for_all_to_join(); !joined) return std::move(joined).error();
  return group;
}

Result<void> ShmGroup::wait_for_all_to_join() {
  const auto deadline = std::chrono::steady_clock::now() + options_.join_timeout;
  std::vector<ProcessWatch::Process> processes;
  std::string absent;
  for (int rank = 0; rank < world_size(); ++rank) {
    RankLine& line = memory_.line(rank);
    const bool is_here = sleep_until(
        line, 1, kLookEvery, [&] { return std::chrono::steady_clock::now() < deadline; });
    if (!is_here) {
      absent += (absent.empty() ? "" : ", ") + std::to_string(rank);
      continue;
    }
    if (line.layout.load() != options_.shape.fingerprint()) {
      return broken(Error(ErrorCode::kInvalidArgument,
                          "rank " + std::to_string(rank) +
                              " has joined with another number of ranks or size of slots"));
    }
    processes.push_back({.pid = line.pid.load(), .start_time = line.start_time.load()});
  }
  if (!absent.empty()) {
    return broken(Error(ErrorCode::kPeerLost,
                        "of " + std::to_string(world_size()) +
                            " ranks these have not joined within " +
                            std::to_string(options_.join_timeout.count()) + " ms: " + absent));
  }
  peers_.emplace(processes);
  return {};
}

ShmGroup::~ShmGroup() {
  if (!is_broken_) enter(memory_.line(rank()), RankState::kLeft);
}

void ShmGroup::abort() noexcept {
  is_aborted_.store(true);
  enter(memory_.line(rank()), RankState::kBroken);
}

// ---- one step ----

Result<std::byte*> ShmGroup::begin_step() {
  if (is_broken_ || is_aborted_.load(std::memory_order_relaxed)) {
    return broken(Error(ErrorCode::kPeerLost,
                        "the group of " + std::to_string(world_size()) +
                            " ranks has ended, after an error or by abort()"));
  }
  for (int rank = 0; rank < world_size(); ++rank) {
    if (auto waited = wait_for_phase(rank, phase_); !waited) return std::move(waited).error();
  }
  ++phase_;
  return memory_.slot(rank(), phase_ & 1U);
}

void ShmGroup::publish_step(const Call& call) {
  call_ = call;
  memory_.call(rank(), phase_ & 1U) = call;
  publish(memory_.line(rank()), phase_);
}

Result<const std::byte*> ShmGroup::slot_of(int rank) {
  if (auto waited = wait_for_phase(rank, phase_); !waited) return std::move(waited).error();
  const Call& theirs = memory_.call(rank, phase_ & 1U);
  if (theirs != call_) return mismatch(rank, theirs);
  return memory_.slot(rank, phase_ & 1U);
}

Result<void> ShmGroup::wait_for_phase(int rank, std::uint32_t phase) {
  RankLine& line = memory_.line(rank);
  if (look_for(line, phase, options_.spins)) return {};
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  const char* what = nullptr;
  const char* remedy = "";  // that of the code
  std::optional<Error> letter_error;
  // Who waits here may have letters that others wait for.
  const milliseconds look_every = mail_.is_empty() ? kLookEvery : kLookWithLetters;
  const bool is_there = sleep_until(line, phase, look_every, [&] {
    if (auto moved = mail_.progress(); !moved) letter_error = std::move(moved).error();
    if (letter_error) return false;
    what = end_of(rank);
    if (what == nullptr && std::chrono::steady_clock::now() >= deadline) {
      what = kLate;
      remedy = kLateRemedy;
    }
    return what == nullptr;
  });
  if (is_there) return {};
  if (letter_error) return broken(*std::move(letter_error));
  return lost(rank, what, remedy);
}

const char* ShmGroup::end_of(int rank) {
  const RankState state = memory_.line(rank).state.load();
  if (is_aborted_.load()) return "is not waited for any more: the group was ended here";
  if (state == RankState::kLeft) return "has left the group";
  if (state == RankState::kBroken) return "has met an error";
  return peers_->is_alive(rank) ? nullptr : "has died";
}

// Of a slot that holds a piece for each rank; whole cache lines.
std::size_t ShmGroup::piece_bytes() const noexcept {
  const std::size_t even = options_.shape.slot_bytes / static_cast<std::size_t>(world_size());
  return even / kCacheLine * kCacheLine;
}

// ---- errors ----

Error ShmGroup::broken(Error error) {
  is_broken_ = true;
  enter(memory_.line(rank()), RankState::kBroken);
  return error;
}

Error ShmGroup::lost(int rank, const std::string& what, std::string remedy) {
  return broken(loss_of(rank, what, std::move(remedy)));
}

Error ShmGroup::loss_of(int rank, const std::string& what, std::string remedy) const {
  return Error(ErrorCode::kPeerLost,
               "rank " + std::to_string(rank) + " (process " +
                   std::to_string(memory_.line(rank).pid.load()) + ") " + what,
               std::move(remedy))
      .while_doing("a collective between " + std::to_string(world_size()) +
                   " ranks of this node, as rank " + std::to_string(this->rank()));
}

Error ShmGroup::mismatch(int rank, const Call& theirs) {
  return broken(Error(ErrorCode::kShapeMismatch,
                      "rank " + std::to_string(this->rank()) + " calls " + text_of(call_) +
                          ", and rank " + std::to_string(rank) + " " + text_of(theirs)));
}

Result<void> ShmGroup::check_root(int root) const {
  if (root >= 0 && root < world_size()) return {};
  return Error(
      ErrorCode::kInvalidArgument,
      "root " + std::to_string(root) + " is not one of " + std::to_string(world_size()) + " ranks");
}

Result<void> ShmGroup::check_op(DataType type, ReduceOp op) const {
  if (is_defined(type, op)) return {};
  return Error(ErrorCode::kInvalidArgument,
               std::string(name_of(op)) + " is not defined for " + std::string(name_of(type)));
}

// ---- the collectives ----

Result<void> ShmGroup::barrier() {
  if (auto sent = publish_bytes(nullptr, 0, call_of(Kind::kBarrier, 0)); !sent) return sent;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (auto slot = slot_of(rank); !slot) return std::move(slot).error();
  }
  return {};
}

Result<void> ShmGroup::reduce_slots(
    std::size_t offset, std::size_t bytes, DataType type, ReduceOp op, std::byte* out) {
  std::array<const std::byte*, kMaxRanks> operands;
  const auto size = static_cast<std::size_t>(world_size());
  for (std::size_t rank = 0; rank < size; ++rank) {
    auto slot = slot_of(static_cast<int>(rank));
    if (!slot) return std::move(slot).error();
    operands[rank] = *slot + offset;
  }
  reduce_elements({operands.data(), size}, bytes / shm::size_of(type), type, op, out);
  return {};
}

Result<void> ShmGroup::all_reduce(
    const std::byte* in, std::byte* out, std::size_t count, DataType type, ReduceOp op) {
  if (auto checked = check_op(type, op); !checked) return checked;
  const std::size_t all = count * shm::size_of(type);
  const bool is_direct = world_size() <= 2 || all <= kDirectBytes;
  const Call call = call_of(Kind::kAllReduce, all, type, op);
  return for_each_chunk(
      all, options_.shape.slot_bytes, [&](std::size_t done, std::size_t bytes) -> Result<void> {
        if (auto sent = publish_bytes(in + done, bytes, call); !sent) return sent;
        return is_direct ? reduce_slots(0, bytes, type, op, out + done)
                         : reduce_by_slices(bytes, type, op, out + done);
      });
}

Result<void> ShmGroup::reduce_by_slices(std::size_t bytes,
                                        DataType type,
                                        ReduceOp op,
                                        std::byte* out) {
  const std::size_t width = shm::size_of(type);
  const auto begin_of = [&](int rank) {
    return begin_of_part(bytes / width, rank, world_size()) * width;
  };
  // The operands are in the slots of this parity, the result goes into ours of the other: once all have published this
  // step, nobody reads that any more.
  std::byte* own = memory_.slot(rank(), (phase_ + 1) & 1U);
  const std::size_t begin = begin_of(rank());
  const std::size_t size = begin_of(rank() + 1) - begin;
  if (auto reduced = reduce_slots(begin, size, type, op, own + begin); !reduced) return reduced;
  if (auto next = begin_step(); !next) return std::move(next).error();
  publish_step(Call(call_));  // the same call goes on
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto slice = slot_of(rank);
    if (!slice) return slice.error();
    const std::size_t from = begin_of(rank);
    copy_bytes(out + from, *slice + from, begin_of(rank + 1) - from);
  }
  return {};
}

Result<void> ShmGroup::reduce(
    const std::byte* in, std::byte* out, std::size_t count, DataType type, ReduceOp op, int root) {
  if (auto checked = check_op(type, op); !checked) return checked;
  if (auto checked = check_root(root); !checked) return checked;
  const std::size_t all = count * shm::size_of(type);
  const Call call = call_of(Kind::kReduce, all, type, op, root);
  return for_each_chunk(
      all, options_.shape.slot_bytes, [&](std::size_t done, std::size_t bytes) -> Result<void> {
        if (auto sent = publish_bytes(in + done, bytes, call); !sent) return sent;
        if (rank() == root) return reduce_slots(0, bytes, type, op, out + done);
        const auto theirs = slot_of(root);
        return theirs ? Result<void>() : theirs.error();
      });
}

Result<void> ShmGroup::reduce_scatter(std::span<const std::byte* const> in,
                                      std::byte* out,
                                      std::size_t count,
                                      DataType type,
                                      ReduceOp op) {
  if (auto checked = check_op(type, op); !checked) return checked;
  const std::size_t all = count * shm::size_of(type);
  const Call call = call_of(Kind::kReduceScatter, all, type, op);
  return for_each_chunk(
      all, piece_bytes(), [&](std::size_t done, std::size_t bytes) -> Result<void> {
        if (auto sent = publish_pieces(in, done, bytes, call); !sent) return sent;
        const std::size_t own = static_cast<std::size_t>(rank()) * piece_bytes();
        return reduce_slots(own, bytes, type, op, out + done);
      });
}

Result<void> ShmGroup::publish_bytes(const std::byte* in, std::size_t bytes, const Call& call) {
  auto slot = begin_step();
  if (!slot) return std::move(slot).error();
  copy_bytes(*slot, in, bytes);
  publish_step(call);
  return {};
}

Result<void> ShmGroup::publish_pieces(std::span<const std::byte* const> in,
                                      std::size_t done,
                                      std::size_t bytes,
                                      const Call& call) {
  auto slot = begin_step();
  if (!slot) return std::move(slot).error();
  for (std::size_t rank = 0; rank < in.size(); ++rank)
    copy_bytes(*slot + rank * piece_bytes(), in[rank] + done, bytes);
  publish_step(call);
  return {};
}

Result<void> ShmGroup::broadcast(std::byte* data, std::size_t bytes, int root) {
  if (auto checked = check_root(root); !checked) return checked;
  const Call call = call_of(Kind::kBroadcast, bytes, root);
  return for_each_chunk(
      bytes, options_.shape.slot_bytes, [&](std::size_t done, std::size_t size) -> Result<void> {
        const std::size_t sent = rank() == root ? size : 0;
        if (auto step = publish_bytes(data + done, sent, call); !step) return step;
        const auto theirs = slot_of(root);
        if (!theirs) return theirs.error();
        if (rank() != root) copy_bytes(data + done, *theirs, size);
        return {};
      });
}

Result<void> ShmGroup::all_gather(const std::byte* in,
                                  std::span<std::byte* const> out,
                                  std::size_t bytes) {
  const Call call = call_of(Kind::kAllGather, bytes);
  return for_each_chunk(
      bytes, options_.shape.slot_bytes, [&](std::size_t done, std::size_t size) -> Result<void> {
        if (auto sent = publish_bytes(in + done, size, call); !sent) return sent;
        for (int rank = 0; rank < world_size(); ++rank) {
          const auto theirs = slot_of(rank);
          if (!theirs) return theirs.error();
          const bool is_own = rank == this->rank();  // in our cache, or in its place already
          copy_bytes(
              out[static_cast<std::size_t>(rank)] + done, is_own ? in + done : *theirs, size);
        }
        return {};
      });
}

Result<void> ShmGroup::gather(const std::byte* in,
                              std::span<std::byte* const> out,
                              std::size_t bytes,
                              int root) {
  if (auto checked = check_root(root); !checked) return checked;
  const Call call = call_of(Kind::kGather, bytes, root);
  return for_each_chunk(
      bytes, options_.shape.slot_bytes, [&](std::size_t done, std::size_t size) -> Result<void> {
        if (auto sent = publish_bytes(in + done, size, call); !sent) return sent;
        for (int rank = 0; rank < world_size(); ++rank) {
          if (this->rank() != root && rank != root) continue;
          const auto theirs = slot_of(rank);
          if (!theirs) return theirs.error();
          if (this->rank() == root)
            copy_bytes(out[static_cast<std::size_t>(rank)] + done, *theirs, size);
        }
        return {};
      });
}

Result<void> ShmGroup::scatter(std::span<const std::byte* const> in,
                               std::byte* out,
                               std::size_t bytes,
                               int root) {
  if (auto checked = check_root(root); !checked) return checked;
  const Call call = call_of(Kind::kScatter, bytes, root);
  const std::span<const std::byte* const> nothing;
  return for_each_chunk(
      bytes, piece_bytes(), [&](std::size_t done, std::size_t size) -> Result<void> {
        const auto& sent = rank() == root ? in : nothing;
        if (auto published = publish_pieces(sent, done, size, call); !published) return published;
        const auto theirs = slot_of(root);
        if (!theirs) return theirs.error();
        copy_bytes(out + done, *theirs + static_cast<std::size_t>(rank()) * piece_bytes(), size);
        return {};
      });
}

// The sizes of what each rank has for each, row after row; the same on all ranks.
Result<std::vector<std::uint64_t>> ShmGroup::exchange_sizes(
    std::span<const std::span<const std::byte>> in, std::span<const std::span<std::byte>> out) {
  std::vector<std::uint64_t> own;
  for (const auto& piece : in) own.push_back(piece.size());
  const std::size_t row_bytes = own.size() * sizeof(std::uint64_t);
  const auto* const bytes = reinterpret_cast<const std::byte*>(own.data());
  if (auto sent = publish_bytes(bytes, row_bytes, call_of(Kind::kAllToAll, 0)); !sent)
    return std::move(sent).error();
  std::vector<std::uint64_t> sizes(own.size() * own.size());
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto row = slot_of(rank);
    if (!row) return row.error();
    const std::size_t begin = static_cast<std::size_t>(rank) * own.size();
    std::memcpy(sizes.data() + begin, *row, row_bytes);
    const std::uint64_t theirs = sizes[begin + static_cast<std::size_t>(this->rank())];
    const std::size_t expected = out[static_cast<std::size_t>(rank)].size();
    if (theirs == expected) continue;
    return broken(Error(ErrorCode::kShapeMismatch,
                        "rank " + std::to_string(this->rank()) + " expects " +
                            std::to_string(expected) + " bytes of rank " + std::to_string(rank) +
                            " in an all_to_all, which sends " + std::to_string(theirs)));
  }
  return sizes;
}

Result<void> ShmGroup::all_to_all(std::span<const std::span<const std::byte>> in,
                                  std::span<const std::span<std::byte>> out) {
  const auto sizes = exchange_sizes(in, out);
  if (!sizes) return sizes.error();
  const std::uint64_t largest = *std::max_element(sizes->begin(), sizes->end());
  if (largest == 0) return {};
  const auto part_of = [&](std::size_t all, std::size_t done) {
    return all > done ? std::min(all - done, piece_bytes()) : 0;
  };
  const Call call = call_of(Kind::kAllToAll, largest);
  return for_each_chunk(largest, piece_bytes(), [&](std::size_t done, std::size_t) -> Result<void> {
    auto slot = begin_step();
    if (!slot) return std::move(slot).error();
    for (std::size_t rank = 0; rank < in.size(); ++rank) {
      const std::size_t part = part_of(in[rank].size(), done);
      if (part > 0) copy_bytes(*slot + rank * piece_bytes(), in[rank].data() + done, part);
    }
    publish_step(call);
    const std::size_t own = static_cast<std::size_t>(rank()) * piece_bytes();
    for (int rank = 0; rank < world_size(); ++rank) {
      const auto theirs = slot_of(rank);
      if (!theirs) return theirs.error();
      const auto& piece = out[static_cast<std::size_t>(rank)];
      const std::size_t part = part_of(piece.size(), done);
      if (part > 0) copy_bytes(piece.data() + done, *theirs + own, part);
    }
    return {};
  });
}

// ---- messages ----

Result<void> ShmGroup::post(const LetterPtr& letter) {
  const bool may_be_any = !letter->is_sent && letter->peer == kAnyRank && world_size() > 1;
  const bool exists = letter->peer >= 0 && letter->peer < world_size() && letter->peer != rank();
  if (!exists && !may_be_any) {
    return Error(ErrorCode::kInvalidArgument,
                 "rank " + std::to_string(rank()) + " has no messages with rank " +
                     std::to_string(letter->peer) + ": of " + std::to_string(world_size()) +
                     " ranks it takes another one");
  }
  if (is_broken_ || is_aborted_.load()) return begin_step().error();
  mail_.post(letter);
  const auto moved = mail_.progress();
  return moved ? Result<void>() : Result<void>(broken(moved.error()));
}

Result<bool> ShmGroup::is_done(const LetterPtr& letter) {
  if (letter->is_done || is_broken_) return letter->is_done;
  const auto moved = mail_.progress();
  if (!moved) return broken(moved.error());
  return letter->is_done;
}

Result<void> ShmGroup::wait(const LetterPtr& letter) {
  const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
  Bell& bell = memory_.bell(rank());
  for (;;) {
    if (letter->is_done) return {};
    if (is_broken_) return begin_step().error();
    const std::uint32_t rings = bell.rings.load(std::memory_order_seq_cst);
    // What it left in its ring before it ended still counts: looked at first, moved afterwards.
    const Result<void> may_come = check_peer_of(*letter);
    const auto moved = mail_.progress();
    if (!moved) return broken(moved.error());
    if (letter->is_done || *moved) continue;
    if (!may_come) return broken(may_come.error());
    if (std::chrono::steady_clock::now() >= deadline) return broken(lateness_of(*letter));
    await_bell(bell, rings, options_.spins, kLookEvery);
  }
}

Error ShmGroup::lateness_of(const Letter& letter) const {
  if (letter.peer != kAnyRank) return loss_of(letter.peer, kLate, kLateRemedy);
  return Error(
      ErrorCode::kPeerLost,
      "no rank has sent a message with tag " + std::to_string(letter.tag) + " within the timeout",
      kLateRemedy);
}

Result<void> ShmGroup::check_peer_of(const Letter& letter) {
  int last_left = -1;
  bool is_anybody_here = false;
  for (int rank = 0; rank < world_size(); ++rank) {
    if (rank == this->rank() || (letter.peer != kAnyRank && letter.peer != rank)) continue;
    const char* const what = end_of(rank);
    const bool has_left = memory_.line(rank).state.load() == RankState::kLeft;
    if (what == nullptr)
      is_anybody_here = true;
    else if (has_left)
      last_left = rank;
    else
      return loss_of(rank, what, "");
  }
  if (is_anybody_here) return {};
  return loss_of(last_left, "has left the group", "");
}

}  // namespace accel::shm
