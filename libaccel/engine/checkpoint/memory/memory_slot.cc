#include "libaccel/engine/checkpoint/memory/memory_slot.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>
#include <utility>

#include <accel/error.h>

namespace accel::checkpoint {
namespace {

constexpr std::uint64_t kSlotMagic = 0x314D'454D'4C43'4341;  // "ACCLMEM1"
constexpr std::uint32_t kVersion = 1;
// What is copied is hashed while it is still in the cache.
constexpr std::size_t kChunkBytes = std::size_t{256} << 10;

enum class SlotState : std::uint32_t { kEmpty, kBeingWritten, kComplete };

struct SlotHeader {
  std::uint64_t magic = 0;
  std::uint32_t version = 0;
  std::uint32_t state = 0;  // SlotState; not part of the hash
  std::int64_t serial = 0;
  std::int64_t generation = 0;
  std::int64_t step = 0;
  std::int32_t world_size = 0;
  std::int32_t rank = 0;
  std::uint64_t bytes = 0;
  std::uint64_t content_hash = 0;
  std::uint64_t header_hash = 0;  // of all of the above with the state "complete"
};
static_assert(sizeof(SlotHeader) <= kSlotHeaderBytes);
static_assert(std::has_unique_object_representations_v<SlotHeader>);

std::uint64_t hash_of(SlotHeader header) {
  header.state = static_cast<std::uint32_t>(SlotState::kComplete);
  header.header_hash = 0;
  return xxh3(std::as_bytes(std::span(&header, 1)));
}

void set_slot_state(std::span<std::byte> slot, SlotState state) {
  auto* const word = reinterpret_cast<std::uint32_t*>(slot.data() + offsetof(SlotHeader, state));
  std::atomic_ref(*word).store(static_cast<std::uint32_t>(state), std::memory_order_seq_cst);
}

// A copy, checked.
std::optional<SlotHeader> read_header(std::span<const std::byte> slot) {
  if (slot.size() <= kSlotHeaderBytes) return std::nullopt;
  SlotHeader header;
  std::memcpy(&header, slot.data(), sizeof header);
  const bool is_complete = header.magic == kSlotMagic && header.version == kVersion &&
                           header.state == static_cast<std::uint32_t>(SlotState::kComplete) &&
                           header.header_hash == hash_of(header) &&
                           header.bytes <= slot.size() - kSlotHeaderBytes;
  return is_complete ? std::optional(header) : std::nullopt;
}

}  // namespace

SlotWriter::SlotWriter(std::span<std::byte> slot, CopyProgress progress)
    : slot_(slot), progress_(std::move(progress)) {
  set_slot_state(slot_, SlotState::kBeingWritten);
}

void SlotWriter::append(std::span<const std::byte> bytes) {
  if (bytes.size() > slot_.size() - used_)
    throw Error(ErrorCode::kInternal, "an in-memory checkpoint is larger than it said");
  while (!bytes.empty()) {
    const auto chunk = bytes.first(std::min(bytes.size(), kChunkBytes));
    std::memcpy(slot_.data() + used_, chunk.data(), chunk.size());
    hash_.update(slot_.subspan(used_, chunk.size()));
    used_ += chunk.size();
    bytes = bytes.subspan(chunk.size());
    if (progress_) progress_(used_ - kSlotHeaderBytes);
  }
}

void SlotWriter::complete(const MemoryStamp& stamp) {
  const FileDigest digest = hash_.digest();
  SlotHeader header{.magic = kSlotMagic,
                    .version = kVersion,
                    .state = static_cast<std::uint32_t>(SlotState::kBeingWritten),
                    .serial = stamp.serial,
                    .generation = stamp.generation,
                    .step = stamp.step,
                    .world_size = stamp.world_size,
                    .rank = stamp.rank,
                    .bytes = digest.bytes,
                    .content_hash = digest.xxh3};
  header.header_hash = hash_of(header);
  std::memcpy(slot_.data(), &header, sizeof header);
  set_slot_state(slot_, SlotState::kComplete);
}

std::optional<FilledSlot> read_slot(std::span<const std::byte> slot) {
  const std::optional<SlotHeader> header = read_header(slot);
  if (!header) return std::nullopt;
  return FilledSlot{
      .stamp = {.serial = header->serial,
                .generation = header->generation,
                .step = header->step,
                .world_size = header->world_size,
                .rank = header->rank},
      .content = slot.subspan(kSlotHeaderBytes, static_cast<std::size_t>(header->bytes)),
      .hash = header->content_hash};
}

bool is_intact(const FilledSlot& slot) {
  return xxh3(slot.content) == slot.hash;
}

}  // namespace accel::checkpoint
