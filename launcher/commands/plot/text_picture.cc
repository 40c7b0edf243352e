#include "launcher/commands/plot/text_picture.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "launcher/commands/plot/plot_scale.h"
#include "runtime/printable.h"
#include "runtime/text/text_columns.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kMarks = "*+ox#@%&";
constexpr std::size_t kLabelColumns = 10;
constexpr std::string_view kNoColour = "\x1b[0m";

std::string colour_of(std::size_t run) {
  static constexpr int kColours[] = {34, 31, 32, 35, 33, 36};  // those that both backgrounds show
  return "\x1b[" + std::to_string(kColours[run % std::size(kColours)]) + "m";
}

char mark_of_run(std::size_t run) {
  return kMarks[run % kMarks.size()];
}

std::string name_in_one_line(const std::string& name) {
  std::string text = printable(name);
  std::ranges::replace(text, '\n', ' ');
  std::ranges::replace(text, '\t', ' ');
  return text;
}

// A letter of Braille has its dots at 0x2800 + a bit for each:   1 8
//                                                                2 10
//                                                                4 20
//                                                               40 80
std::string braille(unsigned dots) {
  const unsigned value = 0x2800 + dots;
  return {static_cast<char>(0xE0 | value >> 12),
          static_cast<char>(0x80 | (value >> 6 & 0x3F)),
          static_cast<char>(0x80 | (value & 0x3F))};
}

struct Cell {
  unsigned dots = 0;
  std::size_t run = 0;  // that was drawn last
};

// Cells of one dot each, or of two by four.
class Canvas {
 public:
  Canvas(std::size_t columns, std::size_t rows, bool has_braille)
      : columns_(columns), rows_(rows), has_braille_(has_braille), cells_(columns * rows) {}

  [[nodiscard]] int width() const { return static_cast<int>(columns_) * (has_braille_ ? 2 : 1); }
  [[nodiscard]] int height() const { return static_cast<int>(rows_) * (has_braille_ ? 4 : 1); }
  [[nodiscard]] const Cell& at(std::size_t column, std::size_t row) const {
    return cells_[row * columns_ + column];
  }

  // Of all dots that the straight line touches; from the top left.
  void line(int x1, int y1, int x2, int y2, std::size_t run) {
    const int length = std::max({std::abs(x2 - x1), std::abs(y2 - y1), 1});
    for (int i = 0; i <= length; ++i) {
      const double share = static_cast<double>(i) / length;
      dot(static_cast<int>(std::lround(x1 + share * (x2 - x1))),
          static_cast<int>(std::lround(y1 + share * (y2 - y1))),
          run);
    }
  }

 private:
  void dot(int x, int y, std::size_t run) {
    static constexpr unsigned kBits[4][2] = {{0x1, 0x8}, {0x2, 0x10}, {0x4, 0x20}, {0x40, 0x80}};
    const auto column = static_cast<std::size_t>(has_braille_ ? x / 2 : x);
    const auto row = static_cast<std::size_t>(has_braille_ ? y / 4 : y);
    Cell& cell = cells_[row * columns_ + column];
    cell.dots |= has_braille_ ? kBits[y % 4][x % 2] : 1;
    cell.run = run;
  }

  std::size_t columns_;
  std::size_t rows_;
  bool has_braille_;
  std::vector<Cell> cells_;
};

void draw_curve(Canvas& canvas, const Curve& curve, const PanelScales& scales) {
  const std::vector<CurvePoint>& points = curve.smooth.empty() ? curve.points : curve.smooth;
  struct Dot {
    int x = 0;
    int y = 0;
  };
  Dot before;
  bool is_joined = false;  // to the point before
  for (const CurvePoint& point : points) {
    if (std::isnan(point.y)) {
      is_joined = false;
      continue;
    }
    const auto dot_at = [](double place, int size) {
      return std::clamp(static_cast<int>(std::lround(place * (size - 1))), 0, size - 1);
    };
    const Dot dot{dot_at(scales.x.place(point.x), canvas.width()),
                  dot_at(1 - scales.y.place(point.y), canvas.height())};
    const Dot from = is_joined ? before : dot;
    canvas.line(from.x, from.y, dot.x, dot.y, curve.run);
    before = dot;
    is_joined = true;
  }
}

