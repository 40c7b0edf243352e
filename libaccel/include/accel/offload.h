// Offload: runs a model while some or all of its weights stay on disk.
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
// A weight on disk is a tensor in the memory-mapped file, and operators read it there. A thread
// reads the next weights ahead, in the order of the last forward (at first in the order of the
// model). If not all weights may be in memory, it releases the ones that are needed last. So they
// take no memory of the program, and the module is not wrapped. Weights on disk are read-only. They
// require no gradient. An operator that would write to one throws kUnsupported with its name. Code
// that writes to its address ends the program (SIGSEGV) with a message that names it. The files
// must stay unchanged during the life of the model; reading a truncated file ends the program
// (SIGBUS).
//
// The folder of offloaded weights has the format of HF Accelerate, and each reads the other's:
// `NAME.dat` with the values in row-major order, and index.json with dtype and shape by name.
//
// Loading values into such a weight gives it memory again: load_state(),
// load_checkpoint_in_model(), a map that puts it on cpu.
//
// Threads:  functions without state; the thread that owns the model. Several processes may write the
//           same weights to one folder at the same time.
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

// The place of a weight on disk: NAME.dat, or a safetensors file.
struct OffloadedWeight {
  std::string dtype;  // "float32", "bfloat16", as numpy and PyTorch call it
  std::vector<std::int64_t> shape;
  std::filesystem::path safetensors_file = {};  // empty: NAME.dat
  std::string weight_name = {};                 // there; empty: the same
};
using OffloadIndex = std::map<std::string, OffloadedWeight>;

// Writes NAME.dat, and an entry into `index` if it is given. Errors  throws kUnsupported: a dtype
// that neither numpy nor Accelerate supports, or no values; kInvalidArgument: not a file name;
// kDiskFull, kFileIo: no part of the file stays.
ACCEL_EXPORT void offload_weight(const at::Tensor& weight,
                                 const std::string& weight_name,
                                 const std::filesystem::path& offload_folder,
                                 OffloadIndex* index = nullptr);

// Adds the entries to index.json of the folder. Writes nothing for an empty index.
// Errors  throws kDiskFull, kFileIo, kConfigInvalidValue: an existing index that cannot be read.
ACCEL_EXPORT void save_offload_index(const OffloadIndex& index,
                                     const std::filesystem::path& offload_folder);

// Does both for all tensors, and creates the folder.
ACCEL_EXPORT void offload_state_dict(const std::filesystem::path& save_dir,
                                     const std::map<std::string, at::Tensor>& state_dict);

// Returns a copy in memory. Errors  throws kFileIo; kCheckpointIncomplete: the file is too short for
// the shape; kUnsupported: another dtype.
[[nodiscard]] ACCEL_EXPORT at::Tensor load_offloaded_weight(
    const std::filesystem::path& weight_file, const OffloadedWeight& weight_info);

// Copies the weights of a folder into the model. Errors  as load_offloaded_weight();
// kSafetensorsMismatch: names or shapes that the model does not have.
ACCEL_EXPORT void load_offloaded_weights(torch::nn::Module& model,
                                         const OffloadIndex& index,
                                         const std::filesystem::path& offload_folder);

// Errors  throws kFileIo: there is no index; kConfigInvalidValue names the fault.
[[nodiscard]] ACCEL_EXPORT OffloadIndex
read_offload_index(const std::filesystem::path& offload_folder);

// Weights by name, some in memory and the others on disk.
class ACCEL_EXPORT OffloadedWeightsLoader {
 public:
  // Weights of state_dict take precedence over the index. Without an index it reads the folder's.
  // Errors  throws kInvalidArgument: neither tensors, nor a folder, nor an index; and the errors of
  // read_offload_index().
  explicit OffloadedWeightsLoader(std::map<std::string, at::Tensor> state_dict,
                                  std::filesystem::path save_folder = {},
                                  std::optional<OffloadIndex> index = {});
  // All names; weights in memory come first.
  [[nodiscard]] std::vector<std::string> keys() const;
  // A weight on disk is a read-only tensor in the mapped file. Errors  throws kInvalidArgument:
  // no such weight; and the errors of load_offloaded_weight().
  [[nodiscard]] at::Tensor at(const std::string& name) const;

 private:
  std::map<std::string, at::Tensor> state_dict_;
  std::filesystem::path save_folder_;
  OffloadIndex index_;
};

// The weights of a loader under names without a prefix: with the prefix "first.", at("weight") is
// the loader's "first.weight". keys() returns the loader's names that begin with the prefix, with
// the prefix.
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

// The entries of the named modules: "h.1" has "h.1.weight", but not "h.10.weight". Pure.
[[nodiscard]] ACCEL_EXPORT std::map<std::string, at::Tensor> extract_submodules_state_dict(
    const std::map<std::string, at::Tensor>& state_dict,
    const std::vector<std::string>& submodule_names);

// Whether a weight of the module, or of a submodule, is on disk.
[[nodiscard]] ACCEL_EXPORT bool has_offloaded_params(const torch::nn::Module& module);

