// Parameters that lie in a file, of the ranks of one node or of one process alone.
//
//   file:    | unit 0: shard of rank 0 | ... | shard of rank n-1 | pad to a page | unit 1: ... |
//
// Rank 0 makes it in its folder, without a name, so that nothing is left when the ranks are gone, and with room for all of it, so that
// a disk that fills up later harms nobody. The others open what it offers (node_offer.h), and all of them map it. The kernel's
// pages of the file are what ranks share: a unit that two of them use is in memory once.
//
//   an operator uses a unit      its pages are read, and mapped at the addresses of its parameters, to be read
//   the unit leaves              they are unmapped, and leave the kernel's memory where no other rank has mapped them
//   a step writes a shard        through a second mapping of the file (optim/state_file.h); publish() brings it to the disk, and out
//                                of memory
//
// A thread reads the units that come next while operators work with this one (engine/pager). Where an optimizer has its states on a
// disk too, its step reads and writes the shards with them, bucket by bucket (optim/disk_step.h); else the pages of a whole shard
// may be there during a step, which can leave when memory is short.

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/empty.h>

#include <accel/error.h>

#include "libaccel/engine/homes/gated_home.h"
#include "libaccel/engine/homes/node_offer.h"
#include "libaccel/engine/homes/parameter_home.h"
#include "libaccel/engine/optim/state_file.h"
#include "libaccel/engine/process/agreement.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/shm/memory/file_offer.h"
#include "runtime/page_size.h"

namespace accel::sharding {
namespace {

struct DiskShards : PageAccess {
  std::optional<StateFile> file;
  // By unit.
  std::vector<at::Tensor> wholes;  // [world_size * shard_numel], to be written to
  std::vector<StateRange> ranges;
  std::vector<off_t> offsets;

  void map(const std::vector<Unit>& units) {
    std::vector<at::Tensor> like;  // each from a page on
    off_t end = 0;
    for (const Unit& unit : units) {
      const auto bytes = static_cast<std::int64_t>(whole_pages(unit.bytes()));
      offsets.push_back(end);
      end += bytes;
      like.push_back(at::empty({bytes / static_cast<std::int64_t>(unit.bytes_of(1))},
                               at::TensorOptions(unit.dtype).device(at::kMeta)));
    }
    const std::vector<at::Tensor> made = file->make(like);
    for (std::size_t unit = 0; unit < units.size(); ++unit) {
      wholes.push_back(made[unit].narrow(0, 0, units[unit].numel()));
      ranges.push_back(StateRange::of(wholes.back()).value());
    }
  }
};

class DiskPages final : public pager::PageSource {
 public:
  explicit DiskPages(std::shared_ptr<DiskShards> shards) : shards_(std::move(shards)) {}

  void fill(std::size_t unit, pager::GuardRange& range) override {
    const WriteGate::Pass pass(shards_->gate);
    const StateRange& pages = shards_->ranges[unit];
    pages.ask();
    range.map(shards_->file->descriptor(),
              shards_->offsets[unit],
              0,
              whole_pages(pages.bytes()),
              shards_->access);
    pages.fetch(StateRange::Access::kRead, range.begin());
  }
  void release(std::size_t unit,
               pager::GuardRange& range,
               std::span<const std::size_t> written) override {
    if (written.empty()) return shards_->ranges[unit].drop(range.begin());
    shards_->ranges[unit].store(range.begin());
  }
  [[nodiscard]] const pager::WritePermit* write_permit() const noexcept override {
    return shards_->permit.get();
  }

 private:
  std::shared_ptr<DiskShards> shards_;
};

class DiskHome final : public GatedHome {
 public:
  DiskHome(const std::vector<Unit>& units,
           const std::shared_ptr<DiskShards>& shards,
           std::shared_ptr<ProcessGroup> group,
           const PagedHomeOptions& options)
      : GatedHome(units, shards, std::move(group), options, [shards](const auto&, auto) {
          return std::make_unique<DiskPages>(shards);
        }) {
    set_writable(shards->wholes);
  }

  [[nodiscard]] bool is_on_disk() const noexcept override { return true; }

 protected:
  void finish_write(std::span<const std::size_t> changed, ProcessGroup& group) override {
    const auto store = [&] {
      for (const std::size_t unit : changed)
        if (const auto own = StateRange::of(own_shard(unit))) own->store();
    };
    jointly(store, &group, "writing the shards of parameters to the disk");
  }
};

void refuse_other_nodes(const std::vector<std::string>& said) {
  const auto rank = rank_elsewhere(said);
  if (!rank) return;
  throw Error(ErrorCode::kUnsupported,
              "parameters on disk are divided over the ranks of one node, and rank " +
                  std::to_string(*rank) + " is on another one than rank 0",
              "use HYBRID_SHARD, which divides over the ranks of each node, or leave "
              "offload_param_nvme_path out");
}

}  // namespace

std::unique_ptr<ParameterHome> make_disk_home(const std::vector<Unit>& units,
                                              std::shared_ptr<ProcessGroup> group,
                                              const std::string& folder,
                                              const PagingLimits& limits) {
  constexpr const char* kMaking = "keeping parameters on a disk";
  const auto shards = std::make_shared<DiskShards>();
  const StateFileContent content{.name = "parameters", .folder_option = "offload_param_nvme_path"};
  const auto make = [&] {
    if (group->rank() != 0) return;
    shards->file.emplace(folder, content);
    shards->map(units);
  };
  jointly(make, group.get(), kMaking);
  const int own = shards->file ? shards->file->descriptor() : -1;
  const auto said = or_throw(gather_results(node_offer(own), kHomeTextBytes, *group, kMaking));
  refuse_other_nodes(said);
  const auto open = [&] {
    if (group->rank() == 0) return;
    shards->file.emplace(
        or_throw(shm::open_file_offer(or_throw(offer_of(said.front())))), folder, content);
    shards->map(units);
  };
  jointly(open, group.get(), kMaking);
  const PagedHomeOptions options{.max_live_bytes = agreed_live_bytes(limits, units, *group),
                                 .units_ahead = limits.units_ahead,
                                 .at_end = PagedHomeOptions::AtEnd::kPages};
  return std::make_unique<DiskHome>(units, shards, std::move(group), options);
}

}  // namespace accel::sharding
