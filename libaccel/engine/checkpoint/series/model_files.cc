// Weights for others to use: save_model() and load_checkpoint_in_model().
//
// The files are those of HF's hub: model.safetensors, or numbered shards with an index that maps
// each name to its shard. Every shard is written under a temporary name first and all are renamed
// at the end, the index last, so that a save that fails leaves the earlier files as they were.
// (Several renames are not one step: a power cut between them can leave shards of both saves. For
// what must survive that there is save_checkpoint().)

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <system_error>
#include <utility>

#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/result.h>
#include <accel/safetensors_index.h>
#include <accel/state.h>

#include "libaccel/engine/checkpoint/files/tensor_file.h"
#include "libaccel/engine/checkpoint/states/module_state.h"
#include "libaccel/engine/checkpoint/states/shard_split.h"
#include "libaccel/engine/homes/empty_ranks.h"

namespace accel {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndexName = safetensors::kModelIndexName;
constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

// Files of one save, written under temporary names until publish().
class PendingFiles {
 public:
  PendingFiles(checkpoint::FileSystem& file_system, fs::path folder)
      : file_system_(file_system), folder_(std::move(folder)) {}
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
      if (!present.contains(name) && (checkpoint::is_shard_name(name) || name == kIndexName)) {
        stale.push_back(entry.path());
      }
    }
    for (const fs::path& path : stale) file_system_.remove(path);
    file_system_.sync_folder(folder_);
  }

 private:
  checkpoint::FileSystem& file_system_;
  fs::path folder_;
  std::vector<std::pair<fs::path, std::string>> files_;
};

safetensors::WeightMap files_of(const std::vector<std::vector<std::string>>& shards) {
  safetensors::WeightMap files;
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const std::string& name : shards[i])
      files[name] = checkpoint::shard_name(i, shards.size());
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

// The .safetensors files behind what the user named.
std::vector<fs::path> weight_files(const fs::path& path) {
  if (path.string().ends_with(kIndexSuffix)) return shards_of_index(path);
  if (!fs::is_directory(path)) return {path};
  if (fs::exists(path / kIndexName)) return shards_of_index(path / kIndexName);
  if (fs::exists(path / "model.safetensors")) return {path / "model.safetensors"};
  std::vector<fs::path> indexes;
  for (const fs::directory_entry& entry : fs::directory_iterator(path)) {
    if (entry.path().string().ends_with(kIndexSuffix)) indexes.push_back(entry.path());
  }
  if (indexes.size() == 1) return shards_of_index(indexes.front());
  throw Error(ErrorCode::kFileIo,
              path.string() + " holds neither model.safetensors nor exactly one index (*" +
                  std::string(kIndexSuffix) + ")",
              "name the .safetensors file or the index itself");
}

}  // namespace

void save_model(const torch::nn::Module& module,
                const fs::path& folder,
                const SaveModelOptions& options) {
  const std::uint64_t max_bytes = or_throw(checkpoint::parse_shard_size(options.max_shard_size));
  const checkpoint::UniqueState state = checkpoint::unique_state(checkpoint::state_of(module));
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
  PendingFiles files(file_system, folder);
  for (size_t i = 0; i < shards.size(); ++i) {
    safetensors::TensorMap tensors;
    for (const std::string& name : shards[i]) tensors[name] = by_name.at(name);
    checkpoint::write_tensor_file(
        file_system, files.add(checkpoint::shard_name(i, shards.size())), tensors, metadata);
  }
  if (shards.size() > 1) {
    checkpoint::write_text_file(file_system,
                                files.add(std::string(kIndexName)),
                                or_throw(safetensors::index_text(files_of(shards), total_bytes)));
  }
  files.publish();
}

void load_checkpoint_in_model(torch::nn::Module& module,
                              const fs::path& path,
                              const LoadModelOptions& options) {
  safetensors::TensorMap tensors;
  // Prepare() will give the values; what the file says is compared all the same.
  const bool is_for_main = sharding::is_empty(module) && sharding::loads_on_main_only() &&
                           !PartialState().is_main_process();
  for (const fs::path& file : weight_files(path)) {
    for (auto& [name, tensor] :
         is_for_main ? checkpoint::read_shapes(file) : safetensors::load_file(file)) {
      if (!tensors.emplace(name, tensor).second) {
        throw Error(ErrorCode::kSafetensorsMismatch,
                    path.string() + " holds the tensor \"" + name + "\" in two of its files",
                    "remove the shards of an older save");
      }
    }
  }
  const checkpoint::FittedState fitted = checkpoint::fit_state(
      module, tensors, path, {.strict = options.strict, .dtypes = checkpoint::DtypeRule::kConvert});
  if (!is_for_main) fitted.apply();
}

}  // namespace accel
