// Sums of pieces that lie anywhere in the arenas of all ranks, as gradients do that nobody has gathered in a buffer.
//
//   step 1: a table of locations --> all: sum own part of all pieces --> step 2 --> done
//
// The pieces count as if they lay one after the other: a part may begin and end within a piece. Between the steps each byte
// is read by the ranks whose part it is, and written by one.
//
// A rank whose pieces do not all lie in its arena says so in its table, and nothing is done on any rank.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

#include "libaccel/engine/shm/group/shm_group.h"
#include "libaccel/engine/shm/numbers/reduction.h"

namespace accel::shm {
namespace {

// In the table that a rank publishes.
struct PieceLocation {
  static constexpr std::uint64_t kZeros = ~std::uint64_t{0};
  static constexpr std::uint64_t kElsewhere = kZeros - 1;  // than in the arena
  std::uint64_t offset = kZeros;                           // in the arena of the rank
  std::uint64_t bytes = 0;
};

alignas(kCacheLine) constexpr std::array<std::byte, kReductionBlock> kZeroBlock = {};

std::size_t bytes_of(std::span<const Piece> pieces, DataType type) {
  std::size_t bytes = 0;
  for (const Piece& piece : pieces) bytes += piece.count * shm::size_of(type);
  return bytes;
}

bool fits(std::span<const Piece> pieces, const GroupShape& shape) {
  return !pieces.empty() && pieces.size() <= shape.slot_bytes / sizeof(PieceLocation);
}

Call call_of_pieces(CallKind kind, std::span<const Piece> pieces, DataType type) {
  Call call = call_of(kind, bytes_of(pieces, type), type, ReduceOp::kSum);
  call.root = static_cast<std::uint32_t>(pieces.size());
  return call;
}

}  // namespace

// Of all ranks: where each piece is, mapped here; nullptr: zeros.
struct ShmGroup::PieceTable {
  std::size_t num_ranks = 0;
  std::vector<PieceLocation> locations;  // [ranks, pieces]
  std::vector<std::byte*> memory;        // likewise
  std::vector<std::size_t> bytes;        // [pieces]

