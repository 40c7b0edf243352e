#include "safetensors/model_json.h"

#include <utility>

#include <nlohmann/json.hpp>

#include <accel/error.h>

#include "runtime/printable.h"
#include "runtime/text/text_file.h"

namespace accel::safetensors {
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

}  // namespace accel::safetensors
