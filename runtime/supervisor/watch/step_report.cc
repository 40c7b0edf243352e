#include "runtime/supervisor/watch/step_report.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>

namespace accel::supervisor {
namespace {

std::string one_decimal(double value) {
  std::array<char, 64> text{};
  (void)std::snprintf(text.data(), text.size(), "%.1f", value);
  return text.data();
}

}  // namespace

std::array<StepPartTime, 5> parts_of(const StepTimes& times) {
  const auto total = static_cast<double>(times.total_ns);
  const auto communication = static_cast<double>(times.communication_ns);
  const auto input = static_cast<double>(times.input_ns);
  const auto io = static_cast<double>(times.io_ns);
  const auto wait = static_cast<double>(times.wait_ns);
  const double compute = std::max(0.0, total - communication - input - io - wait);
  return {StepPartTime{"compute", "compute", compute},
          StepPartTime{"exposed communication", "communication", communication},
          StepPartTime{"input", "input", input},
          StepPartTime{"I/O", "io", io},
          StepPartTime{"wait", "wait", wait}};
}

std::string step_times_text(const StepTimes& times) {
  const auto total = static_cast<double>(std::max<std::uint64_t>(times.total_ns, 1));
  const auto steps = static_cast<double>(std::max<std::uint64_t>(times.steps, 1));
  std::string text =
      std::to_string(times.steps) + " steps of " + one_decimal(total / steps / 1e6) + " ms:";
  const char* separator = " ";
  for (const StepPartTime& part : parts_of(times)) {
    text += separator + std::string(part.name) + " " + one_decimal(100 * part.nanoseconds / total) +
            " %";
    separator = ", ";
  }
  return text;
}

}  // namespace accel::supervisor
