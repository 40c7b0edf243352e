// Offload: models of which some or all weights stay on disk while they compute.
//
//   std::shared_ptr<Net> net;
//   {
//     const auto empty = accel::init_empty_weights();
//     net = std::make_shared<Net>(options);
//   }
//   accel::load_checkpoint_and_dispatch(
//       *net, "weights", {.device_map = "auto", .max_memory = {{{"cpu", "2GiB"}}}});
//   net->forward(input);  // any torch::nn code, unmodified
//
// A weight on disk is a tensor on the mapping of its file: operators read it there. A thread reads
// the next ones ahead, in the order of the forward before (at first in that of the model), and lets
// go of what is used last when they may not all be in memory. So they take no memory of the
// program's own, and nothing of the module is wrapped. They can only be read: they require no
// gradient afterwards, and an operator that would write to one throws kUnsupported with its name;
// code that writes by its address ends the program (SIGSEGV) with a message that names it. The
// files have to stay as they are while the model lives; reading what was cut off ends the program
// (SIGBUS).
//
// A folder of offloaded weights is that of HF Accelerate, which reads ours as this reads its own:
// `NAME.dat` with the values in row-major order, and index.json with dtype and shape by name.
//
// Loading values into such a weight gives it memory again: load_state(),
// load_checkpoint_in_model(), a map that has it on cpu.
//
// Threads:  functions without state; the thread that owns the model. Processes may write one folder
//           at once, of the same weights.
// Source:   accelerate 1.15.0, big_modeling.py and utils/offload.py (tests/peer/device_maps.py).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <accel/checkpoint.h>
#include <accel/device_map.h>
#include <accel/export.h>

namespace accel {

// Where a weight lies on disk: in NAME.dat, or in a safetensors file.
struct OffloadedWeight {
  std::string dtype;  // "float32", "bfloat16", as numpy and PyTorch call it
  std::vector<std::int64_t> shape;
  std::filesystem::path safetensors_file = {};  // empty: NAME.dat
  std::string weight_name = {};                 // there; empty: the same
};
using OffloadIndex = std::map<std::string, OffloadedWeight>;

// Writes NAME.dat, and its entry into `index` when there is one. Errors  throws kUnsupported: a
// dtype that numpy lacks and Accelerate does not write either, no values; kInvalidArgument: a name
// that is no file's; kDiskFull, kFileIo: no part of it stays.
ACCEL_EXPORT void offload_weight(const at::Tensor& weight,
                                 const std::string& weight_name,
                                 const std::filesystem::path& offload_folder,
                                 OffloadIndex* index = nullptr);

// Adds the entries to index.json of the folder. Nothing is written for an empty index.
// Errors  throws kDiskFull, kFileIo, kConfigInvalidValue: an index that is there and cannot be
// read.
ACCEL_EXPORT void save_offload_index(const OffloadIndex& index,
                                     const std::filesystem::path& offload_folder);

// Both for all tensors; makes the folder.
ACCEL_EXPORT void offload_state_dict(const std::filesystem::path& save_dir,
                                     const std::map<std::string, at::Tensor>& state_dict);

// A copy in memory. Errors  throws kFileIo; kCheckpointIncomplete: the file is too short for the
// shape; kUnsupported: another dtype.
[[nodiscard]] ACCEL_EXPORT at::Tensor load_offloaded_weight(
    const std::filesystem::path& weight_file, const OffloadedWeight& weight_info);

// Copies the weights of a folder into the model. Errors  as load_offloaded_weight();
// kSafetensorsMismatch: names or shapes that the model does not have.
ACCEL_EXPORT void load_offloaded_weights(torch::nn::Module& model,
                                         const OffloadIndex& index,
                                         const std::filesystem::path& offload_folder);

// Errors  throws kFileIo: there is none; kConfigInvalidValue naming what is wrong with it.
[[nodiscard]] ACCEL_EXPORT OffloadIndex
read_offload_index(const std::filesystem::path& offload_folder);

// Weights by name, of which some are in memory and the others on disk.
class ACCEL_EXPORT OffloadedWeightsLoader {
 public:
  // Those of state_dict go before those of the index; without an index it is that of the folder.
  // Errors  throws kInvalidArgument: neither tensors, nor a folder, nor an index; as
  // read_offload_index().
  explicit OffloadedWeightsLoader(std::map<std::string, at::Tensor> state_dict,
                                  std::filesystem::path save_folder = {},
                                  std::optional<OffloadIndex> index = {});
  // All names, those in memory first.
  [[nodiscard]] std::vector<std::string> keys() const;
  // One on disk is on the mapping of its file, to be read alone. Errors  throws kInvalidArgument:
  // no such weight; as load_offloaded_weight().
  [[nodiscard]] at::Tensor at(const std::string& name) const;

