// TrainEval: an optimizer whose parameters differ between training and evaluation.
//
// AcceleratedOptimizer::train() and eval() call it. Your own class may derive from it and from torch::optim::Optimizer.
//
// Threads:  the thread that trains.
#pragma once

#include <accel/export.h>

namespace accel {

class ACCEL_EXPORT TrainEval {
 public:
  virtual ~TrainEval() = default;

  // Sets the parameters for training steps. Does nothing if they are already set.
  virtual void train() = 0;
  // Sets the parameters for evaluation, or for saving the finished model. Does nothing if they are already set.
  virtual void eval() = 0;
};

}  // namespace accel
