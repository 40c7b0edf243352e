// StepObserver: who is told how a training loop gets on.
//
// A boundary is the moment when a loop asks a prepared loader for its next batch: optimizer, scheduler and whatever the program
// counts have taken their step, and the loader's position says that the batch is done with. Inside optimizer.step() all of that
// is still half true. A boundary counts only when a backward pass came since the last one and nothing is being accumulated:
// loops that evaluate are not cut in two.
//
// Threads:  the thread that trains.
#pragma once

namespace accel::detail {

class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // Accelerator::backward() has ended well on this rank.
  virtual void after_backward() {}
  // Requires: every rank comes to the same boundaries.
  virtual void at_boundary() {}
};

}  // namespace accel::detail
