// Tracking: where the numbers of a run are written, with the names of Accelerate's accelerate.tracking.
//
//   accel::Accelerator accelerator({.log_with = "tensorboard", .project_dir = "runs"});
//   accelerator.init_trackers("my_project", {{"lr", 1e-3}});
//   for (...) accelerator.log({{"loss", loss.item<float>()}}, step);
//   accelerator.end_training();
//
//   tensorboard               event files, written here           <logging_dir>/<project>/
//   jsonl, csv                lines, written here                 <logging_dir>/<project>/log.jsonl, log.csv
//   wandb, trackio, comet_ml, aim, mlflow, clearml, dvclive, swanlab
//                             their own Python SDK, in one process beside the main one
//
// A call hands its entry to a queue; one thread of the process writes it. An entry of the second group is appended to a
// journal in <logging_dir>/tracker_journals first. The SDK's process reads the journal, and notes how far it has come. What an
// SDK could not take is replayed by the next run with the same tracker and folder: at least once, and more than once only
// for the entry that was under way when the SDK's process died.
//
// Threads:  log(), log_images() and the like from any thread; start() and finish() from one.
// Cost:     of log(): a copy of the values, a lock and a wake: some tens of microseconds, whatever the tracker. Memory: 64 MiB of entries that
//           are not written yet; beyond that new ones are dropped, counted and reported.
// Loss:     a process that is killed loses what the thread has not handed to the kernel: what was logged within about a
//           millisecond before, unless the disk is full. A disk that is full is reported once, and tried again every half second.
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

// The base class of all trackers, and of your own. The Accelerator calls it on the main process alone.
class ACCEL_EXPORT GeneralTracker {
 public:
  virtual ~GeneralTracker();

  // Its name for log_with and get_tracker().
  [[nodiscard]] virtual std::string name() const = 0;
  // Whether it needs ProjectConfiguration::logging_dir or project_dir.
  [[nodiscard]] virtual bool requires_logging_directory() const = 0;
  // false: its functions are meant for every process, when a program calls them itself.
  [[nodiscard]] virtual bool main_process_only() const { return true; }

  // Called by init_trackers(): opens what the tracker writes to.
  virtual void start() {}
  // The configuration of the run.
  virtual void store_init_configuration(const TrackerDict& values);
  virtual void log(const TrackerDict& values,
                   std::optional<std::int64_t> step = std::nullopt,
                   const TrackerDict& kwargs = {});
  // Throws kUnsupported where a tracker has no pictures.
  virtual void log_images(const TrackerImages& values,
                          std::optional<std::int64_t> step = std::nullopt,
                          const TrackerDict& kwargs = {});
  // Waits until all that was logged before is with the kernel, 10 s at most.
  virtual void flush() {}
  // The last call. Waits for what is under way.
  virtual void finish() {}
};

// A tracker whose entries the writing thread takes.
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
  // From start(). Throws kInvalidArgument when it was started before.
  void open(std::shared_ptr<tracking::TrackSink> sink);
  [[nodiscard]] const std::shared_ptr<tracking::TrackSink>& sink() const;  // throws kNotInitialized

 private:
  std::shared_ptr<tracking::TrackSink> sink_;
};

// Event files that TensorBoard reads. A number is a scalar, a text a text, a dictionary one scalar for each of its names, in a
// run of its own; the configuration becomes hparams and <time>/hparams.yml. Other values are left out, as in Accelerate.
class ACCEL_EXPORT TensorBoardTracker final : public QueuedTracker {
 public:
  // kwargs: filename_suffix; max_queue and flush_secs are accepted and change nothing: nothing waits here.
  TensorBoardTracker(std::string run_name,
                     std::filesystem::path logging_dir,
                     TrackerDict kwargs = {});

  [[nodiscard]] std::string name() const override { return "tensorboard"; }
  [[nodiscard]] bool requires_logging_directory() const override { return true; }
  // Throws kFileIo.
  void start() override;
  // The distribution of numbers; bins and limits as SummaryWriter.add_histogram. NaN and infinite ones are left out.
  // Throws kInvalidArgument when none is left.
  void log_histogram(const std::string& tag,
                     std::vector<double> values,
                     std::optional<std::int64_t> step = std::nullopt);

