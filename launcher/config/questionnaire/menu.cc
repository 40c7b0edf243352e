#include "launcher/config/questionnaire/menu.h"

#include <algorithm>
#include <utility>

namespace accel::launcher {
namespace {

std::size_t width_of_numbers(const std::vector<MenuRow>& rows) {
  std::size_t width = 1;
  for (const MenuRow& row : rows) width = std::max(width, std::to_string(row.number).size());
  return width;
}

// "  9  no", " 10  no": in columns below one another.
std::string row_text(const MenuRow& row, std::size_t number_width) {
  const std::string number = std::to_string(row.number);
  const std::string label = row.label.empty() ? "" : "  " + row.label;
  return std::string(number_width - number.size(), ' ') + number + label;
}

constexpr std::size_t kMarkWidth = 2;

}  // namespace

Menu::Menu(std::vector<MenuRow> rows, std::size_t position)
    : rows_(std::move(rows)), position_(position) {}

std::optional<std::size_t> Menu::row_of(int number) const {
  const auto found = std::ranges::find(rows_, number, &MenuRow::number);
  if (found == rows_.end()) return std::nullopt;
  return static_cast<std::size_t>(found - rows_.begin());
}

void Menu::type(int digit) {
  constexpr int kMost = 1'000'000;
  const int longer = typed_ && *typed_ < kMost ? *typed_ * 10 + digit : digit;
  for (const int number : {longer, digit}) {
    if (const auto row = row_of(number)) {
      position_ = *row;
      typed_ = number;
      return;
    }
  }
  typed_.reset();
}

std::optional<MenuEnd> Menu::press(Key key) {
  if (key.kind == KeyKind::kDigit) {
    type(key.digit);
    return std::nullopt;
  }
  typed_.reset();
  switch (key.kind) {
    case KeyKind::kUp:
      if (position_ > 0) --position_;
      return std::nullopt;
    case KeyKind::kDown:
      if (position_ + 1 < rows_.size()) ++position_;
      return std::nullopt;
    case KeyKind::kFirst:
      position_ = 0;
      return std::nullopt;
    case KeyKind::kLast:
      position_ = rows_.size() - 1;
      return std::nullopt;
    case KeyKind::kEnd:
      return MenuEnd::kLeft;
    case KeyKind::kEnter:
    case KeyKind::kDigit:
      break;
  }
  return MenuEnd::kChosen;
}

std::vector<std::string> Menu::lines(std::size_t columns) const {
  const std::size_t width = width_of_numbers(rows_);
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    std::string line = (i == position_ ? "> " : "  ") + row_text(rows_[i], width);
    lines.push_back(line.substr(0, columns));
  }
  return lines;
}

bool menu_fits(const std::vector<MenuRow>& rows, WindowSize window) {
  constexpr std::size_t kQuestionLines =
      4;  // the question, how to choose, and the line of the cursor
  constexpr std::size_t kLeastColumns = 40;
  if (window.columns < kLeastColumns) return false;
  const std::size_t number_width = width_of_numbers(rows);
  const auto fits = [&](const MenuRow& row) {
    return kMarkWidth + row_text(row, number_width).size() < window.columns;
  };
  return rows.size() + kQuestionLines <= window.lines && std::ranges::all_of(rows, fits);
}

bool can_draw_menus(const std::string& term, const std::string& no_color) {
  return !term.empty() && term != "dumb" && no_color.empty();
}

}  // namespace accel::launcher
