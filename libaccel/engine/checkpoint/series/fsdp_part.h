// FsdpPart: one model or one optimizer of a folder of FSDP, read as a checkpoint of nothing else.
//
// Threads:  the thread that trains; every rank makes the same calls.
#pragma once

#include <cstddef>
#include <filesystem>

#include <accel/checkpoint.h>

namespace accel::checkpoint {

enum class FsdpPart { kModel, kOptimizer };

// `objects`: the model alone, or the optimizer with the models that name its parameters, and what is divided of them. `number`: in the
// names of files. Errors  as load_checkpoint().
[[nodiscard]] LoadReport load_fsdp_part(const std::filesystem::path& folder,
                                        const CheckpointObjects& objects,
                                        FsdpPart part,
                                        std::size_t number);

}  // namespace accel::checkpoint
