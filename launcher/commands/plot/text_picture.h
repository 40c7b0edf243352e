// TextPicture: curves as lines of text, for a terminal.
//
// Threads:  pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/curves/panels.h"

namespace accel::launcher {

struct TextPictureOptions {
  std::size_t columns = 80;  // of a line; at least 40 are drawn
  std::size_t rows = 12;     // of each panel, without its title and the axis
  bool is_ascii = false;  // a mark for each run; else the dots of Braille, two by four in each cell
  bool has_colour = false;  // a colour for each run, by escapes
};

// A panel below another. Smoothed curves are drawn instead of their points. Braille tells runs apart by colour alone: without it,
// several runs are drawn with their marks. Names are printable(), cut to the width.
[[nodiscard]] std::string text_picture(const Panels& panels,
                                       const std::vector<std::string>& run_names,
                                       const TextPictureOptions& options);

}  // namespace accel::launcher
