#include "libaccel/api/accelerator/trackers.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <accel/error.h>
#include <accel/tracking.h>

#include "libaccel/tracking/tracker_registry.h"
#include "libaccel/tracking/tracker_writer.h"
#include "runtime/printable.h"
#include "runtime/text/joined.h"

namespace accel::detail {
namespace {

// A tracker that does nothing, for ranks without any.
class BlankTracker final : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return ""; }
  [[nodiscard]] bool requires_logging_directory() const override { return false; }
  void log_images(const TrackerImages& /*values*/,
                  std::optional<std::int64_t> /*step*/,
                  const TrackerDict& /*kwargs*/) override {}
};

// Of one tracker. Throws kInvalidArgument for what is no dictionary.
const TrackerDict& kwargs_of(const TrackerDict& all, const std::string& tracker) {
  static const TrackerDict none;
  const TrackerValue* own = all.find(tracker);
  if (own == nullptr) return none;
  if (own->dictionary() != nullptr) return *own->dictionary();
  throw Error(ErrorCode::kInvalidArgument,
              "the options of the tracker " + printable(tracker) + " are no dictionary",
              "write {{\"" + printable(tracker) + "\", accel::TrackerDict{{\"option\", value}}}}");
}

std::string names_of(const LogWith& log_with) {
  return joined(log_with.choices(), ", ", [](const LogWith::Choice& choice) {
    return choice.tracker != nullptr ? choice.tracker->name() : choice.name;
  });
}

}  // namespace

Trackers::Trackers(const Preparation& prepared, std::string logging_dir)
    : prepared_(prepared), logging_dir_(std::move(logging_dir)) {
  const LogWith& log_with = prepared.options.log_with;
  if (log_with.choices().empty()) return;
  tracking::check_choices(log_with, logging_dir_);
  if (!prepared.state.is_main_process()) return;
  chosen_ = filter_trackers(log_with, logging_dir_);
  if (chosen_.empty())
    prepared.logger.warning("`log_with=" + names_of(log_with) +
                            "` was passed but no supported trackers are currently installed.");
  tracking::TrackerWriter::of_process().set_notice(
      [logger = get_logger("accel.tracking")](const std::string& text) { logger.warning(text); });
}

Trackers::~Trackers() {
  flush();
}

void Trackers::init(const std::string& project_name,
                    const TrackerDict& config,
                    const TrackerDict& init_kwargs) {
  const std::size_t num_before = trackers_.size();
  for (const LogWith::Choice& choice : chosen_) {
    trackers_.push_back(
        choice.tracker != nullptr
            ? choice.tracker
            : tracking::make_tracker(
                  choice.name, project_name, logging_dir_, kwargs_of(init_kwargs, choice.name)));
  }
  for (std::size_t i = num_before; i < trackers_.size(); ++i) trackers_[i]->start();
  if (config.empty()) return;
  for (std::size_t i = num_before; i < trackers_.size(); ++i)
    trackers_[i]->store_init_configuration(config);
}

void Trackers::log(const TrackerDict& values,
                   std::optional<std::int64_t> step,
                   const TrackerDict& log_kwargs) {
  for (const auto& tracker : trackers_)
    tracker->log(values, step, kwargs_of(log_kwargs, tracker->name()));
}

void Trackers::log_images(const TrackerImages& values,
                          std::optional<std::int64_t> step,
                          const TrackerDict& log_kwargs) {
  for (const auto& tracker : trackers_) {
    try {
      tracker->log_images(values, step, kwargs_of(log_kwargs, tracker->name()));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kUnsupported) throw;
      prepared_.logger.warning_once(error.message());
    }
  }
}

GeneralTracker& Trackers::at(std::string_view name) const {
  static BlankTracker blank;
  if (trackers_.empty()) return blank;
  const auto found = std::ranges::find_if(
      trackers_, [name](const auto& tracker) { return tracker->name() == name; });
  if (found != trackers_.end()) return **found;
  throw Error(ErrorCode::kInvalidArgument,
              printable(std::string(name)) +
                  " is not an available tracker stored inside the `Accelerator`.",
              "ask for one of: " +
                  joined(trackers_, ", ", [](const auto& tracker) { return tracker->name(); }));
}

void Trackers::flush() {
  for (const auto& tracker : trackers_) tracker->flush();
}

void Trackers::finish() {
  std::exception_ptr first;
  for (const auto& tracker : std::exchange(trackers_, {})) {
    try {
      tracker->finish();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  }
  if (first) std::rethrow_exception(first);
}

}  // namespace accel::detail
