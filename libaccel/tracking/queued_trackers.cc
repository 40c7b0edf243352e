// The trackers that write files, and what all trackers share that hand their entries to the writing thread.

#include <algorithm>
#include <cmath>
#include <system_error>
#include <utility>

#include <unistd.h>

#include <accel/error.h>
#include <accel/tracking.h>

#include "libaccel/tracking/event_folder.h"
#include "libaccel/tracking/line_files.h"
#include "libaccel/tracking/tracker_writer.h"
#include "runtime/printable.h"

namespace accel {
namespace {

namespace fs = std::filesystem;

// A folder that can be written to: a mistake in its name is an error now, a disk that is full later is none.
fs::path writable_folder(fs::path folder) {
  std::error_code failure;
  fs::create_directories(folder, failure);
  if (!failure && ::access(folder.c_str(), W_OK) != 0)
    failure = std::error_code(errno, std::generic_category());
  if (!failure) return folder;
  throw Error(ErrorCode::kFileIo,
              "a tracker cannot write to " + printable(folder.string()) + ": " +
                  errno_text(failure.value()),
              "give another logging_dir or project_dir");
}

void check_run_name(const std::string& run_name) {
  if (run_name.find('\0') == std::string::npos) return;
  throw Error(ErrorCode::kInvalidArgument, "the name of a run has a character 0", "rename it");
}

}  // namespace

GeneralTracker::~GeneralTracker() = default;

void GeneralTracker::store_init_configuration(const TrackerDict& /*values*/) {}

void GeneralTracker::log(const TrackerDict& /*values*/,
                         std::optional<std::int64_t> /*step*/,
                         const TrackerDict& /*kwargs*/) {}

void GeneralTracker::log_images(const TrackerImages& /*values*/,
                                std::optional<std::int64_t> /*step*/,
                                const TrackerDict& /*kwargs*/) {
  throw Error(ErrorCode::kUnsupported,
              "the tracker " + name() + " logs no images",
              "log them with tensorboard, wandb, aim, clearml or swanlab");
}

QueuedTracker::QueuedTracker() = default;
QueuedTracker::~QueuedTracker() = default;

void QueuedTracker::open(std::shared_ptr<tracking::TrackSink> sink) {
  if (sink_ != nullptr)
    throw Error(ErrorCode::kInvalidArgument,
                "the tracker " + name() + " was started before",
                "call start(), or init_trackers(), once");
  sink_ = std::move(sink);
}

const std::shared_ptr<tracking::TrackSink>& QueuedTracker::sink() const {
  if (sink_ != nullptr) return sink_;
  throw Error(ErrorCode::kNotInitialized,
              "the tracker " + name() + " was not started",
              "call Accelerator::init_trackers(), or start()");
}

void QueuedTracker::store_init_configuration(const TrackerDict& values) {
  tracking::TrackerWriter::of_process().hand_over(
      sink(), {.kind = tracking::EntryKind::kConfig, .values = values});
}

void QueuedTracker::log(const TrackerDict& values,
                        std::optional<std::int64_t> step,
                        const TrackerDict& kwargs) {
  tracking::TrackerWriter::of_process().hand_over(
      sink(),
      {.kind = tracking::EntryKind::kLog, .values = values, .step = step, .kwargs = kwargs});
}

void QueuedTracker::log_images(const TrackerImages& values,
                               std::optional<std::int64_t> step,
                               const TrackerDict& kwargs) {
  tracking::TrackerWriter::of_process().hand_over(
      sink(),
      {.kind = tracking::EntryKind::kImages, .images = values, .step = step, .kwargs = kwargs});
}

void QueuedTracker::flush() {
  tracking::TrackerWriter::of_process().flush(std::chrono::steady_clock::now() +
                                              tracking::kFlushLimit);
}

void QueuedTracker::finish() {
  if (sink_ == nullptr) return;
  tracking::TrackerWriter& writer = tracking::TrackerWriter::of_process();
  writer.hand_over(sink_, {.kind = tracking::EntryKind::kFinish});
  if (!writer.settle(*sink_, std::chrono::steady_clock::now() + tracking::kFlushLimit))
    writer.notify("the tracker " + name() +
                  " ends with entries that could not be written: they are lost");
}

// ---- tensorboard

TensorBoardTracker::TensorBoardTracker(std::string run_name,
                                       fs::path logging_dir,
                                       TrackerDict kwargs)
    : folder_(std::move(logging_dir) / run_name) {
  check_run_name(run_name);
  for (const auto& [name, value] : kwargs) {
    if (name == "filename_suffix" && value.text() != nullptr) {
      suffix_ = *value.text();
    } else if (name != "max_queue" && name != "flush_secs") {
      throw Error(ErrorCode::kInvalidArgument,
                  "the tracker tensorboard has no option " + printable(name),
                  "give filename_suffix, max_queue or flush_secs");
    }
  }
}

void TensorBoardTracker::start() {
  open(std::make_shared<tracking::EventFolder>(writable_folder(folder_), suffix_));
}

void TensorBoardTracker::log_histogram(const std::string& tag,
                                       std::vector<double> values,
                                       std::optional<std::int64_t> step) {
  std::erase_if(values, [](double value) { return !std::isfinite(value); });
  if (values.empty())
    throw Error(ErrorCode::kInvalidArgument,
                "the histogram " + printable(tag) + " has no finite value",
                "log a histogram of at least one number");
  tracking::TrackerWriter::of_process().hand_over(sink(),
                                                  {.kind = tracking::EntryKind::kHistogram,
                                                   .tag = tag,
                                                   .samples = std::move(values),
                                                   .step = step});
}

// ---- jsonl, csv

namespace {

fs::path line_file(const fs::path& logging_dir,
                   const std::string& run_name,
                   const char* file,
                   const TrackerDict& kwargs) {
  check_run_name(run_name);
  if (!kwargs.empty())
    throw Error(ErrorCode::kInvalidArgument,
                std::string("the tracker of ") + file + " has no option " +
                    printable(kwargs.begin()->first),
                "leave its init_kwargs away");
  return logging_dir / run_name / file;
}

}  // namespace

JsonlTracker::JsonlTracker(std::string run_name, fs::path logging_dir, TrackerDict kwargs)
    : path_(line_file(logging_dir, run_name, "log.jsonl", kwargs)) {}

void JsonlTracker::start() {
  writable_folder(path_.parent_path());
  open(std::make_shared<tracking::JsonLines>(path_));
}

CsvTracker::CsvTracker(std::string run_name, fs::path logging_dir, TrackerDict kwargs)
    : path_(line_file(logging_dir, run_name, "log.csv", kwargs)) {}

void CsvTracker::start() {
  writable_folder(path_.parent_path());
  open(std::make_shared<tracking::CsvRows>(path_));
}

}  // namespace accel
