// The cache of the Hub: <hub>/models--ORG--NAME/refs/main has a commit, snapshots/<commit>/ the files (links to blobs).
// <hub> is $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE (its older name), else $HF_HOME/hub, else
// $XDG_CACHE_HOME/huggingface/hub, else ~/.cache/huggingface/hub.

#include "checkpoint_tools/models/model_files.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <unordered_set>
#include <utility>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>
#include <unistd.h>

#include <accel/error.h>
#include <accel/safetensors.h>
#include <accel/safetensors_index.h>

#include "checkpoint_tools/models/known_models.h"
#include "checkpoint_tools/models/weight_files.h"
#include "runtime/environment_value.h"
#include "runtime/printable.h"
#include "runtime/text/folder_names.h"
#include "runtime/unique_fd.h"
#include "runtime/user_folders.h"
#include "safetensors/model_json.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;
using safetensors::model_file_error;

bool is_float(safetensors::Dtype dtype) {
  using enum safetensors::Dtype;
  switch (dtype) {
    case kF8E5M2:
    case kF8E4M3:
    case kF8E4M3Fnuz:
    case kF8E5M2Fnuz:
    case kF16:
    case kBF16:
    case kF32:
    case kF64:
      return true;
    default:
      return false;
  }
}

std::uint64_t elements_of(const safetensors::TensorInfo& tensor) {
  constexpr std::uint64_t kFloatBytes = 4;
  if (is_float(tensor.dtype)) return tensor.num_bytes() * 8 / safetensors::dtype_bits(tensor.dtype);
  return (tensor.num_bytes() + kFloatBytes - 1) / kFloatBytes;
}

class InventoryReader {
 public:
  Result<void> add_file(const fs::path& path) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat status {};
    if (!file || ::fstat(file.get(), &status) != 0)
      return model_file_error(ErrorCode::kConfigUnreadable,
                              path,
                              errno_text(errno),
                              "check that the file is whole and that you may read it");
    if (!S_ISREG(status.st_mode))
      return model_file_error(ErrorCode::kConfigUnreadable,
                              path,
                              "it is no file",
                              "name a safetensors file, or the folder of a model");
    const auto header = safetensors::read_header(file.get());
    if (!header) {
      Error error = header.error();
      return std::move(error.while_doing("reading " + printable(path.string())));
    }
    for (const safetensors::TensorInfo& tensor : header->tensors) {
      if (seen_.insert(tensor.name).second)
        model_.tensors.push_back({tensor.name, elements_of(tensor)});
    }
    return {};
  }

  Result<void> add_index(const fs::path& path) {
    const auto files = safetensors::files_of_index(path);
    if (!files) return files.error();
    for (const std::string& name : *files) {
      const fs::path file = path.parent_path() / name;
      std::error_code ignored;
      if (const std::string remedy = remedy_for_unread(name); !remedy.empty())
        return model_file_error(
            ErrorCode::kConfigInvalidValue, path, "it is of " + printable(name), remedy);
      if (!fs::exists(file, ignored))
        return model_file_error(ErrorCode::kConfigUnreadable,
                                path,
                                printable(name) + ", which it names, is not beside it",
                                "fetch that file too, or name the model's config.json");
      if (auto added = add_file(file); !added) return added;
    }
    return {};
  }

  ModelInventory take(const fs::path& source) {
    model_.source = source.string();
    return std::move(model_);
  }

 private:
  ModelInventory model_;
  std::unordered_set<std::string> seen_;
};

template <typename Add>
Result<ModelInventory> read_with(const fs::path& source, const Add& add) {
  InventoryReader reader;
  if (Result<void> added = add(reader); !added) return std::move(added).error();
  return reader.take(source);
}

Result<ModelInventory> read_config(const fs::path& path) {
  auto config = safetensors::read_model_json(path);
  if (!config) return std::move(config).error();
  return inventory_of_config(*config, path.string());
}

