#include "libaccel/engine/checkpoint/memory/memory_checkpoints.h"

#include <algorithm>
#include <tuple>

#include <nlohmann/json.hpp>

#include <accel/error.h>
#include <accel/result.h>

#include "libaccel/engine/checkpoint/memory/memory_image.h"
#include "libaccel/engine/checkpoint/series/background_save.h"
#include "libaccel/engine/checkpoint/series/checkpoint_reader.h"
#include "libaccel/engine/checkpoint/states/save_content.h"
#include "runtime/byte_size.h"

namespace accel::checkpoint {
namespace {

using nlohmann::json;

int first_of_node(const RankExchange& ranks) {
  return ranks.rank() - ranks.local_rank();
}

void refuse_hooks(const CheckpointObjects& objects) {
  if (objects.before_save.empty() && objects.before_load.empty() &&
      objects.choose_weights.empty() && objects.choose_models.empty())
    return;
  throw Error(ErrorCode::kUnsupported,
              "hooks of save_state() and load_state() work with files, which an in-memory "
              "checkpoint does not have",
              "give what they save to register_for_checkpointing(), or leave in-memory checkpoints "
              "out");
}

MemoryImage image_of(const RankExchange& ranks,
                     const CheckpointObjects& objects,
                     const MemorySaveOptions& options) {
  const bool is_first = ranks.local_rank() == 0;
  Manifest manifest{.world_size = ranks.size(),
                    .step = options.step,
                    .generation = options.generation,
                    .objects = {.models = std::ssize(objects.models),
                                .optimizers = std::ssize(objects.optimizers),
                                .schedulers = std::ssize(objects.schedulers),
                                .loaders = std::ssize(objects.loaders),
                                .custom = std::ssize(objects.custom),
                                .has_scaler = objects.scaler != nullptr}};
  return {collect_content(
              objects, weights_of(objects.models), {.rank = ranks.rank(), .is_leader = is_first}),
          manifest,
          options.newest_on_disk};
}

json encode_stamp(const MemoryStamp& stamp) {
  return {stamp.serial, stamp.generation, stamp.step, stamp.world_size, stamp.rank};
}

MemoryStamp decode_stamp(const json& text) {
  return {.serial = text.at(0).get<std::int64_t>(),
          .generation = text.at(1).get<std::int64_t>(),
          .step = text.at(2).get<std::int64_t>(),
          .world_size = text.at(3).get<int>(),
          .rank = text.at(4).get<int>()};
}

// Which of the two may be overwritten.
std::span<std::byte> slot_to_write(const NodeMemory::Slots& slots,
                                   const std::optional<MemoryStamp>& agreed) {
  const auto first = read_slot(slots.front());
  return first && agreed && agreed->is_with(first->stamp) ? slots.back() : slots.front();
}

}  // namespace

void MemoryCheckpoints::open() {
  if (!is_open_) memory_.open();
  is_open_ = true;
}

bool MemoryCheckpoints::has_begun_before(RankExchange& ranks, std::uint64_t generation) {
  const auto said = or_throw(agree(ranks, [&]() -> std::string {
    open();
    // One a node: who comes later would find the note of this generation.
    return ranks.local_rank() == 0 && memory_.note_begin(generation) ? "yes" : "";
  }));
  return std::find(said.begin(), said.end(), "yes") != said.end();
}

MemoryCheckpoints::Found MemoryCheckpoints::find(RankExchange& ranks) {
  const auto said = or_throw(agree(ranks, [&]() -> std::string {
    open();
    json stamps = json::array();
    for (const FilledSlot& slot : memory_.filled(ranks.rank())) {
      stamps.push_back(encode_stamp(slot.stamp));
      highest_ = std::max(highest_, slot.stamp.serial);
    }
    return stamps.dump();
  }));
  is_searched_ = true;
  std::vector<std::vector<MemoryStamp>> by_rank;
  for (const std::string& text : said) {
    by_rank.emplace_back();
    for (const json& stamp : json::parse(text)) by_rank.back().push_back(decode_stamp(stamp));
  }
  Found found{.choice = choose_memory_checkpoint(by_rank), .newest_on_disk = {}};
  while (found.choice.stamp) {
    const MemoryStamp stamp = *found.choice.stamp;
    if (check(ranks, stamp, by_rank, found.newest_on_disk)) {
      agreed_ = stamp;
      break;
    }
    found.choice = choose_memory_checkpoint(by_rank);
  }
  found_ = found;
  return found;
}

// Takes the parts that are damaged out of `by_rank`. Whether none was.
bool MemoryCheckpoints::check(RankExchange& ranks,
                              const MemoryStamp& stamp,
                              std::vector<std::vector<MemoryStamp>>& by_rank,
                              DiskMark& newest_on_disk) const {
  const auto said = or_throw(agree(ranks, [&] {
    const FilledSlot slot = slot_of(ranks.rank(), stamp);
    if (!is_intact(slot)) return json().dump();
    // Rank 0 is the first of its node. An image that cannot be read is found out by load(), which says why.
    const Result<DiskMark> disk = to_result([&] {
      return ranks.rank() == 0 ? MemorySource(slot.content, slot.content).newest_on_disk()
                               : DiskMark();
    });
    const DiskMark mark = disk ? *disk : DiskMark();
    return json{mark.number, mark.generation}.dump();
  }));
  bool is_whole = true;
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    const json mark = json::parse(said[rank]);
    if (rank == 0 && !mark.is_null())
      newest_on_disk = {mark.at(0).get<std::int64_t>(), mark.at(1).get<std::int64_t>()};
    if (!mark.is_null()) continue;
    is_whole = false;
    std::erase_if(by_rank[rank], [&](const MemoryStamp& part) { return part.is_with(stamp); });
  }
  return is_whole;
}

