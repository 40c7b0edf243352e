// The bytes of event files. That TensorBoard reads them is tested in tests/peer/trackers.py.

#include "libaccel/tracking/event_message.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libaccel/tracking/png_image.h"
#include "runtime/checksum.h"

namespace accel::tracking {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::uint64_t number_at(const std::string& bytes, std::size_t begin, int count) {
  std::uint64_t value = 0;
  for (int i = count; i-- > 0;)
    value = value << 8 | static_cast<unsigned char>(bytes[begin + static_cast<std::size_t>(i)]);
  return value;
}

TEST(Checksum, AgreesWithTheTestVectorsOfTheirStandards) {
  EXPECT_EQ(crc32c_of("123456789"), 0xE3069283U);            // RFC 3720
  EXPECT_EQ(crc32c_of(std::string(32, '\0')), 0x8A9136AAU);  // RFC 3720 B.4
  EXPECT_EQ(crc32_of("123456789"), 0xCBF43926U);             // ISO 3309
  EXPECT_EQ(crc32_of("IEND"), 0xAE426082U);                  // of every PNG file
  EXPECT_EQ(adler32_of("Wikipedia"), 0x11E60398U);
}

TEST(WireMessage, WritesTheExamplesOfTheEncodingGuide) {
  EXPECT_EQ(WireMessage().add_int(1, 150).bytes(), "\x08\x96\x01");
  EXPECT_EQ(WireMessage().add_bytes(2, "testing").bytes(), "\x12\x07testing");
  EXPECT_EQ(WireMessage().add_int(1, -2).bytes(), "\x08\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01");
  EXPECT_EQ(WireMessage().add_message(3, WireMessage().add_int(1, 150)).bytes(),
            "\x1a\x03\x08\x96\x01");
}

TEST(EventRecord, FramesTheEventWithItsLengthAndMaskedChecksums) {
  const std::string record = event_record(scalar_summary("loss", 0.5), 3, 1.0);

  const std::size_t length = number_at(record, 0, 8);
  ASSERT_EQ(record.size(), 8 + 4 + length + 4);
  const auto masked = [](std::string_view bytes) {
    const std::uint32_t crc = crc32c_of(bytes);
    return ((crc >> 15) | (crc << 17)) + 0xA282EAD8U;
  };
  EXPECT_EQ(number_at(record, 8, 4), masked(record.substr(0, 8)));
  EXPECT_EQ(number_at(record, 12 + length, 4), masked(record.substr(12, length)));
}

TEST(EventRecord, LeavesTheStepAwayWhenThereIsNone) {
  const std::string with = event_record(scalar_summary("loss", 0.5), 3, 1.0);
  const std::string without = event_record(scalar_summary("loss", 0.5), std::nullopt, 1.0);

  EXPECT_EQ(with.size(), without.size() + 2);
}

TEST(Histogram, HasAnEmptyBucketBeforeTheFirstFilledOne) {
  const Histogram histogram = histogram_of(std::vector<double>{1.0, 1.0, 2.0});

  EXPECT_EQ(histogram.count, 3);
  EXPECT_EQ(histogram.min, 1.0);
  EXPECT_EQ(histogram.max, 2.0);
  EXPECT_EQ(histogram.sum, 4.0);
  EXPECT_EQ(histogram.sum_squares, 6.0);
  ASSERT_EQ(histogram.counts.size(), histogram.limits.size());
  EXPECT_EQ(histogram.counts.front(), 0);
  EXPECT_EQ(histogram.counts[1], 2);
  EXPECT_EQ(histogram.counts.back(), 1);
  EXPECT_LE(histogram.limits[0], 1.0);
  EXPECT_GT(histogram.limits[1], 1.0);
}

TEST(Histogram, CountsWhatLiesBeyondAllBins) {
  const Histogram histogram = histogram_of(std::vector<double>{1e30, 2e30});

  EXPECT_THAT(histogram.limits, ElementsAre(1e30, 2e30));
  EXPECT_THAT(histogram.counts, ElementsAre(0, 2));
}

TEST(PixelGrid, LaysPicturesInRowsOfEightAndMakesGreyRgb) {
  ImageBatch images{.count = 9, .height = 1, .width = 1, .channels = 1};
  for (std::uint8_t i = 1; i <= 9; ++i) images.pixels.push_back(i);

  const PixelGrid grid = pixel_grid(images);

  EXPECT_EQ(grid.height, 2);
  EXPECT_EQ(grid.width, 8);
  EXPECT_EQ(grid.rgb[7 * 3], 8);
  EXPECT_EQ(grid.rgb[8 * 3 + 2], 9);
  EXPECT_EQ(grid.rgb[9 * 3], 0);
}

TEST(PngImage, StoresBlocksOfAtMost65535Bytes) {
  PixelGrid grid{.height = 100, .width = 300};
  grid.rgb.resize(100 * 300 * 3, 7);

  const std::string png = png_of(grid);

  EXPECT_EQ(png.substr(0, 8), "\x89PNG\r\n\x1a\n");
  EXPECT_THAT(png, HasSubstr("IEND"));
  // 100 lines of 901 bytes in two blocks, 2 + 2 * 5 + 4 of zlib, 8 + 25 + 12 + 12 of PNG
  EXPECT_EQ(png.size(), 90100U + 16 + 57);
}

}  // namespace
}  // namespace accel::tracking
