// Trackers whose SDK runs in the process of tracker_bridge.py.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <mutex>
#include <string_view>
#include <system_error>
#include <utility>

#include <unistd.h>

#include <accel/error.h>
#include <accel/tracking.h>

#include "libaccel/tracking/journal_sink.h"
#include "libaccel/tracking/tracker_writer.h"
#include "runtime/own_environment.h"
#include "runtime/printable.h"
#include "runtime/program_path.h"

namespace accel {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kFinishLimit{300};  // uploads of SDKs take time

struct Sdk {
  std::string_view name;
  bool main_process_only;
  bool logs_images;
  bool logs_tables;
  bool logs_artifacts;
};

constexpr std::array kSdks = {Sdk{"wandb", false, true, true, false},
                              Sdk{"trackio", false, false, false, false},
                              Sdk{"comet_ml", true, false, false, false},
                              Sdk{"aim", true, true, false, false},
                              Sdk{"mlflow", true, false, false, true},
                              Sdk{"clearml", true, true, true, false},
                              Sdk{"dvclive", true, false, false, false},
                              Sdk{"swanlab", false, true, false, false}};

const Sdk& sdk_of(std::string_view name) {
  const auto* found = std::ranges::find(kSdks, name, &Sdk::name);
  if (found != kSdks.end()) return *found;
  throw Error(ErrorCode::kInvalidArgument,
              "no Python tracker is named " + printable(std::string(name)),
              "name wandb, trackio, comet_ml, aim, mlflow, clearml, dvclive or swanlab");
}

[[noreturn]] void refuse_call(const std::string& tracker, const char* call) {
  throw Error(ErrorCode::kUnsupported,
              "the tracker " + tracker + " has no " + call + "()",
              "tables: wandb, clearml; artifacts: mlflow");
}

// One process for all trackers of this one, as long as a tracker uses it.
std::shared_ptr<tracking::BridgeProcess> shared_bridge() {
  static std::mutex& mutex = *new std::mutex;
  static std::weak_ptr<tracking::BridgeProcess>& current =
      *new std::weak_ptr<tracking::BridgeProcess>;
  const std::lock_guard lock(mutex);
  if (auto bridge = current.lock()) return bridge;
  auto bridge = std::make_shared<tracking::BridgeProcess>(or_throw(find_python(own_environment())));
  current = bridge;
  return bridge;
}

// Of no other run: the time in nanoseconds, and the process.
fs::path journal_path(const fs::path& logging_dir, const std::string& tracker) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return fs::absolute(logging_dir.empty() ? "." : logging_dir) / "tracker_journals" /
         (tracker + "-" +
          std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()) + "-" +
          std::to_string(::getpid()) + ".jsonl");
}

void make_folder(const fs::path& folder) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (!failure) return;
  throw Error(ErrorCode::kFileIo,
              "a tracker cannot keep its journal in " + printable(folder.string()) + ": " +
                  errno_text(failure.value()),
              "give another logging_dir or project_dir");
}

}  // namespace

PythonTracker::PythonTracker(std::string name,
                             std::string run_name,
                             fs::path logging_dir,
                             TrackerDict kwargs)
    : name_(std::move(name)),
      run_name_(std::move(run_name)),
      logging_dir_(std::move(logging_dir)),
      kwargs_(std::move(kwargs)) {
  (void)sdk_of(name_);
}

bool PythonTracker::main_process_only() const {
  return sdk_of(name_).main_process_only;
}

void PythonTracker::start() {
  const fs::path path = journal_path(logging_dir_, name_);
  make_folder(path.parent_path());
  auto sink = std::make_shared<tracking::JournalSink>(
      path,
      tracking::JournalStart{.tracker = name_,
                             .project = run_name_,
                             .logging_dir = logging_dir_.string(),
                             .kwargs = kwargs_},
      shared_bridge());
  open(sink);
  // The SDK starts now, and not with the first number.
  tracking::TrackerWriter::of_process().hand_over(sink, {.kind = tracking::EntryKind::kStart});
}

void PythonTracker::log_images(const TrackerImages& values,
                               std::optional<std::int64_t> step,
                               const TrackerDict& kwargs) {
  if (!sdk_of(name_).logs_images) return GeneralTracker::log_images(values, step, kwargs);
  QueuedTracker::log_images(values, step, kwargs);
}

void PythonTracker::log_table(const std::string& table_name,
                              const std::vector<std::string>& columns,
                              const TrackerList& data,
                              std::optional<std::int64_t> step) {
  if (!sdk_of(name_).logs_tables) refuse_call(name_, "log_table");
  TrackerDict arguments{{"table_name", table_name},
                        {"columns", TrackerList(columns.begin(), columns.end())},
                        {"data", data}};
  if (step) arguments.emplace_back("step", *step);
  tracking::TrackerWriter::of_process().hand_over(
      sink(),
      {.kind = tracking::EntryKind::kCall, .tag = "log_table", .kwargs = std::move(arguments)});
}

void PythonTracker::log_artifact(const fs::path& local_path, const std::string& artifact_path) {
  if (!sdk_of(name_).logs_artifacts) refuse_call(name_, "log_artifact");
  TrackerDict arguments{{"local_path", fs::absolute(local_path).string()}};
  if (!artifact_path.empty()) arguments.emplace_back("artifact_path", artifact_path);
  tracking::TrackerWriter::of_process().hand_over(
      sink(),
      {.kind = tracking::EntryKind::kCall, .tag = "log_artifact", .kwargs = std::move(arguments)});
}

void PythonTracker::log_artifacts(const fs::path& local_dir, const std::string& artifact_path) {
  if (!sdk_of(name_).logs_artifacts) refuse_call(name_, "log_artifacts");
  TrackerDict arguments{{"local_dir", fs::absolute(local_dir).string()}};
  if (!artifact_path.empty()) arguments.emplace_back("artifact_path", artifact_path);
  tracking::TrackerWriter::of_process().hand_over(
      sink(),
      {.kind = tracking::EntryKind::kCall, .tag = "log_artifacts", .kwargs = std::move(arguments)});
}

void PythonTracker::finish() {
  const auto journal = std::dynamic_pointer_cast<tracking::JournalSink>(sink());
  tracking::TrackerWriter& writer = tracking::TrackerWriter::of_process();
  writer.hand_over(journal, {.kind = tracking::EntryKind::kFinish});
  if (writer.settle(*journal, std::chrono::steady_clock::now() + kFinishLimit)) return;
  writer.notify("the tracker " + name_ + " did not finish within " +
                std::to_string(kFinishLimit.count()) + " s: its entries are kept in " +
                journal->path().string() + " for the next run");
}

}  // namespace accel
