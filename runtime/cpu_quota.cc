#include "runtime/cpu_quota.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "runtime/cgroup_folder.h"
#include "runtime/split.h"
#include "runtime/trimmed.h"

namespace accel {
namespace {

// Version 1 says -1 where there is no quota, version 2 "max".
std::optional<double> microseconds(std::string_view text) {
  text = trimmed(text, " \n");
  std::int64_t number = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool is_whole = failure == std::errc() && end == text.data() + text.size();
  return is_whole && number > 0 ? std::optional(static_cast<double>(number)) : std::nullopt;
}

std::optional<CpuQuota> ratio(std::string file, std::string_view quota, std::string_view period) {
  const auto granted = microseconds(quota);
  const auto of = microseconds(period);
  if (!granted || !of) return std::nullopt;
  return CpuQuota{.file = std::move(file), .cpus = *granted / *of};
}

// "150000 100000": so much of each period.
std::optional<CpuQuota> quota_of_version_2(System& system, const std::string& folder) {
  std::string file = folder + "/cpu.max";
  const auto text = system.read_file(file);
  if (!text) return std::nullopt;
  const auto words = split(trimmed(*text, "\n"), ' ');
  return words.size() == 2 ? ratio(std::move(file), words[0], words[1]) : std::nullopt;
}

std::optional<CpuQuota> quota_of_version_1(System& system, const std::string& folder) {
  std::string file = folder + "/cpu.cfs_quota_us";
  const auto quota = system.read_file(file);
  const auto period = system.read_file(folder + "/cpu.cfs_period_us");
  return quota && period ? ratio(std::move(file), *quota, *period) : std::nullopt;
}

}  // namespace

int CpuQuota::num_threads() const {
  constexpr double kMost = std::numeric_limits<int>::max();
  return std::max(1, static_cast<int>(std::min(cpus, kMost)));
}

std::optional<CpuQuota> cpu_quota(System& system) {
  std::optional<CpuQuota> narrowest;
  const auto consider = [&](std::optional<CpuQuota> quota) {
    if (quota && (!narrowest || quota->cpus < narrowest->cpus)) narrowest = std::move(quota);
  };
  for (const std::string& folder : cgroup_folders(system, ""))
    consider(quota_of_version_2(system, folder));
  for (const std::string& folder : cgroup_folders(system, "cpu"))
    consider(quota_of_version_1(system, folder));
  return narrowest;
}

bool bound_threads(AffinityPlan& plan, const CpuQuota& quota, std::size_t num_cores) {
  if (quota.num_threads() >= static_cast<int>(num_cores)) return false;
  const int each = std::max(1, quota.num_threads() / static_cast<int>(plan.workers.size()));
  for (WorkerShare& share : plan.workers) share.num_threads = std::min(share.num_threads, each);
  return true;
}

}  // namespace accel
