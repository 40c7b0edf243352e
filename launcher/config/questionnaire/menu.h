// Menu: rows of which one is chosen by keys; it neither reads nor draws.
//
//   Up, Down     one row, not beyond the ends
//   Home, End    the first, the last
//   digits       the row of this number; one after the other they are one number where there is such a row
//   Enter        takes the row
//
// Threads:  one at a time.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "launcher/config/questionnaire/key_decoder.h"

namespace accel::launcher {

struct MenuRow {
  int number = 0;     // what digits mean it
  std::string label;  // ASCII; empty: the number says it

  [[nodiscard]] std::string name() const { return label.empty() ? std::to_string(number) : label; }
};

enum class MenuEnd { kChosen, kLeft };

class Menu {
 public:
  // Requires: rows, and `position` is one of them.
  Menu(std::vector<MenuRow> rows, std::size_t position);

  // How the menu ends with this key, if it does.
  [[nodiscard]] std::optional<MenuEnd> press(Key key);

  [[nodiscard]] std::size_t position() const noexcept { return position_; }
  [[nodiscard]] const std::vector<MenuRow>& rows() const noexcept { return rows_; }

  // A line for each row, without its end, of at most `columns` letters.
  [[nodiscard]] std::vector<std::string> lines(std::size_t columns) const;

 private:
  [[nodiscard]] std::optional<std::size_t> row_of(int number) const;
  void type(int digit);

  std::vector<MenuRow> rows_;
  std::size_t position_;
  std::optional<int> typed_;  // by the digits before
};

struct WindowSize {
  std::size_t columns = 0;  // 0: not known
  std::size_t lines = 0;
};

// Every row stands in a line of its own, all of them with the question in the window, and the window has 40 columns.
[[nodiscard]] bool menu_fits(const std::vector<MenuRow>& rows, WindowSize window);

// Whether this terminal can draw one. `term` and `no_color` are the values of TERM and NO_COLOR; empty: not set.
[[nodiscard]] bool can_draw_menus(const std::string& term, const std::string& no_color);

}  // namespace accel::launcher
