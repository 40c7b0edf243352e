// Trackers: the experiment trackers of an Accelerator, which live on the main process alone.
//
// Threads:  the thread that trains.
// Source:   Accelerator.init_trackers(), log(), get_tracker() and end_training() of accelerate 1.15.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/log_with.h>
#include <accel/tracker_value.h>

#include "libaccel/api/accelerator/preparation.h"

namespace accel::detail {

class Trackers {
 public:
  // Warns when none of those asked for can be used. Throws kInvalidArgument as filter_trackers(), on all ranks.
  Trackers(const Preparation& prepared, std::string logging_dir);
  ~Trackers();  // flushes
  Trackers(const Trackers&) = delete;
  Trackers& operator=(const Trackers&) = delete;

  void init(const std::string& project_name,
            const TrackerDict& config,
            const TrackerDict& init_kwargs);
  void log(const TrackerDict& values,
           std::optional<std::int64_t> step,
           const TrackerDict& log_kwargs);
  void log_images(const TrackerImages& values,
                  std::optional<std::int64_t> step,
                  const TrackerDict& log_kwargs);
  [[nodiscard]] GeneralTracker& at(std::string_view name) const;
  void flush();
  // Of each, also when one throws: then what the first one threw is thrown.
  void finish();

 private:
  const Preparation& prepared_;
  std::string logging_dir_;
  std::vector<LogWith::Choice> chosen_;                    // empty on other ranks
  std::vector<std::shared_ptr<GeneralTracker>> trackers_;  // started, in their order
};

}  // namespace accel::detail
