// Faults: collects everything that is wrong, so that a user mends it in one go.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <accel/error.h>

namespace accel::launcher {

// kUsage: what was typed cannot be used as it is.
[[nodiscard]] inline Error usage_error(std::string message, std::string remedy) {
  return Error(ErrorCode::kUsage, std::move(message), std::move(remedy));
}

class Faults {
 public:
  void add(Error error) { errors_.push_back(std::move(error)); }

  [[nodiscard]] bool empty() const noexcept { return errors_.empty(); }

  // The first fault, with the messages of the others as "also" lines. Requires !empty().
  [[nodiscard]] Error merged() const {
    constexpr std::size_t kShown = 4;
    Error error = errors_.front();
    for (std::size_t i = 1; i < errors_.size() && i < kShown; ++i) {
      error.with_detail("also", errors_[i].message());
    }
    if (errors_.size() > kShown) {
      error.with_detail("also", std::to_string(errors_.size() - kShown) + " more");
    }
    return error;
  }

 private:
  std::vector<Error> errors_;
};

}  // namespace accel::launcher
