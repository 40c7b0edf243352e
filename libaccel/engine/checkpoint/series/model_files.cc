// Weights for others to use: save_model() and load_checkpoint_in_model().
//
// The files are those of HF's hub: model.safetensors or pytorch_model.bin, or numbered shards with an index that maps
// each name to its shard. Every shard is written under a temporary name first and all are renamed
// at the end, the index last, so that a save that fails leaves the earlier files as they were.
// (Several renames are not one step: a power cut between them can leave shards of both saves. For
// what must survive that there is save_checkpoint().)

#include "libaccel/engine/checkpoint/series/model_files.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <utility>

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <nlohmann/json.hpp>
#include <torch/nn/module.h>

#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/result.h>
#include <accel/safetensors_index.h>
#include <accel/state.h>

#include "checkpoint_tools/merge/weights_format.h"
#include "libaccel/engine/checkpoint/files/object_file.h"
#include "libaccel/engine/checkpoint/files/python_file.h"
#include "libaccel/engine/checkpoint/files/tensor_file.h"
#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "libaccel/engine/checkpoint/states/module_state.h"
#include "libaccel/engine/checkpoint/states/shard_split.h"
#include "libaccel/engine/homes/empty_ranks.h"
#include "libaccel/engine/process/process_group.h"

namespace accel {
namespace {

namespace fs = std::filesystem;

using launcher::WeightsFormat;

constexpr std::string_view kIndexSuffix = ".index.json";

// Files of one save, written under temporary names until publish().
class PendingFiles {
 public:
  PendingFiles(checkpoint::FileSystem& file_system, fs::path folder, WeightsFormat format)
      : file_system_(file_system), folder_(std::move(folder)), format_(format) {}
  ~PendingFiles() {
    for (const auto& [temporary, name] : files_) {
      std::error_code ignored;
      fs::remove(temporary, ignored);
    }
  }
  PendingFiles(const PendingFiles&) = delete;
  PendingFiles& operator=(const PendingFiles&) = delete;

  // Where to write the file that will be called `name`.
  fs::path add(const std::string& name) {
    const fs::path temporary = folder_ / ("." + name + ".tmp");
    file_system_.remove(temporary);
    files_.emplace_back(temporary, name);
    return temporary;
  }

  void publish() {
    for (const auto& [temporary, name] : files_) file_system_.rename(temporary, folder_ / name);
    std::set<std::string> present;
    for (const auto& [temporary, name] : std::exchange(files_, {})) present.insert(name);
    std::vector<fs::path> stale;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename().string();
      if (!present.contains(name) && checkpoint::is_shard_name(name, format_))
        stale.push_back(entry.path());
    }
    for (const fs::path& path : stale) file_system_.remove(path);
    file_system_.sync_folder(folder_);
  }

 private:
  checkpoint::FileSystem& file_system_;
  fs::path folder_;
  WeightsFormat format_;
  std::vector<std::pair<fs::path, std::string>> files_;
};

safetensors::WeightMap files_of(const std::vector<std::vector<std::string>>& shards,
                                WeightsFormat format) {
  safetensors::WeightMap files;
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const std::string& name : shards[i])
      files[name] = checkpoint::shard_name(i, shards.size(), format);
  }
  return files;
}

// The shards that an index names, within its folder.
std::vector<fs::path> shards_of_index(const fs::path& index) {
  std::vector<fs::path> paths;
  for (const std::string& name : or_throw(safetensors::files_of_index(index)))
    paths.push_back(index.parent_path() / name);
  return paths;
}

// The files behind what the user named. In a folder they are looked for as Accelerate does.
std::vector<fs::path> weight_files(const fs::path& path) {
  if (path.extension() == ".json") return shards_of_index(path);
  if (!fs::is_directory(path)) return {path};
  for (const WeightsFormat format : {WeightsFormat::kTorch, WeightsFormat::kSafetensors}) {
    const fs::path whole = path / launcher::weights_name(format);
    if (fs::exists(whole)) return {whole};
  }
  std::vector<fs::path> indexes;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().string().ends_with(kIndexSuffix)) indexes.push_back(entry.path());
  }
  if (indexes.size() == 1) return shards_of_index(indexes.front());
  throw Error(ErrorCode::kFileIo,
              path.string() + " holds neither pytorch_model.bin nor model.safetensors, and " +
                  (indexes.empty() ? "no index (*" : "more than one index (*") +
                  std::string(kIndexSuffix) + ")",
              "name the file or the index itself");
}

safetensors::TensorMap weights_in(const fs::path& file, checkpoint::PythonFile::Values values) {
  if (checkpoint::is_python_file(file)) return checkpoint::PythonFile(file).tensors(values);
  return values == checkpoint::PythonFile::Values::kNone ? checkpoint::read_shapes(file)
                                                         : safetensors::load_file(file);
}

