// A file that is there at once when it is whole, and nothing of it before.

#include <array>
#include <fstream>
#include <iterator>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/safetensors_reader.h>
#include <accel/safetensors_writer.h>

#include "tests/support/scratch_folder.h"

namespace accel::safetensors::writer_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SafetensorsWriter : public ::testing::Test {
 protected:
  [[nodiscard]] Result<Writer> create() const {
    return Writer::create(path_, {{"a", Dtype::kI16, {4}}});
  }
  [[nodiscard]] std::ptrdiff_t num_files() const {
    return std::distance(std::filesystem::directory_iterator(folder_.path()), {});
  }
  [[nodiscard]] std::string text() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  test::ScratchFolder folder_;
  std::filesystem::path path_ = folder_.path() / "file.safetensors";
  std::array<std::int16_t, 4> values_{1, -2, 3, -4};
  std::span<const std::byte> bytes_ = std::as_bytes(std::span(values_));
};

TEST_F(SafetensorsWriter, PiecesInAnyOrderMakeTheFile) {
  Writer writer = or_throw(create());
  or_throw(writer.write("a", bytes_.subspan(6), 6));
  or_throw(writer.write("a", bytes_.first(6)));
  EXPECT_FALSE(std::filesystem::exists(path_));
  or_throw(writer.publish());

  const Reader reader = or_throw(Reader::open(path_));
  std::array<std::int16_t, 4> read{};
  or_throw(reader.read("a", std::as_writable_bytes(std::span(read))));
  EXPECT_THAT(read, ElementsAre(1, -2, 3, -4));
  EXPECT_EQ(num_files(), 1);
}

TEST_F(SafetensorsWriter, WithoutPublishTheEarlierFileStaysAndNothingBesideIt) {
  std::ofstream(path_) << "earlier";
  {
    Writer writer = or_throw(create());
    or_throw(writer.write("a", bytes_));
    EXPECT_EQ(num_files(), 2);
  }
  EXPECT_EQ(text(), "earlier");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(SafetensorsWriter, AFileThatLacksBytesIsNotPublished) {
  std::ofstream(path_) << "earlier";
  Writer writer = or_throw(create());
  or_throw(writer.write("a", bytes_.first(2)));
  const auto published = writer.publish();
  ASSERT_FALSE(published);
  EXPECT_EQ(published.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(published.error().message(), HasSubstr("\"a\" has 8 bytes, but 2 were written"));
  EXPECT_EQ(text(), "earlier");
}

TEST_F(SafetensorsWriter, BytesThatATensorHasNotAreRefused) {
  Writer writer = or_throw(create());
  EXPECT_THAT(writer.write("b", bytes_).error().message(), HasSubstr("no tensor \"b\""));
  EXPECT_THAT(writer.write("a", bytes_, 2).error().message(), HasSubstr("it has 8"));
  or_throw(writer.write("a", bytes_));
  EXPECT_THAT(writer.write("a", bytes_).error().message(), HasSubstr("8 are written"));
  or_throw(writer.publish());
  EXPECT_THAT(writer.publish().error().message(), HasSubstr("published already"));
}

TEST_F(SafetensorsWriter, NamesThatTheFormatHasNotAndFoldersThatAreNotThereAreErrors) {
  const auto twice = Writer::create(path_, {{"a", Dtype::kU8, {1}}, {"a", Dtype::kU8, {1}}});
  ASSERT_FALSE(twice);
  EXPECT_EQ(twice.error().code(), ErrorCode::kInvalidArgument);
  const auto nowhere = Writer::create(folder_.path() / "none/file", {});
  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code(), ErrorCode::kFileIo);
  EXPECT_EQ(num_files(), 0);
}

}  // namespace
}  // namespace accel::safetensors::writer_test
