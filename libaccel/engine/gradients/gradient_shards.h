// GradientShards: averages gradients over the ranks, and leaves each rank those of its own shards.
//
// A full unit is multiplied by 1 / world_size, reduced and scattered at once (and its shards are then summed over the
// replicas, when there are any), and its memory is used for the next. So a rank holds the gradients of a few units at a time,
// whatever the model's size.
//
//   the shards are on one node, and gradients    each rank sums its part out of all ranks' gradients where backward has written
//   are summed in the dtype they come in         them (gradient_room.h); what is elsewhere is copied into such memory
//   any other                                    they are copied into the flat gradient of the unit
//
// The bits are the same.
//
// On a device a reduction goes on beside the backward: the stream that computes waits for it when the next but one begins, or when
// the backward ends. So two flat gradients are on their way at most, and a third is being filled.
//
// An exchange begins with a roll, which keeps ranks together of which some have no gradient of this model in this backward
// (experts of others, the other half of a GAN): they join with zeros. A parameter that had no gradient on any rank keeps none,
// so that optimizers pass it by, as with one process.
//
// Units are reduced from the last to the first.
//
// Threads:  as GradientPolicy.
// Cost:     one reduce-scatter per unit, a copy of what is small, two reductions of a few bytes per backward.
// Errors    throws what ProcessGroup throws; kShapeMismatch when ranks reduce different models at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/engine/gradients/gradient_policy.h"
#include "libaccel/engine/gradients/gradient_room.h"
#include "libaccel/engine/process/mesh.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/tensors/parameter_list.h"
#include "libaccel/tensors/unit_layout.h"

namespace accel::sharding {

class GradientShards final : public GradientPolicy {
 public:
  // parameters: leaves that require a gradient, in the order that `units` was planned for; gradients are summed in the
  // dtypes of the units. model: a number of this model, the same on all ranks.
  GradientShards(std::vector<NamedParameter> parameters,
                 std::vector<Unit> units,
                 Mesh& mesh,
                 int model);
  GradientShards(const GradientShards&) = delete;
  GradientShards& operator=(const GradientShards&) = delete;

  [[nodiscard]] ExchangeState::Rules rules() const override;
  void before_backward(bool exchanges, const std::vector<at::Tensor>& outputs) override;
  // The roll.
  [[nodiscard]] bool begin(bool has_gradients) override;
  void take(std::size_t parameter, const at::Tensor& arrived) override;
  void reduce(std::size_t group, std::span<const std::uint8_t> arrived) override;
  void finish(std::span<const std::uint8_t> arrived) override;
  void end_backward() override { settle_reductions(0); }
  void drop() noexcept override;
  [[nodiscard]] Error second_gradient(const NamedParameter& parameter) const override;

  // Called in the backward for each unit whose gradient is complete, with what take_gradient() will return.
  using WhenReduced = std::function<void(std::size_t unit, const at::Tensor& shard)>;
  void set_when_reduced(WhenReduced when_reduced) { when_reduced_ = std::move(when_reduced); }

  // Called with each of them before: returns what is kept in its place, with the same values.
  using Keep = std::function<at::Tensor(std::size_t unit, const at::Tensor& shard)>;
  void set_keep(Keep keep) { keep_ = std::move(keep); }

  // [shard_numel] the average over the ranks, of the last exchange. Not kept by this object once taken.
  [[nodiscard]] at::Tensor take_gradient(std::size_t unit);
  // Whether any rank had a gradient of this parameter.
  [[nodiscard]] bool was_used(std::size_t parameter) const { return was_used_.at(parameter) != 0; }
  // With the dtypes that gradients are summed in.
  [[nodiscard]] const std::vector<Unit>& units() const noexcept { return units_; }

  // Bytes of gradients, and of flat ones, held at present, and at most so far.
  [[nodiscard]] std::int64_t live_bytes() const noexcept { return live_bytes_; }
  [[nodiscard]] std::int64_t peak_bytes() const noexcept { return peak_bytes_; }

 private:
  struct UnitState {
    std::vector<at::Tensor> apart;  // [slots] gradients, while they arrive; undefined: none has
    at::Tensor flat;                // or, where they do not stay apart, what they are copied into
    at::Tensor shard;               // once reduced, until taken
  };

  // A sum over the ranks that has begun.
  struct BegunSum {
    std::size_t unit;
    at::Tensor flat;
    at::Tensor input;  // that, or a copy in fp32
    Work work;
  };

  // Units are exchanged from the last one down.
  [[nodiscard]] std::size_t unit_of_group(std::size_t group) const noexcept {
    return units_.size() - 1 - group;
  }
  // For what a unit has at most.
  void find_room();
  [[nodiscard]] bool stays_apart(std::size_t unit) const;  // where there is room
  [[nodiscard]] bool sums_wide(std::size_t unit) const;
  void take_apart(std::size_t parameter, const at::Tensor& gradient);
  void take_flat(std::size_t parameter, const at::Tensor& gradient);
  [[nodiscard]] bool reduce_apart(std::size_t unit);
  void begin_flat(std::size_t unit);
  // Ends what has begun, the oldest first, but for the last `most_left`.
  void settle_reductions(std::size_t most_left);
  void complete(std::size_t unit);
  void flatten(std::size_t unit, std::span<const std::uint8_t> arrived);
  void clear_gaps(std::size_t unit, std::span<const std::uint8_t> arrived);
  void hold(std::int64_t bytes) noexcept;
  [[nodiscard]] at::Tensor borrow_flat(const Unit& unit);
  [[nodiscard]] at::Tensor empty_shard(std::size_t unit, at::ScalarType dtype) const;

  std::vector<NamedParameter> parameters_;
  std::vector<Unit> units_;
  std::vector<std::size_t> unit_of_;  // by parameter
  std::vector<const Slot*> slot_of_;  // by parameter; nullptr: it has no elements
  std::vector<bool> is_plain_;  // units whose gradients come in the dtype that they are summed in
  std::shared_ptr<ProcessGroup> all_;       // whose gradients are averaged
  std::shared_ptr<ProcessGroup> shards_;    // over whom a unit is divided
  std::shared_ptr<ProcessGroup> replicas_;  // who have the same shards; nullptr: nobody else
  c10::Device device_;
  int model_;
  WhenReduced when_reduced_;
  Keep keep_;
  std::unique_ptr<GradientRoom> room_;  // nullptr: no gradient stays apart
  at::Tensor scale_;                    // 0-d, as a number of the program: it changes no dtype

  std::vector<UnitState> unit_states_;
  std::vector<std::uint8_t> was_used_;
  std::vector<at::Tensor> spare_;  // flats to be used again
  std::deque<BegunSum> begun_;
  std::int64_t live_bytes_ = 0;
  std::int64_t peak_bytes_ = 0;
};

}  // namespace accel::sharding
