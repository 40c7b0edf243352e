// LogWith: which trackers an Accelerator logs to: names, LoggerType, objects, or several of them.
//
//   {.log_with = "tensorboard"}   {.log_with = {"all", my_tracker}}   {.log_with = accel::LoggerType::kWandb}
#pragma once

#include <concepts>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <accel/types.h>

namespace accel {

class GeneralTracker;

class LogWith {
 public:
  // A tracker, or its name if there is no tracker object.
  struct Choice {
    std::string name;
    std::shared_ptr<GeneralTracker> tracker;

    Choice(const char* text) : name(text) {}             // NOLINT: implicit
    Choice(std::string text) : name(std::move(text)) {}  // NOLINT
    Choice(LoggerType type) : name(to_string(type)) {}   // NOLINT
    template <typename Tracker>
    requires std::convertible_to<Tracker*, GeneralTracker*> Choice(
        std::shared_ptr<Tracker> object)  // NOLINT
        : tracker(std::move(object)) {}
  };

  LogWith() = default;  // no tracker
  template <std::convertible_to<Choice> T>
  LogWith(T choice) : choices_{Choice(std::move(choice))} {}              // NOLINT
  LogWith(std::initializer_list<Choice> choices) : choices_(choices) {}   // NOLINT
  LogWith(std::vector<Choice> choices) : choices_(std::move(choices)) {}  // NOLINT

  [[nodiscard]] const std::vector<Choice>& choices() const noexcept { return choices_; }

 private:
  std::vector<Choice> choices_;
};

}  // namespace accel
