// The pictures of `accel plot`. tests/integration/plot looks at them in a terminal and in a browser.

#include <cmath>
#include <limits>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/commands/plot/svg_picture.h"
#include "launcher/commands/plot/text_picture.h"
#include "launcher/text/terminal_text.h"
#include "runtime/text/text_columns.h"

namespace accel::launcher::pictures_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr double kGap = std::numeric_limits<double>::quiet_NaN();

Panels panels_with(std::vector<CurvePoint> points, std::string metric = "loss") {
  return {.panels = {{.metric = std::move(metric),
                      .curves = {{.run = 0, .points = std::move(points), .smooth = {}}}}},
          .x_label = "step"};
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

TEST(TextPicture, DrawsALineWithAsciiMarksUnderItsName) {
  const Panels panels = panels_with({{0, 0}, {10, 4}});

  const std::string text =
      text_picture(panels, {"run"}, {.columns = 40, .rows = 5, .is_ascii = true});

  EXPECT_EQ(text,
            "loss\n"
            "        4 |                         ****\n"
            "          |                  *******\n"
            "        2 |           *******\n"
            "          |    *******\n"
            "        0 |****\n"
            "          +-----------------------------\n"
            "           0                     10 step\n");
}

TEST(TextPicture, OnePointIsOneDotAndAGapIsNotCrossed) {
  const auto marks = [](std::vector<CurvePoint> points) {
    return count_of(
        text_picture(
            panels_with(std::move(points)), {"run"}, {.columns = 40, .rows = 5, .is_ascii = true}),
        "*");
  };

  EXPECT_EQ(marks({{1, 2}}), 1U);
  EXPECT_EQ(marks({{0, 1}, {1, kGap}, {2, 1}}), 2U);
}

TEST(TextPicture, BrailleHasEightDotsInACell) {
  const Panels panels = panels_with({{0, 1}, {10, 1}});

  const std::string text = text_picture(panels, {"run"}, {.columns = 40, .rows = 3});

  EXPECT_EQ(count_of(text, "\xE2\xA0\xA4") + count_of(text, "\xE2\xA0\x92"), 29U) << text;
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST(TextPicture, TellsRunsApartByMarksWhereThereIsNoColour) {
  Panels panels = panels_with({{0, 0}, {10, 0}});
  panels.panels[0].curves.push_back({.run = 1, .points = {{0, 1}, {10, 1}}, .smooth = {}});

  const std::string plain = text_picture(panels, {"a", "b"}, {.columns = 40, .rows = 3});
  const std::string coloured =
      text_picture(panels, {"a", "b"}, {.columns = 40, .rows = 3, .has_colour = true});

  EXPECT_THAT(plain, HasSubstr("* a\n+ b\n"));
  EXPECT_EQ(count_of(plain, "*"), 30U);
  EXPECT_EQ(count_of(plain, "+"), 31U);  // with the corner of the axes
  EXPECT_THAT(coloured, HasSubstr("\x1b[34m"));
  EXPECT_THAT(coloured, HasSubstr("\x1b[31m"));
  EXPECT_THAT(coloured, HasSubstr("\xE2\xA0\x89"));
}

TEST(TextPicture, NamesCannotSpeakToTheTerminalNorBreakALine) {
  const std::string text =
      text_picture(panels_with({{1, 2}}, "a\x1b[2Jb\nc\xC2\x9B" + std::string(99, 'd')),
                   {"run"},
                   {.columns = 40, .rows = 3});

  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_EQ(text.substr(0, text.find('\n')), "a?[2Jb c??" + std::string(29, 'd') + "~");
}

TEST(SvgPicture, IsTheSameBytesTwiceAndBalancedXml) {
  const Panels panels = panels_with({{0, 1}, {1, 0.1}, {2, kGap}, {3, 7}});

  const std::string svg = svg_picture(panels, {"run"});

  EXPECT_EQ(svg, svg_picture(panels, {"run"}));
  EXPECT_EQ(count_of(svg, "<polyline"), 2U);  // the legend and the part before the gap
  EXPECT_EQ(count_of(svg, "<circle"), 1U);    // the point behind it
  EXPECT_EQ(count_of(svg, "<text"), count_of(svg, "</text>"));
  EXPECT_THAT(svg, HasSubstr("prefers-color-scheme:dark"));
}

TEST(SvgPicture, NamesAreTextAndNeverMarkup) {
  const std::string name = "<script>alert(1)</script>&\"'\x01\xEF\xBF\xBF\xFF";

  const std::string svg = svg_picture(panels_with({{0, 1}}, name), {name});

  EXPECT_THAT(svg, Not(HasSubstr("<script")));
  EXPECT_THAT(svg,
              HasSubstr("&lt;script&gt;alert(1)&lt;/script&gt;&amp;&quot;'??"
                        "?</text>"));
}

TEST(SvgPicture, AMillionPointsTakeFourForEachColumn) {
  std::vector<CurvePoint> points;
  for (int i = 0; i < 1'000'000; ++i) points.push_back({static_cast<double>(i), std::sin(i)});

  const std::string svg = svg_picture(panels_with(std::move(points)), {"run"});

  // At most 4 points of "xxx.xx,yyy.yy " for each of 701 columns, and the rest of the file.
  EXPECT_LT(svg.size(), 701U * 4 * 14 + 8'000);
}

TEST(TextColumns, CountsWideLettersTwiceAndMarksNot) {
  EXPECT_EQ(text_columns("abc"), 3U);
  EXPECT_EQ(text_columns("\xE4\xBD\xA0"), 2U);  // a Chinese letter
  EXPECT_EQ(text_columns("e\xCC\x81"), 1U);     // a combining accent
  EXPECT_EQ(fitted_columns("\xE4\xBD\xA0\xE4\xBD\xA0", 3), "\xE4\xBD\xA0~");
  EXPECT_EQ(padded_columns("ab", 4), "ab  ");
  EXPECT_EQ(right_columns("ab", 4), "  ab");
  EXPECT_EQ(fitted_columns("ab", 0), "");
}

TEST(TerminalText, TheFirstVariableThatIsSetNamesTheLetters) {
  EXPECT_TRUE(has_utf8_locale({{"LANG", "de_DE.UTF-8"}}));
  EXPECT_TRUE(has_utf8_locale({{"LC_ALL", ""}, {"LC_CTYPE", "C.utf8"}, {"LANG", "C"}}));
  EXPECT_FALSE(has_utf8_locale({{"LC_ALL", "C"}, {"LANG", "de_DE.UTF-8"}}));
  EXPECT_FALSE(has_utf8_locale({}));
  EXPECT_FALSE(wants_colour({{"NO_COLOR", "1"}, {"TERM", "xterm"}}));
  EXPECT_FALSE(wants_colour({{"TERM", "dumb"}}));
  EXPECT_TRUE(wants_colour({{"TERM", "xterm"}}));
}

}  // namespace
}  // namespace accel::launcher::pictures_test
