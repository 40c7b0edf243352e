// Tracking: writes the numbers of a run to experiment trackers, with the names of accelerate.tracking.
//
//   accel::Accelerator accelerator({.log_with = "tensorboard", .project_dir = "runs"});
//   accelerator.init_trackers("my_project", {{"lr", 1e-3}});
//   for (...) accelerator.log({{"loss", loss.item<float>()}}, step);
//   accelerator.end_training();
//
//   tensorboard               event files, written here           <logging_dir>/<project>/
//   jsonl, csv                lines, written here                 <logging_dir>/<project>/log.jsonl, log.csv
//   wandb, trackio, comet_ml, aim, mlflow, clearml, dvclive, swanlab
//                             their own Python SDK, in a separate Python process
//
// A call puts its entry into a queue, and one thread of the process writes it. Entries for a Python SDK first go to a journal in
// <logging_dir>/tracker_journals. The Python process reads the journal, calls the SDK and records its position. If an SDK fails, the
// next run with the same tracker and folder replays the rest. So each entry arrives at least once. It arrives twice only if the Python
// process died during that entry.
//
// Threads:  log(), log_images() and the like from any thread; start() and finish() from one.
// Cost:     log() copies the values, takes a lock and wakes the thread: some tens of microseconds for any tracker. Memory: at most
//           64 MiB of unwritten entries; further entries are dropped, counted and reported.
// Loss:     a killed process loses the entries that the thread has not passed to the kernel: about the last millisecond, unless the
//           disk is full. A full disk is reported once, and tried again every half second.
// Source:   accelerate 1.15, tracking.py; docs/guides/tracking.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/export.h>
#include <accel/log_with.h>
#include <accel/tracker_value.h>

namespace accel {
namespace tracking {
class TrackSink;
}

// The base class of all trackers, also of your own. The Accelerator calls it only on the main process.
class ACCEL_EXPORT GeneralTracker {
 public:
  virtual ~GeneralTracker();

  // Its name for log_with and get_tracker().
  [[nodiscard]] virtual std::string name() const = 0;
  // Whether it needs ProjectConfiguration::logging_dir or project_dir.
  [[nodiscard]] virtual bool requires_logging_directory() const = 0;
  // false: a program may call its functions on every process.
  [[nodiscard]] virtual bool main_process_only() const { return true; }

  // Called by init_trackers(). Opens the output of the tracker.
  virtual void start() {}
  // The configuration of the run.
  virtual void store_init_configuration(const TrackerDict& values);
  virtual void log(const TrackerDict& values,
                   std::optional<std::int64_t> step = std::nullopt,
                   const TrackerDict& kwargs = {});
  // Throws kUnsupported if the tracker does not support pictures.
  virtual void log_images(const TrackerImages& values,
                          std::optional<std::int64_t> step = std::nullopt,
                          const TrackerDict& kwargs = {});
  // Waits until the kernel has all earlier entries, at most 10 s.
  virtual void flush() {}
  // The last call. Waits for unwritten entries.
  virtual void finish() {}
};

// A tracker whose entries are written by the writing thread.
class ACCEL_EXPORT QueuedTracker : public GeneralTracker {
 public:
  QueuedTracker();
  ~QueuedTracker() override;
  QueuedTracker(const QueuedTracker&) = delete;
  QueuedTracker& operator=(const QueuedTracker&) = delete;

  void store_init_configuration(const TrackerDict& values) override;
  void log(const TrackerDict& values,
           std::optional<std::int64_t> step,
           const TrackerDict& kwargs) override;
  void log_images(const TrackerImages& values,
                  std::optional<std::int64_t> step,
                  const TrackerDict& kwargs) override;
  void flush() override;
  void finish() override;

 protected:
  // Call it from start(). Throws kInvalidArgument if the tracker was started before.
  void open(std::shared_ptr<tracking::TrackSink> sink);
  [[nodiscard]] const std::shared_ptr<tracking::TrackSink>& sink() const;  // throws kNotInitialized

 private:
  std::shared_ptr<tracking::TrackSink> sink_;
};

// Writes event files for TensorBoard. A number becomes a scalar, a text a text, a dictionary one scalar for each name, each in a
// separate run. The configuration becomes hparams and <time>/hparams.yml. Other values are skipped, as in Accelerate.
class ACCEL_EXPORT TensorBoardTracker final : public QueuedTracker {
 public:
  // kwargs: filename_suffix. max_queue and flush_secs are accepted and have no effect.
  TensorBoardTracker(std::string run_name,
                     std::filesystem::path logging_dir,
                     TrackerDict kwargs = {});

