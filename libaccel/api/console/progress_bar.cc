// The progress bar on stderr.

#include <cerrno>

#include <sys/ioctl.h>
#include <unistd.h>

#include <accel/progress.h>
#include <accel/state.h>

#include "libaccel/api/console/progress_display.h"

namespace accel {
namespace {

int stderr_width() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

// A display is never worth failing for: what cannot be written is dropped.
void write_stderr(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

bool is_wanted(const ProgressOptions& options) {
  if (options.disable) return false;
  return !options.main_process_only || PartialState().is_local_main_process();
}

}  // namespace

ProgressBar::ProgressBar(ProgressOptions options) {
  static const SteadyClock clock;
  if (!is_wanted(options)) return;
  display_ = std::make_unique<ProgressDisplay>(
      std::move(options),
      clock,
      ProgressTerminal{write_stderr, stderr_width, isatty(STDERR_FILENO) == 1});
}

ProgressBar::~ProgressBar() {
  close();
}
ProgressBar::ProgressBar(ProgressBar&&) noexcept = default;
ProgressBar& ProgressBar::operator=(ProgressBar&&) noexcept = default;

void ProgressBar::update(std::int64_t steps) {
  if (display_) display_->update(steps);
}
void ProgressBar::set_postfix(std::string text) {
  if (display_) display_->set_postfix(std::move(text));
}
void ProgressBar::set_description(std::string text) {
  if (display_) display_->set_description(std::move(text));
}
void ProgressBar::close() {
  if (display_) display_->close();
}

}  // namespace accel
