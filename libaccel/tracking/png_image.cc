#include "libaccel/tracking/png_image.h"

#include <algorithm>
#include <cstddef>
#include <string_view>

#include "runtime/checksum.h"

namespace accel::tracking {
namespace {

constexpr std::int64_t kGridColumns = 8;
constexpr std::size_t kStoredBlock = 65535;

std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(value >> shift & 0xFF);
  return bytes;
}

std::string png_chunk(std::string_view type, std::string_view data) {
  const std::string body = std::string(type) + std::string(data);
  return big_endian(static_cast<std::uint32_t>(data.size())) + body + big_endian(crc32_of(body));
}

std::string stored_zlib(std::string_view bytes) {
  const std::uint32_t sum = adler32_of(bytes);
  std::string stream = "\x78\x01";
  do {
    const std::string_view block = bytes.substr(0, kStoredBlock);
    bytes.remove_prefix(block.size());
    const auto size = static_cast<unsigned>(block.size());
    stream += static_cast<char>(bytes.empty() ? 1 : 0);
    for (const unsigned half : {size, ~size}) {
      stream += static_cast<char>(half & 0xFF);
      stream += static_cast<char>(half >> 8 & 0xFF);
    }
    stream += block;
  } while (!bytes.empty());
  return stream + big_endian(sum);
}

}  // namespace

PixelGrid pixel_grid(const ImageBatch& images) {
  const std::int64_t columns = std::max<std::int64_t>(std::min(images.count, kGridColumns), 1);
  const std::int64_t rows = (images.count + columns - 1) / columns;
  PixelGrid grid{.height = rows * images.height, .width = columns * images.width};
  grid.rgb.resize(static_cast<std::size_t>(grid.height * grid.width * 3), 0);
  const std::uint8_t* pixel = images.pixels.data();
  for (std::int64_t image = 0; image < images.count; ++image) {
    for (std::int64_t y = 0; y < images.height; ++y) {
      const std::int64_t row = image / columns * images.height + y;
      const std::int64_t column = image % columns * images.width;
      std::uint8_t* to = &grid.rgb[static_cast<std::size_t>((row * grid.width + column) * 3)];
      for (std::int64_t x = 0; x < images.width; ++x, pixel += images.channels) {
        for (int channel = 0; channel < 3; ++channel)
          *to++ = pixel[images.channels == 3 ? channel : 0];
      }
    }
  }
  return grid;
}

std::string png_of(const PixelGrid& grid) {
  const auto line_bytes = static_cast<std::size_t>(grid.width) * 3;
  std::string lines;
  for (std::int64_t y = 0; y < grid.height; ++y) {
    lines += '\0';  // no filter
    lines.append(
        reinterpret_cast<const char*>(grid.rgb.data()) + static_cast<std::size_t>(y) * line_bytes,
        line_bytes);
  }
  // 8 bits a channel, RGB; deflate, the five filters, not interlaced
  const std::string header = big_endian(static_cast<std::uint32_t>(grid.width)) +
                             big_endian(static_cast<std::uint32_t>(grid.height)) +
                             std::string("\x08\x02\x00\x00\x00", 5);
  return "\x89PNG\r\n\x1a\n" + png_chunk("IHDR", header) + png_chunk("IDAT", stored_zlib(lines)) +
         png_chunk("IEND", "");
}

}  // namespace accel::tracking
