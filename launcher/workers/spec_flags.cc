#include "launcher/workers/spec_flags.h"

#include <algorithm>
#include <utility>

#include <accel/error.h>

#include "runtime/printable.h"
#include "runtime/text/number_text.h"
#include "runtime/trimmed.h"

namespace accel::launcher {
namespace {

using supervisor::JobSpec;
using supervisor::WorkerSpec;

constexpr const char* kVisibleDevices = "CUDA_VISIBLE_DEVICES";
constexpr std::string_view kSpecFlags[] = {
    "virtual_local_rank", "duplicate_stdout_filters", "duplicate_stderr_filters"};

std::vector<std::string> devices_in(std::string_view list) {
  std::vector<std::string> devices;
  for (;;) {
    const std::size_t comma = std::min(list.find(','), list.size());
    devices.emplace_back(trimmed(list.substr(0, comma), kTypedBlanks));
    if (comma == list.size()) return devices;
    list.remove_prefix(comma + 1);
  }
}

Result<void> give_one_device_each(const CommandLine& line, JobSpec& spec) {
  const auto visible = spec.env.find(kVisibleDevices);
  std::vector<std::string> devices;
  if (visible != spec.env.end()) {
    devices = devices_in(visible->second);
    if (devices.size() < spec.workers.size())
      return Error(ErrorCode::kInvalidArgument,
                   line.spelled("virtual_local_rank") + " gives each of " +
                       std::to_string(spec.workers.size()) + " workers a device of its own, and " +
                       kVisibleDevices + " is '" + printable(visible->second) + "'",
                   "start at most " + std::to_string(devices.size()) + " workers, or name more");
  }
  for (WorkerSpec& worker : spec.workers) {
    const auto rank = static_cast<std::size_t>(worker.local_rank);
    worker.has_virtual_local_rank = true;
    worker.env[kVisibleDevices] = devices.empty() ? std::to_string(rank) : devices[rank];
  }
  return {};
}

bool is_teed(const JobSpec& spec, supervisor::Streams stream) {
  return std::any_of(spec.workers.begin(), spec.workers.end(), [&](const WorkerSpec& worker) {
    return (static_cast<int>(worker.tee) & static_cast<int>(stream)) != 0;
  });
}

}  // namespace

std::vector<std::string> split_filters(std::string_view text) {
  std::vector<std::string> filters(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != ',') {
      filters.back() += text[i];
    } else if (i + 1 < text.size() && text[i + 1] == ',') {
      filters.back() += ',';
      ++i;
    } else {
      filters.emplace_back();
    }
  }
  return filters;
}

Result<void> apply_spec_flags(const CommandLine& line,
                              WorkerPlace place,
                              JobSpec& spec,
                              std::vector<std::string>& notices) {
  for (const std::string_view flag : kSpecFlags) {
    const bool is_given =
        flag == kSpecFlags[0] ? line.is_on(flag) : !line.text(flag).value_or("").empty();
    if (is_given && place == WorkerPlace::kElsewhere)
      return Error(ErrorCode::kUnsupported,
                   line.spelled(flag) +
                       " is for workers that this launcher starts itself, not for those of agents, "
                       "of several nodes, of mpirun or of other hosts",
                   "leave it out, or launch on one machine");
  }
  const auto filter =
      [&](std::string_view flag, supervisor::Streams stream, std::vector<std::string>& filters) {
        const std::string text = line.text(flag).value_or("");
        if (text.empty()) return;
        if (is_teed(spec, stream)) {
          filters = split_filters(text);
        } else {
          notices.push_back(line.spelled(flag) +
                            " has no effect: no such stream goes to files and console (--tee, " +
                            line.spelled("log_dir") + ")");
        }
      };
  filter("duplicate_stdout_filters", supervisor::Streams::kOut, spec.log.out_filters);
  filter("duplicate_stderr_filters", supervisor::Streams::kErr, spec.log.err_filters);
  return line.is_on("virtual_local_rank") ? give_one_device_each(line, spec) : Result<void>();
}

}  // namespace accel::launcher
