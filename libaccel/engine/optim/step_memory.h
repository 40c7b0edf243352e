// StepMemory: while it lives, large tensors that its thread makes have memory of their own, and not malloc's.
//
// A step that goes bucket by bucket makes tensors of some MiB for each and lets them go. malloc has these in its heap once larger
// ones were freed, and small ones that stay split what was freed: the heap grows by a tensor with each bucket. Here they come from
// the kernel, and one that is free is given to the next of that size.
//
// Threads:  any; one at a time on each. What was made may outlive it, and be freed by any thread.
// Cost:     what was taken at most at a time, until its end.
#pragma once

namespace accel {

class StepMemory {
 public:
  StepMemory();
  ~StepMemory();
  StepMemory(const StepMemory&) = delete;
  StepMemory& operator=(const StepMemory&) = delete;
};

}  // namespace accel