FilledSlot MemoryCheckpoints::slot_of(int rank, const MemoryStamp& stamp) const {
  for (const FilledSlot& slot : memory_.filled(rank)) {
    if (slot.stamp.is_with(stamp)) return slot;
  }
  throw Error(ErrorCode::kCheckpointIncomplete,
              "the part of rank " + std::to_string(rank) + " is not on this node");
}

std::vector<std::span<const std::byte>> MemoryCheckpoints::contents_but(
    int one, int other, const MemoryStamp& stamp) const {
  std::vector<std::span<const std::byte>> contents;
  for (const int rank : memory_.ranks()) {
    if (rank == one || rank == other) continue;
    for (const FilledSlot& slot : memory_.filled(rank)) {
      if (!slot.stamp.is_with(stamp)) continue;
      contents.push_back(slot.content);
      break;
    }
  }
  return contents;
}

void MemoryCheckpoints::reserve(RankExchange& ranks,
                                const CheckpointObjects& objects,
                                std::uint64_t more_bytes) {
  if (!is_searched_) std::ignore = find(ranks);
  std::ignore = make_room(ranks, [&] {
    refuse_hooks(objects);
    return image_of(ranks, objects, {}).bytes() + more_bytes;
  });
}

CheckpointInfo MemoryCheckpoints::save(RankExchange& ranks,
                                       const CheckpointObjects& objects,
                                       const MemorySaveOptions& options) {
  try {
    if (!is_searched_) std::ignore = find(ranks);
    std::optional<MemoryImage> image;
    const std::int64_t serial = make_room(ranks, [&] {
      refuse_hooks(objects);
      image.emplace(image_of(ranks, objects, options));
      return image->bytes();
    });
    const MemoryStamp stamp{.serial = serial,
                            .generation = options.generation,
                            .step = options.step,
                            .world_size = ranks.size(),
                            .rank = ranks.rank()};
    highest_ = serial;
    found_.reset();
    agree_on(ranks, [&] {
      const auto slots = memory_.slots(ranks.rank(), image->bytes());
      SlotWriter writer(slot_to_write(slots.value(), agreed_), hooks_.on_copy);
      image->write(writer);
      writer.complete(stamp);
    });
    agreed_ = stamp;
    memory_.drop_older(ranks.local_rank() == 0 ? NodeMemory::Member::kFirst
                                               : NodeMemory::Member::kOther);
  } catch (Error& error) {
    error.while_doing("saving the in-memory checkpoint of step " + std::to_string(options.step));
    throw;
  }
  return {.world_size = ranks.size(), .step = options.step, .generation = options.generation};
}

std::string MemoryCheckpoints::encode(const Wish& wish) {
  json rooms = json::array();
  for (const CgroupRoom& room : wish.rooms)
    rooms.push_back({room.file, room.limit_bytes, room.free_bytes});
  return json{wish.first, wish.bytes, wish.piece, wish.fits, wish.highest, std::move(rooms)}.dump(
      -1, ' ', false, json::error_handler_t::replace);
}

MemoryCheckpoints::Wish MemoryCheckpoints::decode_wish(const std::string& text) {
  const json wish = json::parse(text);
  std::vector<CgroupRoom> rooms;
  for (const json& room : wish.at(5)) {
    rooms.push_back({room.at(0).get<std::string>(),
                     room.at(1).get<std::uint64_t>(),
                     room.at(2).get<std::uint64_t>()});
  }
  return {.first = wish.at(0).get<int>(),
          .bytes = wish.at(1).get<std::uint64_t>(),
          .piece = wish.at(2).get<std::uint64_t>(),
          .fits = wish.at(3).get<bool>(),
          .highest = wish.at(4).get<std::int64_t>(),
          .rooms = std::move(rooms)};
}

