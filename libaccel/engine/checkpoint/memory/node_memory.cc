// What is in this memory was written by processes that may have been killed at any moment, or gone wild before they crashed:
// everything is copied, checked against its hash and against the size of the piece before it is used.

#include "libaccel/engine/checkpoint/memory/node_memory.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include <sys/mman.h>

#include <accel/error.h>

#include "libaccel/tensors/alignment.h"
#include "runtime/byte_size.h"

namespace accel::checkpoint {
namespace {

constexpr std::size_t kPageBytes = 4096;
constexpr int kMaxLostNames = 16;
constexpr const char* kIndexRegion = "accel.memory.index";
constexpr std::uint64_t kRecordMagic = 0x3149'4D45'4D4C'4341;  // "ACLMEMI1"

// A record of the index, or the head of a directory.
struct Record {
  std::uint64_t magic = 0;
  std::uint64_t number = 0;
  std::uint64_t bytes = 0;  // of the piece
  std::uint64_t count = 0;  // of areas; 0 in the index
  std::uint64_t check = 0;  // XXH3 of the above, and of the areas
};
struct Area {
  std::int64_t rank = 0;
  std::uint64_t offset = 0;
  std::uint64_t slot_bytes = 0;
};
static_assert(std::has_unique_object_representations_v<Record>);
static_assert(std::has_unique_object_representations_v<Area>);

std::uint64_t check_of(Record record, std::span<const Area> areas) {
  record.check = 0;
  RunningHash hash;
  hash.update(std::as_bytes(std::span(&record, 1)));
  hash.update(std::as_bytes(areas));
  return hash.digest().xxh3;
}

std::uint64_t pages(std::uint64_t bytes) {
  return rounded_up(bytes, kPageBytes);
}

// Texts and counts grow a little from save to save.
std::uint64_t slot_bytes_for(std::uint64_t content) {
  return pages(kSlotHeaderBytes + content + content / 16 + (std::uint64_t{16} << 10));
}

std::uint64_t directory_bytes(std::size_t num_areas) {
  return pages(sizeof(Record) + num_areas * sizeof(Area));
}

std::optional<Record> read_record(std::span<const std::byte> memory) {
  if (memory.size() < sizeof(Record)) return std::nullopt;
  Record record;
  std::memcpy(&record, memory.data(), sizeof record);
  if (record.magic != kRecordMagic) return std::nullopt;
  return record;
}

// The areas of a piece; empty when its directory is not what take() writes.
std::vector<Area> read_areas(std::span<const std::byte> piece) {
  const std::optional<Record> head = read_record(piece);
  if (!head || head->bytes != piece.size() ||
      head->count > (piece.size() - sizeof(Record)) / sizeof(Area)) {
    return {};
  }
  std::vector<Area> areas(static_cast<std::size_t>(head->count));
  std::memcpy(areas.data(), piece.data() + sizeof(Record), areas.size() * sizeof(Area));
  if (head->check != check_of(*head, areas)) return {};
  const bool fits = std::all_of(areas.begin(), areas.end(), [&](const Area& area) {
    return area.offset <= piece.size() && area.slot_bytes <= (piece.size() - area.offset) / 2;
  });
  return fits ? areas : std::vector<Area>();
}

std::optional<NodeMemory::Slots> slots_of(std::span<std::byte> piece, int rank) {
  for (const Area& area : read_areas(piece)) {
    if (area.rank != rank) continue;
    const auto bytes = static_cast<std::size_t>(area.slot_bytes);
    const auto both = piece.subspan(static_cast<std::size_t>(area.offset), 2 * bytes);
    return NodeMemory::Slots{both.first(bytes), both.last(bytes)};
  }
  return std::nullopt;
}

constexpr std::size_t kBeginOffset = 3 * kPageBytes / 4;

std::span<std::byte> record_in(std::span<std::byte> index, std::size_t i) {
  return index.subspan(i * kPageBytes / 2, sizeof(Record));
}

void write_record(std::span<std::byte> to, Record record, std::span<const Area> areas) {
  record.magic = kRecordMagic;
  record.count = areas.size();
  record.check = check_of(record, areas);
  if (!areas.empty())
    std::memcpy(to.data() + sizeof record, areas.data(), areas.size() * sizeof(Area));
  std::memcpy(to.data(), &record, sizeof record);
}

// A cgroup counts what all ranks below it write.
void check_rooms(const std::vector<AreaWish>& wishes) {
  struct Below {
    CgroupRoom room;
    std::uint64_t bytes = 0;
    std::string ranks;
  };
  std::map<std::string, Below> by_file;
  for (const AreaWish& wish : wishes) {
    for (const CgroupRoom& room : wish.rooms) {
      Below& below = by_file.try_emplace(room.file, Below{.room = room, .ranks = {}}).first->second;
      below.room.free_bytes = std::min(below.room.free_bytes, room.free_bytes);
      below.bytes += 2 * slot_bytes_for(wish.bytes);
      below.ranks += (below.ranks.empty() ? "" : ", ") + std::to_string(wish.rank);
    }
  }
  for (const auto& [file, below] : by_file) {
    if (below.bytes <= below.room.free_bytes) continue;
    throw Error(ErrorCode::kOutOfMemory,
                "in-memory checkpoints of rank " + below.ranks + " would take " +
                    byte_text(below.bytes) + " of memory, and " + byte_text(below.room.free_bytes) +
                    " of the " + byte_text(below.room.limit_bytes) + " of " + file + " are free",
                "raise that limit, or leave memory_checkpoint_every out and save to disk");
  }
}

std::string piece_name(std::uint64_t number) {
  return "accel.memory." + std::to_string(number);
}

}  // namespace

void NodeMemory::open() {
  index_ = or_throw(keeper_.get(kIndexRegion, kPageBytes));
  for (std::size_t i = 0; i < 2; ++i) {
    const auto record = read_record(record_in(index_, i));
    if (record && record->check == check_of(*record, {})) map({record->number, record->bytes});
  }
}

bool NodeMemory::note_begin(std::uint64_t generation) {
  const std::span<std::byte> place = index_.subspan(kBeginOffset, sizeof(Record));
  const std::optional<Record> noted = read_record(place);
  if (noted && noted->check == check_of(*noted, {})) return noted->number != generation;
  write_record(place, {.number = generation}, {});
  return false;
}

const NodeMemory::Mapped* NodeMemory::find(std::uint64_t number) const {
  for (const Mapped& mapped : pieces_) {
    if (mapped.piece.number == number) return &mapped;
  }
  return nullptr;
}

Result<void> NodeMemory::try_map(const MemoryPiece& piece) {
  if (find(piece.number) != nullptr) return {};
  auto memory = keeper_.get(piece_name(piece.number), static_cast<std::size_t>(piece.bytes));
  if (!memory) return std::move(memory).error();
  pieces_.push_back({piece, *memory});
  std::sort(pieces_.begin(), pieces_.end(), [](const Mapped& a, const Mapped& b) {
    return a.piece.number < b.piece.number;
  });
  return {};
}

void NodeMemory::map(const MemoryPiece& piece) {
  or_throw(try_map(piece));
}

std::vector<FilledSlot> NodeMemory::filled(int rank) const {
  std::vector<FilledSlot> found;
  for (const Mapped& mapped : pieces_) {
    const auto slots = slots_of(mapped.memory, rank);
    if (!slots) continue;
    for (const std::span<std::byte> slot : *slots) {
      const auto filled = read_slot(slot);
      if (filled && filled->stamp.rank == rank) found.push_back(*filled);
    }
  }
  return found;
}

std::vector<int> NodeMemory::ranks() const {
  std::set<int> ranks;
  for (const Mapped& mapped : pieces_) {
    for (const Area& area : read_areas(mapped.memory)) ranks.insert(static_cast<int>(area.rank));
  }
  return {ranks.begin(), ranks.end()};
}

std::optional<NodeMemory::Slots> NodeMemory::slots(int rank, std::uint64_t bytes) const {
  if (pieces_.empty()) return std::nullopt;
  const auto slots = slots_of(pieces_.back().memory, rank);
  if (!slots || slots->front().size() < kSlotHeaderBytes + bytes) return std::nullopt;
  return slots;
}

std::uint64_t NodeMemory::newest_number() const noexcept {
  return pieces_.empty() ? 0 : pieces_.back().piece.number;
}

std::optional<MemoryPiece> NodeMemory::newest_with(const std::vector<AreaWish>& wishes) const {
  const bool fits = std::all_of(wishes.begin(), wishes.end(), [&](const AreaWish& wish) {
    return slots(wish.rank, wish.bytes).has_value();
  });
  return fits && !pieces_.empty() ? std::optional(pieces_.back().piece) : std::nullopt;
}

std::uint64_t NodeMemory::bytes_for(const std::vector<AreaWish>& wishes) {
  std::uint64_t bytes = 0;
  for (const AreaWish& wish : wishes) bytes += 2 * slot_bytes_for(wish.bytes);
  return bytes;
}

MemoryPiece NodeMemory::take(const std::vector<AreaWish>& wishes,
                             const std::optional<MemoryStamp>& agreed) {
  MemoryPiece piece{.number = newest_number() + 1,
                    .bytes = directory_bytes(wishes.size()) + bytes_for(wishes)};
  if (piece.bytes > keeper_.free_bytes()) {
    throw Error(ErrorCode::kOutOfMemory,
                "in-memory checkpoints would take " + byte_text(piece.bytes) +
                    " of memory on this node, and " + byte_text(keeper_.free_bytes()) + " are free",
                "leave memory_checkpoint_every out and save to disk, or divide the model over more "
                "nodes");
  }
  check_rooms(wishes);
  std::vector<Area> areas;
  std::uint64_t offset = directory_bytes(wishes.size());
  for (const AreaWish& wish : wishes) {
    areas.push_back({wish.rank, offset, slot_bytes_for(wish.bytes)});
    offset += 2 * areas.back().slot_bytes;
  }
  Result<void> mapped = try_map(piece);
  // A process that was killed in here has left a name that is not in the index.
  for (int i = 0; i < kMaxLostNames && !mapped; ++i) {
    if (mapped.error().code() != ErrorCode::kInvalidArgument) break;
    keeper_.drop(piece_name(piece.number));
    ++piece.number;
    mapped = try_map(piece);
  }
  or_throw(std::move(mapped));
  // The directory is complete before the index speaks of it.
  const Record record{.number = piece.number, .bytes = piece.bytes};
  write_record(find(piece.number)->memory, record, areas);
  const std::span<std::byte> place = record_in(index_, free_record(agreed));
  const std::optional<Record> overwritten = read_record(place);
  write_record(place, record, {});
  // Nobody finds that piece again.
  if (overwritten && overwritten->check == check_of(*overwritten, {}))
    keeper_.drop(piece_name(overwritten->number));
  return piece;
}

std::size_t NodeMemory::free_record(const std::optional<MemoryStamp>& agreed) const {
  const auto holds_agreed = [&](std::size_t i) {
    const auto known = read_record(record_in(index_, i));
    const Mapped* const mapped = known ? find(known->number) : nullptr;
    if (mapped == nullptr) return false;
    const std::vector<Area> areas = read_areas(mapped->memory);
    return std::any_of(areas.begin(), areas.end(), [&](const Area& area) {
      const auto slots = slots_of(mapped->memory, static_cast<int>(area.rank));
      return std::any_of(slots->begin(), slots->end(), [&](std::span<const std::byte> slot) {
        const auto filled = read_slot(slot);
        return filled && agreed && agreed->is_with(filled->stamp);
      });
    });
  };
  return holds_agreed(0) ? 1 : 0;
}

void NodeMemory::populate(int rank) const {
  const auto slots = pieces_.empty() ? std::nullopt : slots_of(pieces_.back().memory, rank);
  if (!slots) return;
  ::madvise(slots->front().data(), 2 * slots->front().size(), MADV_POPULATE_WRITE);
}

void NodeMemory::drop_older(Member member) {
  while (pieces_.size() > 1) {
    const Mapped oldest = pieces_.front();
    if (member == Member::kFirst) {
      for (std::size_t i = 0; i < 2; ++i) {
        const auto known = read_record(record_in(index_, i));
        if (known && known->number == oldest.piece.number)
          std::memset(record_in(index_, i).data(), 0, sizeof(Record));
      }
      keeper_.drop(piece_name(oldest.piece.number));
      // Other ranks still have it mapped.
      ::madvise(oldest.memory.data(), oldest.memory.size(), MADV_REMOVE);
    }
    keeper_.unmap(oldest.memory);
    pieces_.erase(pieces_.begin());
  }
}

}  // namespace accel::checkpoint
