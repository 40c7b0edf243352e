// What places may hold: sizes as texts, what is available, and what is fair.

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

#include <ATen/Context.h>

#include <accel/device_map.h>
#include <accel/error.h>
#include <accel/result.h>

#include "libaccel/engine/checkpoint/states/shard_split.h"
#include "libaccel/placement/module_outline.h"
#include "libaccel/placement/planning_log.h"
#include "runtime/available_memory.h"

namespace accel {
namespace {

using placement::ModuleSizes;
using placement::OutlineModule;

// GPUs by number, then mps, cpu, disk.
int rank_of(const Placement& place) {
  constexpr std::array<std::string_view, 3> kNamed = {"mps", "cpu", "disk"};
  const auto* name = std::get_if<std::string>(&place);
  if (name == nullptr) return 0;
  const auto found = std::ranges::find(kNamed, *name);
  if (found != kNamed.end()) return static_cast<int>(found - kNamed.begin()) + 1;
  throw Error(ErrorCode::kInvalidArgument,
              "Device " + *name +
                  " is not recognized, available devices are integers(for GPU/XPU), 'mps', 'cpu' "
                  "and 'disk'",
              "mend the key of max_memory");
}

void warn_of_missing_gpus(const PlaceBytes& places) {
  const auto num_gpus = static_cast<int>(at::getNumGPUs());
  for (const auto& [place, bytes] : places) {
    const int* gpu = std::get_if<int>(&place);
    if (gpu == nullptr || (*gpu >= 0 && *gpu < num_gpus)) continue;
    placement::warn("Device " + std::to_string(*gpu) + " is not available, this build sees " +
                    std::to_string(num_gpus) + " GPUs");
  }
}

// Those that have nothing below them, among all but the model itself.
std::vector<std::string> leaves_of(const std::set<std::string>& paths) {
  std::set<std::string> parents;
  for (const std::string& path : paths)
    if (const auto dot = path.rfind('.'); dot != std::string::npos)
      parents.insert(path.substr(0, dot));
  std::vector<std::string> leaves;
  for (const std::string& path : paths)
    if (!path.empty() && !parents.contains(path)) leaves.push_back(path);
  return leaves;
}

// The largest of the first module of each class.
double largest_unsplit(const OutlineModule& model,
                       const ModuleSizes& sizes,
                       const std::vector<std::string>& classes) {
  std::set<std::string> seen;
  double largest = 0;
  for (const auto& [path, bytes] : sizes.entries()) {
    const OutlineModule* module = path.empty() ? nullptr : find_module(model, path);
    if (module == nullptr || std::ranges::count(classes, module->class_name) == 0) continue;
    if (seen.insert(module->class_name).second) largest = std::max(largest, bytes);
  }
  return largest;
}

// Of the modules that hold tensors themselves.
double mean_layer(const ModuleSizes& sizes) {
  std::set<std::string> paths;
  for (const auto& [path, bytes] : sizes.entries()) paths.insert(path);
  for (const std::string& tensor : leaves_of(paths)) paths.erase(tensor);
  const auto layers = leaves_of(paths);
  double sum = 0;
  for (const std::string& layer : layers) sum += sizes[layer];
  return std::floor(sum / static_cast<double>(std::max<std::size_t>(layers.size(), 1)));
}

}  // namespace

std::string to_string(const Placement& place) {
  const int* gpu = std::get_if<int>(&place);
  return gpu != nullptr ? std::to_string(*gpu) : std::get<std::string>(place);
}

double dtype_byte_size(const WeightDtype& dtype) {
  if (const auto* custom = std::get_if<CustomDtype>(&dtype)) {
    switch (*custom) {
      case CustomDtype::kInt2:
        return 1.0 / 4;
      case CustomDtype::kInt4:
        return 1.0 / 2;
      case CustomDtype::kFp8:
        return 1;
    }
  }
  const auto type = std::get<c10::ScalarType>(dtype);
  return type == c10::ScalarType::Bool ? 1.0 / 8 : static_cast<double>(c10::elementSize(type));
}

std::int64_t convert_file_size_to_int(const MemorySize& size) {
  if (const auto* text = std::get_if<std::string>(&size))
    return static_cast<std::int64_t>(or_throw(checkpoint::parse_size(*text, "a size")));
  const auto bytes = std::get<std::int64_t>(size);
  if (bytes >= 0) return bytes;
  throw Error(ErrorCode::kInvalidArgument,
              "a size is " + std::to_string(bytes) + " bytes, expected 0 or more");
}

PlaceBytes get_max_memory(const std::optional<MaxMemory>& max_memory) {
  if (!max_memory) {
    const auto available = process_memory_available();
    if (available) return {{"cpu", static_cast<std::int64_t>(*available)}};
    throw Error(ErrorCode::kFileIo,
                "cannot tell how much memory this machine has: /proc/meminfo says nothing",
                "give max_memory");
  }
  PlaceBytes places;
  for (const auto& [place, size] : *max_memory) {
    (void)rank_of(place);  // refuses others, also one that is alone
    places.emplace_back(place, convert_file_size_to_int(size));
  }
  std::ranges::stable_sort(places, {}, [](const auto& item) { return rank_of(item.first); });
  warn_of_missing_gpus(places);
  return places;
}

PlaceBytes get_balanced_memory(const torch::nn::Module& model,
                               const BalancedMemoryOptions& options) {
  PlaceBytes places = get_max_memory(options.max_memory);
  std::vector<std::int64_t*> gpus;
  for (auto& [place, bytes] : places)
    if (std::holds_alternative<int>(place) && bytes > 0) gpus.push_back(&bytes);
  if (gpus.empty()) return places;
  const bool low_zero = options.low_zero && gpus.size() > 1;

  const OutlineModule outline = placement::outline_of(model);
  const ModuleSizes sizes = placement::sizes_of(
      outline, {.dtype = options.dtype, .special_dtypes = options.special_dtypes});
  const double unsplit = largest_unsplit(outline, sizes, options.no_split_module_classes);
  // GPUs get somewhat less than their share of layers, so the last ones would not fit without some room.
  constexpr double kRoom = 1.25;
  const auto share = static_cast<std::int64_t>(
      std::floor(sizes[""] / static_cast<double>(gpus.size() - (low_zero ? 1 : 0))) +
      std::floor(kRoom * std::max(unsplit, mean_layer(sizes))));
  // The last one keeps what it has.
  for (std::size_t i = 0; i + 1 < gpus.size(); ++i)
    if (!low_zero || i > 0) *gpus[i] = std::min(share, *gpus[i]);
  if (low_zero) {
    double others = 0;
    for (std::size_t i = 1; i < gpus.size(); ++i) others += static_cast<double>(*gpus[i]);
    const double rest = std::max(0.0, sizes[""] - others);
    *gpus[0] = std::min(static_cast<std::int64_t>(rest), *gpus[0]);
  }
  return places;
}

}  // namespace accel
