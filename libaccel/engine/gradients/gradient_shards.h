// GradientShards: averages gradients over the ranks while backward runs, and leaves each rank those of its own shards.
//
// A hook on each parameter takes its gradient as soon as it is complete; a full unit is multiplied by 1 / world_size, reduced
// and scattered at once (and its shards are then summed over the replicas, when there are any), and its memory is used for
// the next. So a rank holds the gradients of a few units at a time, whatever the model's size.
//
//   the shards are on one node, and gradients    each rank sums its part out of all ranks' gradients where backward has written
//   are summed in the dtype they come in         them (gradient_room.h); what is elsewhere is copied into such memory
//   any other                                    they are copied into the flat gradient of the unit
//
// The bits are the same.
//
//   state      enters on                            leaves on
//   LOCAL      disarm(): a forward without sync     arm() -> ARMED; until finish() gradients stay where they are, the next one
//                                                   is of a forward of the module itself -> as ARMED
//   ARMED      start; arm(): a forward; abandon()   the first gradient, or finish(): the ranks call the roll;
//                                                   nobody has a gradient -> as before, somebody -> REDUCING
//   REDUCING   somebody has a gradient              finish() -> DONE; abandon() -> ARMED
//   DONE       finish()                             as ARMED, by a forward only after settled(); nothing is owed to the step of
//                                                   an optimizer
//
// The roll keeps ranks together of which some have no gradient of this model in this backward (experts of others, the
// other half of a GAN): they join with zeros. A parameter that had no gradient on any rank keeps none, so that optimizers
// pass it by, as with one process.
//
// Units are reduced from the last to the first on every rank, whatever the order of the hooks. A PostAccumulateGradHook that a
// parameter has already is called first, with the rank's own gradient, and gets its place back from the destructor.
//
// Threads:  the thread that trains; hooks run on LibTorch's thread of the backward, one at a time.
// Cost:     one reduce-scatter per unit, a copy of what is small, two reductions of a few bytes per backward.
// Errors    throws what ProcessGroup throws; kInvalidArgument naming a parameter that gets a second gradient before
//           finish(); kShapeMismatch when ranks reduce different models at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/engine/gradients/gradient_room.h"
#include "libaccel/engine/process/mesh.h"
#include "libaccel/interception/backward_hooks.h"
#include "libaccel/tensors/parameter_list.h"
#include "libaccel/tensors/unit_layout.h"

namespace accel {
class ProcessGroup;
}

namespace accel::sharding {

class GradientShards {
 public:
  // parameters: leaves that require a gradient, in the order that `units` was planned for; gradients are summed in the
  // dtypes of the units. model: a number of this model, the same on all ranks. on_first: called in each backward when its first
  // gradient comes that is to be reduced.
  GradientShards(std::vector<NamedParameter> parameters,
                 std::vector<Unit> units,
                 Mesh& mesh,
                 int model,
                 std::function<void()> on_first);
  GradientShards(const GradientShards&) = delete;
  GradientShards& operator=(const GradientShards&) = delete;

  void arm();
  void disarm();
  // The end of a backward: what hooks left out is added (gradients of batches without sync whose parameters this one
  // did not use), what is missing counts as zero. Does nothing while gradients stay local. has_others: this rank has
  // gradients to average that are not divided. Returns whether any rank had gradients; then take_gradient() gives them.
  // Requires: every rank calls it.
  bool finish(bool has_others = false);

  // Whether nothing is owed: no gradient has come since finish(), and no forward since settled().
  [[nodiscard]] bool is_done() const noexcept { return state_ == State::kDone; }
  // An optimizer has stepped on the gradients, or they were cleared: from now on a forward is one of the next step. Of one
  // before it, that of a loss for the log, there need not be another on any other rank.
  void settled() noexcept { awaits_step_ = false; }
  // After an exception in a backward: what was reduced of it is dropped.
  void abandon() noexcept;

  // [shard_numel] the average over the ranks, of the last finish(). Not kept by this object once taken.
  [[nodiscard]] at::Tensor take_gradient(std::size_t unit);
  // Whether any rank had a gradient of this parameter.
  [[nodiscard]] bool was_used(std::size_t parameter) const { return was_used_.at(parameter) != 0; }

  // Bytes of gradients, and of flat ones, held at present, and at most so far.
  [[nodiscard]] std::int64_t live_bytes() const noexcept { return live_bytes_; }
  [[nodiscard]] std::int64_t peak_bytes() const noexcept { return peak_bytes_; }

 private:
  enum class State { kLocal, kArmed, kReducing, kDone };
  struct UnitState {
    std::vector<at::Tensor> apart;  // [slots] gradients, while they arrive; undefined: none has
    at::Tensor flat;                // or, where they do not stay apart, what they are copied into
    at::Tensor shard;               // once reduced, until taken
    std::size_t num_arrived = 0;
  };

  void on_gradient(std::size_t parameter);
  bool call_roll(bool has_gradients);
  [[nodiscard]] bool has_leftovers() const;
  // For what a unit has at most.
  void find_room();
  [[nodiscard]] bool stays_apart(std::size_t unit) const;  // where there is room
  [[nodiscard]] bool sums_wide(std::size_t unit) const;
  void take(std::size_t parameter);
  void take_apart(std::size_t parameter, const at::Tensor& gradient);
  void take_flat(std::size_t parameter, const at::Tensor& gradient);
  void reduce_ready_units(bool at_end);
  void reduce(std::size_t unit);
  [[nodiscard]] bool reduce_apart(std::size_t unit);
  void reduce_flat(std::size_t unit);
  void flatten(std::size_t unit);
  void clear_gaps(std::size_t unit);
  void hold(std::int64_t bytes) noexcept;
  [[nodiscard]] at::Tensor borrow_flat(const Unit& unit);
  [[nodiscard]] at::Tensor empty_shard(std::size_t unit, at::ScalarType dtype) const;
  void agree_on_use();

  std::vector<NamedParameter> parameters_;
  std::vector<Unit> units_;
  std::vector<std::size_t> unit_of_;  // by parameter
  std::vector<const Slot*> slot_of_;  // by parameter; nullptr: it has no elements
  std::vector<bool> is_plain_;  // units whose gradients come in the dtype that they are summed in
  std::shared_ptr<ProcessGroup> all_;       // whose gradients are averaged
  std::shared_ptr<ProcessGroup> shards_;    // over whom a unit is divided
  std::shared_ptr<ProcessGroup> replicas_;  // who have the same shards; nullptr: nobody else
  int model_;
  std::function<void()> on_first_;
  std::unique_ptr<GradientRoom> room_;  // nullptr: no gradient stays apart
  at::Tensor scale_;                    // 0-d, as a number of the program: it changes no dtype

  State state_ = State::kArmed;
  bool local_is_over_ = false;  // the backward of the forward that has disarmed
  bool awaits_step_ = false;    // since finish(), until settled()
  std::vector<UnitState> unit_states_;
  std::size_t num_reduced_ = 0;        // units, from the last one down
  std::vector<std::uint8_t> arrived_;  // by parameter, in this backward
  std::vector<std::uint8_t> was_used_;
  std::vector<at::Tensor> spare_;  // flats to be used again
  std::int64_t live_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
  std::vector<interception::GradientHook> hooks_;
};

}  // namespace accel::sharding
