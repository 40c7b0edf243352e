// GradientBuckets: averages gradients over ranks that share memory.
//
// Every trained parameter has a slot in a bucket:
//
//   large, and the ranks are on one node   the gradient stays where backward has written it, in memory that all of them map
//                                          (gradient_room.h); what is elsewhere is copied into such memory
//   any other                              it is copied into the buffer of the bucket, and that becomes the gradient
//
// A full bucket is summed at once, its buffer and its gradients apart in one collective, where they lie; over a network beside the
// backward (overlapped_sums.h), at whose end it is there. c10d::Reducer does
// more (gradients of other places, graphs that change) for each parameter and step; this is for the usual case, and gives the
// same bits: each rank's gradients are multiplied by 1 / world_size before they are summed.
//
// Buckets go from the last parameters to the first. A gradient that somebody still holds after the parameter has let go of it
// keeps its values: its bucket is replaced.
//
// Threads:  as GradientPolicy.
// Cost:     one all-reduce in place for each bucket, a copy of what is small; what gradients take, from the beginning.
// Errors    what ProcessGroup throws; kUnsupported naming a parameter whose gradient is sparse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/communication_hook.h>

#include "libaccel/engine/gradients/gradient_policy.h"
#include "libaccel/engine/gradients/gradient_room.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel {

class OverlappedSums;
class ProcessGroup;

class GradientBuckets final : public GradientPolicy {
 public:
  // Whether this class can serve: ranks whose collectives work on the caller's thread, dense gradients of real numbers on the CPU.
  [[nodiscard]] static bool can_serve(const std::vector<NamedParameter>& parameters,
                                      const ProcessGroup& group);

  // parameters: as trainable_parameters() gives them. bucket_bytes: a bucket ends with the parameter that reaches it.
  // hook: exchanges what is full, in place of the average, unless it is empty; then all gradients lie in the buffer, one after
  // the other. Requires: can_serve(); the same arguments on every rank.
  GradientBuckets(std::vector<NamedParameter> parameters,
                  std::shared_ptr<ProcessGroup> group,
                  std::int64_t bucket_bytes,
                  CommunicationHook hook = {});
  ~GradientBuckets() override;

  [[nodiscard]] ExchangeState::Rules rules() const override;
  void before_backward(bool exchanges, const std::vector<at::Tensor>& outputs) override;
  [[nodiscard]] bool begin(bool has_gradients) override;
  void take(std::size_t parameter, const at::Tensor& arrived) override;
  void reduce(std::size_t group, std::span<const std::uint8_t> arrived) override;
  void end_backward() override;
  void drop() noexcept override;

 private:
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
  };
  void find_room();
  void plan(std::int64_t bucket_bytes);
  void make_buffers(std::span<Bucket> buckets);
  void cut_slots(Bucket& bucket);
  [[nodiscard]] bool is_held_by_others(const Bucket& bucket) const;
  void take_into(Slot& slot);
  void run_hook_on(std::size_t group);

  std::vector<NamedParameter> parameters_;
  std::shared_ptr<ProcessGroup> group_;
  CommunicationHook hook_;
  CommunicationGroup ranks_;            // for it
  std::unique_ptr<GradientRoom> room_;  // nullptr: no gradient stays apart
  std::vector<Bucket> buckets_;
  std::unique_ptr<OverlappedSums> sums_;  // nullptr: a bucket is summed before the backward goes on
  std::vector<std::pair<std::size_t, std::size_t>> place_of_;  // by parameter: bucket, slot
};

}  // namespace accel
