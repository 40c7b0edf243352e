// Folders of offloaded weights: NAME.dat and index.json, as HF Accelerate writes and reads them.

#include "libaccel/placement/offload_folder.h"

#include <algorithm>
#include <span>
#include <system_error>
#include <utility>

#include <nlohmann/json.hpp>
#include <torch/nn/module.h>
#include <unistd.h>

#include <accel/error.h>
#include <accel/offload.h>
#include <accel/result.h>
#include <accel/safetensors_reader.h>

#include "libaccel/engine/checkpoint/files/folder_lock.h"
#include "libaccel/engine/checkpoint/files/tensor_file.h"
#include "libaccel/engine/checkpoint/states/module_state.h"
#include "libaccel/engine/pager/weight_file.h"
#include "runtime/checkpoint/file_system.h"
#include "runtime/checkpoint/hashed_file.h"

namespace accel {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kIndexName = "index.json";

void check_name(const std::string& name) {
  if (!name.empty() && name.find('/') == std::string::npos && name.find('\0') == std::string::npos)
    return;
  throw Error(ErrorCode::kInvalidArgument,
              "the weight '" + name + "' has a name that no file can have",
              "call modules and parameters by names without '/'");
}

std::string dtype_name_of(const std::string& name, const at::Tensor& weight) {
  const auto dtype = pager::name_of_dtype(weight.scalar_type());
  if (dtype && !weight.is_meta()) return std::string(*dtype);
  throw Error(ErrorCode::kUnsupported,
              weight.is_meta()
                  ? "the weight '" + name + "' is on the meta device and has no values"
                  : "the weight '" + name + "' is of " + c10::toString(weight.scalar_type()) +
                        ", which a folder of offloaded weights cannot hold",
              weight.is_meta() ? "load its values first" : "convert it");
}

// Ranks may write the same file at once: each has a name of its own, and the last one stays.
fs::path temporary_of(const fs::path& path) {
  return path.parent_path() / ("." + path.filename().string() + "." + std::to_string(::getpid()));
}

// A file that could not be written whole does not stay.
template <typename Write>
void write_whole(const fs::path& path, Write write) {
  checkpoint::FileSystem& file_system = checkpoint::real_file_system();
  const fs::path temporary = temporary_of(path);
  file_system.remove(temporary);
  try {
    write(file_system, temporary);
    file_system.rename(temporary, path);
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
}

void write_values(const fs::path& path, const at::Tensor& weight) {
  const at::Tensor values = checkpoint::plain(weight);
  write_whole(path, [&](checkpoint::FileSystem& file_system, const fs::path& temporary) {
    checkpoint::OutputFile file(file_system, temporary);
    file.append({static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
    (void)file.finish();
  });
}

Error bad_index(const fs::path& path, const std::string& what) {
  return Error(ErrorCode::kConfigInvalidValue,
               path.string() + ": " + what,
               "remove the folder, and offload the weights again");
}

OffloadedWeight weight_of(const fs::path& path, const std::string& name, const Json& entry) {
  try {
    OffloadedWeight weight;
    if (entry.contains("safetensors_file"))
      weight.safetensors_file = entry.at("safetensors_file").get<std::string>();
    weight.weight_name = entry.value("weight_name", "");
    if (weight.safetensors_file.empty() || entry.contains("dtype"))
      weight.dtype = entry.at("dtype").get<std::string>();
    if (weight.safetensors_file.empty() || entry.contains("shape"))
      weight.shape = entry.at("shape").get<std::vector<std::int64_t>>();
    if (std::ranges::any_of(weight.shape, [](std::int64_t size) { return size < 0; }))
      throw bad_index(path, "'" + name + "' has a shape below 0");
    return weight;
  } catch (const nlohmann::json::exception& error) {
    throw bad_index(path, "'" + name + "': " + error.what());
  }
}

Json json_of_index(const fs::path& path) {
  Json json =
      Json::parse(checkpoint::read_text_file(path).text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw bad_index(path, "this is no JSON of names");
  return json;
}

at::ScalarType dtype_in_index(const std::string& name, const OffloadedWeight& weight) {
  if (const auto dtype = pager::dtype_of_name(weight.dtype)) return *dtype;
  throw Error(ErrorCode::kUnsupported,
              "the weight '" + name + "' is of dtype \"" + weight.dtype +
                  "\" in the index, which is not known",
              "offload the weights again");
}

// A weight in a safetensors file, in the dtype that the index says.
at::Tensor tensor_of_safetensors(const std::string& name, const OffloadedWeight& weight) {
  const auto reader = or_throw(safetensors::Reader::open(weight.safetensors_file));
  const std::string& there = weight.weight_name.empty() ? name : weight.weight_name;
  const safetensors::TensorInfo* info = or_throw(reader.find(there));
  const at::Tensor tensor =
      placement::tensor_in_safetensors(weight.safetensors_file, reader.header(), *info, name);
  return weight.dtype.empty() ? tensor : tensor.to(dtype_in_index(name, weight));
}

}  // namespace

namespace placement {

at::Tensor tensor_in_safetensors(const fs::path& file,
                                 const safetensors::Header& header,
                                 const safetensors::TensorInfo& info,
                                 const std::string& name) {
  return pager::tensor_in_file({file, header.data_offset + info.begin},
                               checkpoint::scalar_type_of(name, info.dtype),
                               checkpoint::allocate(info, at::kMeta).sizes(),
                               name);
}

at::Tensor weight_in_folder(const fs::path& folder,
                            const std::string& name,
                            const OffloadedWeight& weight) {
  check_name(name);
  return pager::tensor_in_file(
      {folder / (name + ".dat"), 0}, dtype_in_index(name, weight), weight.shape, name);
}

}  // namespace placement

void offload_weight(const at::Tensor& weight,
                    const std::string& weight_name,
                    const fs::path& offload_folder,
                    OffloadIndex* index) {
  check_name(weight_name);
  const std::string dtype = dtype_name_of(weight_name, weight);
  write_values(offload_folder / (weight_name + ".dat"), weight);
  if (index != nullptr) (*index)[weight_name] = {.dtype = dtype, .shape = weight.sizes().vec()};
}

void save_offload_index(const OffloadIndex& index, const fs::path& offload_folder) {
  if (index.empty()) return;
  const fs::path path = offload_folder / kIndexName;
  const checkpoint::FolderLock lock = checkpoint::FolderLock::wait(offload_folder);
  Json json = fs::exists(path) ? json_of_index(path) : Json::object();
  for (const auto& [name, weight] : index) {
    Json entry = Json::object();
    if (!weight.safetensors_file.empty()) entry["safetensors_file"] = weight.safetensors_file;
    if (!weight.weight_name.empty()) entry["weight_name"] = weight.weight_name;
    if (!weight.dtype.empty()) entry["dtype"] = weight.dtype;
    if (weight.safetensors_file.empty()) entry["shape"] = weight.shape;
    json[name] = std::move(entry);
  }
  write_whole(path, [&](checkpoint::FileSystem& file_system, const fs::path& temporary) {
    (void)checkpoint::write_text_file(file_system, temporary, json.dump(2));
  });
}

void offload_state_dict(const fs::path& save_dir,
                        const std::map<std::string, at::Tensor>& state_dict) {
  checkpoint::real_file_system().make_folder(save_dir);
  OffloadIndex index;
  for (const auto& [name, tensor] : state_dict) offload_weight(tensor, name, save_dir, &index);
  save_offload_index(index, save_dir);
}

at::Tensor load_offloaded_weight(const fs::path& weight_file, const OffloadedWeight& weight_info) {
  const std::string name = weight_file.stem();
  return pager::tensor_in_file(
             {weight_file, 0}, dtype_in_index(name, weight_info), weight_info.shape, name)
      .clone();
}

void load_offloaded_weights(torch::nn::Module& model,
                            const OffloadIndex& index,
                            const fs::path& offload_folder) {
  if (index.empty()) return;
  const OffloadedWeightsLoader loader({}, offload_folder, index);
  safetensors::TensorMap tensors;
  for (const std::string& name : loader.keys()) tensors.emplace(name, loader.at(name));
  const auto fitted = checkpoint::fit_state(
      model, tensors, offload_folder, {.strict = false, .dtypes = checkpoint::DtypeRule::kConvert});
  if (!fitted.unexpected().empty()) {
    throw Error(ErrorCode::kSafetensorsMismatch,
                offload_folder.string() + " holds '" + fitted.unexpected().front() +
                    "', which the model does not have");
  }
  fitted.apply();
}

OffloadIndex read_offload_index(const fs::path& offload_folder) {
  const fs::path path = offload_folder / kIndexName;
  OffloadIndex index;
  const Json json = json_of_index(path);
  for (const auto& [name, entry] : json.items()) {
    if (!entry.is_object()) throw bad_index(path, "'" + name + "' is no map");
    index[name] = weight_of(path, name, entry);
  }
  return index;
}

OffloadedWeightsLoader::OffloadedWeightsLoader(std::map<std::string, at::Tensor> state_dict,
                                               fs::path save_folder,
                                               std::optional<OffloadIndex> index)
    : state_dict_(std::move(state_dict)), save_folder_(std::move(save_folder)) {
  if (state_dict_.empty() && save_folder_.empty() && !index) {
    throw Error(ErrorCode::kInvalidArgument,
                "Need either a `state_dict`, a `save_folder` or an `index` containing offloaded "
                "weights.");
  }
  if (!index && !save_folder_.empty()) index = read_offload_index(save_folder_);
  index_ = std::move(index).value_or(OffloadIndex{});
}

std::vector<std::string> OffloadedWeightsLoader::keys() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : state_dict_) names.push_back(name);
  for (const auto& [name, weight] : index_)
    if (!state_dict_.contains(name)) names.push_back(name);
  return names;
}

at::Tensor OffloadedWeightsLoader::at(const std::string& name) const {
  if (const auto here = state_dict_.find(name); here != state_dict_.end()) return here->second;
  const auto found = index_.find(name);
  if (found == index_.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                "there is no offloaded weight '" + name + "'",
                "keys() has the names of those that there are");
  }
  const OffloadedWeight& weight = found->second;
  if (!weight.safetensors_file.empty()) return tensor_of_safetensors(name, weight);
  return placement::weight_in_folder(save_folder_, name, weight);
}

}  // namespace accel
