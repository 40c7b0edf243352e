// Symbols: expressions as sympy prints them.

#include "libaccel/exported/symbols.h"

#include <string>

#include <gtest/gtest.h>

namespace accel::exported::symbols_test {
namespace {

const SymbolValues kValues{{"s0", 7}, {"s77", 3}};
const std::string kS0 = "Symbol('s0', positive=True, integer=True)";
const std::string kS77 = "Symbol('s77', positive=True, integer=True)";

TEST(SymbolicNumber, IsComputedAsInPython) {
  const auto value = [](const std::string& text) {
    return SymbolicNumber::parse(text).evaluate(kValues);
  };
  EXPECT_EQ(value("Integer(12)"), 12);
  EXPECT_EQ(value(kS77), 3);
  EXPECT_EQ(value("Add(Mul(Integer(2), " + kS77 + "), Integer(-1))"), 5);
  EXPECT_EQ(value("FloorDiv(Integer(-7), Integer(2))"), -4);
  EXPECT_EQ(value("Mod(" + kS0 + ", Integer(4))"), 3);
  EXPECT_EQ(value("PythonMod(Integer(-7), Integer(4))"), 1);
  EXPECT_EQ(value("Max(Integer(1), " + kS0 + ")"), 7);
  EXPECT_EQ(value("Min(Integer(1), " + kS0 + ")"), 1);
}

TEST(SymbolicNumber, IsNotKnownWhereItCannotBe) {
  const auto value = [](const std::string& text) {
    return SymbolicNumber::parse(text).evaluate(kValues);
  };
  for (const std::string text : {"Symbol('s5')",
                                 "Where(Integer(1), Integer(2))",
                                 "FloorDiv(Integer(1), Integer(0))",
                                 "Mul(Integer(9223372036854775807), Integer(2))",
                                 "",
                                 "Integer(",
                                 "Integer(1))",
                                 "((("})
    EXPECT_EQ(value(text), std::nullopt) << text;
  std::string deep;
  for (int i = 0; i < 10'000; ++i) deep += "Add(";
  EXPECT_EQ(value(deep), std::nullopt);
}

TEST(SymbolicNumber, IsShownAsInPython) {
  EXPECT_EQ(SymbolicNumber::parse("Mul(Integer(2), " + kS77 + ")").text(), "2*s77");
  EXPECT_EQ(*SymbolicNumber::parse(kS77).symbol(), "s77");
  EXPECT_EQ(SymbolicNumber::parse("Integer(2)").symbol(), nullptr);
}

}  // namespace
}  // namespace accel::exported::symbols_test
