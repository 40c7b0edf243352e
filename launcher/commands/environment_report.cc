#include "launcher/commands/environment_report.h"

#include <cstdio>
#include <string_view>
#include <type_traits>

#include "launcher/flags/strategies/option_value.h"

namespace accel::launcher {
namespace {

std::string python_quoted(const std::string& text) {
  const bool has_single = text.find('\'') != std::string::npos;
  const char quote = has_single && text.find('"') == std::string::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    if (c == quote || c == '\\') out += '\\';
    out += c;
  }
  return out + quote;
}

// As repr(), which is what str() shows within collections.
std::string representation(const ConfigValue& value) {
  return std::visit(
      [&](const auto& data) -> std::string {
        using Data = std::decay_t<decltype(data)>;
        std::string out;
        if constexpr (std::is_same_v<Data, ConfigValue::Null>) {
          return "None";
        } else if constexpr (std::is_same_v<Data, bool>) {
          return data ? "True" : "False";
        } else if constexpr (std::is_same_v<Data, std::int64_t>) {
          return std::to_string(data);
        } else if constexpr (std::is_same_v<Data, double>) {
          return python_number(data);
        } else if constexpr (std::is_same_v<Data, std::string>) {
          return python_quoted(data);
        } else if constexpr (std::is_same_v<Data, ConfigValue::List>) {
          for (const ConfigValue& item : data)
            out += (out.empty() ? "" : ", ") + representation(item);
          return "[" + out + "]";
        } else {
          for (const ConfigEntry& entry : data)
            out += (out.empty() ? "" : ", ") + python_quoted(entry.key) + ": " +
                   representation(entry.value);
          return "{" + out + "}";
        }
      },
      value.data);
}

std::string or_not_found(const std::string& text) {
  return text.empty() ? "Not found" : text;
}

std::string gpu_text(const std::vector<std::string>& gpus) {
  std::string text;
  for (std::size_t i = 0; i < gpus.size();) {
    std::size_t same = i;
    while (same < gpus.size() && gpus[same] == gpus[i]) ++same;
    text += (text.empty() ? "" : ", ") + gpus[i];
    if (same - i > 1) text += " (" + std::to_string(same - i) + " of them)";
    i = same;
  }
  return text;
}

}  // namespace

std::string printed_value(const ConfigValue& value) {
  const auto* const text = std::get_if<std::string>(&value.data);
  return text != nullptr ? *text : representation(value);
}

std::string environment_report(const EnvironmentFacts& facts) {
  constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;
  char ram[40];
  std::snprintf(ram, sizeof ram, "%.2f GB", facts.ram_bytes / kGiB);
  const bool has_cuda = !facts.torch_cuda.empty() && !facts.gpus.empty();
  std::string out = "\nCopy-and-paste the text below in your GitHub issue\n\n";
  const auto add = [&out](std::string_view name, const std::string& value) {
    out += "- " + std::string(name) + ": " + value + "\n";
  };
  add("`accel` version", facts.accel_version);
  add("`accel` location", or_not_found(facts.accel_path));
  add("`Accelerate` version", or_not_found(facts.accelerate_version));
  add("Platform", facts.platform);
  add("Python location", or_not_found(facts.python));
  add("Python version", or_not_found(facts.python_version));
  add("Numpy version", or_not_found(facts.numpy_version));
  add("PyTorch version", or_not_found(facts.torch_version));
  add("PyTorch accelerator", has_cuda ? "CUDA" : "N/A");
  add("System RAM", ram);
  if (!facts.gpus.empty()) add("GPU type", gpu_text(facts.gpus));
  if (!facts.driver.empty()) add("GPU driver", facts.driver);
  out += facts.is_config_given ? "- `Accelerate` config passed:\n"
                               : "- `Accelerate` default config:\n";
  if (!facts.config_fault.empty()) return out + "\tNot usable: " + facts.config_fault + "\n";
  if (!facts.config) return out + "\tNot found\n";
  for (const ConfigEntry& entry : *facts.config)
    out += "\t- " + entry.key + ": " + printed_value(entry.value) + "\n";
  return out;
}

}  // namespace accel::launcher
