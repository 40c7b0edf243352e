#include "libaccel/api/profiling/kineto_recording.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <system_error>

#include <ATen/Context.h>
#include <torch/csrc/Export.h>

#include <accel/error.h>

#include "runtime/text/joined.h"

// As torch/csrc/profiler/kineto_shim.h declares it, which wants the headers of libkineto for the rest.
namespace torch::autograd::profiler {
TORCH_API void addMetadataJson(const std::string& key, const std::string& value);
}

namespace accel::profiling {
namespace {

using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;
namespace kineto = torch::autograd::profiler;

std::atomic<bool> g_is_taken{false};

// What this process can record, by name.
std::vector<std::pair<std::string, ActivityType>> known_activities() {
  std::vector<std::pair<std::string, ActivityType>> known = {{"cpu", ActivityType::CPU},
                                                             {"cuda", ActivityType::CUDA}};
  if (at::hasHPU()) known.emplace_back("hpu", ActivityType::HPU);
  if (at::hasXPU()) known.emplace_back("xpu", ActivityType::XPU);
  if (at::hasMTIA()) known.emplace_back("mtia", ActivityType::MTIA);
  return known;
}

[[noreturn]] void throw_unknown_activity(const std::string& name) {
  std::vector<std::string> quoted;
  for (const auto& [known, type] : known_activities()) quoted.push_back("'" + known + "'");
  throw Error(
      ErrorCode::kInvalidArgument,
      "Invalid profiler activity: " + name + ". Must be one of [" + joined(quoted, ", ") + "].");
}

ProfilerConfig config_of(const ProfileKwargs& kwargs) {
  return ProfilerConfig(ProfilerState::KINETO,
                        kwargs.record_shapes || kwargs.with_flops,
                        kwargs.profile_memory,
                        kwargs.with_stack,
                        kwargs.with_flops,
                        kwargs.with_modules);
}

Error unwritable(const std::filesystem::path& path, const std::string& why) {
  return Error(ErrorCode::kFileIo, "cannot write the trace " + path.string() + ": " + why);
}

}  // namespace

ChosenActivities activities_of(const std::optional<std::vector<std::string>>& names) {
  const auto known = known_activities();
  ChosenActivities chosen;
  const auto choose = [&](ActivityType type) {
    if (type != ActivityType::CUDA || at::hasCUDA()) {
      chosen.types.insert(type);
    } else {
      chosen.is_cuda_missing = names.has_value();
    }
  };
  if (!names) {
    for (const auto& [name, type] : known) choose(type);
    return chosen;
  }
  for (const std::string& name : *names) {
    const auto at = std::find_if(
        known.begin(), known.end(), [&](const auto& each) { return each.first == name; });
    if (at == known.end()) throw_unknown_activity(name);
    choose(at->second);
  }
  if (chosen.types.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "No activities specified for the profiler",
                "name \"cpu\" among ProfileKwargs::activities, or leave them out");
  return chosen;
}

KinetoRecording::KinetoRecording(const ProfileKwargs& kwargs, Activities activities)
    : config_(config_of(kwargs)), activities_(std::move(activities)) {
  const bool is_taken = g_is_taken.exchange(true);
  const bool is_torch_running = torch::profiler::impl::profilerEnabled();
  if (!is_taken && !is_torch_running) return;
  if (!is_taken) g_is_taken = false;
  throw Error(ErrorCode::kInvalidArgument,
              is_torch_running ? "a profiler records in this process already"
                               : "another accel::Profiler lives in this process",
              "call stop() of the other one first: a process has one profiler at a time");
}

KinetoRecording::~KinetoRecording() {
  try {
    end();
  } catch (const std::exception&) {
    // Nothing was to come of it.
  }
}

void KinetoRecording::end() {
  if (!is_taken_) return;
  is_taken_ = false;
  g_is_taken = false;
  // Kineto can be made ready again only when it has run.
  if (is_prepared_ && !is_running_) kineto::enableProfiler(config_, activities_);
  if (is_prepared_) (void)kineto::disableProfiler();
  is_running_ = is_prepared_ = false;
}

void KinetoRecording::prepare() {
  // Without a GPU Kineto calls that an error, when it is made ready first. Its log reads the variable then.
  if (!at::hasCUDA()) ::setenv("KINETO_LOG_LEVEL", "99", /*replace=*/0);
  kineto::prepareProfiler(config_, activities_);
  is_prepared_ = true;
}

void KinetoRecording::start(const std::vector<std::pair<std::string, std::string>>& metadata) {
  kineto::enableProfiler(config_, activities_);
  is_running_ = true;
  for (const auto& [name, value] : metadata) kineto::addMetadataJson(name, value);
}

void KinetoRecording::stop() {
  result_ = kineto::disableProfiler();
  is_running_ = is_prepared_ = false;
  saved_to_.clear();
}

const kineto::ProfilerResult& KinetoRecording::result() const {
  if (result_ != nullptr) return *result_;
  throw Error(ErrorCode::kInvalidArgument,
              "the profiler has recorded nothing yet",
              "call stop() first, or with a schedule step() until a cycle is over");
}

void KinetoRecording::save(const std::filesystem::path& path) {
  (void)result();
  std::error_code error;
  if (!saved_to_.empty()) {
    std::filesystem::copy_file(
        saved_to_, path, std::filesystem::copy_options::overwrite_existing, error);
    if (error) throw unwritable(path, error.message());
    return;
  }
  // Kineto tells of a file that it cannot write in its log alone.
  if (!std::ofstream(path)) throw unwritable(path, "it cannot be opened");
  result_->save(path.string());
  if (std::filesystem::file_size(path, error) == 0 || error)
    throw unwritable(path, error ? error.message() : "nothing was written");
  saved_to_ = std::filesystem::absolute(path);
}

}  // namespace accel::profiling