struct DispatchOptions {
  // The folder for weights on "disk". If it already has an index.json, that is read instead.
  // Required for "disk".
  std::filesystem::path offload_dir;
  // Also puts buffers of modules on disk there.
  bool offload_buffers = false;
  // How much of the weights on disk may be in memory at once: read ahead, or left from earlier use.
  // The two largest always may. Default: three quarters of the memory that the process can get at
  // the call.
  std::optional<MemorySize> disk_cache = {};
};

// Puts each module into its place in the map. A build without GPUs supports "cpu" and "disk".
// Errors  throws kInvalidArgument: a parameter without a place, "disk" without offload_dir;
// kUnsupported: a GPU; and the errors of offload_weight() and load_offloaded_weight(). The model is
// unchanged then.
ACCEL_EXPORT void dispatch_model(torch::nn::Module& model,
                                 const DeviceMap& device_map,
                                 const DispatchOptions& options = {});

// dispatch_model() with the whole model on disk.
ACCEL_EXPORT void disk_offload(torch::nn::Module& model,
                               const std::filesystem::path& offload_dir,
                               bool offload_buffers = false);

struct CpuOffloadOptions {
  // Only the CPU.
  std::optional<at::Device> execution_device = {};
  // Also takes buffers from state_dict.
  bool offload_buffers = false;
  // Weights for the model, by its names. The model uses their memory, not a copy.
  std::map<std::string, at::Tensor> state_dict = {};
};

// Puts all weights into host memory: weights on disk, and weights on the meta device from
// state_dict. The CPU computes there, so a forward moves nothing; accel logs this once. Errors
// throws kInvalidArgument: weights without values, a state_dict that lacks one or has another shape;
// kUnsupported: another device. The model is unchanged then.
ACCEL_EXPORT void cpu_offload(torch::nn::Module& model, const CpuOffloadOptions& options = {});

// The result of cpu_offload_with_hook(). It borrows the model.
class ACCEL_EXPORT UserCpuOffloadHook {
 public:
  // Puts the model into host memory, where it already is on a CPU. After remove() it does nothing.
  // Errors  as cpu_offload_with_hook().
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

// For programs that run several models in turn, as with Accelerate. On the CPU all of them stay in
// host memory, also the model of prev_module_hook, as in Accelerate; accel logs this once. Errors
// throws kUnsupported: another device, weights on disk; kInvalidArgument: weights without values.
[[nodiscard]] ACCEL_EXPORT UserCpuOffloadHook
cpu_offload_with_hook(torch::nn::Module& model,
                      const std::optional<at::Device>& execution_device = {},
                      UserCpuOffloadHook* prev_module_hook = nullptr);

// The state_dict of a model with all values in memory: copies of weights on disk, otherwise the
// model's own tensors. Tensors without values are skipped; a warning names them.
[[nodiscard]] ACCEL_EXPORT std::map<std::string, at::Tensor> get_state_dict_offloaded_model(
    const torch::nn::Module& model);

// Replaces the module's entries in state_dict. module_name is the name of one of its tensors
// ("first.weight"); the others have the same prefix. Otherwise like get_state_dict_offloaded_model().
[[nodiscard]] ACCEL_EXPORT std::map<std::string, at::Tensor> get_state_dict_from_offload(
    const torch::nn::Module& module,
    const std::string& module_name,
    std::map<std::string, at::Tensor> state_dict);

// A map, or "auto", "balanced", "balanced_low_0" or "sequential"; then infer_auto_device_map() makes
// the map.
using DeviceMapChoice = std::variant<DeviceMap, std::string>;

struct LoadAndDispatchOptions {
  // Not set: only load_checkpoint_in_model().
  std::optional<DeviceMapChoice> device_map;
  std::optional<MaxMemory> max_memory;
  std::vector<std::string> no_split_module_classes;
  // The folder for weights on disk. Weights in a safetensors file are read in place, if they have
  // the model's dtype and begin at a multiple of 64 bytes. Without a folder the alignment is
  // ignored. Then products may differ in the last bits from a model in memory, because BLAS sums in
  // another order at other addresses.
  std::filesystem::path offload_folder;
  bool offload_buffers = false;
  // As DispatchOptions::disk_cache.
  std::optional<MemorySize> disk_cache;
  // Like LoadModelOptions::dtype; also used to compute sizes.
  std::string dtype;
  bool strict = false;
};

// Fills `model`, also one from init_empty_weights(), and puts each module into its place in the map.
// It reads the files that load_checkpoint_in_model() accepts, or the .pt2 file of an ExportedModel.
// Weights on disk are read in the .pt2 file itself. Memory: the weights on "cpu", and for files
// other than safetensors one file's weights at a time. Errors  as load_checkpoint_in_model(),
// infer_auto_device_map() and dispatch_model(); kInvalidArgument: an unknown word for a map, weights
// that need offload_folder.
ACCEL_EXPORT LoadModelReport
load_checkpoint_and_dispatch(torch::nn::Module& model,
                             const std::filesystem::path& checkpoint,
                             const LoadAndDispatchOptions& options = {});

}  // namespace accel
