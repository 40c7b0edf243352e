#include "launcher/gpu_list.h"

#include <algorithm>
#include <vector>

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

std::string without_repeats(std::string_view gpu_ids) {
  std::string list;
  for (const std::string_view id : distinct(ids_of(gpu_ids)))
    list += (list.empty() ? "" : ",") + std::string(id);
  return list;
}

int num_gpu_places(std::string_view gpu_ids, int num_visible) {
  if (gpu_ids == "all" || num_visible == 0) return num_visible;
  const std::vector<std::string_view> ids = ids_of(gpu_ids);
  const auto num_distinct = static_cast<int>(distinct(ids).size());
  const int num_repeats = static_cast<int>(ids.size()) - num_distinct;
  return std::min(num_visible, num_distinct) + num_repeats;
}

std::string describe_shared_gpu(int num_workers, int num_places) {
  return std::to_string(num_workers) + " workers cannot share " + std::to_string(num_places) +
         (num_places == 1 ? " GPU" : " GPUs") + ": ranks 0 and " + std::to_string(num_places) +
         " would both use the first one";
}

}  // namespace accel::launcher
