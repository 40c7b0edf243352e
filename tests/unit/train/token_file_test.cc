// Files of tokens as NumPy, Megatron-LM, nanoGPT and safetensors write them, and damaged ones.

#include "train/token_file.h"

#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "tests/support/scratch_folder.h"

namespace accel::train::token_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Number>
std::string bytes_of_numbers(const std::vector<Number>& numbers) {
  std::string bytes(numbers.size() * sizeof(Number), '\0');
  std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

std::string npy(const std::string& dictionary, const std::string& data) {
  const auto length = static_cast<std::uint16_t>(dictionary.size());
  return std::string("\x93NUMPY\x01\x00", 8) + bytes_of_numbers<std::uint16_t>({length}) +
         dictionary + data;
}

std::string megatron_index(std::uint8_t type, const std::vector<std::int32_t>& lengths) {
  const std::string count = bytes_of_numbers<std::uint64_t>({lengths.size()});
  return std::string("MMIDIDX\x00\x00", 9) + bytes_of_numbers<std::uint64_t>({1}) +
         std::string(1, static_cast<char>(type)) + count + count + bytes_of_numbers(lengths);
}

class TokenFileTest : public ::testing::Test {
 protected:
  std::vector<std::int64_t> tokens(const std::string& path) const {
    const TokenFile file(path);
    std::vector<std::int64_t> all(static_cast<std::size_t>(file.size()));
    file.read(0, all);
    return all;
  }
  Error refusal(const std::string& path) const {
    try {
      const TokenFile file(path);
    } catch (const Error& error) {
      return error;
    }
    ADD_FAILURE() << path << " was accepted";
    return Error(ErrorCode::kInternal, "");
  }

  test::ScratchFolder folder_;
};

TEST_F(TokenFileTest, OfNumpyHasEveryTypeOfWholeNumbers) {
  const std::string rest = "'fortran_order': False, 'shape': (3,), }";
  EXPECT_THAT(tokens(folder_.write(
                  "a.npy",
                  npy("{'descr': '<u2', " + rest, bytes_of_numbers<std::uint16_t>({1, 65535, 3})))),
              ElementsAre(1, 65535, 3));
  EXPECT_THAT(
      tokens(folder_.write(
          "b.npy", npy("{'descr': '<i8', " + rest, bytes_of_numbers<std::int64_t>({1, -2, 3})))),
      ElementsAre(1, -2, 3));
  EXPECT_THAT(tokens(folder_.write("c.npy", npy("{'descr': '|u1', " + rest, "\x01\x02\xff"))),
              ElementsAre(1, 2, 255));
}

TEST_F(TokenFileTest, OfSeveralDimensionsIsOneRow) {
  const std::string dictionary = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 2), }";
  EXPECT_THAT(
      tokens(folder_.write("a.npy", npy(dictionary, bytes_of_numbers<std::int32_t>({1, 2, 3, 4})))),
      ElementsAre(1, 2, 3, 4));
}

TEST_F(TokenFileTest, IsReadFromAnyPlace) {
  const TokenFile file(folder_.write("a.bin", bytes_of_numbers<std::uint16_t>({5, 6, 7, 8})));
  std::vector<std::int64_t> two(2);
  file.read(1, two);

  EXPECT_EQ(file.size(), 4);
  EXPECT_THAT(two, ElementsAre(6, 7));
}

TEST_F(TokenFileTest, OfMegatronHasTheTypeOfItsIndex) {
  folder_.write("a.idx", megatron_index(4, {2, 1}));
  EXPECT_THAT(tokens(folder_.write("a.bin", bytes_of_numbers<std::int32_t>({70000, 2, 3}))),
              ElementsAre(70000, 2, 3));
}

TEST_F(TokenFileTest, OfSafetensorsIsTheTensorOfTokens) {
  const std::string json =
      R"({"mask":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"tokens":{"dtype":"I32","shape":[1],"data_offsets":[2,6]}})";
  const std::string data = std::string("\x01\x01", 2) + bytes_of_numbers<std::int32_t>({9});
  EXPECT_THAT(tokens(folder_.write("a.safetensors",
                                   bytes_of_numbers<std::uint64_t>({json.size()}) + json + data)),
              ElementsAre(9));
}

TEST_F(TokenFileTest, ThatIsCutOrNoneIsRefusedByName) {
  const std::string rest = ", 'fortran_order': False, 'shape': (3,), }";
  EXPECT_THAT(refusal(folder_.write("a.npy", npy("{'descr': '<u2'" + rest, "\x01\x02"))).message(),
              HasSubstr("a.npy says that it has 3 tokens of 2 bytes, and has room for 1"));
  EXPECT_THAT(
      refusal(folder_.write("b.npy", npy("{'descr': '<f4'" + rest, "123456789012"))).message(),
      HasSubstr("expected whole numbers"));
  EXPECT_THAT(refusal(folder_.write("c.npy",
                                    npy("{'descr': '<u2', 'fortran_order': True, 'shape': (3,), }",
                                        "123456")))
                  .message(),
              HasSubstr("Fortran"));
  EXPECT_THAT(
      refusal(
          folder_.write(
              "d.npy",
              npy("{'descr': '<u2', 'fortran_order': False, 'shape': (99999999999, 99999999999), }",
                  "")))
          .message(),
      HasSubstr("has the shape"));
  EXPECT_THAT(refusal(folder_.write("e.npy", "no file of NumPy")).message(),
              HasSubstr("is no .npy file"));
  folder_.write("f.idx", megatron_index(4, {5}));
  EXPECT_THAT(refusal(folder_.write("f.bin", "1234")).message(),
              HasSubstr("says that it has 5 tokens"));
  folder_.write("g.idx", megatron_index(6, {1}));
  EXPECT_THAT(refusal(folder_.write("g.bin", "1234")).message(), HasSubstr("holds type 6"));
  folder_.write("h.idx", megatron_index(4, {-1}));
  EXPECT_THAT(refusal(folder_.write("h.bin", "1234")).message(),
              HasSubstr("a sequence of -1 tokens"));
}

TEST_F(TokenFileTest, OfTextIsRefusedWithWhatToDo) {
  const Error error = refusal(folder_.write("a.txt", "In the beginning"));

  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.remedy(), HasSubstr("tokenize"));
}

TEST_F(TokenFileTest, ThatIsNotThereSaysWhy) {
  EXPECT_EQ(refusal(folder_.file("none.bin")).code(), ErrorCode::kFileIo);
}

}  // namespace
}  // namespace accel::train::token_file_test
