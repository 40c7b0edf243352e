// What a worker says of what was thrown.

#include "libaccel/launch/worker_entry.h"

#include <exception>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/supervisor/spawn/exit_error.h"

namespace accel::launch::worker_entry_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

template <typename Thrown>
std::string described(const Thrown& thrown) {
  try {
    throw thrown;
  } catch (...) {
    return describe_current_exception();
  }
}

struct Mute : std::exception {
  [[nodiscard]] const char* what() const noexcept override { return nullptr; }
};

TEST(WorkerEntry, TextThatIsThrownIsTold) {
  EXPECT_EQ(described(std::runtime_error("no such file")), "std::runtime_error: no such file");
  EXPECT_EQ(described(std::string("no data")), "std::string: no data");
  EXPECT_EQ(described<const char*>("no disk"), "char const*: no disk");
}

TEST(WorkerEntry, WhatHasNoTextIsToldByItsType) {
  EXPECT_EQ(described<const char*>(nullptr), "char const*");
  EXPECT_EQ(described(7), "int");
  EXPECT_THAT(described(Mute()), HasSubstr("Mute"));
}

TEST(WorkerEntry, ALongMessageIsCutToWhatTheSupervisorReads) {
  // Takes most bytes in JSON.
  const std::string file = error_file_text("begin " + std::string(1 << 20, '\1'));

  EXPECT_LE(file.size(), 64u << 10);
  EXPECT_THAT(supervisor::read_error_file(file).message, StartsWith("begin "));
  EXPECT_THAT(file, HasSubstr("the first 10000 of 1048582 bytes"));
}

}  // namespace
}  // namespace accel::launch::worker_entry_test
