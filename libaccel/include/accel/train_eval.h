// TrainEval: an optimizer whose parameters differ between training and evaluation.
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

  // Sets the parameters for training steps. Does nothing in that mode.
  virtual void train() = 0;
  // Sets the parameters for evaluation, or for a model that is saved for others. Does nothing in that mode.
  virtual void eval() = 0;
};

}  // namespace accel