safetensors::TensorMap read_weights(const fs::path& path, checkpoint::PythonFile::Values values) {
  return checkpoint::read_weights(path,
                                  [&](const fs::path& file) { return weights_in(file, values); });
}

// ---- options of a load

void refuse_unserved(const LoadModelOptions& options) {
  const char* name = !options.device_map.empty()       ? "device_map"
                     : !options.offload_folder.empty() ? "offload_folder"
                     : options.offload_state_dict      ? "offload_state_dict"
                     : options.offload_buffers         ? "offload_buffers"
                                                       : nullptr;
  if (name != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "load_checkpoint_in_model() has no place for " + std::string(name) +
                    ": weights are not spread over devices or a disk",
                "leave it out, or divide the model with FSDP");
  }
  if (!options.full_state_dict) {
    throw Error(ErrorCode::kUnsupported,
                "load_checkpoint_in_model() reads whole tensors: full_state_dict = false has none",
                "load parts with load_state()");
  }
}

bool names_module(const std::string& tensor, const std::string& module) {
  return tensor == module || tensor.find(module + ".") != std::string::npos;
}

// As Accelerate: modules are kept in float32 from float16 alone.
void convert(torch::nn::Module& module, at::ScalarType dtype, const LoadModelOptions& options) {
  checkpoint::convert_weights(module, [&](const std::string& tensor) {
    const bool stays = dtype == at::kHalf &&
                       std::ranges::any_of(options.keep_in_fp32_modules, [&](const auto& name) {
                         return names_module(tensor, name);
                       });
    return std::optional(stays ? at::kFloat : dtype);
  });
}

// ---- what rank 0 sends

std::string specs_text(const safetensors::TensorMap& tensors) {
  nlohmann::json list = nlohmann::json::array();
  for (const safetensors::TensorSpec& spec : checkpoint::specs_of(tensors))
    list.push_back({spec.name, safetensors::dtype_name(spec.dtype), spec.shape});
  return list.dump();
}

safetensors::TensorMap room_for(const std::string& specs) {
  safetensors::TensorMap tensors;
  for (const nlohmann::json& spec : nlohmann::json::parse(specs)) {
    const auto name = spec.at(0).get<std::string>();
    tensors.emplace(
        name,
        checkpoint::allocate({.name = name,
                              .dtype = *safetensors::parse_dtype(spec.at(1).get<std::string>()),
                              .shape = spec.at(2).get<std::vector<std::uint64_t>>()}));
  }
  return tensors;
}

safetensors::TensorMap read_on_rank_zero(ProcessGroup& group, const fs::path& path) {
  safetensors::TensorMap tensors;
  const auto said = or_throw(checkpoint::agree(*checkpoint::current_ranks(), [&]() -> std::string {
    if (group.rank() != 0) return {};
    tensors = read_weights(path, checkpoint::PythonFile::Values::kRead);
    return specs_text(tensors);
  }));
  if (group.rank() != 0) tensors = room_for(said.front());
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.contiguous();
    group.broadcast_(tensor, 0, "load_checkpoint_in_model");
  }
  return tensors;
}

c10::IValue object_of(const std::vector<std::string>& names,
                      const std::vector<checkpoint::NamedTensor>& state,
                      const safetensors::Metadata& aliases) {
  const std::set<std::string> chosen(names.begin(), names.end());
  c10::impl::GenericDict dict(c10::StringType::get(), c10::TensorType::get());
  for (const checkpoint::NamedTensor& item : state) {
    const auto alias = aliases.find(item.name);
    if (chosen.contains(alias == aliases.end() ? item.name : alias->second))
      dict.insert(item.name, item.tensor);
  }
  return dict;
}

}  // namespace

