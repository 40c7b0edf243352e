// Device maps: which modules of a big model lie on which GPU, in the memory of the host, or on disk.
//
//   const accel::DeviceMap map = accel::infer_auto_device_map(
//       *net, {.max_memory = {{{"cpu", "4GiB"}}}, .no_split_module_classes = {"Block"}});
//   accel::dispatch_model(*net, map, {.offload_dir = "offload"});  // accel/offload.h
//
// Sizes are those of parameters and buffers, so a model without memory for them (accel::init_empty_weights()) will do. A tensor
// with several names (tied weights) counts once, under its first name.
//
// Classes are called as no_split_module_classes of HF Accelerate would: "Block" of models::BlockImpl, and of __torch__.models.Block.
//
// Threads:  pure functions of a model that nobody changes meanwhile.
// Cost:     planning compares each module with those left: milliseconds for some thousand modules.
// Source:   accelerate 1.15.0, utils/modeling.py: same names, defaults and results (tests/peer/device_maps.py).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <c10/core/ScalarType.h>

#include <accel/custom_dtype.h>
#include <accel/export.h>

namespace torch::nn {
class Module;
}

namespace accel {

// A GPU by its number, or "mps", "cpu", "disk".
using Placement = std::variant<int, std::string>;
// The place of each module by its name, or of a parameter by its; "" is the whole model.
using DeviceMap = std::map<std::string, Placement>;

// Bytes, or a text such as "10GiB" or "10GB".
using MemorySize = std::variant<std::int64_t, std::string>;
// What each place may hold. Places that are not named hold nothing; "disk" holds all.
using MaxMemory = std::map<Placement, MemorySize>;

// In which type weights will be loaded.
using WeightDtype = std::variant<c10::ScalarType, CustomDtype>;

// "0", "cpu".
[[nodiscard]] ACCEL_EXPORT std::string to_string(const Placement& place);

// Bytes of one value: a half for int4, a quarter for int2, and for a bool an eighth, as Accelerate counts it.
[[nodiscard]] ACCEL_EXPORT double dtype_byte_size(const WeightDtype& dtype);

// "5GB" is 5 * 10^9, "5GiB" 5 * 2^30, "5" 5 bytes; "5Gb" are bits. Errors  throws kInvalidArgument: another unit, or below 0.
[[nodiscard]] ACCEL_EXPORT std::int64_t convert_file_size_to_int(const MemorySize& size);

// The names of each parameter that has more than one, sorted.
[[nodiscard]] ACCEL_EXPORT std::vector<std::vector<std::string>> find_tied_parameters(
    const torch::nn::Module& model);

struct ModuleSizesOptions {
  // Of all floating point weights that are larger than this; whole numbers keep their own.
  std::optional<WeightDtype> dtype;
  // By the name of the weight; goes before dtype.
  std::map<std::string, WeightDtype> special_dtypes;
  bool buffers_only = false;
};

// Bytes of each module, parameter and buffer by its name; "" is the model.
[[nodiscard]] ACCEL_EXPORT std::map<std::string, double> compute_module_sizes(
    const torch::nn::Module& model, const ModuleSizesOptions& options = {});

// The largest modules that are not split: those without submodules, and those of the named classes.
struct LargestLayers {
  double bytes = 0;
  std::vector<std::string> names;
};
// The size of the model, and its largest layers. Errors  none.
[[nodiscard]] ACCEL_EXPORT std::pair<double, LargestLayers> calculate_maximum_sizes(
    const torch::nn::Module& model, const std::vector<std::string>& no_split_module_classes = {});

// The places and their bytes in the order in which they are filled: GPUs, mps, cpu, disk.
using PlaceBytes = std::vector<std::pair<Placement, std::int64_t>>;

// Without max_memory: what this machine has available, of the host alone, since this build has no GPUs. A GPU that is not there is
// a warning. Errors  throws kInvalidArgument: another place, a text that is no size.
[[nodiscard]] ACCEL_EXPORT PlaceBytes
get_max_memory(const std::optional<MaxMemory>& max_memory = {});

struct DeviceMapOptions {
  // Default: get_max_memory().
  std::optional<MaxMemory> max_memory;
  // Classes of modules that stay in one place, such as those with a residual connection.
  std::vector<std::string> no_split_module_classes;
  std::optional<WeightDtype> dtype;
  std::map<std::string, WeightDtype> special_dtypes;
  // Prints each decision.
  bool verbose = false;
  // Names a module in place of all its parts when these lie in one place.
  bool clean_result = true;
  // Buffers of modules on cpu and disk go there too. Otherwise a GPU has to have room for them; a warning says when none has.
  bool offload_buffers = false;
  // Looks for a smaller module when the next one leaves a place empty.
  bool fallback_allocation = false;
};

// Fills the places in order with the modules in order. The first GPU, or else the host, keeps room for the largest layer, which
// has to come there from cpu or disk. Tied weights lie in one place. Errors  as get_max_memory().
[[nodiscard]] ACCEL_EXPORT DeviceMap infer_auto_device_map(const torch::nn::Module& model,
                                                           const DeviceMapOptions& options = {});

struct BalancedMemoryOptions {
  std::optional<MaxMemory> max_memory;
  std::vector<std::string> no_split_module_classes;
  std::optional<WeightDtype> dtype;
  std::map<std::string, WeightDtype> special_dtypes;
  // Leaves GPU 0 as empty as possible, for a program that computes there.
  bool low_zero = false;
};

// Limits for infer_auto_device_map() that spread the model over the GPUs evenly. Without GPUs they are get_max_memory().
[[nodiscard]] ACCEL_EXPORT PlaceBytes
get_balanced_memory(const torch::nn::Module& model, const BalancedMemoryOptions& options = {});

// Puts modules together whose parts all lie in one place; module_name limits it to a part of the model.
[[nodiscard]] ACCEL_EXPORT DeviceMap clean_device_map(DeviceMap device_map,
                                                      const std::string& module_name = "");

// Errors  throws kInvalidArgument naming the parameters and buffers that have no place. A key that no module has is a warning.
ACCEL_EXPORT void check_device_map(const torch::nn::Module& model, const DeviceMap& device_map);

// Warns of each group of tied parameters (find_tied_parameters()) that the map puts in several places. Errors  throws kInvalidArgument
// naming a parameter that has no place.
ACCEL_EXPORT void check_tied_parameters_on_same_device(
    const std::vector<std::vector<std::string>>& tied_params, const DeviceMap& device_map);

}  // namespace accel
