// PngImage: pictures as PNG, without compression: no library is needed, and TensorBoard shows the same.
//
// Threads:  pure functions.
// Cost:     three bytes a pixel, and 65 for every 64 KiB.
// Source:   RFC 2083 (PNG), RFC 1950 (zlib), RFC 1951 section 3.2.4 (stored blocks).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <accel/tracker_value.h>

namespace accel::tracking {

struct PixelGrid {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> rgb;  // [height, width, 3]
};

// The pictures of a batch in rows of eight, black where the last row ends early, grey as RGB.
// Source: make_grid() of torch/utils/tensorboard/_utils.py.
[[nodiscard]] PixelGrid pixel_grid(const ImageBatch& images);

[[nodiscard]] std::string png_of(const PixelGrid& grid);

}  // namespace accel::tracking
