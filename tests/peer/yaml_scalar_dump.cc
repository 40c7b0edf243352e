// Prints what each line of the input means as a YAML 1.1 scalar; tests/peer/config_files.py compares it with PyYAML.

#include <cstdio>
#include <iostream>
#include <string>

#include "launcher/documents/yaml_scalar.h"

int main() {
  using namespace accel::launcher;
  for (std::string line; std::getline(std::cin, line);) {
    const YamlScalar scalar = resolve_yaml_scalar(line);
    if (std::holds_alternative<YamlNull>(scalar)) std::puts("null");
    if (std::holds_alternative<YamlText>(scalar)) std::puts("text");
    if (const auto* value = std::get_if<bool>(&scalar)) std::puts(*value ? "true" : "false");
    if (const auto* value = std::get_if<std::int64_t>(&scalar)) {
      std::printf("int %lld\n", static_cast<long long>(*value));
    }
    if (const auto* value = std::get_if<double>(&scalar)) std::printf("float %.17g\n", *value);
  }
  return 0;
}
