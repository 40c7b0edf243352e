#include "launcher/devices/gpu_list.h"

#include <algorithm>
#include <vector>

#include "runtime/text/counted.h"
#include "runtime/text/joined.h"

namespace accel::launcher {
namespace {

std::vector<std::string_view> ids_of(std::string_view list) {
  std::vector<std::string_view> ids;
  while (true) {
    const std::size_t comma = list.find(',');
    ids.push_back(list.substr(0, comma));
    if (comma == std::string_view::npos) return ids;
    list.remove_prefix(comma + 1);
  }
}

std::vector<std::string_view> distinct(const std::vector<std::string_view>& ids) {
  std::vector<std::string_view> once;
  for (const std::string_view id : ids) {
    if (std::find(once.begin(), once.end(), id) == once.end()) once.push_back(id);
  }
  return once;
}

}  // namespace

std::string without_blanks(std::string_view gpu_ids) {
  std::string list;
  const char* separator = "";
  for (std::string_view id : ids_of(gpu_ids)) {
    id.remove_prefix(std::min(id.find_first_not_of(' '), id.size()));
    list += separator + std::string(id.substr(0, id.find_last_not_of(' ') + 1));
    separator = ",";
  }
  return list;
}

std::string without_repeats(std::string_view gpu_ids) {
  return joined(distinct(ids_of(gpu_ids)), ",");
}

int num_gpu_places(std::string_view gpu_ids, int num_visible) {
  if (gpu_ids == "all" || num_visible == 0) return num_visible;
  const std::vector<std::string_view> ids = ids_of(gpu_ids);
  const auto num_distinct = static_cast<int>(distinct(ids).size());
  const int num_repeats = static_cast<int>(ids.size()) - num_distinct;
  return std::min(num_visible, num_distinct) + num_repeats;
}

std::optional<Error> gpu_fault(int num_workers, int num_places, Program program) {
  if (num_places == 0) {
    return Error(
        ErrorCode::kUnsupported,
        "training on several GPUs was asked for, but no GPU is visible",
        "give --cpu in place of --multi_gpu, or beside the configuration file that asks for "
        "it; or mend the driver or CUDA_VISIBLE_DEVICES");
  }
  if (num_workers <= num_places) return std::nullopt;
  return Error(ErrorCode::kUnsupported,
               std::to_string(num_workers) + " workers cannot share " + counted(num_places, "GPU") +
                   ": ranks 0 and " + std::to_string(num_places) + " would both use the first one",
               "give " + spelled("num_processes", program) + " " + std::to_string(num_places) +
                   ", or --cpu in place of --multi_gpu, or " + spelled("gpu_ids", program) +
                   " with an id as often as workers shall share that GPU");
}

std::string warn_of_shared_gpu(int num_workers, int num_places) {
  return std::to_string(num_workers) + " workers for " + counted(num_places, "GPU") +
         ": if they compute there, ranks 0 and " + std::to_string(num_places) +
         " both use the first one, which NCCL refuses (CUDA_VISIBLE_DEVICES= hides the GPUs, and "
         "this notice)";
}

}  // namespace accel::launcher
