// GpuList: the GPUs that --gpu_ids names, and how many workers they are for.
//
// A GPU that is named twice is for two workers: nobody writes that by mistake, and it is the way to ask for it.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <accel/error.h>

#include "launcher/text/program.h"

namespace accel::launcher {

// "0,1" of "0, 1", as people type it for `accelerate config`. Blanks inside an id stay.
[[nodiscard]] std::string without_blanks(std::string_view gpu_ids);

// "0,2" of "0,2,0": CUDA stops at an id that it has seen.
[[nodiscard]] std::string without_repeats(std::string_view gpu_ids);

// How many workers find a GPU in `gpu_ids` ("all", or ids with commas between) where `num_visible` are there.
[[nodiscard]] int num_gpu_places(std::string_view gpu_ids, int num_visible);

// kUnsupported when no GPU is there, or two workers would use one: it names both. std::nullopt: each has its own.
[[nodiscard]] std::optional<Error> gpu_fault(int num_workers, int num_places, Program program);

// The same as a notice, for those who may not mean to use GPUs. Requires 0 < num_places < num_workers.
[[nodiscard]] std::string warn_of_shared_gpu(int num_workers, int num_places);

}  // namespace accel::launcher
