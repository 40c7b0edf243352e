// TrainEval: what an optimizer is that has other parameters while it trains than those to be looked at.
//
// AcceleratedOptimizer::train() and eval() reach it. A class of your own may derive from it beside torch::optim::Optimizer.
//
// Threads:  the thread that trains.
#pragma once

#include <accel/export.h>

namespace accel {

class ACCEL_EXPORT TrainEval {
 public:
  virtual ~TrainEval() = default;

  // The parameters become those that steps are made from. Nothing where they are so already.
  virtual void train() = 0;
  // The parameters become those that a model is judged, or saved for others, by. Nothing where they are so already.
  virtual void eval() = 0;
};

}  // namespace accel