 private:
  std::map<std::string, at::Tensor> state_dict_;
  std::filesystem::path save_folder_;
  OffloadIndex index_;
};

// The weights of a loader under names without a prefix: at("weight") is the loader's "first.weight"
// for the prefix "first.". keys() are those of the loader that begin with the prefix, whole.
class ACCEL_EXPORT PrefixedDataset {
 public:
  PrefixedDataset(OffloadedWeightsLoader dataset, std::string prefix)
      : dataset_(std::move(dataset)), prefix_(std::move(prefix)) {}
  [[nodiscard]] std::vector<std::string> keys() const;
  // Errors  as OffloadedWeightsLoader::at().
  [[nodiscard]] at::Tensor at(const std::string& name) const { return dataset_.at(prefix_ + name); }

 private:
  OffloadedWeightsLoader dataset_;
  std::string prefix_;
};

// What belongs to the named modules: of "h.1" is "h.1.weight", and not "h.10.weight". Pure.
[[nodiscard]] ACCEL_EXPORT std::map<std::string, at::Tensor> extract_submodules_state_dict(
    const std::map<std::string, at::Tensor>& state_dict,
    const std::vector<std::string>& submodule_names);

// Whether a weight of the module, or of a module within it, lies on disk.
[[nodiscard]] ACCEL_EXPORT bool has_offloaded_params(const torch::nn::Module& module);

struct DispatchOptions {
  // Where weights of "disk" are written, unless it has an index.json already, which is then read.
  // Required for "disk".
  std::filesystem::path offload_dir;
  // Buffers of modules on disk go there too.
  bool offload_buffers = false;
  // How much of the weights on disk may be in memory at once: read ahead of their use, or left from
  // before. The two largest always may. Default: three quarters of what the process can take when
  // it is called.
  std::optional<MemorySize> disk_cache = {};
};

// Puts each module where the map says. What a build without GPUs has are "cpu" and "disk".
// Errors  throws kInvalidArgument: a parameter without a place, "disk" without offload_dir;
// kUnsupported: a GPU; as offload_weight() and load_offloaded_weight(). The model is unchanged when
// it throws.
ACCEL_EXPORT void dispatch_model(torch::nn::Module& model,
                                 const DeviceMap& device_map,
                                 const DispatchOptions& options = {});

// dispatch_model() with all of the model on disk.
ACCEL_EXPORT void disk_offload(torch::nn::Module& model,
                               const std::filesystem::path& offload_dir,
                               bool offload_buffers = false);

struct CpuOffloadOptions {
  // The CPU, where this build computes.
  std::optional<at::Device> execution_device = {};
  // Buffers are taken from state_dict too.
  bool offload_buffers = false;
  // Weights that the model computes with from now on, by its names: their memory, not a copy of it.
  std::map<std::string, at::Tensor> state_dict = {};
};

// Puts all weights into host memory: those on disk, and those of the meta device that state_dict
// has. The CPU computes there, so nothing moves in a forward; accel says so once. Errors  throws
// kInvalidArgument: weights without values, a state_dict that lacks one or has another shape;
// kUnsupported: another device. The model is unchanged then.
ACCEL_EXPORT void cpu_offload(torch::nn::Module& model, const CpuOffloadOptions& options = {});

// What cpu_offload_with_hook() gives back. It borrows the model.
class ACCEL_EXPORT UserCpuOffloadHook {
 public:
  // Sees to it that the model is in host memory, where the CPU computes with it: nothing moves. After
  // remove() it does nothing. Errors  as cpu_offload_with_hook().
  void offload();
  // Forgets the model.
  void remove() noexcept { model_ = nullptr; }