  [[nodiscard]] std::string name() const override { return "tensorboard"; }
  [[nodiscard]] bool requires_logging_directory() const override { return true; }
  // Throws kFileIo.
  void start() override;
  // Logs the distribution of numbers, with the bins and limits of SummaryWriter.add_histogram. NaN and infinite numbers are skipped.
  // Throws kInvalidArgument if none is left.
  void log_histogram(const std::string& tag,
                     std::vector<double> values,
                     std::optional<std::int64_t> step = std::nullopt);

 private:
  std::filesystem::path folder_;
  std::string suffix_;
};

// Writes a line of JSON for each call: {"step":3,"time":1767225600.5,"loss":0.5}. The configuration is {"config":{...},"time":...}.
// Numbers that are not finite become null. It appends to an existing file.
class ACCEL_EXPORT JsonlTracker final : public QueuedTracker {
 public:
  JsonlTracker(std::string run_name, std::filesystem::path logging_dir, TrackerDict kwargs = {});

  [[nodiscard]] std::string name() const override { return "jsonl"; }
  [[nodiscard]] bool requires_logging_directory() const override { return true; }
  void start() override;  // throws kFileIo

 private:
  std::filesystem::path path_;
};

// Writes a row for each call: step, time and a column for each name; names in a dictionary become outer/inner. A new name adds a column
// at the end, and the file is rewritten. The configuration goes to config.json in the same folder. RFC 4180.
class ACCEL_EXPORT CsvTracker final : public QueuedTracker {
 public:
  CsvTracker(std::string run_name, std::filesystem::path logging_dir, TrackerDict kwargs = {});

  [[nodiscard]] std::string name() const override { return "csv"; }
  [[nodiscard]] bool requires_logging_directory() const override { return true; }
  void start() override;  // throws kFileIo

 private:
  std::filesystem::path path_;
};

// A tracker whose SDK runs in a separate Python process: PYTHON_EXEC, else the Python of VIRTUAL_ENV or CONDA_PREFIX, else python3 on
// PATH. That process ends with this one.
class ACCEL_EXPORT PythonTracker : public QueuedTracker {
 public:
  // name: of the SDK, one of LoggerType. kwargs: of the SDK's init function. logging_dir: of the journals; empty: ".".
  // Throws kInvalidArgument for an unknown name.
  PythonTracker(std::string name,
                std::string run_name,
                std::filesystem::path logging_dir,
                TrackerDict kwargs = {});

  [[nodiscard]] std::string name() const override { return name_; }
  [[nodiscard]] bool requires_logging_directory() const override { return name_ == "aim"; }
  [[nodiscard]] bool main_process_only() const override;
  // Throws kFileIo; kScriptMissing without a Python.
  void start() override;
  // Throws kUnsupported for trackers without pictures: trackio, comet_ml, mlflow, dvclive.
  void log_images(const TrackerImages& values,
                  std::optional<std::int64_t> step,
                  const TrackerDict& kwargs) override;
  // Only for wandb and clearml; others throw kUnsupported. data: rows, each a TrackerList.
  void log_table(const std::string& table_name,
                 const std::vector<std::string>& columns,
                 const TrackerList& data,
                 std::optional<std::int64_t> step = std::nullopt);
  // Only for mlflow; others throw kUnsupported. The files must stay until finish().
  void log_artifact(const std::filesystem::path& local_path, const std::string& artifact_path = {});
  void log_artifacts(const std::filesystem::path& local_dir, const std::string& artifact_path = {});
  // Waits for the SDK, at most 300 s. After that, or after a failure of the SDK, the entries are kept for the next run, with a notice.
  void finish() override;

 private:
  std::string name_;
  std::string run_name_;
  std::filesystem::path logging_dir_;
  TrackerDict kwargs_;
};

// Makes a tracker for a name in AcceleratorOptions::log_with.
using TrackerFactory =
    std::function<std::shared_ptr<GeneralTracker>(const std::string& run_name,
                                                  const std::filesystem::path& logging_dir,
                                                  const TrackerDict& kwargs)>;

// Makes your own tracker available to log_with under a name. An existing name is replaced, with a warning. Call it before you make the
// Accelerator. Throws kInvalidArgument for an empty name or factory.
ACCEL_EXPORT void register_tracker_class(const std::string& name,
                                         bool requires_logging_directory,
                                         TrackerFactory factory);

// The usable names of LoggerType: "tensorboard", and those whose SDK Python finds. Starts Python once, which takes about 0.1 s.
ACCEL_EXPORT const std::vector<std::string>& get_available_trackers();

// The usable choices, each once; "all" means get_available_trackers() and the objects among the choices. Trackers without an installed
// SDK are skipped. Throws kInvalidArgument for an unknown name, and for a tracker that requires a logging directory if there is none.
ACCEL_EXPORT std::vector<LogWith::Choice> filter_trackers(const LogWith& log_with,
                                                          const std::string& logging_dir);

}  // namespace accel
