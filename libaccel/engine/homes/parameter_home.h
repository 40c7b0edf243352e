// ParameterHome: the memory that the parameters of a sharded model lie in, and how the ranks come to see each other's
// shards.
//
//   PrivateHome   each rank holds all units whole; publish() gathers the shards that changed. Any backend, any number
//                 of nodes. What SHARD_GRAD_OP needs.
//   SharedHome    the ranks of one node map one memory; a shard is seen by all as it is written, so publish() only
//                 waits. One copy a node: what FULL_SHARD needs there.
//   RemoteHome    the ranks of several nodes: each node holds the shards of its ranks, and those of others while operators
//                 use them (paged_home.h, which needs no ranks). What FULL_SHARD needs there.
//   DiskHome      the ranks of one node have all shards in a file, and units in memory while operators use them. For
//                 parameters that do not fit into memory.
//   DeviceHome    ranks with devices: each holds its shards on its own, and units whole while operators use them
//                 (device_units.h). What FULL_SHARD needs there.
//
// A shard is written by its owner alone, between before_write() and publish(). Nobody reads it meanwhile: a rank calls
// before_write() when it is through with its forwards and backwards, and goes on when all ranks are.
//
// Threads:  the thread that trains; the same calls in the same order on every rank.
// Errors    collectives throw what ProcessGroup throws.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <accel/result.h>

#include "libaccel/engine/pager/guard_memory.h"
#include "libaccel/engine/pager/write_permit.h"
#include "libaccel/engine/settings/fsdp_settings.h"
#include "libaccel/tensors/parameter_list.h"
#include "libaccel/tensors/unit_layout.h"
#include "runtime/unique_fd.h"

namespace accel {
class ProcessGroup;
}

namespace accel::sharding {

class ParameterHome {
 public:
  virtual ~ParameterHome() = default;

  // Makes each parameter a view of its place, of the strides that it had. parameters: in the order that the units were
  // planned for. To be called once, after the first publish().
  virtual void take_in(std::vector<NamedParameter>& parameters) = 0;
  // [shard_numel] of a unit, which this rank writes.
  [[nodiscard]] virtual at::Tensor own_shard(std::size_t unit) const = 0;
  // Whether the ranks see one memory: then one rank's values are every rank's.
  [[nodiscard]] virtual bool is_shared() const noexcept = 0;
  virtual void before_write() = 0;
  virtual void publish(std::span<const std::size_t> units) = 0;
  // In place of publish() on a rank whose step failed.
  virtual void abandon_write() noexcept {}
  // Between them the parameters may be written to, by all ranks the same.
  virtual void begin_load() = 0;
  virtual void end_load() = 0;

