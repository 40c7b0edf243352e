// Samples of .npy files: their shapes and bytes, and what is none.

#include "train/array_file.h"

#include <array>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "tests/support/scratch_folder.h"

namespace accel::train::array_file_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string npy(const std::string& descr,
                const std::string& shape,
                const std::string& data,
                const std::string& order = "False") {
  const std::string words =
      "{'descr': '" + descr + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }\n";
  std::string file = "\x93NUMPY";
  file += '\x01';
  file += '\0';
  file += static_cast<char>(words.size());
  file += '\0';
  return file + words + data;
}

template <typename Number>
std::string bytes_of(const std::vector<Number>& numbers) {
  return {reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(Number)};
}

class ArrayFiles : public ::testing::Test {
 protected:
  std::string refusal(const std::string& content) const {
    try {
      const ArrayFile file(folder_.write("a.npy", content));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.message(), HasSubstr("a.npy"));
      return error.message();
    }
    return "nothing was refused";
  }

  test::ScratchFolder folder_;
};

TEST_F(ArrayFiles, ARowIsWhatTheFirstDimensionCounts) {
  const ArrayFile file(
      folder_.write("a.npy", npy("<f4", "(2, 1, 3)", bytes_of<float>({1, 2, 3, 4, 5, 6}))));
  EXPECT_EQ(file.num_rows(), 2);
  EXPECT_THAT(file.row_shape(), ElementsAre(1, 3));
  EXPECT_EQ(file.type(), ElementType::kF32);
  ASSERT_EQ(file.row_bytes(), 12);
  std::array<float, 3> row{};
  file.read(1, std::as_writable_bytes(std::span(row)));
  EXPECT_THAT(row, ElementsAre(4, 5, 6));
}

TEST_F(ArrayFiles, ARowOfOneDimensionIsOneNumber) {
  const ArrayFile file(folder_.write("a.npy", npy("|u1", "(3,)", "abc")));
  EXPECT_EQ(file.num_rows(), 3);
  EXPECT_THAT(file.row_shape(), IsEmpty());
  EXPECT_EQ(file.row_bytes(), 1);
}

TEST_F(ArrayFiles, WhatCannotBeSamplesIsRefused) {
  EXPECT_THAT(refusal("a,b\n1,2\n3,4\n5,6"), HasSubstr("is no .npy file"));
  EXPECT_THAT(refusal(npy(">f4", "(1,)", "1234")), HasSubstr("holds >f4"));
  EXPECT_THAT(refusal(npy("<U4", "(1,)", "1234")), HasSubstr("holds <U4"));
  EXPECT_THAT(refusal(npy("<f4", "()", "1234")), HasSubstr("has no samples"));
  EXPECT_THAT(refusal(npy("<f4", "(0, 3)", "")), HasSubstr("has no samples"));
  EXPECT_THAT(refusal(npy("<f4", "(2, 3)", "1234")), HasSubstr("6 numbers of 4 bytes"));
  EXPECT_THAT(refusal(npy("<f4", "(1,)", "1234", "True")), HasSubstr("Fortran"));
  // The product, or its bytes, would wrap around to a small number.
  EXPECT_THAT(refusal(npy("<f4", "(4294967296, 4294967296)", "1234")), HasSubstr("has the shape"));
  EXPECT_THAT(refusal(npy("<f8", "(2305843009213693953,)", "12345678")),
              HasSubstr("and is shorter"));
}

TEST_F(ArrayFiles, AFileThatBecameShorterIsAnError) {
  const std::string path = folder_.write("a.npy", npy("|u1", "(4, 2)", "abcdefgh"));
  const ArrayFile file(path);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  std::array<std::byte, 2> row{};
  file.read(2, row);
  EXPECT_THROW(file.read(3, row), Error);
}

}  // namespace
}  // namespace accel::train::array_file_test
