// Putting the weights of a model where its device map says.
//
// What a build without GPUs has are the host's memory and the disk. A weight on disk keeps its tensor and gets the mapping of a file
// as its memory, so tied weights stay tied and modules see nothing of it. Everything that can fail is done before the first
// weight of the model changes.

#include <algorithm>
#include <limits>
#include <set>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <c10/core/alignment.h>
#include <torch/nn/module.h>

#include <accel/error.h>
#include <accel/offload.h>
#include <accel/result.h>
#include <accel/safetensors_reader.h>

#include "libaccel/engine/checkpoint/files/python_file.h"
#include "libaccel/engine/checkpoint/series/model_files.h"
#include "libaccel/engine/checkpoint/states/module_state.h"
#include "libaccel/engine/construction/tensor_memory.h"
#include "libaccel/engine/pager/read_ahead.h"
#include "libaccel/engine/pager/weight_file.h"
#include "libaccel/placement/exported_weights.h"
#include "libaccel/placement/offload_folder.h"
#include "libaccel/placement/place_in_map.h"
#include "runtime/available_memory.h"
#include "runtime/checkpoint/file_system.h"

namespace accel {
namespace {

namespace fs = std::filesystem;
using checkpoint::NamedTensor;

const Placement kDisk = "disk";
const Placement kCpu = "cpu";

void check_places(const DeviceMap& map) {
  for (const auto& [name, place] : map) {
    if (place == kDisk || place == kCpu) continue;
    throw Error(ErrorCode::kUnsupported,
                "the device map puts '" + name + "' on " + to_string(place) +
                    ", and this build of libaccel has no GPUs",
                "name cpu and disk alone, as infer_auto_device_map() does with max_memory of cpu");
  }
}

void check_map(const torch::nn::Module& model, const DeviceMap& map) {
  check_device_map(model, map);
  check_places(map);
  check_tied_parameters_on_same_device(find_tied_parameters(model), map);
}

// The tensors of a model that go to disk, each once, under all of its names.
struct DiskWeight {
  std::vector<std::string> names;
  at::Tensor tensor;
};

std::vector<DiskWeight> disk_weights(const torch::nn::Module& model,
                                     const DeviceMap& map,
                                     bool offload_buffers) {
  std::unordered_set<const void*> parameters;
  for (const at::Tensor& parameter : model.parameters())
    parameters.insert(parameter.unsafeGetTensorImpl());
  std::vector<DiskWeight> weights;
  std::unordered_map<const void*, std::size_t> places;  // in `weights`
  for (const NamedTensor& item : checkpoint::state_of(model)) {
    const Placement* place = placement::place_in_map(map, item.name);
    if (place == nullptr || *place != kDisk) continue;
    const void* const tensor = item.tensor.unsafeGetTensorImpl();
    if (!offload_buffers && !parameters.contains(tensor)) continue;
    const auto [known, is_new] = places.try_emplace(tensor, weights.size());
    if (is_new) weights.push_back({{}, item.tensor});
    weights[known->second].names.push_back(item.name);
  }
  return weights;
}

// How much of the weights on disk may be in memory.
std::size_t cache_bytes(const std::optional<MemorySize>& wanted) {
  if (wanted) return static_cast<std::size_t>(convert_file_size_to_int(*wanted));
  const auto available = process_memory_available();
  return available ? static_cast<std::size_t>(*available / 4 * 3)
                   : std::numeric_limits<std::size_t>::max();
}

// Gives `tensor` the memory of `values`.
void put_on_disk(const at::Tensor& tensor, const at::Tensor& values) {
  tensor.requires_grad_(false);
  tensor.mutable_grad().reset();  // an optimizer would step what has one
  if (tensor.is_meta()) {
    construction::give_memory(tensor, values);
  } else {
    tensor.set_data(values);
  }
}

// Gives the weights the values of the same place, read ahead in that order; undefined: nothing.
void put_on_disk(const std::vector<DiskWeight>& weights,
                 std::vector<at::Tensor> values,
                 std::size_t max_bytes) {
  std::vector<at::Tensor> tensors;
  std::vector<at::Tensor> found;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!values[i].defined()) continue;
    tensors.push_back(weights[i].tensor);
    found.push_back(std::move(values[i]));
  }
  const std::vector<at::Tensor> on_disk = pager::read_ahead(found, max_bytes);
  for (std::size_t i = 0; i < tensors.size(); ++i) put_on_disk(tensors[i], on_disk[i]);
}

// ---- loading

