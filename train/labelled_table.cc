#include "train/labelled_table.h"

#include <algorithm>
#include <charconv>

#include "runtime/printable.h"
#include "runtime/split.h"
#include "runtime/text/text_file.h"
#include "runtime/trimmed.h"

namespace accel::train {
namespace {

constexpr std::size_t kMostBytes = std::size_t{16} << 30;
constexpr std::string_view kBlanks = " \t\r\"";

Error wrong(const std::string& name, std::size_t line, const std::string& reason) {
  return Error(ErrorCode::kInvalidArgument, name + ":" + std::to_string(line) + ": " + reason);
}

std::vector<std::string_view> cells_of(std::string_view line) {
  std::vector<std::string_view> cells = split(line, ',');
  if (line.ends_with(',')) cells.emplace_back();  // split() has no part behind the last comma
  for (std::string_view& cell : cells) cell = trimmed(cell, kBlanks);
  return cells;
}

template <typename Number>
bool read_number(std::string_view cell, Number& number) {
  const auto [end, error] = std::from_chars(cell.data(), cell.data() + cell.size(), number);
  return error == std::errc() && end == cell.data() + cell.size();
}

struct Heading {
  std::size_t num_cells = 0;
  std::size_t label = 0;
};

Result<Heading> read_heading(std::string_view line,
                             std::string_view label_column,
                             const std::string& name,
                             LabelledTable& table) {
  const std::vector<std::string_view> cells = cells_of(line);
  const auto count = std::ranges::count(cells, label_column);
  if (count != 1) {
    return Error(ErrorCode::kInvalidArgument,
                 name + " has " + (count == 0 ? "no column" : "several columns") + " called " +
                     printable(std::string(label_column)),
                 "name the column of the class with --label_column");
  }
  const auto label =
      static_cast<std::size_t>(std::ranges::find(cells, label_column) - cells.begin());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (i != label) table.columns.emplace_back(cells[i]);
  }
  return Heading{.num_cells = cells.size(), .label = label};
}

Result<void> read_row(const std::vector<std::string_view>& cells,
                      const Heading& heading,
                      const std::string& name,
                      std::size_t line,
                      LabelledTable& table) {
  if (cells.size() != heading.num_cells) {
    return wrong(name,
                 line,
                 std::to_string(cells.size()) + " cells, and the first line has " +
                     std::to_string(heading.num_cells));
  }
  for (std::size_t i = 0; i < cells.size(); ++i) {
    float value = 0;
    std::int64_t label = 0;
    const bool is_label = i == heading.label;
    if (is_label ? !read_number(cells[i], label) || label < 0 : !read_number(cells[i], value)) {
      return wrong(name,
                   line,
                   "column " + std::to_string(i + 1) + " is '" +
                       printable(std::string(cells[i].substr(0, 64))) + "', expected " +
                       (is_label ? "a whole number of at least 0" : "a number"));
    }
    if (is_label) {
      table.labels.push_back(label);
    } else {
      table.values.push_back(value);
    }
  }
  return {};
}

}  // namespace

Result<LabelledTable> parse_labelled_table(std::string_view text,
                                           std::string_view label_column,
                                           const std::string& name) {
  LabelledTable table;
  Heading heading;
  std::size_t line = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (++line == 1) {
      auto found = read_heading(row, label_column, name, table);
      if (!found) return std::move(found).error();
      heading = *found;
    } else if (!trimmed(row, kBlanks).empty()) {
      if (auto read = read_row(cells_of(row), heading, name, line, table); !read)
        return std::move(read).error();
    }
  }
  if (table.labels.empty()) return Error(ErrorCode::kInvalidArgument, name + " has no rows");
  return table;
}

LabelledTable read_labelled_table(const std::filesystem::path& path,
                                  std::string_view label_column) {
  const std::string text = or_throw(read_text_file(path.string(), kMostBytes, "the table"));
  return or_throw(parse_labelled_table(text, label_column, printable(path.string())));
}

}  // namespace accel::train
