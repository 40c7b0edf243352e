// TrainingRun: trains an exported model: batches, steps, evaluations, checkpoints, metrics.
//
// Threads:  the thread that calls.
#pragma once

#include "train/train_settings.h"

namespace accel::train {

// Every rank calls it. Throws accel::Error.
void run_training(const TrainSettings& settings);

}  // namespace accel::train