class PanelText {
 public:
  PanelText(const Panel& panel, const Panels& all, TextPictureOptions options, bool has_braille)
      : panel_(panel),
        all_(all),
        options_(options),
        has_braille_(has_braille),
        scales_(scales_of(panel)),
        canvas_(plot_columns(), options.rows, has_braille) {}

  std::string text() {
    for (const Curve& curve : panel_.curves) draw_curve(canvas_, curve, scales_);
    std::string text = fitted_columns(name_in_one_line(panel_.metric), options_.columns) + "\n";
    for (std::size_t row = 0; row < options_.rows; ++row) text += row_text(row);
    text += std::string(kLabelColumns, ' ') + '+' + std::string(plot_columns(), '-') + "\n";
    return text + axis_text();
  }

 private:
  [[nodiscard]] std::size_t plot_columns() const { return options_.columns - kLabelColumns - 1; }

  // At the top, in the middle and at the bottom.
  [[nodiscard]] std::string label_of(std::size_t row) const {
    const std::size_t last = options_.rows - 1;
    if (row != 0 && row != last && row != last / 2) return "";
    const double place = last == 0 ? 1 : 1 - static_cast<double>(row) / static_cast<double>(last);
    return short_number(scales_.y.low + place * (scales_.y.high - scales_.y.low), 4);
  }

  [[nodiscard]] std::string row_text(std::size_t row) const {
    std::string text = right_columns(label_of(row), kLabelColumns - 1) + " |";
    std::string cells;
    std::optional<std::size_t> painted;
    std::size_t end = plot_columns();
    while (end > 0 && canvas_.at(end - 1, row).dots == 0) --end;
    for (std::size_t column = 0; column < end; ++column) {
      const Cell& cell = canvas_.at(column, row);
      if (options_.has_colour && cell.dots != 0 && painted != cell.run) {
        cells += colour_of(cell.run);
        painted = cell.run;
      }
      if (cell.dots == 0) {
        cells += ' ';
      } else {
        cells += has_braille_ ? braille(cell.dots) : std::string(1, mark_of_run(cell.run));
      }
    }
    if (painted) cells += kNoColour;
    return text + cells + "\n";
  }

  [[nodiscard]] std::string axis_text() const {
    const std::string low = short_number(scales_.x.low, 6);
    const std::string high = short_number(scales_.x.high, 6) + " " + all_.x_label;
    return std::string(kLabelColumns + 1, ' ') + padded_columns(low, 12) +
           right_columns(high, plot_columns() - 12) + "\n";
  }

  const Panel& panel_;
  const Panels& all_;
  TextPictureOptions options_;
  bool has_braille_;
  PanelScales scales_;
  Canvas canvas_;
};

std::string legend_text(const std::vector<std::string>& names, const TextPictureOptions& options) {
  std::string text;
  for (std::size_t run = 0; run < names.size(); ++run) {
    const std::string mark(1, mark_of_run(run));
    text += options.has_colour ? colour_of(run) + mark + std::string(kNoColour) : mark;
    text += " " + fitted_columns(name_in_one_line(names[run]), options.columns - 2) + "\n";
  }
  return text;
}

}  // namespace

std::string text_picture(const Panels& panels,
                         const std::vector<std::string>& run_names,
                         const TextPictureOptions& wanted) {
  TextPictureOptions options = wanted;
  options.columns = std::max<std::size_t>(options.columns, 40);
  options.rows = std::max<std::size_t>(options.rows, 2);
  const bool is_one = run_names.size() == 1;
  const bool has_braille = !options.is_ascii && (is_one || options.has_colour);
  std::string text;
  if (!is_one) text += legend_text(run_names, options) + "\n";
  for (const Panel& panel : panels.panels) {
    if (&panel != &panels.panels.front()) text += "\n";
    text += PanelText(panel, panels, options, has_braille).text();
  }
  return text;
}

}  // namespace accel::launcher