bool MemoryCheckpoints::has_room(const std::vector<Wish>& wishes, int first) {
  std::optional<std::uint64_t> piece;
  for (const Wish& wish : wishes) {
    if (wish.first != first) continue;
    if (!wish.fits || piece.value_or(wish.piece) != wish.piece) return false;
    piece = wish.piece;
  }
  return true;
}

std::int64_t MemoryCheckpoints::make_room(RankExchange& ranks,
                                          const std::function<std::uint64_t()>& bytes) {
  const auto said = or_throw(agree(ranks, [&] {
    const std::uint64_t wanted = bytes();
    return encode({.first = first_of_node(ranks),
                   .bytes = wanted,
                   .piece = memory_.newest_number(),
                   .fits = memory_.slots(ranks.rank(), wanted).has_value(),
                   .highest = highest_,
                   .rooms = memory_.rooms()});
  }));
  std::vector<Wish> wishes;
  std::int64_t highest = 0;
  for (const std::string& text : said) {
    wishes.push_back(decode_wish(text));
    highest = std::max(highest, wishes.back().highest);
  }
  const bool is_room = std::all_of(
      wishes.begin(), wishes.end(), [&](const Wish& wish) { return has_room(wishes, wish.first); });
  if (!is_room) take(ranks, wishes);
  return highest + 1;
}

// Every node with a rank whose area is too small takes a piece for all its ranks. When a rank failed to map a piece that
// others of its node have, the first rank has it too: all of them come to that one. Else some would write to it, the others
// to an older one, which is given back after the save with what they have written.
void MemoryCheckpoints::take(RankExchange& ranks, const std::vector<Wish>& wishes) {
  const int first = first_of_node(ranks);
  std::vector<AreaWish> own;
  for (std::size_t rank = 0; rank < wishes.size(); ++rank) {
    if (wishes[rank].first == first)
      own.push_back({static_cast<int>(rank), wishes[rank].bytes, wishes[rank].rooms});
  }
  const auto pieces = or_throw(agree(ranks, [&] {
    if (has_room(wishes, first) || ranks.local_rank() != 0) return json().dump();
    std::optional<MemoryPiece> piece = memory_.newest_with(own);
    if (!piece) {
      piece = memory_.take(own, agreed_);
      if (hooks_.on_size) {
        hooks_.on_size("in-memory checkpoints take 2 x " +
                       byte_text(NodeMemory::bytes_for(own) / 2) + " of memory on this node");
      }
    }
    return json{piece->number, piece->bytes}.dump();
  }));
  agree_on(ranks, [&] {
    const json piece = json::parse(pieces.at(static_cast<std::size_t>(first)));
    if (!piece.is_null()) {
      memory_.map({piece.at(0).get<std::uint64_t>(), piece.at(1).get<std::uint64_t>()});
      memory_.populate(ranks.rank());
    }
  });
}

std::optional<LoadReport> MemoryCheckpoints::load(RankExchange& ranks,
                                                  const CheckpointObjects& objects,
                                                  std::string& why_not) {
  background_saves().wait();
  const Found found = found_ ? *found_ : find(ranks);
  if (!found.choice.stamp) {
    why_not = found.choice.why_not;
    return std::nullopt;
  }
  std::unique_ptr<StagedCheckpoint> staged;
  const auto staging = agree(ranks, [&]() -> std::string {
    const MemoryStamp& stamp = *found.choice.stamp;
    const int first = first_of_node(ranks);
    const FilledSlot own = slot_of(ranks.rank(), stamp);
    MemorySource source(
        own.content, slot_of(first, stamp).content, contents_but(ranks.rank(), first, stamp));
    staged = std::make_unique<StagedCheckpoint>(source, objects, ranks.rank());
    // It was saved without hooks: all models are in it.
    if (!objects.choose_models.empty()) staged->stage_models(source, objects, objects.models);
    return "";
  });
  if (!staging) {
    why_not = staging.error().message();
    return std::nullopt;
  }
  try {
    agree_on(ranks, [&] { staged->apply_states(); });
  } catch (Error& error) {
    error.while_doing("loading the in-memory checkpoint of step " +
                      std::to_string(found.choice.stamp->step));
    throw;
  }
  staged->apply_tensors();
  return LoadReport{.checkpoint = staged->info(), .notices = staged->notices()};
}

}  // namespace accel::checkpoint
