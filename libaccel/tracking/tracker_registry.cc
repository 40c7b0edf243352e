#include "libaccel/tracking/tracker_registry.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include <accel/error.h>

#include "libaccel/tracking/bridge_process.h"
#include "libaccel/tracking/tracker_writer.h"
#include "runtime/own_environment.h"
#include "runtime/printable.h"
#include "runtime/program_path.h"
#include "runtime/text/joined.h"

namespace accel {
namespace {

struct TrackerClass {
  bool requires_logging_directory = false;
  bool needs_python = false;
  TrackerFactory factory;
};

template <typename Tracker>
TrackerFactory file_tracker() {
  return [](const std::string& run_name,
            const std::filesystem::path& logging_dir,
            const TrackerDict& kwargs) {
    return std::make_shared<Tracker>(run_name, logging_dir, kwargs);
  };
}

std::map<std::string, TrackerClass, std::less<>> built_in_classes() {
  std::map<std::string, TrackerClass, std::less<>> classes;
  classes["tensorboard"] = {true, false, file_tracker<TensorBoardTracker>()};
  classes["jsonl"] = {true, false, file_tracker<JsonlTracker>()};
  classes["csv"] = {true, false, file_tracker<CsvTracker>()};
  for (const std::string name :
       {"wandb", "trackio", "comet_ml", "aim", "mlflow", "clearml", "dvclive", "swanlab"}) {
    classes[name] = {name == "aim",
                     true,
                     [name](const std::string& run_name,
                            const std::filesystem::path& logging_dir,
                            const TrackerDict& kwargs) {
                       return std::make_shared<PythonTracker>(name, run_name, logging_dir, kwargs);
                     }};
  }
  return classes;
}

struct Registry {
  std::mutex mutex;
  std::map<std::string, TrackerClass, std::less<>> classes = built_in_classes();
};

Registry& registry() {
  static Registry& all = *new Registry;
  return all;
}

TrackerClass class_of(const std::string& name) {
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.classes.find(name); found != all.classes.end()) return found->second;
  throw Error(ErrorCode::kInvalidArgument,
              "Unsupported logging capability: " + printable(name) + ". Choose between all, " +
                  joined(all.classes, ", ", [](const auto& entry) { return entry.first; }),
              "check log_with, or register the class of your own tracker before");
}

void check_logging_directory(const std::string& name,
                             const TrackerClass& tracker,
                             const std::string& logging_dir) {
  if (!tracker.requires_logging_directory || !logging_dir.empty()) return;
  throw Error(ErrorCode::kInvalidArgument,
              "Logging with `" + name + "` requires a `logging_dir` to be passed in.",
              "set project_dir, or project_config.logging_dir");
}

bool is_available(const std::string& name, const TrackerClass& tracker) {
  return !tracker.needs_python ||
         std::ranges::find(get_available_trackers(), name) != get_available_trackers().end();
}

bool wants_all(const LogWith& log_with) {
  return std::ranges::any_of(log_with.choices(),
                             [](const LogWith::Choice& choice) { return choice.name == "all"; });
}

}  // namespace

void register_tracker_class(const std::string& name,
                            bool requires_logging_directory,
                            TrackerFactory factory) {
  if (name.empty() || name == "all" || !factory)
    throw Error(
        ErrorCode::kInvalidArgument,
        "a tracker class to register needs a name, other than all, and a function that makes it",
        "give both");
  Registry& all = registry();
  const std::lock_guard lock(all.mutex);
  const bool is_new =
      all.classes
          .insert_or_assign(name,
                            TrackerClass{requires_logging_directory, false, std::move(factory)})
          .second;
  if (!is_new)
    tracking::TrackerWriter::of_process().notify("a tracker with the name " + printable(name) +
                                                 " is registered already: the new one replaces it");
}

const std::vector<std::string>& get_available_trackers() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> found = {"tensorboard"};
    const auto python = find_python(own_environment());
    if (!python) return found;
    const auto sdks = tracking::available_sdks(*python);
    if (sdks) found.insert(found.end(), sdks->begin(), sdks->end());
    return found;
  }();
  return names;
}

std::vector<LogWith::Choice> filter_trackers(const LogWith& log_with,
                                             const std::string& logging_dir) {
  tracking::check_choices(log_with, logging_dir);
  std::vector<LogWith::Choice> chosen;
  const bool all = wants_all(log_with);
  for (const LogWith::Choice& choice : log_with.choices()) {
    const bool is_new =
        choice.tracker != nullptr ||
        std::ranges::find(chosen, choice.name, &LogWith::Choice::name) == chosen.end();
    if (!is_new || choice.name == "all") continue;
    if (choice.tracker != nullptr || is_available(choice.name, class_of(choice.name)))
      chosen.push_back(choice);
  }
  if (!all) return chosen;
  for (const std::string& name : get_available_trackers()) {
    if (std::ranges::find(chosen, name, &LogWith::Choice::name) == chosen.end())
      chosen.emplace_back(name);
  }
  return chosen;
}

namespace tracking {

void check_choices(const LogWith& log_with, const std::string& logging_dir) {
  for (const LogWith::Choice& choice : log_with.choices()) {
    if (choice.tracker != nullptr) continue;
    const std::string name = choice.name == "all" ? "tensorboard" : choice.name;
    check_logging_directory(name, class_of(name), logging_dir);
  }
}

std::shared_ptr<GeneralTracker> make_tracker(const std::string& name,
                                             const std::string& run_name,
                                             const std::filesystem::path& logging_dir,
                                             const TrackerDict& kwargs) {
  return class_of(name).factory(run_name, logging_dir, kwargs);
}

}  // namespace tracking
}  // namespace accel
