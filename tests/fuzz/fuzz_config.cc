// Fuzzes configuration files: any bytes give a configuration or an error with a remedy, in YAML and in JSON.
// The first byte picks the format.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "launcher/config/config_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, size_t size) {
  using namespace accel::launcher;
  if (size == 0) return 0;
  const ConfigFormat format = data[0] % 2 == 0 ? ConfigFormat::kYaml : ConfigFormat::kJson;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto file = parse_config_file(text, format, "fuzz");
  if (!file && (file.error().message().empty() || file.error().remedy().empty())) std::abort();
  if (file && file->distributed_type.empty()) std::abort();
  return 0;
}