// Those of safetensors and of exported models on their mapping, others in memory.
safetensors::TensorMap tensors_of_file(const fs::path& file) {
  using checkpoint::PythonFile;
  if (placement::is_exported_file(file)) return placement::tensors_of_exported(file);
  if (checkpoint::is_python_file(file)) return PythonFile(file).tensors(PythonFile::Values::kRead);
  const auto reader = or_throw(safetensors::Reader::open(file));
  safetensors::TensorMap tensors;
  for (const safetensors::TensorInfo& info : reader.header().tensors)
    tensors[info.name] = placement::tensor_in_safetensors(file, reader.header(), info, info.name);
  return tensors;
}

// What a weight on disk gets: the file's own values where they may be read as they are, else those that are written for it.
class DiskValues {
 public:
  DiskValues(const safetensors::TensorMap& tensors,
             std::optional<at::ScalarType> dtype,
             const fs::path& folder)
      : tensors_(tensors), dtype_(dtype), folder_(folder) {}

  // Products may differ in their last bits with the address of a weight, so it lies as the allocator would put it, where there is
  // a folder to write it to. Undefined: the files have none. Errors  throws kInvalidArgument: it has to be written, and there is no folder.
  [[nodiscard]] at::Tensor of(const DiskWeight& weight) {
    const auto name = std::ranges::find_if(
        weight.names, [&](const std::string& one) { return tensors_.contains(one); });
    if (name == weight.names.end()) return {};
    const at::Tensor& value = tensors_.at(*name);
    const at::ScalarType own = weight.tensor.scalar_type();
    const at::ScalarType dtype = weight.tensor.is_floating_point() ? dtype_.value_or(own) : own;
    const bool is_as_wanted = folder_.empty() || lies_as_in_memory(value);
    if (pager::is_in_file(value) && value.scalar_type() == dtype && is_as_wanted) return value;
    if (folder_.empty()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          "At least one of the model submodule will be offloaded to disk, please pass along "
          "an `offload_folder`: '" +
              *name + "' is not in a safetensors file as the model has it",
          "name a folder with room for it");
    }
    checkpoint::real_file_system().make_folder(folder_);
    offload_weight(value.to(dtype), *name, folder_, &index_);
    return placement::weight_in_folder(folder_, *name, index_.at(*name));
  }

  void save_index() const {
    if (!index_.empty()) save_offload_index(index_, folder_);
  }

 private:
  static bool lies_as_in_memory(const at::Tensor& value) {
    return reinterpret_cast<std::uintptr_t>(value.const_data_ptr()) % c10::gAlignment == 0;
  }

  const safetensors::TensorMap& tensors_;
  std::optional<at::ScalarType> dtype_;
  const fs::path& folder_;
  OffloadIndex index_;  // of what was written
};

DeviceMap chosen_map(const torch::nn::Module& model, const LoadAndDispatchOptions& options) {
  if (const auto* map = std::get_if<DeviceMap>(&*options.device_map)) return *map;
  const std::string& word = std::get<std::string>(*options.device_map);
  constexpr std::string_view kWords[] = {"auto", "balanced", "balanced_low_0", "sequential"};
  if (std::ranges::count(kWords, word) == 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "device_map is '" + word +
                    "'. If passing a string for `device_map`, please choose 'auto', 'balanced', "
                    "'balanced_low_0' or 'sequential'.");
  }
  DeviceMapOptions plan{.max_memory = options.max_memory,
                        .no_split_module_classes = options.no_split_module_classes,
                        .offload_buffers = options.offload_buffers};
  if (const auto dtype = checkpoint::wanted_dtype(options.dtype)) plan.dtype = *dtype;
  if (word != "sequential") {
    MaxMemory limits;
    for (const auto& [place, bytes] :
         get_balanced_memory(model,
                             {.max_memory = options.max_memory,
                             .no_split_module_classes = options.no_split_module_classes,
                             .dtype = plan.dtype,
                             .low_zero = word == "balanced_low_0"}))
      limits[place] = bytes;
    plan.max_memory = std::move(limits);
  }
  return infer_auto_device_map(model, plan);
}

// Weights of an earlier dispatch that the map has in memory.
void bring_to_memory(torch::nn::Module& model, const DeviceMap& map) {
  for (const NamedTensor& item : checkpoint::state_of(model)) {
    const Placement* place = placement::place_in_map(map, item.name);
    if (place != nullptr && *place == kCpu && pager::is_in_file(item.tensor))
      item.tensor.set_data(item.tensor.clone());
  }
}

