#include "launcher/documents/yaml_scalar.h"

#include <limits>

#include <gtest/gtest.h>

namespace accel::launcher::yaml_scalar_test {
namespace {

struct Case {
  const char* text;
  YamlScalar expected;
};

// Each line as yaml.safe_load of PyYAML gives it; tests/peer/config_files.py compares many more.
constexpr std::int64_t operator""_i(unsigned long long value) {
  return static_cast<std::int64_t>(value);
}

const Case kCases[] = {
    {"", YamlNull{}},
    {"~", YamlNull{}},
    {"null", YamlNull{}},
    {"nUll", YamlText{}},
    {"yes", true},
    {"On", true},
    {"TRUE", true},
    {"y", YamlText{}},
    {"no", false},
    {"NO", false},
    {"off", false},
    {"nO", YamlText{}},
    {"0", 0_i},
    {"-12", -12_i},
    {"+1", 1_i},
    {"1_000", 1000_i},
    {"010", 8_i},
    {"0_", 0_i},
    {"08", YamlText{}},
    {"0x1F", 31_i},
    {"0b101", 5_i},
    {"1:30", 90_i},
    {"190:20:30", 685230_i},
    {"4444444444444444444444:2", 4444444444444444444444.0 * 60 + 2},
    {"1:60", YamlText{}},
    {"0:30", YamlText{}},
    {"1.5", 1.5},
    {"1.", 1.0},
    {".5", 0.5},
    {"+.5", YamlText{}},
    {"1e5", YamlText{}},
    {"1.0e5", YamlText{}},
    {"1.0e+5", 1e5},
    {"-1.5e-3", -1.5e-3},
    {"1:30.5", 90.5},
    {"-.inf", -std::numeric_limits<double>::infinity()},
    {"main", YamlText{}},
    {"10.0.0.1", YamlText{}},
    {"-", YamlText{}},
    {"1a", YamlText{}},
    {"0,1", YamlText{}},
    {"bf16", YamlText{}},
    {"._1", YamlText{}},
};

TEST(YamlScalar, MeansWhatItMeansToPyYaml) {
  for (const Case& item : kCases) {
    EXPECT_TRUE(resolve_yaml_scalar(item.text) == item.expected) << "'" << item.text << "'";
  }
}

TEST(YamlScalar, IntegersBeyond64BitsBecomeFloatingPoint) {
  EXPECT_TRUE(std::holds_alternative<double>(resolve_yaml_scalar("9223372036854775808")));
  EXPECT_TRUE(std::holds_alternative<std::int64_t>(resolve_yaml_scalar("9223372036854775807")));
}

}  // namespace
}  // namespace accel::launcher::yaml_scalar_test