namespace checkpoint {

std::optional<at::ScalarType> wanted_dtype(std::string name) {
  if (name.empty()) return std::nullopt;
  constexpr std::string_view kModule = "torch.";
  if (name.starts_with(kModule)) name.erase(0, kModule.size());
  const std::map<std::string_view, at::ScalarType> dtypes = {{"float16", at::kHalf},
                                                             {"half", at::kHalf},
                                                             {"bfloat16", at::kBFloat16},
                                                             {"float32", at::kFloat},
                                                             {"float", at::kFloat},
                                                             {"float64", at::kDouble},
                                                             {"double", at::kDouble}};
  const auto found = dtypes.find(name);
  if (found != dtypes.end()) return found->second;
  throw Error(ErrorCode::kInvalidArgument,
              "dtype is \"" + name + "\", expected float16, bfloat16, float32 or float64");
}

safetensors::TensorMap read_weights(
    const fs::path& path, const std::function<safetensors::TensorMap(const fs::path&)>& read_file) {
  safetensors::TensorMap tensors;
  for (const fs::path& file : weight_files(path)) {
    for (auto& [name, tensor] : read_file(file)) {
      if (tensors.emplace(name, tensor).second) continue;
      throw Error(ErrorCode::kSafetensorsMismatch,
                  path.string() + " holds the tensor \"" + name + "\" in two of its files",
                  "remove the shards of an older save");
    }
  }
  return tensors;
}

void convert_weights(
    torch::nn::Module& module,
    const std::function<std::optional<at::ScalarType>(const std::string& name)>& dtype_of) {
  const at::NoGradGuard no_grad;
  for (NamedTensor& item : state_of(module)) {
    if (!item.tensor.is_floating_point()) continue;
    if (const auto dtype = dtype_of(item.name))
      item.tensor.set_data(item.tensor.detach().to(*dtype));
  }
}

}  // namespace checkpoint

void save_model(const torch::nn::Module& module,
                const fs::path& folder,
                const SaveModelOptions& options) {
  const std::uint64_t max_bytes = or_throw(checkpoint::parse_shard_size(options.max_shard_size));
  const WeightsFormat format =
      options.safe_serialization ? WeightsFormat::kSafetensors : WeightsFormat::kTorch;
  const std::vector<checkpoint::NamedTensor> all = checkpoint::state_of(module);
  const checkpoint::UniqueState state = checkpoint::unique_state(all);
  std::map<std::string, at::Tensor> by_name;
  std::vector<checkpoint::SizedName> sizes;
  std::uint64_t total_bytes = 0;
  for (const auto& [name, tensor] : state.tensors) {
    sizes.push_back({name, checkpoint::stored_bytes(name, tensor)});
    total_bytes += sizes.back().bytes;
    by_name[name] = tensor;
  }
  const auto shards = checkpoint::split_into_shards(sizes, max_bytes);
  safetensors::Metadata metadata = state.aliases;
  metadata["format"] = "pt";

  checkpoint::FileSystem& file_system = checkpoint::real_file_system();
  file_system.make_folder(folder);
  PendingFiles files(file_system, folder, format);
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = checkpoint::shard_name(i, shards.size(), format);
    if (format == WeightsFormat::kTorch) {
      const checkpoint::ObjectFile object(object_of(shards[i], all, state.aliases),
                                          fs::path(name).stem());
      checkpoint::UnsyncedFiles unsynced;
      std::ignore = checkpoint::write_object_file(file_system, files.add(name), object, unsynced);
      unsynced.sync(file_system);
      continue;
    }
    safetensors::TensorMap tensors;
    for (const std::string& tensor : shards[i]) tensors[tensor] = by_name.at(tensor);
    checkpoint::write_tensor_file(file_system, files.add(name), tensors, metadata);
  }
  if (shards.size() > 1) {
    safetensors::WeightMap map = files_of(shards, format);
    // Of torch.save() every name is in its shard.
    for (const auto& [name, kept] : state.aliases)
      if (format == WeightsFormat::kTorch) map[name] = map.at(kept);
    checkpoint::write_text_file(file_system,
                                files.add(checkpoint::shard_index_name(format)),
                                or_throw(safetensors::index_text(map, total_bytes)));
  }
  files.publish();
}

LoadModelReport load_checkpoint_in_model(torch::nn::Module& module,
                                         const fs::path& path,
                                         const LoadModelOptions& options) {
  refuse_unserved(options);
  const auto dtype = checkpoint::wanted_dtype(options.dtype);
  const auto group = options.broadcast_from_rank0 ? PartialState::process_group() : nullptr;
  // Prepare() will give the values; what the file says is compared all the same.
  const bool is_for_main = sharding::is_empty(module) && sharding::loads_on_main_only() &&
                           !PartialState().is_main_process();
  using Values = checkpoint::PythonFile::Values;
  const safetensors::TensorMap tensors =
      group != nullptr && group->size() > 1
          ? read_on_rank_zero(*group, path)
          : read_weights(path, is_for_main ? Values::kNone : Values::kRead);
  const checkpoint::FittedState fitted = checkpoint::fit_state(
      module, tensors, path, {.strict = options.strict, .dtypes = checkpoint::DtypeRule::kConvert});
  if (dtype) convert(module, *dtype, options);
  if (!is_for_main) fitted.apply();
  LoadModelReport report{.missing_keys = fitted.missing(), .unexpected_keys = fitted.unexpected()};
  std::ranges::sort(report.missing_keys);
  return report;
}

}  // namespace accel
