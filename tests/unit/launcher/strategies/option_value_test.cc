#include "launcher/flags/strategies/option_value.h"

#include <gtest/gtest.h>

namespace accel::launcher::option_value_test {
namespace {

constexpr OptionMaker kMake = {"Group", TruthForm::kLower};

TEST(PythonNumber, IsWrittenAsPythonDoes) {
  // The right-hand side is what CPython prints.
  const std::pair<double, const char*> cases[] = {{1, "1.0"},
                                                  {0, "0.0"},
                                                  {-2.5, "-2.5"},
                                                  {0.1, "0.1"},
                                                  {0.0001, "0.0001"},
                                                  {0.00001, "1e-05"},
                                                  {1.5e-7, "1.5e-07"},
                                                  {123456789012345680.0, "1.2345678901234568e+17"},
                                                  {1e15, "1000000000000000.0"},
                                                  {1e16, "1e+16"},
                                                  {1e100, "1e+100"}};
  for (const auto& [number, text] : cases) EXPECT_EQ(python_number(number), text);
}

TEST(OptionValue, TruthIsWrittenInTheFormOfTheVariable) {
  Option option = kMake.boolean("x", "X", "false", "");
  const ConfigValue in_file = {.data = true, .text = "true", .line = 1};
  const std::pair<TruthForm, std::pair<const char*, const char*>> cases[] = {
      {TruthForm::kLower, {"true", "true"}},
      {TruthForm::kPython, {"True", "True"}},
      {TruthForm::kDigit, {"1", "True"}},
      {TruthForm::kTyped, {"yes", "True"}}};
  for (const auto& [form, expected] : cases) {
    option.truth = form;
    EXPECT_EQ(value_of_flag(option, "yes"), expected.first);
    EXPECT_EQ(value_in_file(option, in_file), expected.second);
  }
  EXPECT_EQ(value_of_flag(option, "maybe"), std::nullopt);
}

TEST(OptionValue, ANumberMayBeAWordThatTheTableNames) {
  const Option option = kMake.integer("x", "X", "", "").at_least(1).or_word("auto");

  EXPECT_EQ(value_of_flag(option, "auto"), "auto");
  EXPECT_EQ(value_of_flag(option, "2"), "2");
  EXPECT_EQ(value_of_flag(option, "0"), std::nullopt);
  EXPECT_EQ(value_of_flag(option, "2.5"), std::nullopt);
  EXPECT_EQ(value_of_flag(option, "none"), std::nullopt);
  EXPECT_EQ(expected_value(option), "a whole number of at least 1, or auto");
}

TEST(OptionValue, AWholeNumberOfAFileStaysOne) {
  const Option option = kMake.number("x", "X", "", "");

  EXPECT_EQ(value_in_file(option, {.data = std::int64_t{1}, .text = "1", .line = 1}), "1");
  EXPECT_EQ(value_in_file(option, {.data = 1.0, .text = "1.0", .line = 1}), "1.0");
  EXPECT_EQ(value_of_flag(option, "1"), "1.0");
  EXPECT_EQ(value_of_flag(option, "nan"), std::nullopt);
}

TEST(OptionValue, AnUnquotedNoIsTheWordWhereItIsAChoice) {
  const ConfigValue no = {.data = false, .text = "no", .line = 1};

  EXPECT_EQ(value_in_file(kMake.choice("x", "no,yes", "X", "", ""), no), "no");
  EXPECT_EQ(value_in_file(kMake.choice("x", "true,false", "X", "", ""), no), "false");
  EXPECT_EQ(value_in_file(kMake.choice("x", "a,b", "X", "", ""), no), std::nullopt);
}

TEST(OptionValue, MapsAreNoValue) {
  const ConfigValue map = {.data = ConfigValue::Map(), .text = "", .line = 1};

  EXPECT_EQ(value_in_file(kMake.text("x", "NAME", "X", ""), map), std::nullopt);
}

}  // namespace
}  // namespace accel::launcher::option_value_test
