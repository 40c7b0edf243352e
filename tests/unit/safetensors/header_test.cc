// The header of a safetensors file: what is accepted, what is refused, and what is written.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <accel/safetensors.h>

namespace accel::safetensors::safetensors_header_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

Result<Header> parse(std::string_view json, std::uint64_t data_bytes) {
  return parse_header(json, kPrefixBytes + json.size() + data_bytes);
}

std::string message_of(const Result<Header>& result) {
  return result.has_value() ? "no error" : result.error().message();
}

std::vector<std::string> names_of(const Header& header) {
  std::vector<std::string> names;
  for (const TensorInfo& tensor : header.tensors) names.push_back(tensor.name);
  return names;
}

TEST(SafetensorsHeader, ListsTensorsByOffsetWhateverTheirOrderInTheJson) {
  const auto header =
      parse(R"({"b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]},)"
            R"("a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"__metadata__":{"k":"v"}})",
            11);

  ASSERT_TRUE(header.has_value()) << message_of(header);
  EXPECT_THAT(names_of(*header), ElementsAre("a", "b"));
  EXPECT_THAT(header->tensors[0].shape, ElementsAre(2, 1));
  EXPECT_EQ(header->tensors[1].dtype, Dtype::kU8);
  EXPECT_EQ(header->metadata.at("k"), "v");
  EXPECT_EQ(header->data_bytes, 11);
}

TEST(SafetensorsHeader, AcceptsEmptyTensorsAndScalarsAndNoTensorAtAll) {
  EXPECT_TRUE(parse("{}", 0).has_value());
  EXPECT_TRUE(parse("{}      ", 0).has_value());
  const auto header = parse(R"({"none":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},)"
                            R"("one":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
                            R"("last":{"dtype":"I64","shape":[0],"data_offsets":[8,8]}})",
                            8);

  ASSERT_TRUE(header.has_value()) << message_of(header);
  EXPECT_THAT(names_of(*header), ElementsAre("none", "one", "last"));
  EXPECT_THAT(header->tensors[1].shape, IsEmpty());
}

TEST(SafetensorsHeader, ShapeProductThatWrapsAroundIsRefused) {
  // 2^32 * 2^32 bytes would be 0 in 64 bits, which is what the offsets claim.
  const auto header =
      parse(R"({"w":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0);

  EXPECT_THAT(message_of(header), HasSubstr("tensor \"w\" of dtype U8"));
  EXPECT_THAT(message_of(header), HasSubstr("more bits than 64-bit numbers can count"));
}

TEST(SafetensorsHeader, ErrorsDoNotRepeatControlCharactersOrMegabytesOfAName) {
  const std::string name = "\\u001b[31m" + std::string(1 << 20, 'x');
  const auto header =
      parse("{\"" + name + R"(":{"dtype":"Q7","shape":[],"data_offsets":[0,1]}})", 1);

  EXPECT_THAT(message_of(header), StartsWith("tensor \"?[31mxxx"));
  EXPECT_LT(message_of(header).size(), 300);
}

TEST(SafetensorsHeader, LengthIsCheckedBeforeAnythingIsAllocated) {
  const auto length_of = [](std::uint64_t claimed, std::uint64_t file_bytes) {
    std::array<std::byte, 8> prefix{};
    std::memcpy(prefix.data(), &claimed, 8);
    const auto length = header_length(prefix, file_bytes);
    return length.has_value() ? std::to_string(*length) : length.error().message();
  };

  EXPECT_EQ(length_of(10, 18), "10");
  EXPECT_THAT(length_of(11, 18), HasSubstr("claims 11 bytes, but only 10 follow"));
  EXPECT_THAT(length_of(UINT64_MAX, 18), HasSubstr("at most 100000000 are allowed"));
  EXPECT_THAT(length_of(100'000'001, UINT64_MAX), HasSubstr("at most 100000000 are allowed"));
}

TEST(SafetensorsLayout, PutsLargerDtypesFirstThenSortsByName) {
  const auto layout = plan_layout({{"b", Dtype::kF32, {1}},
                                   {"flag", Dtype::kBool, {3}},
                                   {"a", Dtype::kF32, {2}},
                                   {"count", Dtype::kI64, {}},
                                   {"half", Dtype::kBF16, {1}}},
                                  {});

  ASSERT_TRUE(layout.has_value());
  EXPECT_THAT(names_of(layout->header), ElementsAre("count", "a", "b", "half", "flag"));
  EXPECT_EQ(layout->header.data_bytes, 8 + 8 + 4 + 2 + 3);
}

