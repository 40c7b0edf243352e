// GpuList: the GPUs that --gpu_ids names, and how many workers they are for.
//
// A GPU that is named twice is for two workers: nobody writes that by mistake, and it is the way to ask for it.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <string_view>

namespace accel::launcher {

// "0,2" of "0,2,0": CUDA stops at an id that it has seen.
[[nodiscard]] std::string without_repeats(std::string_view gpu_ids);

// How many workers find a GPU in `gpu_ids` ("all", or ids with commas between) where `num_visible` are there.
[[nodiscard]] int num_gpu_places(std::string_view gpu_ids, int num_visible);

// "3 workers cannot share 2 GPUs: ranks 0 and 2 would both use the first one". Requires places < num_workers, places > 0.
[[nodiscard]] std::string describe_shared_gpu(int num_workers, int num_places);

}  // namespace accel::launcher
