// A JSON object in place of a path: which texts are one. The base64 is Python's.

#include "runtime/json_argument.h"

#include <gtest/gtest.h>

namespace accel::json_argument_test {
namespace {

TEST(JsonArgument, IsAnObjectAsItIs) {
  EXPECT_EQ(json_in_place_of_path(R"({"a": 1})"), R"({"a": 1})");
  EXPECT_EQ(json_in_place_of_path("\n {oops"), "\n {oops");
}

TEST(JsonArgument, IsAnObjectInBase64OfEitherAlphabet) {
  EXPECT_EQ(json_in_place_of_path("eyJhIjogMX0="), R"({"a": 1})");
  EXPECT_EQ(json_in_place_of_path("eyJhIjogMX0"), R"({"a": 1})");
  const std::string text = "{\"a\": \"\xc3\xbf?>~\"}";
  EXPECT_EQ(json_in_place_of_path("eyJhIjogIsO_Pz5-In0="), text);
  EXPECT_EQ(json_in_place_of_path("eyJhIjogIsO/Pz5+In0="), text);
}

TEST(JsonArgument, IsNoPath) {
  for (const char* path : {"",
                           "=",
                           "ds.json",
                           "/etc/ds.json",
                           "configs/ds",
                           "eyJh",
                           "e",
                           "aGVsbG8=",
                           "eyJhIjog MX0="}) {
    EXPECT_EQ(json_in_place_of_path(path), std::nullopt) << path;
  }
}

}  // namespace
}  // namespace accel::json_argument_test
