// DeviceUnits: the units of a model that is divided over devices. Each rank holds its shard of a unit; the whole is there from the
// first operator that needs it until others need the room.
//
//   away --begun: the shards of all ranks are gathered--> coming --an operator needs it--> whole --room is needed--> away
//
// An operator on a parameter, or on a view of it, passes by (interception/parameter_operators.h), in forward and in backward. It brings
// its units in, and keeps them until it has been called. Which unit leaves, and which comes ahead of its use, is decided as by the
// pager (pager/paging_policy.h), and by what this rank's operators have used alone: ranks that run the same operators
// decide the same, so all begin the same gathers in the same order. That is what a gather needs. Ranks that do not would take one
// unit for another of its size: so they compare the order in each step, before anything is written.
//
// On a device nothing here waits for the device. A gather goes on beside the stream that computes, from what that stream has been given
// before; the first operator that needs the unit has the stream wait for it. Memory comes from the device's allocator on the stream
// that computes, and goes back to it there: what takes it next runs later.
//
// Threads:  operators on any thread, one at a time; the calls below on the thread that trains, while nobody uses the parameters.
// Errors    throws what ProcessGroup throws; with checks_order kInvalidArgument, on all ranks, where they ask for different units.
// Cost:     of an operator a lock, and a lookup; of a unit that comes one all-gather.
// Source:   tests/unit/libaccel/device/device_sharding_test.cc.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "libaccel/engine/pager/step_trace.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/interception/parameter_operators.h"
#include "libaccel/tensors/unit_layout.h"

namespace accel::sharding {

struct DeviceUnitsOptions {
  c10::Device device{c10::kCPU};
  std::uint64_t max_live_bytes = 0;  // of whole units; an operator that needs more gets it
  int units_ahead = 1;        // that come before they are needed, once a step is known; 0: none
  bool checks_order = false;  // asks before each gather whether all ranks want the same unit
};

class DeviceUnits {
 public:
  // Zeros.
  DeviceUnits(std::vector<Unit> units,
              std::shared_ptr<ProcessGroup> group,
              const DeviceUnitsOptions& options);
  // Has the device wait for what is coming: it would write to memory of others.
  ~DeviceUnits();
  DeviceUnits(const DeviceUnits&) = delete;
  DeviceUnits& operator=(const DeviceUnits&) = delete;

  // [shard_numel] of this rank. Requires, of who writes: the unit is away.
  [[nodiscard]] const at::Tensor& shard(std::size_t unit) const { return pages_[unit].shard; }
  // The storage of the whole, which has memory while the unit is there. To be told before the first use, and when it is gone.
  void set_storage(std::size_t unit, c10::StorageImpl* storage) { pages_[unit].storage = storage; }

  // For an operator, until it has been called.
  void use(interception::OperatorRun& run, std::size_t unit);
  // For code of the program's own. Requires: all ranks call it alike.
  void hold(std::size_t unit);
  void let_go(std::size_t unit) noexcept;

  // Sends all away that nobody holds. False: somebody holds one.
  [[nodiscard]] bool give_all_back();
  void end_step();
  // What is used from now on is what the next forward without a backward uses.
  void begin_evaluation();
  // Throws kInvalidArgument, the same on all ranks, where they have not gathered the same units in the same order since end_step().
  // Cost: a message of 16 bytes on the host. Requires: every rank calls it.
  void refuse_other_orders();

  [[nodiscard]] std::int64_t live_bytes() const;
  [[nodiscard]] std::int64_t peak_bytes() const;

 private:
  static constexpr std::uint64_t kNoUnits = 0xcbf29ce484222325;

  struct Page {
    at::Tensor shard;
    at::Tensor whole;            // undefined: away
    std::optional<Work> coming;  // the gather that fills it
    std::atomic<int> pins{0};
    c10::StorageImpl* storage = nullptr;
  };

  [[nodiscard]] std::vector<std::size_t> evictable() const;
  void bring_in(std::size_t unit);
  void begin_gather(std::size_t unit);
  void make_room(std::size_t unit);
  void send_away(std::size_t unit);
  void fetch_ahead();
  void refuse_other_unit(std::size_t unit);
  void forget();

  const std::vector<Unit> units_;
  const std::shared_ptr<ProcessGroup> group_;
  const DeviceUnitsOptions options_;
  std::vector<std::size_t> unit_bytes_;
  std::unique_ptr<Page[]> pages_;

  mutable std::mutex mutex_;  // of what follows, and of pages
  pager::StepTrace trace_;
  std::size_t live_bytes_ = 0;
  std::size_t peak_bytes_ = 0;
  std::uint64_t order_ = kNoUnits;  // a hash of the units gathered since end_step()
};

}  // namespace accel::sharding
