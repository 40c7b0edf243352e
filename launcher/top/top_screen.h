// TopScreen: a TopModel as lines of text.
//
// Threads:  pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/top/top_model.h"

namespace accel::launcher {

struct TopWindow {
  std::size_t columns = 80;
  std::size_t rows = 24;    // 0: as many as there are, without keys (--once)
  bool has_styles = false;  // bold and reverse, by escapes
};

// At most window.rows lines of at most window.columns columns. Names are shown printable(): no escape of theirs gets through.
[[nodiscard]] std::vector<std::string> top_lines(const TopModel& model, const TopWindow& window);

// How many rows of jobs or ranks are seen at once in such a window.
[[nodiscard]] std::size_t top_page_rows(const TopWindow& window);

}  // namespace accel::launcher
