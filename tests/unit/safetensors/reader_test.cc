// An open file: found tensors, whole, in ranges and mapped; what is asked for wrongly.

#include <array>
#include <cstring>
#include <fstream>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/safetensors_reader.h>
#include <accel/safetensors_writer.h>

#include "tests/support/scratch_folder.h"

namespace accel::safetensors::reader_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SafetensorsReader : public ::testing::Test {
 protected:
  SafetensorsReader() {
    const std::array values{1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f};
    const std::array<std::uint8_t, 3> bytes{7, 8, 9};
    Writer writer = or_throw(Writer::create(
        path_, {{"bytes", Dtype::kU8, {3}}, {"values", Dtype::kF32, {2, 3}}}, {{"format", "pt"}}));
    or_throw(writer.write("bytes", std::as_bytes(std::span(bytes))));
    or_throw(writer.write("values", std::as_bytes(std::span(values))));
    or_throw(writer.publish());
  }

  test::ScratchFolder folder_;
  std::filesystem::path path_ = folder_.path() / "file.safetensors";
};

TEST_F(SafetensorsReader, ListsAndReadsWhatWasWritten) {
  const Reader reader = or_throw(Reader::open(path_));
  EXPECT_EQ(reader.header().metadata.at("format"), "pt");
  ASSERT_EQ(reader.header().tensors.size(), 2);
  EXPECT_THAT(or_throw(reader.find("values"))->shape, ElementsAre(2, 3));

  std::array<float, 6> values{};
  or_throw(reader.read("values", std::as_writable_bytes(std::span(values))));
  EXPECT_THAT(values, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST_F(SafetensorsReader, ReadsARangeOfATensor) {
  const Reader reader = or_throw(Reader::open(path_));
  std::array<float, 2> row{};
  or_throw(reader.read_range("values", 3 * sizeof(float), std::as_writable_bytes(std::span(row))));
  EXPECT_THAT(row, ElementsAre(4, 5));
}

TEST_F(SafetensorsReader, AMappingHoldsWhenTheReaderIsGoneAndMoved) {
  Mapping mapping = [&] {
    Reader first = or_throw(Reader::open(path_));
    Reader second = std::move(first);
    return or_throw(second.map());
  }();
  Mapping moved = std::move(mapping);
  const Reader reader = or_throw(Reader::open(path_));
  const auto bytes = moved.bytes(*or_throw(reader.find("bytes")));
  EXPECT_THAT(bytes, ElementsAre(std::byte{7}, std::byte{8}, std::byte{9}));
  float value = 0;
  std::memcpy(&value, moved.bytes(*or_throw(reader.find("values"))).data() + 20, sizeof value);
  EXPECT_EQ(value, 6);
}

TEST_F(SafetensorsReader, WhatATensorHasNotIsRefusedWithItsNumbers) {
  const Reader reader = or_throw(Reader::open(path_));
  std::array<std::byte, 4> out{};
  const auto unknown = reader.read("weight", out);
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code(), ErrorCode::kSafetensorsMismatch);
  EXPECT_THAT(unknown.error().message(), HasSubstr("file.safetensors has no tensor \"weight\""));
  const auto whole = reader.read("bytes", out);
  ASSERT_FALSE(whole);
  EXPECT_EQ(whole.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(whole.error().message(), HasSubstr("has 3 bytes, but there is memory for 4"));
  // The sum of both would wrap around.
  const auto range = reader.read_range("bytes", ~std::uint64_t{0} - 1, out);
  ASSERT_FALSE(range);
  EXPECT_THAT(range.error().message(), HasSubstr("has no 4 bytes from byte 18446744073709551614"));
}

TEST_F(SafetensorsReader, AFileThatBecameShorterIsSaid) {
  const Reader reader = or_throw(Reader::open(path_));
  std::filesystem::resize_file(path_, std::filesystem::file_size(path_) - 1);
  std::array<std::byte, 3> out{};
  const auto read = reader.read("bytes", out);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code(), ErrorCode::kFileIo);
  EXPECT_THAT(read.error().message(), HasSubstr("became shorter"));
}

TEST_F(SafetensorsReader, WhatIsNoFileOrNoSafetensorsFileIsNamed) {
  const auto folder = Reader::open(folder_.path());
  ASSERT_FALSE(folder);
  EXPECT_THAT(folder.error().message(), HasSubstr("it is no file"));
  const auto none = Reader::open(folder_.path() / "none");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kFileIo);
  std::ofstream(folder_.path() / "text.safetensors") << "In the beginning was the word";
  const auto text = Reader::open(folder_.path() / "text.safetensors");
  ASSERT_FALSE(text);
  EXPECT_EQ(text.error().code(), ErrorCode::kSafetensorsHeader);
  EXPECT_THAT(text.error().render(), HasSubstr("text.safetensors"));
}

}  // namespace
}  // namespace accel::safetensors::reader_test
