// Generation: what `accel generate` does. Prompts grow to sequences, and each is written when it and all before it are finished.
//
// Threads:  one at a time.
#pragma once

#include "train/generation/generate_settings.h"

namespace accel::train {

// Writes to standard output. Errors  throws kInvalidArgument: prompts that are none, or do not fit the model; kFileIo; as GeneratingModel.
void run_generation(const GenerateSettings& settings);

}  // namespace accel::train
