// The keys of a terminal, and what they do to a menu. The drawn menu is tested on a pseudo terminal by
// tests/integration/config_menu.

#include "launcher/config/questionnaire/menu.h"

#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/config/questionnaire/key_decoder.h"

namespace accel::launcher::menu_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<Key> keys_of(std::string_view bytes) {
  KeyDecoder decoder;
  std::vector<Key> keys;
  for (const char byte : bytes) {
    if (const auto key = decoder.take(byte)) keys.push_back(*key);
  }
  return keys;
}

constexpr Key kUp = {KeyKind::kUp};
constexpr Key kDown = {KeyKind::kDown};
constexpr Key kEnter = {KeyKind::kEnter};
Key digit(int number) {
  return {KeyKind::kDigit, number};
}

TEST(KeyDecoder, KnowsArrowsInBothModesAndWithModifiers) {
  EXPECT_THAT(keys_of("\x1b[A\x1b[B"), ElementsAre(kUp, kDown));
  EXPECT_THAT(keys_of("\x1bOA\x1bOB"), ElementsAre(kUp, kDown));
  EXPECT_THAT(keys_of("\x1b[1;5A\x1b[1;2B"), ElementsAre(kUp, kDown));
}

TEST(KeyDecoder, KnowsLettersDigitsAndEnter) {
  EXPECT_THAT(keys_of("kj\r\n"), ElementsAre(kUp, kDown, kEnter, kEnter));
  EXPECT_THAT(keys_of("07"), ElementsAre(digit(0), digit(7)));
  EXPECT_THAT(keys_of("\x04"), ElementsAre(Key{KeyKind::kEnd}));
}

TEST(KeyDecoder, KnowsHomeAndEndOfAllTerminals) {
  for (const char* home : {"\x1b[H", "\x1bOH", "\x1b[1~", "\x1b[7~"})
    EXPECT_THAT(keys_of(home), ElementsAre(Key{KeyKind::kFirst})) << home + 1;
  for (const char* end : {"\x1b[F", "\x1bOF", "\x1b[4~", "\x1b[8~"})
    EXPECT_THAT(keys_of(end), ElementsAre(Key{KeyKind::kLast})) << end + 1;
}

TEST(KeyDecoder, SwallowsSequencesThatMeanNothing) {
  EXPECT_THAT(keys_of("\x1b[C\x1b[D\x1b[3~\x1b[5~\x1b[200~\x1b[24;80R"), IsEmpty());
  EXPECT_THAT(keys_of("\x1b[99999999999999999999~"), IsEmpty());
  EXPECT_THAT(keys_of("\x1bk\x1bj"), IsEmpty());  // Alt
  EXPECT_THAT(keys_of("x \t\x7f\xc3\xa9"), IsEmpty());
}

TEST(KeyDecoder, GoesOnAfterABrokenSequence) {
  EXPECT_THAT(keys_of("\x1b\x1b[A"), ElementsAre(kUp));
  EXPECT_THAT(keys_of("\x1b[\x1b[B"), ElementsAre(kDown));
  EXPECT_THAT(keys_of("\x1b\r"), ElementsAre(kEnter));
  EXPECT_THAT(keys_of("\x1b[\rj"), ElementsAre(kEnter, kDown));
  EXPECT_THAT(keys_of("\x1b[\xc3j"), ElementsAre(kDown));
}

Menu menu(std::size_t rows, std::size_t position = 0, int first_number = 0) {
  std::vector<MenuRow> all;
  for (std::size_t i = 0; i < rows; ++i)
    all.push_back({first_number + static_cast<int>(i), "row " + std::to_string(i)});
  return {std::move(all), position};
}

// Where the menu stands after these keys.
std::size_t after(Menu menu, const std::vector<Key>& keys) {
  for (const Key& key : keys) EXPECT_FALSE(menu.press(key).has_value());
  return menu.position();
}

TEST(Menu, MovesByRowsAndStaysWithinThem) {
  EXPECT_EQ(after(menu(3), {kDown}), 1u);
  EXPECT_EQ(after(menu(3), {kDown, kDown, kDown, kDown}), 2u);
  EXPECT_EQ(after(menu(3, 1), {kUp, kUp}), 0u);
  EXPECT_EQ(after(menu(3), {Key{KeyKind::kLast}}), 2u);
  EXPECT_EQ(after(menu(3, 2), {Key{KeyKind::kFirst}}), 0u);
}

TEST(Menu, DigitsMeanNumbersOfRows) {
  EXPECT_EQ(after(menu(3), {digit(2)}), 2u);
  EXPECT_EQ(after(menu(3, 1), {digit(7)}), 1u);
  EXPECT_EQ(after(menu(2, 0, 1), {digit(2)}), 1u);  // choices that are the numbers 1 and 2
  EXPECT_EQ(after(menu(2, 1, 1), {digit(0)}), 1u);
}

TEST(Menu, DigitsInARowAreOneNumberWhereThereIsSuchARow) {
  EXPECT_EQ(after(menu(13), {digit(1), digit(2)}), 12u);
  EXPECT_EQ(after(menu(13), {digit(1), digit(3)}), 3u);
  EXPECT_EQ(after(menu(13), {digit(1), kDown, digit(2)}), 2u);
  EXPECT_EQ(after(menu(13), {digit(0), digit(1), digit(1)}), 11u);
}

TEST(Menu, EnterTakesTheRowAndTheEndOfTheInputLeaves) {
  Menu chosen = menu(3, 1);
  EXPECT_EQ(chosen.press(kEnter), MenuEnd::kChosen);
  EXPECT_EQ(chosen.position(), 1u);

  EXPECT_EQ(menu(3).press({KeyKind::kEnd}), MenuEnd::kLeft);
}

TEST(Menu, LinesMarkTheRowAndFitTheWindow) {
  const Menu two({{0, "This machine"}, {1, "AWS (Amazon SageMaker)"}}, 1);

  EXPECT_THAT(two.lines(80), ElementsAre("  0  This machine", "> 1  AWS (Amazon SageMaker)"));
  EXPECT_THAT(two.lines(10), ElementsAre("  0  This ", "> 1  AWS ("));
  EXPECT_EQ(menu(11, 10).lines(80).front(), "   0  row 0");
  EXPECT_EQ(menu(11, 10).lines(80).back(), "> 10  row 10");
  EXPECT_THAT(Menu({{1, ""}, {2, ""}}, 0).lines(80), ElementsAre("> 1", "  2"));
}

TEST(Menu, NeedsAWindowForItsRows) {
  const std::vector<MenuRow> rows = {{0, "short"}, {1, std::string(55, 'x')}};

  EXPECT_TRUE(menu_fits(rows, {.columns = 80, .lines = 24}));
  EXPECT_TRUE(menu_fits(rows, {.columns = 61, .lines = 6}));
  EXPECT_FALSE(menu_fits(rows, {.columns = 60, .lines = 6}));
  EXPECT_FALSE(menu_fits(rows, {.columns = 80, .lines = 5}));
  EXPECT_FALSE(menu_fits({{0, "short"}}, {.columns = 20, .lines = 24}));
  EXPECT_FALSE(menu_fits(rows, {}));
}

TEST(Menu, NeedsATerminalThatDraws) {
  EXPECT_TRUE(can_draw_menus("xterm-256color", ""));
  EXPECT_FALSE(can_draw_menus("dumb", ""));
  EXPECT_FALSE(can_draw_menus("", ""));
  EXPECT_FALSE(can_draw_menus("xterm", "1"));
}

}  // namespace
}  // namespace accel::launcher::menu_test