TEST(SafetensorsLayout, WhatIsWrittenIsReadBack) {
  const auto layout = plan_layout({{"weight \"quoted\" \xc3\xa4\n", Dtype::kF16, {2, 3}},
                                   {"packed", Dtype::kF4, {6}},
                                   {"empty", Dtype::kU64, {0}}},
                                  {{"format", "pt"}, {"note", "\x01"}});
  ASSERT_TRUE(layout.has_value()) << layout.error().message();

  EXPECT_EQ(layout->bytes.size() % kDataAlignment, 0);
  const std::uint64_t file_bytes = layout->bytes.size() + layout->header.data_bytes;
  const auto length = header_length(std::as_bytes(std::span(layout->bytes)), file_bytes);
  ASSERT_TRUE(length.has_value());
  const auto header =
      parse_header(std::string_view(layout->bytes).substr(kPrefixBytes, *length), file_bytes);

  ASSERT_TRUE(header.has_value()) << message_of(header);
  EXPECT_EQ(names_of(*header), names_of(layout->header));
  EXPECT_EQ(header->metadata, layout->header.metadata);
  EXPECT_EQ(header->data_offset, layout->header.data_offset);
  EXPECT_EQ(header->tensors[0].end, layout->header.tensors[0].end);
}

TEST(SafetensorsLayout, RefusesNamesThatNoReaderCouldTellApart) {
  const auto error_of = [](std::vector<TensorSpec> tensors) {
    const auto layout = plan_layout(std::move(tensors), {});
    return layout.has_value() ? "no error" : layout.error().message();
  };

  EXPECT_THAT(error_of({{"w", Dtype::kU8, {1}}, {"w", Dtype::kU8, {2}}}),
              HasSubstr("two tensors are named \"w\""));
  EXPECT_THAT(error_of({{"__metadata__", Dtype::kU8, {1}}}), HasSubstr("reserved"));
  EXPECT_THAT(error_of({{"\xff", Dtype::kU8, {1}}}), HasSubstr("is not UTF-8"));
  EXPECT_THAT(error_of({{"half byte", Dtype::kF4, {3}}}), HasSubstr("does not end at a byte"));
}

// tests/hostile/safetensors: every file fails with the text that expected.txt gives for its name.
std::filesystem::path hostile_folder() {
  const char* source = std::getenv("ACCEL_SOURCE_DIR");
  return std::filesystem::path(source != nullptr ? source : ".") / "tests/hostile/safetensors";
}

std::map<std::string, std::string> expected_errors() {
  std::map<std::string, std::string> expected;
  std::ifstream lines(hostile_folder() / "expected.txt");
  for (std::string line; std::getline(lines, line);) {
    const size_t colon = line.find(": ");
    if (colon != std::string::npos) expected[line.substr(0, colon)] = line.substr(colon + 2);
  }
  return expected;
}

TEST(SafetensorsHostileFiles, EachGivesTheErrorThatItIsNamedAfter) {
  const auto expected = expected_errors();
  ASSERT_GE(expected.size(), 25);

  for (const auto& [name, text] : expected) {
    const int fd =
        ::open((hostile_folder() / (name + ".safetensors")).c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(fd, 0) << name;
    const auto header = read_header(fd);
    ::close(fd);

    EXPECT_THAT(message_of(header), HasSubstr(text)) << name;
    if (!header.has_value()) {
      EXPECT_EQ(header.error().code(), ErrorCode::kSafetensorsHeader) << name;
      EXPECT_THAT(header.error().remedy(), Not(IsEmpty()));
    }
  }
}

TEST(SafetensorsHostileFiles, NoneIsWithoutAnExpectedError) {
  const auto expected = expected_errors();
  for (const auto& entry : std::filesystem::directory_iterator(hostile_folder())) {
    if (entry.path().extension() != ".safetensors") continue;
    EXPECT_TRUE(expected.contains(entry.path().stem().string())) << entry.path();
  }
}

}  // namespace
}  // namespace accel::safetensors::safetensors_header_test