  // visit(position, bytes, locations by rank) for what lies between `begin` and `end` of the pieces one after the other, in blocks.
  template <typename Visit>
  void visit_blocks(std::size_t begin, std::size_t end, Visit visit) const {
    std::array<std::byte*, kMaxRanks> at;
    std::size_t first = 0;  // of the piece
    for (std::size_t piece = 0; piece < bytes.size() && first < end; first += bytes[piece++]) {
      const std::size_t stop = std::min(first + bytes[piece], end);
      for (std::size_t from = std::max(first, begin); from < stop; from += kReductionBlock) {
        for (std::size_t rank = 0; rank < num_ranks; ++rank) {
          std::byte* const whole = memory[rank * bytes.size() + piece];
          at[rank] = whole == nullptr ? nullptr : whole + (from - first);
        }
        visit(from, std::min(kReductionBlock, stop - from), std::span(at.data(), num_ranks));
      }
    }
  }
};

Result<void> ShmGroup::publish_pieces_of_arena(std::span<const Piece> pieces,
                                               const Call& call,
                                               DataType type) {
  auto slot = begin_step();
  if (!slot) return std::move(slot).error();
  auto* entry = *slot;
  for (const Piece& piece : pieces) {
    PieceLocation location = {.bytes = piece.count * shm::size_of(type)};
    if (!arena_ || are_arenas_refused_) {
      location.offset = PieceLocation::kElsewhere;
    } else if (piece.data != nullptr) {
      location.offset = arena_->contains(piece.data, location.bytes) ? arena_->offset_of(piece.data)
                                                                     : PieceLocation::kElsewhere;
    }
    std::memcpy(entry, &location, sizeof location);
    entry += sizeof location;
  }
  publish_step(call);
  return {};
}

Result<void> ShmGroup::read_locations(std::size_t num_pieces, PieceTable& table) {
  table.num_ranks = static_cast<std::size_t>(world_size());
  table.locations.resize(table.num_ranks * num_pieces);
  for (std::size_t rank = 0; rank < table.num_ranks; ++rank) {
    const auto theirs = slot_of(static_cast<int>(rank));
    if (!theirs) return theirs.error();
    std::memcpy(&table.locations[rank * num_pieces], *theirs, num_pieces * sizeof(PieceLocation));
  }
  for (std::size_t i = 0; i < table.locations.size(); ++i) {
    const std::size_t piece = i % num_pieces;
    const std::uint64_t own =
        table.locations[static_cast<std::size_t>(rank()) * num_pieces + piece].bytes;
    if (table.locations[i].bytes == own) continue;
    const int other = static_cast<int>(i / num_pieces);
    return broken(Error(ErrorCode::kShapeMismatch,
                        "piece " + std::to_string(piece) + " has " + std::to_string(own) +
                            " bytes on " + label_of(rank()) + ", and " +
                            std::to_string(table.locations[i].bytes) + " on " + label_of(other)));
  }
  return {};
}

Result<bool> ShmGroup::meet_pieces(std::span<const Piece> pieces,
                                   const Call& call,
                                   DataType type,
                                   PieceTable& table) {
  if (auto sent = publish_pieces_of_arena(pieces, call, type); !sent)
    return std::move(sent).error();
  if (auto read = read_locations(pieces.size(), table); !read) return std::move(read).error();
  const bool are_in_arenas = std::ranges::none_of(
      table.locations,
      [](const PieceLocation& location) { return location.offset == PieceLocation::kElsewhere; });
  if (!are_in_arenas) return false;
  const auto opened = open_arenas(call);
  if (!opened) return opened.error();
  if (!*opened) return false;
  for (const Piece& piece : pieces) table.bytes.push_back(piece.count * shm::size_of(type));
  for (std::size_t i = 0; i < table.locations.size(); ++i) {
    const std::size_t rank = i / pieces.size();
    const PieceLocation& location = table.locations[i];
    const bool is_own = static_cast<int>(rank) == this->rank();
    std::byte* memory = nullptr;
    if (is_own) {
      memory = pieces[i % pieces.size()].data;
    } else if (location.offset != PieceLocation::kZeros) {
      memory = views_[rank]->at(location.offset, location.bytes);
      if (memory == nullptr) {
        return broken(Error(ErrorCode::kInternal,
                            label_of(static_cast<int>(rank)) + " has nothing at its location " +
                                std::to_string(location.offset)));
      }
    }
    table.memory.push_back(memory);
  }
  return true;
}

template <typename Part, typename SumBlock>
Result<bool> ShmGroup::sum_pieces(
    std::span<const Piece> pieces, DataType type, CallKind kind, Part part, SumBlock sum_block) {
  if (!fits(pieces, options_.shape)) return false;
  const Call call = call_of_pieces(kind, pieces, type);
  PieceTable table;
  const auto are_in_arenas = meet_pieces(pieces, call, type, table);
  if (!are_in_arenas) return are_in_arenas.error();
  if (*are_in_arenas) {
    const auto [begin, end] = part(call.bytes);
    table.visit_blocks(begin, end, sum_block);
    if (auto met = meet(call); !met) return std::move(met).error();
  }
  end_collective();
  return *are_in_arenas;
}

Result<bool> ShmGroup::all_reduce_pieces(std::span<const Piece> pieces,
                                         DataType type,
                                         double factor) {
  const auto own = static_cast<std::size_t>(rank());
  const auto part = [this](std::size_t bytes) {
    return std::pair(begin_of_lines(bytes, rank()), begin_of_lines(bytes, rank() + 1));
  };
  const auto sum_block =
      [&](std::size_t, std::size_t bytes, std::span<std::byte* const> locations) {
        std::array<const std::byte*, kMaxRanks> operands;
        std::ranges::copy(locations, operands.begin());
        sum_scaled({operands.data(), locations.size()},
                   bytes / shm::size_of(type),
                   type,
                   factor,
                   locations[own]);
        for (std::size_t rank = 0; rank < locations.size(); ++rank) {
          if (rank != own) std::memcpy(locations[rank], locations[own], bytes);
        }
      };
  return sum_pieces(pieces, type, CallKind::kAllReducePieces, part, sum_block);
}

Result<bool> ShmGroup::reduce_scatter_pieces(std::span<const Piece> pieces,
                                             std::byte* out,
                                             std::size_t count,
                                             DataType type,
                                             double factor) {
  const std::size_t length = count * shm::size_of(type);
  const std::size_t begin = length * static_cast<std::size_t>(rank());
  const auto part = [&](std::size_t) { return std::pair(begin, begin + length); };
  const auto sum_block =
      [&](std::size_t at, std::size_t bytes, std::span<std::byte* const> locations) {
        std::array<const std::byte*, kMaxRanks> operands;
        std::ranges::transform(locations, operands.begin(), [](const std::byte* location) {
          return location == nullptr ? kZeroBlock.data() : location;
        });
        sum_scaled({operands.data(), locations.size()},
                   bytes / shm::size_of(type),
                   type,
                   factor,
                   out + (at - begin));
      };
  return sum_pieces(pieces, type, CallKind::kReduceScatterPieces, part, sum_block);
}

}  // namespace accel::shm
