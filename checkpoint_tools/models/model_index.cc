#include "checkpoint_tools/models/model_index.h"

#include <utility>

#include <nlohmann/json.hpp>

#include <accel/error.h>

#include "runtime/printable.h"
#include "runtime/text/text_file.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kMostJsonBytes = 256 << 20;  // an index of a million tensors has 100 MB

}  // namespace

Error model_file_error(ErrorCode code,
                       const fs::path& path,
                       const std::string& what,
                       std::string remedy) {
  return Error(code, printable(path.string()) + ": " + what, std::move(remedy));
}

Result<json> read_model_json(const fs::path& path) {
  const auto text = read_text_file(path.string(), kMostJsonBytes, "the index or configuration");
  if (!text) {
    const Error& error = text.error();
    return Error(error.code(),
                 error.message(),
                 "check that it is the model's file and that you may read it");
  }
  json document = json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (document.is_discarded())
    return model_file_error(
        ErrorCode::kConfigSyntax, path, "it is no JSON", "fetch the file again");
  return document;
}

Result<std::map<std::string, std::string>> files_by_tensor(const fs::path& path) {
  auto index = read_model_json(path);
  if (!index) return std::move(index).error();
  const auto map = index->is_object() ? index->find("weight_map") : index->end();
  if (!index->is_object() || map == index->end() || !map->is_object())
    return model_file_error(ErrorCode::kConfigInvalidValue,
                            path,
                            "it has no weight_map, as an index has",
                            "name the index that lies beside the numbered files, or their folder");
  if (map->empty())
    return model_file_error(ErrorCode::kConfigInvalidValue,
                            path,
                            "its weight_map is empty",
                            "fetch the index again: it names the file of each tensor");
  std::map<std::string, std::string> files;
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

}  // namespace accel::launcher