  // Whether parameters are in memory only while they are used.
  [[nodiscard]] virtual bool is_paged() const noexcept { return false; }
  // Whether they lie in a file then.
  [[nodiscard]] virtual bool is_on_disk() const noexcept { return false; }
  // A forward without a backward begins: where parameters are paged, what is used from now on is what the next one will use.
  virtual void begin_evaluation() {}
  // Whether what comes in does so on all ranks together, so that one rank alone may not ask for it. Then begin_load() and end_load()
  // are not called: what is saved and loaded are the shards, as masters (master_shards.h).
  [[nodiscard]] virtual bool is_collective() const noexcept { return false; }
  // Bytes of units that are whole at present, and at most so far; of a home whose table of pages does not say it.
  struct WholeBytes {
    std::int64_t present = 0;
    std::int64_t peak = 0;
  };
  [[nodiscard]] virtual WholeBytes whole_bytes() const { return {}; }
  // Where each rank has a copy that its program may write to: throws kInvalidArgument, the same on all ranks, naming a
  // parameter that some ranks have written to since publish() and others have not. Requires: every rank calls it.
  virtual void refuse_unsynced_writes() {}
  // There, the units of which this rank's part is not what it was at publish(), or when this was asked last; where masters are
  // beside it.
  [[nodiscard]] virtual std::vector<std::size_t> written_units() { return {}; }
};

// Whether the optimizer works on the home itself, or on masters of which it has roundings.
enum class Masters { kNone, kBeside };

// The longest text, in bytes, that a rank says of itself while the ranks make a home.
inline constexpr std::int64_t kHomeTextBytes = 512;

// Makes the parameters of a unit views of `flat`.
void place_parameters(const Unit& unit,
                      const at::Tensor& flat,
                      std::vector<NamedParameter>& parameters);

// Of operators on parameters that the ranks see in one memory: withdrawn.
[[nodiscard]] std::shared_ptr<pager::WritePermit> make_shared_permit();

// Memory of so many bytes, all zero, without a name: nothing is left of it when nobody holds it. Its size is sealed, so
// that it may be offered (memory_offer.h). Errors  kOutOfMemory.
[[nodiscard]] Result<UniqueFd> make_parameter_memory(std::int64_t bytes);

// device: where it lies.
[[nodiscard]] std::unique_ptr<ParameterHome> make_private_home(const std::vector<Unit>& units,
                                                               std::shared_ptr<ProcessGroup> group,
                                                               Masters masters,
                                                               c10::Device device);

// labels: of the parameters of each unit, for who writes to them. Errors, the same on all ranks  kUnsupported: they cannot
// share memory; says which rank and why. Throws what ProcessGroup throws. Requires: every rank calls it.
[[nodiscard]] Result<std::unique_ptr<ParameterHome>> make_shared_home(
    const std::vector<Unit>& units,
    std::vector<std::vector<pager::GuardLabel>> labels,
    std::shared_ptr<ProcessGroup> group);

// Errors, the same on all ranks  kUnsupported: a rank that cannot be reached or has no memory; says which and why. Throws
// what ProcessGroup throws. Requires: every rank calls it.
[[nodiscard]] Result<std::unique_ptr<ParameterHome>> make_remote_home(
    const std::vector<Unit>& units,
    std::shared_ptr<ProcessGroup> group,
    const PagingLimits& limits);

// folder: of rank 0. Throws, the same on all ranks, kFileIo for a folder in which no file can be made, kDiskFull, kUnsupported for
// ranks of several nodes, what agreed_live_bytes() throws (gated_home.h), and what ProcessGroup throws. Requires: every rank
// calls it.
[[nodiscard]] std::unique_ptr<ParameterHome> make_disk_home(const std::vector<Unit>& units,
                                                            std::shared_ptr<ProcessGroup> group,
                                                            const std::string& folder,
                                                            const PagingLimits& limits);

// labels: as above. Throws kOutOfMemory, the same on all ranks, for a budget below the largest unit, and what ProcessGroup throws.
// Requires: every rank calls it; device is not the CPU.
[[nodiscard]] std::unique_ptr<ParameterHome> make_device_home(
    const std::vector<Unit>& units,
    std::vector<std::vector<pager::GuardLabel>> labels,
    std::shared_ptr<ProcessGroup> group,
    const PagingLimits& limits,
    c10::Device device);

// On another device than the CPU that of devices (FULL_SHARD), or private. On the CPU, on a disk where settings name a folder; else the
// home of the first kind that these ranks can have and the strategy allows: shared, then paged (FULL_SHARD) or private
// (SHARD_GRAD_OP). Throws
// kUnsupported, the same on all ranks, what make_disk_home() throws, and what ProcessGroup throws. Requires: every rank calls it.
[[nodiscard]] std::unique_ptr<ParameterHome> make_home(
    const std::vector<Unit>& units,
    std::vector<std::vector<pager::GuardLabel>> labels,
    const std::shared_ptr<ProcessGroup>& group,
    const FsdpSettings& settings,
    Masters masters,
    c10::Device device);

}  // namespace accel::sharding
