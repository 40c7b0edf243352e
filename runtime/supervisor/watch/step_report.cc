#include "runtime/supervisor/watch/step_report.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

namespace accel::supervisor {
namespace {

std::string one_decimal(double value) {
  std::array<char, 64> text{};
  (void)std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

}  // namespace

std::string step_times_text(const StepTimes& times) {
  const auto total = static_cast<double>(std::max<std::uint64_t>(times.total_ns, 1));
  const auto steps = static_cast<double>(std::max<std::uint64_t>(times.steps, 1));
  const double others = static_cast<double>(times.communication_ns) +
                        static_cast<double>(times.input_ns) + static_cast<double>(times.io_ns) +
                        static_cast<double>(times.wait_ns);
  const std::pair<const char*, double> parts[] = {
      {"compute", std::max(0.0, total - others)},
      {"exposed communication", static_cast<double>(times.communication_ns)},
      {"input", static_cast<double>(times.input_ns)},
      {"I/O", static_cast<double>(times.io_ns)},
      {"wait", static_cast<double>(times.wait_ns)}};
  std::string text =
      std::to_string(times.steps) + " steps of " + one_decimal(total / steps / 1e6) + " ms:";
  const char* separator = " ";
  for (const auto& [name, part] : parts) {
    text += std::string(separator) + name + " " + one_decimal(100 * part / total) + " %";
    separator = ", ";
  }
  return text;
}

}  // namespace accel::supervisor
