// The code that docs/guides/safetensors.md shows, compiled and run. tests/integration/documents/run.py compares the two.

#include <array>
#include <iostream>
#include <numeric>
#include <span>
#include <sstream>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/result.h>
#include <accel/safetensors.h>
#include <accel/safetensors_reader.h>
#include <accel/safetensors_writer.h>

#include "tests/support/scratch_folder.h"
#include "tests/support/working_folder.h"

namespace accel::safetensors_page_test {
namespace {

constexpr std::uint64_t kRows = 51;
constexpr std::uint64_t kColumns = 768;

void write_embedding() {
  std::vector<float> values(kRows * kColumns);
  std::iota(values.begin(), values.end(), 0.0F);
  auto writer = safetensors::Writer::create(
      "model.safetensors", {{"wte.weight", safetensors::Dtype::kF32, {kRows, kColumns}}}, {});
  ASSERT_TRUE(writer);
  or_throw(writer->write("wte.weight", std::as_bytes(std::span(values))));
  or_throw(writer->publish());
}

TEST(SafetensorsPage, ReadsAFileAsItShows) {
  const test::ScratchFolder scratch;
  const test::WorkingFolder working(scratch.path());
  write_embedding();
  std::ostringstream listed;
  auto* const console = std::cout.rdbuf(listed.rdbuf());

  const auto reader = accel::safetensors::Reader::open("model.safetensors");
  if (!reader) throw reader.error();
  for (const auto& tensor : reader->header().tensors)
    std::cout << tensor.name << " " << accel::safetensors::dtype_name(tensor.dtype) << "\n";

  std::vector<float> row(768);
  auto read = reader->read_range(
      "wte.weight", 50 * 768 * sizeof(float), std::as_writable_bytes(std::span(row)));
  if (!read) throw read.error();

  const auto mapping = reader->map();  // or where it lies: nothing is copied
  if (!mapping) throw mapping.error();
  const auto bytes = mapping->bytes(*accel::or_throw(reader->find("wte.weight")));

  std::cout.rdbuf(console);
  EXPECT_EQ(listed.str(), "wte.weight F32\n");
  EXPECT_EQ(row.front(), 50.0F * 768.0F);
  EXPECT_EQ(row.back(), 51.0F * 768.0F - 1.0F);
  EXPECT_EQ(bytes.size(), kRows * kColumns * sizeof(float));
}

TEST(SafetensorsPage, WritesAFileAsItShows) {
  const test::ScratchFolder scratch;
  const test::WorkingFolder working(scratch.path());
  const std::array<float, 6> weight = {1, 2, 3, 4, 5, 6};
  const std::array<float, 3> bias = {7, 8, 9};

  using namespace accel::safetensors;
  auto writer = Writer::create("model.safetensors",
                               {{"weight", Dtype::kF32, {2, 3}}, {"bias", Dtype::kF32, {3}}},
                               {{"format", "pt"}});
  if (!writer) throw writer.error();
  accel::or_throw(writer->write("weight", std::as_bytes(std::span(weight))));
  accel::or_throw(writer->write("bias", std::as_bytes(std::span(bias))));
  accel::or_throw(writer->publish());

  const auto reader = Reader::open("model.safetensors");
  ASSERT_TRUE(reader);
  std::array<float, 3> found{};
  or_throw(reader->read_range("bias", 0, std::as_writable_bytes(std::span(found))));
  EXPECT_EQ(found, bias);
  EXPECT_EQ(reader->header().tensors.size(), 2U);
}

}  // namespace
}  // namespace accel::safetensors_page_test