Result<ModelInventory> read_folder(const fs::path& folder) {
  std::error_code error;
  const auto names = names_in(folder, error);
  if (error)
    return model_file_error(ErrorCode::kConfigUnreadable,
                            folder,
                            errno_text(error.value()),
                            "check that you may read the folder");
  std::error_code ignored;
  const fs::path index = folder / safetensors::kModelIndexName;
  if (fs::exists(index, ignored))
    return read_with(index, [&](InventoryReader& reader) { return reader.add_index(index); });
  const auto files = safetensors_among(names);
  if (!files) {
    Error error = files.error();
    return std::move(error.while_doing("reading " + printable(folder.string())));
  }
  if (!files->empty()) {
    return read_with(folder, [&](InventoryReader& reader) -> Result<void> {
      for (const std::string& file : *files)
        if (auto added = reader.add_file(folder / file); !added) return added;
      return {};
    });
  }
  if (fs::exists(folder / "config.json", ignored)) return read_config(folder / "config.json");
  return nothing_to_read(folder.string(), names);
}

Result<ModelInventory> read_model_file(const fs::path& path) {
  if (path.extension() == ".safetensors")
    return read_with(path, [&](InventoryReader& reader) { return reader.add_file(path); });
  const std::string unread = remedy_for_unread(path.filename());
  if (unread.empty() && path.string().ends_with(".index.json"))
    return read_with(path, [&](InventoryReader& reader) { return reader.add_index(path); });
  if (unread.empty() && path.extension() == ".json") return read_config(path);
  return model_file_error(
      ErrorCode::kConfigInvalidValue,
      path,
      "it is neither a .safetensors file, nor an index of such, nor a config.json",
      unread.empty() ? "name one of these, or the folder of a model" : unread);
}

fs::path hub_folder(const EnvMap& environment) {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (const std::string hub = value_in(environment, name); !hub.empty()) return hub;
  if (const std::string home = value_in(environment, "HF_HOME"); !home.empty())
    return fs::path(home) / "hub";
  const std::string cache = value_in(environment, "XDG_CACHE_HOME");
  const fs::path base =
      cache.empty() ? fs::path(home_folder(environment)) / ".cache" : fs::path(cache);
  return base / "huggingface" / "hub";
}

// "org/name" or "name", of the characters that the Hub allows.
bool is_hub_name(std::string_view name) {
  const std::size_t slash = name.find('/');
  const auto is_part = [](std::string_view part) {
    return !part.empty() && part.front() != '.' && part.front() != '-' &&
           std::all_of(part.begin(), part.end(), [](unsigned char c) {
             return std::isalnum(c) != 0 || c == '.' || c == '_' || c == '-';
           });
  };
  if (slash == std::string_view::npos) return is_part(name);
  return is_part(name.substr(0, slash)) && is_part(name.substr(slash + 1));
}

std::optional<fs::path> cached_snapshot(std::string name, const EnvMap& environment) {
  if (const std::size_t slash = name.find('/'); slash != std::string::npos)
    name.replace(slash, 1, "--");
  const fs::path repository = hub_folder(environment) / ("models--" + name);
  std::ifstream ref(repository / "refs" / "main");
  std::string commit;
  if (!std::getline(ref, commit) || commit.find('/') != std::string::npos) return std::nullopt;
  const fs::path snapshot = repository / "snapshots" / commit;
  std::error_code ignored;
  if (!fs::is_directory(snapshot, ignored)) return std::nullopt;
  return snapshot;
}

}  // namespace

Result<ModelInventory> find_model(const std::string& name, const EnvMap& environment) {
  const auto named = [&](Result<ModelInventory> model) {
    if (model) model->name = name;
    return model;
  };
  if (name.empty())
    return Error(ErrorCode::kUsage, "no model is named", "name a file, a folder or a model");
  std::error_code error;
  const fs::file_status status = fs::status(name, error);
  if (fs::is_directory(status)) return named(read_folder(name));
  if (fs::exists(status)) return named(read_model_file(name));
  if (status.type() == fs::file_type::none)  // not even that is known
    return model_file_error(ErrorCode::kConfigUnreadable,
                            name,
                            errno_text(error.value()),
                            "check the path, and that you may read what lies on it");
  if (!is_hub_name(name))
    return model_file_error(ErrorCode::kConfigUnreadable,
                            name,
                            "there is no such file or folder",
                            "check the path; a model of the Hub is named as ORG/NAME");
  if (const auto snapshot = cached_snapshot(name, environment))
    return named(read_folder(*snapshot));
  return model_file_error(ErrorCode::kConfigUnreadable,
                          name,
                          "there is no such file or folder, and no model of this name in " +
                              printable(hub_folder(environment).string()),
                          "fetch it with `hf download " + name + " config.json`");
}

}  // namespace accel::launcher
