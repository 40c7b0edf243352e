#include <utility>

#include <nlohmann/json.hpp>

#include <accel/safetensors_index.h>

#include "runtime/printable.h"
#include "safetensors/hidden_file.h"
#include "safetensors/model_json.h"

namespace accel::safetensors {

namespace {

namespace fs = std::filesystem;

}  // namespace

Result<WeightMap> files_by_tensor(const fs::path& path) {
  auto index = read_model_json(path);
  if (!index) return std::move(index).error();
  // Accelerate reads one without it too: names to files at once.
  const bool has_map = index->is_object() && index->contains("weight_map");
  const nlohmann::json* const map = has_map ? &index->at("weight_map") : &*index;
  if (!map->is_object())
    return model_file_error(ErrorCode::kConfigInvalidValue,
                            path,
                            "it has no weight_map, as an index has",
                            "name the index that lies beside the numbered files, or their folder");
  if (map->empty())
    return model_file_error(ErrorCode::kConfigInvalidValue,
                            path,
                            "its weight_map is empty",
                            "fetch the index again: it names the file of each tensor");
  WeightMap files;
  for (const auto& item : map->items()) {
    const std::string file = item.value().is_string() ? item.value().get<std::string>() : "";
    if (file.empty() || fs::path(file).filename() != file)
      return model_file_error(
          ErrorCode::kConfigInvalidValue,
          path,
          "the file of " + printable(item.key()) + " is no name of a file beside it",
          "fetch the index again: it names its files without folders");
    files[item.key()] = file;
  }
  return files;
}

Result<std::set<std::string>> files_of_index(const fs::path& path) {
  const auto by_tensor = files_by_tensor(path);
  if (!by_tensor) return by_tensor.error();
  std::set<std::string> files;
  for (const auto& [tensor, file] : *by_tensor) files.insert(file);
  return files;
}

Result<std::string> index_text(const WeightMap& files, std::uint64_t total_bytes) {
  const nlohmann::json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", files}};
  try {
    return index.dump(2) + "\n";
  } catch (const nlohmann::json::exception&) {
    return Error(ErrorCode::kInvalidArgument,
                 "a name of a tensor or of a file is not UTF-8",
                 "rename it: an index is JSON");
  }
}

Result<void> write_index(const fs::path& path, const WeightMap& files, std::uint64_t total_bytes) {
  const auto text = index_text(files, total_bytes);
  if (!text) return text.error();
  return to_result([&] {
    HiddenFile file(path, text->size());
    file.write_at(0, *text);
    file.publish();
  });
}

}  // namespace accel::safetensors