 private:
  std::filesystem::path folder_;
  std::string suffix_;
};

// A line of JSON for each call: {"step":3,"time":1767225600.5,"loss":0.5}. The configuration is {"config":{...},"time":...}.
// Numbers that are not finite are null. An existing file is appended to.
class ACCEL_EXPORT JsonlTracker final : public QueuedTracker {
 public:
  JsonlTracker(std::string run_name, std::filesystem::path logging_dir, TrackerDict kwargs = {});

  [[nodiscard]] std::string name() const override { return "jsonl"; }
  [[nodiscard]] bool requires_logging_directory() const override { return true; }
  void start() override;  // throws kFileIo

 private:
  std::filesystem::path path_;
};

// A row for each call: step, time and a column for each name, a name of a dictionary as outer/inner. A new name is a new column at
// the end; the file is then written anew. The configuration goes to config.json beside it. RFC 4180.
class ACCEL_EXPORT CsvTracker final : public QueuedTracker {
 public:
  CsvTracker(std::string run_name, std::filesystem::path logging_dir, TrackerDict kwargs = {});

  [[nodiscard]] std::string name() const override { return "csv"; }
  [[nodiscard]] bool requires_logging_directory() const override { return true; }
  void start() override;  // throws kFileIo

 private:
  std::filesystem::path path_;
};

// A tracker whose Python SDK runs in a process beside this one: PYTHON_EXEC, else the Python of VIRTUAL_ENV or CONDA_PREFIX,
// else python3 on PATH. That process ends with this one.
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
  // Throws kFileIo; kScriptMissing when there is no Python.
  void start() override;
  // Throws kUnsupported for those without pictures: trackio, comet_ml, mlflow, dvclive.
  void log_images(const TrackerImages& values,
                  std::optional<std::int64_t> step,
                  const TrackerDict& kwargs) override;
  // Of wandb and clearml; others throw kUnsupported. data: rows, each a TrackerList.
  void log_table(const std::string& table_name,
                 const std::vector<std::string>& columns,
                 const TrackerList& data,
                 std::optional<std::int64_t> step = std::nullopt);
  // Of mlflow; others throw kUnsupported. The files must stay until finish().
  void log_artifact(const std::filesystem::path& local_path, const std::string& artifact_path = {});
  void log_artifacts(const std::filesystem::path& local_dir, const std::string& artifact_path = {});
  // Waits for the SDK, 300 s at most; then, or when it failed, its entries are kept for the next run, with a notice.
  void finish() override;

 private:
  std::string name_;
  std::string run_name_;
  std::filesystem::path logging_dir_;
  TrackerDict kwargs_;
};

// Makes a tracker of a name that Accelerator options give.
using TrackerFactory =
    std::function<std::shared_ptr<GeneralTracker>(const std::string& run_name,
                                                  const std::filesystem::path& logging_dir,
                                                  const TrackerDict& kwargs)>;

// Lets log_with name a tracker of your own. A name that is there already is replaced, with a warning. Before the Accelerator that
// uses it. Throws kInvalidArgument for an empty name or factory.
ACCEL_EXPORT void register_tracker_class(const std::string& name,
                                         bool requires_logging_directory,
                                         TrackerFactory factory);

// The names of LoggerType whose trackers can be used here: "tensorboard", and those whose SDK Python finds. Starts Python
// once, which takes about 0.1 s.
ACCEL_EXPORT const std::vector<std::string>& get_available_trackers();

// The choices that can be used, each once; "all" is get_available_trackers() with the objects among the choices. What is not
// installed is left out. Throws kInvalidArgument for an unknown name, and for a tracker that wants a logging directory without one.
ACCEL_EXPORT std::vector<LogWith::Choice> filter_trackers(const LogWith& log_with,
                                                          const std::string& logging_dir);

}  // namespace accel
