// Progress: a bar for loops, shown by one process of each machine.
//
//   for (auto& batch : accel::progress(loader, {.desc = "epoch 3"})) { ... }
//
//   epoch 3:  45%|####5     | 45/100 [00:01<00:02, 30.00it/s, loss=0.12]
//
// On a terminal the line is repainted in place, as wide as the terminal. Elsewhere (a file, a pipe)
// a plain line is written every plain_interval and at the end. Both go to stderr. The loop reads the
// clock once for each element.
//
// Threads:  one thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <accel/export.h>

namespace accel {

class ProgressDisplay;

struct ProgressOptions {
  std::string desc = {};  // in front of the bar
  std::optional<std::int64_t> total =
      {};  // default: size() of the range; without it no bar, only counts
  std::string unit = "it";
  bool main_process_only = true;  // false: every process shows its own
  bool disable = false;
  bool leave = true;                            // false: wipe the bar off the terminal at the end
  std::chrono::milliseconds min_interval{100};  // between paints on a terminal
  std::chrono::milliseconds plain_interval{10'000};  // between lines elsewhere
};

// A bar to be moved by hand. Destruction closes it.
class ACCEL_EXPORT ProgressBar {
 public:
  explicit ProgressBar(ProgressOptions options = {});
  ~ProgressBar();
  ProgressBar(ProgressBar&&) noexcept;
  ProgressBar& operator=(ProgressBar&&) noexcept;

  // Adds done steps.
  void update(std::int64_t steps = 1);
  // Shown after the rate, such as "loss=0.12", from the next paint on.
  void set_postfix(std::string text);
  // The text before the bar.
  void set_description(std::string text);
  // Paints the last state and ends the line; later calls do nothing.
  void close();

  // Whether this process shows anything.
  [[nodiscard]] bool is_shown() const noexcept { return display_ != nullptr; }

 private:
  std::unique_ptr<ProgressDisplay> display_;  // null when nothing is shown
};

// A range that moves a bar while it is iterated; see progress().
template <typename Range>
class ProgressRange {
 public:
  ProgressRange(Range&& range, ProgressOptions options)
      : range_(std::forward<Range>(range)), bar_(with_total(range_, std::move(options))) {}

  // Its increment moves the bar.
  class Iterator {
   public:
    using Inner = decltype(std::begin(std::declval<std::remove_reference_t<Range>&>()));
    Iterator(Inner inner, ProgressBar* bar) : inner_(std::move(inner)), bar_(bar) {}

    decltype(auto) operator*() const { return *inner_; }
    Iterator& operator++() {
      ++inner_;
      bar_->update();
      return *this;
    }
    // Compares with the end of the range, and closes the bar there.
    template <typename Sentinel>
    friend bool operator!=(const Iterator& self, const Sentinel& end) {
      const bool more = self.inner_ != end;
      if (!more) self.bar_->close();
      return more;
    }

   private:
    mutable Inner inner_;
    ProgressBar* bar_;
  };

  // For range-based loops.
  Iterator begin() { return Iterator(std::begin(range_), &bar_); }
  auto end() { return std::end(range_); }

  // As the functions of ProgressBar.
  void set_postfix(std::string text) { bar_.set_postfix(std::move(text)); }
  void set_description(std::string text) { bar_.set_description(std::move(text)); }

 private:
  template <typename R>
  static ProgressOptions with_total(const R& range, ProgressOptions options) {
    if constexpr (requires { range.size().has_value(); }) {
      if (!options.total) options.total = range.size();  // of a loader, which may not know
    } else if constexpr (requires { static_cast<std::int64_t>(range.size()); }) {
      if (!options.total) options.total = static_cast<std::int64_t>(range.size());
    }
    return options;
  }

  Range range_;  // a reference when the range was an lvalue
  ProgressBar bar_;
};

// Iterates `range` and shows the progress. An element counts when the body of the loop has ended for it.
template <typename Range>
ProgressRange<Range> progress(Range&& range, ProgressOptions options = {}) {
  return ProgressRange<Range>(std::forward<Range>(range), std::move(options));
}

}  // namespace accel