 private:
  friend ACCEL_EXPORT UserCpuOffloadHook
  cpu_offload_with_hook(torch::nn::Module& model,
                        const std::optional<at::Device>& execution_device,
                        UserCpuOffloadHook* prev_module_hook);
  explicit UserCpuOffloadHook(torch::nn::Module& model) : model_(&model) {}

  torch::nn::Module* model_;
};

// For programs of Accelerate that run several models in turn. On the CPU all of them stay where they
// are, and so does the one of prev_module_hook, as in Accelerate; accel says so once. Errors  throws
// kUnsupported: another device, weights on disk; kInvalidArgument: weights without values.
[[nodiscard]] ACCEL_EXPORT UserCpuOffloadHook
cpu_offload_with_hook(torch::nn::Module& model,
                      const std::optional<at::Device>& execution_device = {},
                      UserCpuOffloadHook* prev_module_hook = nullptr);

// The state_dict of a model with all values in memory: copies of those on disk, the model's own
// tensors otherwise. A warning names what has no values and is left out.
[[nodiscard]] ACCEL_EXPORT std::map<std::string, at::Tensor> get_state_dict_offloaded_model(
    const torch::nn::Module& model);

// Replaces those of state_dict that are the module's: module_name is the name of one of its tensors
// ("first.weight"), and the others have names beside it. As get_state_dict_offloaded_model().
[[nodiscard]] ACCEL_EXPORT std::map<std::string, at::Tensor> get_state_dict_from_offload(
    const torch::nn::Module& module,
    const std::string& module_name,
    std::map<std::string, at::Tensor> state_dict);

// A map, or "auto", "balanced", "balanced_low_0", "sequential", which infer_auto_device_map() makes
// one of.
using DeviceMapChoice = std::variant<DeviceMap, std::string>;

struct LoadAndDispatchOptions {
  // Without it: load_checkpoint_in_model() alone.
  std::optional<DeviceMapChoice> device_map;
  std::optional<MaxMemory> max_memory;
  std::vector<std::string> no_split_module_classes;
  // For weights on disk that are not in a safetensors file in the model's own dtype, at a multiple
  // of 64 bytes: those are read where they lie. Without a folder the multiple does not matter, and
  // products may differ in their last bits from those of a model in memory, because BLAS sums in
  // another order for other addresses.
  std::filesystem::path offload_folder;
  bool offload_buffers = false;
  // As DispatchOptions::disk_cache.
  std::optional<MemorySize> disk_cache;
  // As LoadModelOptions::dtype, and what sizes are computed with.
  std::string dtype;
  bool strict = false;
};

// Fills `model`, which may be one of init_empty_weights(), from the files that
// load_checkpoint_in_model() takes, or from the .pt2 file of an ExportedModel, and puts each module
// where the map says. Weights on disk are read in a .pt2 file where they lie. Memory: what lies on
// "cpu", and one file's weights at a time where they are not safetensors. Errors  as
// load_checkpoint_in_model(), infer_auto_device_map() and dispatch_model(); kInvalidArgument:
// another word for a map, weights that need offload_folder.
ACCEL_EXPORT LoadModelReport
load_checkpoint_and_dispatch(torch::nn::Module& model,
                             const std::filesystem::path& checkpoint,
                             const LoadAndDispatchOptions& options = {});

}  // namespace accel
