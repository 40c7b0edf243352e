// GradientBuckets: averages the gradients of one model over ranks that share memory, while backward runs.
//
// Every trained parameter has a slot in a bucket. A hook takes each gradient as soon as it is complete:
//
//   large, and the ranks are on one node   it stays where backward has written it, in memory that all of them map
//                                          (gradient_room.h); what is elsewhere is copied into such memory
//   any other                              it is copied into the buffer of the bucket, and that becomes the gradient
//
// A full bucket is summed at once, its buffer and its gradients apart in one collective, where they lie. c10d::Reducer does
// more (gradients of other places, graphs that change) for each parameter and step; this is for the usual case, and gives the
// same bits: each rank's gradients are multiplied by 1 / world_size before they are summed.
//
//   state    enters on                                leaves on
//   LOCAL    start; the end of the backward           arm() -> ARMED; until then gradients stay where they are
//   ARMED    arm(): a forward, or a late decision     the first gradient -> FILLING
//   FILLING  a gradient                               the last bucket was summed -> SUMMED; abandon() -> LOCAL
//   SUMMED   the last bucket                          the end of that backward, abandon() -> LOCAL
//
// arm() begins anew in every state.
//
// Buckets are summed in one order on every rank, from the last parameters to the first, whatever the order of the hooks.
// A gradient that somebody still holds after the parameter has let go of it keeps its values: its bucket is replaced.
//
// Threads:  the thread that trains; hooks run on LibTorch's thread of the backward, one at a time.
// Cost:     one all-reduce in place for each bucket, a copy of what is small; what gradients take, from the beginning.
// Errors    what ProcessGroup throws; kInvalidArgument naming a parameter that gets a second gradient for one forward;
//           kUnsupported naming one whose gradient is sparse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/engine/gradients/gradient_hooks.h"
#include "libaccel/engine/gradients/gradient_room.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel {

class ProcessGroup;

class GradientBuckets {
 public:
  // Whether this class can serve: ranks whose collectives work on the caller's thread, dense gradients of real numbers on the CPU.
  [[nodiscard]] static bool can_serve(const std::vector<NamedParameter>& parameters,
                                      const ProcessGroup& group);

  // parameters: as trainable_parameters() gives them. bucket_bytes: a bucket ends with the parameter that reaches it.
  // Requires: can_serve(); the same arguments on every rank.
  GradientBuckets(std::vector<NamedParameter> parameters,
                  std::shared_ptr<ProcessGroup> group,
                  std::int64_t bucket_bytes);
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  // The next backward averages.
  void arm();
  // After an exception in a backward.
  void abandon() noexcept;
  // The parameters, by index, whose gradients the backward before has not brought; empty when it was complete or none has begun.
  [[nodiscard]] std::vector<std::size_t> missing() const;

 private:
  enum class State { kLocal, kArmed, kFilling, kSummed };
  struct Slot {
    std::size_t parameter;
    bool is_apart = false;    // not in the buffer
    std::int64_t offset = 0;  // in elements of the buffer
    // In the buffer: of it, laid out as the parameter; undefined: no elements. Apart: from its arrival to the sum.
    at::Tensor gradient;
  };
  struct Bucket {
    at::ScalarType dtype;
    std::int64_t bytes = 0;  // of all gradients
    std::int64_t numel = 0;  // of the buffer
    std::vector<Slot> slots = {};
    at::Tensor buffer = {};
    std::size_t num_arrived = 0;
  };
  void find_room();
  void plan(std::int64_t bucket_bytes);
  void make_buffers(std::span<Bucket> buckets);
  void cut_slots(Bucket& bucket);
  void begin();
  [[nodiscard]] bool is_held_by_others(const Bucket& bucket) const;
  void on_gradient(std::size_t parameter, const at::Tensor& arrived);
  void take(std::size_t parameter, Slot& slot);
  void take_apart(std::size_t parameter, const at::Tensor& arrived);
  void reduce_full_buckets();
  void reduce(Bucket& bucket);

  std::vector<NamedParameter> parameters_;
  std::shared_ptr<ProcessGroup> group_;
  std::unique_ptr<GradientRoom> room_;  // nullptr: no gradient stays apart
  std::vector<Bucket> buckets_;
  std::vector<std::pair<std::size_t, std::size_t>> place_of_;  // by parameter: bucket, slot
  std::optional<GradientHooks> hooks_;

  State state_ = State::kLocal;
  std::vector<std::uint8_t> arrived_;  // by parameter, in this backward
  std::size_t num_reduced_ = 0;        // buckets, from the first
};

}  // namespace accel
