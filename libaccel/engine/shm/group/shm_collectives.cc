#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "libaccel/engine/shm/group/group_checks.h"
#include "libaccel/engine/shm/group/shm_group.h"
#include "libaccel/engine/shm/numbers/reduction.h"

namespace accel::shm {
namespace {

// Above it, more than two ranks reduce a slice each instead of everything: the second hand-over costs less than
// the reading that it saves.
constexpr std::size_t kDirectBytes = 16 * 1024;

// The first of `parts` even parts of `count` begins at 0; part `parts` would begin at `count`.
std::size_t begin_of_part(std::size_t count, int part, int parts) {
  return count * static_cast<std::size_t>(part) / static_cast<std::size_t>(parts);
}

}  // namespace

template <typename Step>
Result<void> ShmGroup::run_steps(std::size_t all, std::size_t most, Step step) {
  std::size_t done = 0;
  do {
    const std::size_t bytes = std::min(most, all - done);
    if (Result<void> taken = step(done, bytes); !taken) return taken;
    if (done == 0) {
      if (auto agreed = check_all_calls(); !agreed) return agreed;
    }
    done += bytes;
  } while (done < all);
  end_collective();
  return {};
}

// Of a slot that holds a piece for each rank; whole cache lines.
std::size_t ShmGroup::piece_bytes() const noexcept {
  const std::size_t even = options_.shape.slot_bytes / static_cast<std::size_t>(world_size());
  return even / kCacheLine * kCacheLine;
}

Result<void> ShmGroup::barrier() {
  return run_steps(0, 0, [&](std::size_t, std::size_t) {
    return publish_bytes(nullptr, 0, call_of(CallKind::kBarrier, 0));
  });
}

Result<void> ShmGroup::reduce_slots(std::size_t offset,
                                    const std::byte* own,
                                    std::size_t bytes,
                                    DataType type,
                                    ReduceOp op,
                                    std::byte* out) {
  std::array<const std::byte*, kMaxRanks> operands;
  const auto size = static_cast<std::size_t>(world_size());
  for (std::size_t rank = 0; rank < size; ++rank) {
    auto slot = slot_of(static_cast<int>(rank));
    if (!slot) return std::move(slot).error();
    operands[rank] = *slot + offset;
  }
  operands[static_cast<std::size_t>(rank())] = own;
  reduce_elements({operands.data(), size}, bytes / shm::size_of(type), type, op, out);
  return {};
}

Result<void> ShmGroup::all_reduce(
    const std::byte* in, std::byte* out, std::size_t count, DataType type, ReduceOp op) {
  if (auto checked = check_reduction(type, op); !checked) return checked;
  const std::size_t all = count * shm::size_of(type);
  const bool is_small = all <= kDirectBytes;
  const bool is_direct = world_size() <= 2 || is_small;
  const Call call = call_of(CallKind::kAllReduce, all, type, op);
  if (may_go_straight(all) && !is_small) {
    if (auto known = open_memories(call); !known) return std::move(known).error();
  }
  bool is_done = false;  // where it lies, all at once
  return run_steps(
      all, options_.shape.slot_bytes, [&](std::size_t done, std::size_t bytes) -> Result<void> {
        if (is_done) return {};
        const auto publish = [&](const BufferLocation& location) {
          location_ = location;
          const std::size_t sent = has_location(location) ? 0 : bytes;
          return is_direct ? publish_bytes(in + done, sent, call)
                           : publish_slices(in + done, sent, call, type);
        };
        const BufferLocation location =
            done == 0 && !is_small ? location_of(in, out, all) : BufferLocation();
        if (auto sent = publish(location); !sent) return sent;
        if (done == 0 && !is_small) {
          const auto way = reduce_where_it_lies(out, all, call, type, op);
          if (!way) return way.error();
          is_done = *way == ReductionPath::kInArenas || *way == ReductionPath::kStraight;
          if (is_done) return {};
          if (*way == ReductionPath::kAnew) {
            if (auto sent = publish({}); !sent) return sent;
          }
        }
        return is_direct ? reduce_slots(0, in + done, bytes, type, op, out + done)
                         : reduce_by_slices(in + done, bytes, call, type, op, out + done);
      });
}

// The slices of the ranks: even parts, of whole elements.
std::size_t ShmGroup::begin_of_slice(std::size_t bytes, DataType type, int rank) const noexcept {
  const std::size_t width = shm::size_of(type);
  return begin_of_part(bytes / width, rank, world_size()) * width;
}

Result<void> ShmGroup::publish_slices(const std::byte* in,
                                      std::size_t bytes,
                                      const Call& call,
                                      DataType type) {
  const std::size_t begin = begin_of_slice(bytes, type, rank());
  const std::size_t end = begin_of_slice(bytes, type, rank() + 1);
  auto slot = begin_step();
  if (!slot) return std::move(slot).error();
  copy_bytes(*slot, in, begin);  // our own slice is read by nobody else
  copy_bytes(*slot + end, in + end, bytes - end);
  publish_step(call);
  return {};
}

Result<void> ShmGroup::reduce_by_slices(const std::byte* in,
                                        std::size_t bytes,
                                        const Call& call,
                                        DataType type,
                                        ReduceOp op,
                                        std::byte* out) {
  const std::size_t begin = begin_of_slice(bytes, type, rank());
  const std::size_t end = begin_of_slice(bytes, type, rank() + 1);
  // The operands are in the slots of this parity, the result goes into ours of the other: once all have published this
  // step, nobody reads that any more.
  std::byte* own = memory_.slot(rank(), (phase_ + 1) & 1U);
  if (auto reduced = reduce_slots(begin, in + begin, end - begin, type, op, own + begin); !reduced)
    return reduced;
  if (auto next = begin_step(); !next) return std::move(next).error();
  publish_step(call);
  for (int rank = 0; rank < world_size(); ++rank) {
    const auto slice = slot_of(rank);
    if (!slice) return slice.error();
    const std::size_t from = begin_of_slice(bytes, type, rank);
    copy_bytes(out + from, *slice + from, begin_of_slice(bytes, type, rank + 1) - from);
  }
  return {};
}

Result<void> ShmGroup::reduce(
    const std::byte* in, std::byte* out, std::size_t count, DataType type, ReduceOp op, int root) {
  if (auto checked = check_reduction(type, op); !checked) return checked;
  if (auto checked = check_root(root, world_size()); !checked) return checked;
  const std::size_t all = count * shm::size_of(type);
  const Call call = call_of(CallKind::kReduce, all, type, op, root);
  return run_steps(
      all, options_.shape.slot_bytes, [&](std::size_t done, std::size_t bytes) -> Result<void> {
        const std::size_t sent_bytes = rank() == root ? 0 : bytes;
        if (auto sent = publish_bytes(in + done, sent_bytes, call); !sent) return sent;
        if (rank() == root) return reduce_slots(0, in + done, bytes, type, op, out + done);
        const auto theirs = slot_of(root);
        return theirs ? Result<void>() : theirs.error();
      });
}

Result<void> ShmGroup::reduce_scatter(std::span<const std::byte* const> in,
                                      std::byte* out,
                                      std::size_t count,
                                      DataType type,
                                      ReduceOp op) {
  if (auto checked = check_reduction(type, op); !checked) return checked;
  const std::size_t all = count * shm::size_of(type);
  const Call call = call_of(CallKind::kReduceScatter, all, type, op);
  return run_steps(all, piece_bytes(), [&](std::size_t done, std::size_t bytes) -> Result<void> {
    if (auto sent = publish_pieces(in, done, bytes, call); !sent) return sent;
    const auto own = static_cast<std::size_t>(rank());
    return reduce_slots(own * piece_bytes(), in[own] + done, bytes, type, op, out + done);
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
  for (std::size_t rank = 0; rank < in.size(); ++rank) {
    if (rank != static_cast<std::size_t>(this->rank()))
      copy_bytes(*slot + rank * piece_bytes(), in[rank] + done, bytes);
  }
  publish_step(call);
  return {};
}

Result<void> ShmGroup::broadcast(std::byte* data,
                                 std::size_t bytes,
                                 int root,
                                 std::string_view elements) {
  if (auto checked = check_root(root, world_size()); !checked) return checked;
  const Call call = call_of(CallKind::kBroadcast, bytes, elements, root);
  const auto is_done = broadcast_straight(data, bytes, call, root);
  if (!is_done) return is_done.error();
  if (*is_done) return {};
  return run_steps(
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
                                  std::size_t bytes,
                                  std::string_view elements) {
  const Call call = call_of(CallKind::kAllGather, bytes, elements);
  return run_steps(
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
                              int root,
                              std::string_view elements) {
  if (auto checked = check_root(root, world_size()); !checked) return checked;
  const Call call = call_of(CallKind::kGather, bytes, elements, root);
  return run_steps(
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
                               int root,
                               std::string_view elements) {
  if (auto checked = check_root(root, world_size()); !checked) return checked;
  const Call call = call_of(CallKind::kScatter, bytes, elements, root);
  const std::span<const std::byte* const> nothing;
  return run_steps(bytes, piece_bytes(), [&](std::size_t done, std::size_t size) -> Result<void> {
    const auto& sent = rank() == root ? in : nothing;
    if (auto published = publish_pieces(sent, done, size, call); !published) return published;
    const auto theirs = slot_of(root);
    if (!theirs) return theirs.error();
    const auto own = static_cast<std::size_t>(rank());
    const std::byte* const piece = rank() == root ? in[own] + done : *theirs + own * piece_bytes();
    copy_bytes(out + done, piece, size);
    return {};
  });
}

// Each rank says what it sends to whom and what it expects of whom; so all see the same faults.
Result<std::uint64_t> ShmGroup::exchange_sizes(std::span<const std::span<const std::byte>> in,
                                               std::span<const std::span<std::byte>> out,
                                               std::string_view elements) {
  std::vector<std::uint64_t> own;
  for (const auto& piece : in) own.push_back(piece.size());
  for (const auto& piece : out) own.push_back(piece.size());
  const auto* const bytes = reinterpret_cast<const std::byte*>(own.data());
  const std::size_t row_bytes = own.size() * sizeof(std::uint64_t);
  if (auto sent = publish_bytes(bytes, row_bytes, call_of(CallKind::kAllToAll, 0, elements)); !sent)
    return std::move(sent).error();
  const auto size = static_cast<std::size_t>(world_size());
  std::vector<std::uint64_t> rows(size * own.size());
  for (std::size_t rank = 0; rank < size; ++rank) {
    const auto row = slot_of(static_cast<int>(rank));
    if (!row) return row.error();
    std::memcpy(rows.data() + rank * own.size(), *row, row_bytes);
  }
  std::uint64_t largest = 0;
  for (std::size_t from = 0; from < size; ++from) {
    for (std::size_t to = 0; to < size; ++to) {
      const std::uint64_t sent = rows[from * own.size() + to];
      const std::uint64_t expected = rows[to * own.size() + size + from];
      largest = std::max(largest, sent);
      if (sent == expected) continue;
      return broken(Error(ErrorCode::kShapeMismatch,
                          "rank " + std::to_string(to) + " expects " + std::to_string(expected) +
                              " bytes of rank " + std::to_string(from) +
                              " in an all_to_all, which sends " + std::to_string(sent)));
    }
  }
  return largest;
}

Result<void> ShmGroup::all_to_all(std::span<const std::span<const std::byte>> in,
                                  std::span<const std::span<std::byte>> out,
                                  std::string_view elements) {
  const auto largest = exchange_sizes(in, out, elements);
  if (!largest) return largest.error();
  if (*largest == 0) {
    end_collective();
    return {};
  }
  const auto part_of = [&](std::size_t all, std::size_t done) {
    return all > done ? std::min(all - done, piece_bytes()) : 0;
  };
  const Call call = call_of(CallKind::kAllToAll, *largest, elements);
  return run_steps(*largest, piece_bytes(), [&](std::size_t done, std::size_t) -> Result<void> {
    auto slot = begin_step();
    if (!slot) return std::move(slot).error();
    const auto own = static_cast<std::size_t>(rank());
    for (std::size_t rank = 0; rank < in.size(); ++rank) {
      const std::size_t part = part_of(in[rank].size(), done);
      std::byte* const to = rank == own ? out[own].data() + done : *slot + rank * piece_bytes();
      if (part > 0) copy_bytes(to, in[rank].data() + done, part);
    }
    publish_step(call);
    for (std::size_t rank = 0; rank < out.size(); ++rank) {
      const auto theirs = slot_of(static_cast<int>(rank));
      if (!theirs) return theirs.error();
      const std::size_t part = part_of(out[rank].size(), done);
      if (part > 0 && rank != own)
        copy_bytes(out[rank].data() + done, *theirs + own * piece_bytes(), part);
    }
    return {};
  });
}

}  // namespace accel::shm