Error no_folder(const DeviceMap& map) {
  std::string modules;
  for (const auto& [name, place] : map)
    if (place == kDisk) modules += (modules.empty() ? "" : ", ") + name;
  return Error(
      ErrorCode::kInvalidArgument,
      "We need an `offload_dir` to dispatch this model according to this `device_map`, the "
      "following submodules need to be offloaded: " +
          modules + ".",
      "name a folder with room for them");
}

// Writes what the folder does not have, unless it has an index already.
void fill_folder(const fs::path& folder, const std::vector<DiskWeight>& weights) {
  if (fs::exists(folder / "index.json")) return;
  std::map<std::string, at::Tensor> tensors;
  for (const DiskWeight& weight : weights)
    for (const std::string& name : weight.names) tensors[name] = weight.tensor;
  offload_state_dict(folder, tensors);
}

void check_fits(const std::string& name, const at::Tensor& here, const at::Tensor& there) {
  if (here.sizes() == there.sizes() && here.scalar_type() == there.scalar_type()) return;
  throw Error(ErrorCode::kSafetensorsMismatch,
              "the offloaded weight '" + name +
                  "' is of another shape or dtype than in the model: " +
                  c10::str(there.scalar_type(), there.sizes()) + " in the folder, " +
                  c10::str(here.scalar_type(), here.sizes()) + " in the model",
              "use another folder, or remove this one");
}

}  // namespace

bool has_offloaded_params(const torch::nn::Module& module) {
  return pager::has_weights_in_files(module);
}

void dispatch_model(torch::nn::Module& model,
                    const DeviceMap& device_map,
                    const DispatchOptions& options) {
  check_map(model, device_map);
  const auto weights = disk_weights(model, device_map, options.offload_buffers);
  if (weights.empty()) return bring_to_memory(model, device_map);
  if (options.offload_dir.empty()) throw no_folder(device_map);
  const std::size_t max_bytes = cache_bytes(options.disk_cache);
  fill_folder(options.offload_dir, weights);
  const OffloadedWeightsLoader loader({}, options.offload_dir);
  std::vector<at::Tensor> values;
  for (const DiskWeight& weight : weights) {
    values.push_back(loader.at(weight.names.front()));
    check_fits(weight.names.front(), weight.tensor, values.back());
  }
  bring_to_memory(model, device_map);
  put_on_disk(weights, std::move(values), max_bytes);
}

void disk_offload(torch::nn::Module& model, const fs::path& offload_dir, bool offload_buffers) {
  dispatch_model(
      model, {{"", kDisk}}, {.offload_dir = offload_dir, .offload_buffers = offload_buffers});
}

LoadModelReport load_checkpoint_and_dispatch(torch::nn::Module& model,
                                             const fs::path& path,
                                             const LoadAndDispatchOptions& options) {
  const DeviceMap map = options.device_map ? chosen_map(model, options) : DeviceMap{{"", kCpu}};
  check_map(model, map);
  const auto weights = disk_weights(model, map, options.offload_buffers);
  if (weights.empty() && !placement::is_exported_file(path))
    return load_checkpoint_in_model(
        model, path, {.dtype = options.dtype, .strict = options.strict});

  const std::size_t max_bytes = cache_bytes(options.disk_cache);
  const auto dtype = checkpoint::wanted_dtype(options.dtype);
  safetensors::TensorMap tensors = checkpoint::read_weights(path, &tensors_of_file);
  checkpoint::FitOptions fit{.strict = options.strict, .dtypes = checkpoint::DtypeRule::kConvert};
  const auto all = checkpoint::fit_state(model, tensors, path, fit);
  LoadModelReport report{.missing_keys = all.missing(), .unexpected_keys = all.unexpected()};
  std::ranges::sort(report.missing_keys);

  std::set<std::string> on_disk;
  std::vector<at::Tensor> values;
  DiskValues disk(tensors, dtype, options.offload_folder);
  for (const DiskWeight& weight : weights) values.push_back(disk.of(weight));
  disk.save_index();
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!values[i].defined()) continue;  // the files have none: it stays where it is
    for (const std::string& name : weights[i].names) {
      on_disk.insert(name);
      tensors.erase(name);
    }
  }
  const at::NoGradGuard no_grad;
  fit.strict = false;
  const auto resident = checkpoint::fit_state(model, tensors, path, fit);
  if (dtype) {
    checkpoint::convert_weights(model, [&](const std::string& name) {
      return on_disk.contains(name) ? std::nullopt : dtype;
    });
  }
  resident.apply();
  put_on_disk(weights, std::move(values), max_bytes);
  return report;
}

}  // namespace accel
