// CsvRow: rows of CSV, one by one.
//
// Threads:  pure.
// Source:   RFC 4180; a line may end without a carriage return, and only the last one without a newline.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace accel {

struct CsvRow {
  std::vector<std::string> cells;  // without quotes; at least one
  bool has_end = false;            // its newline was there
};

// Takes the first row off `text`, with its newline. A newline in quotes belongs to the cell.
[[nodiscard]] inline CsvRow take_csv_row(std::string_view& text) {
  CsvRow row{.cells = {""}};
  bool is_quoted = false;
  std::size_t i = 0;
  for (; i < text.size() && !row.has_end; ++i) {
    const char letter = text[i];
    if (is_quoted) {
      const bool is_doubled = letter == '"' && i + 1 < text.size() && text[i + 1] == '"';
      if (is_doubled) ++i;
      if (letter == '"' && !is_doubled) {
        is_quoted = false;
      } else {
        row.cells.back() += letter;
      }
    } else if (letter == '\n') {
      row.has_end = true;
    } else if (letter == ',') {
      row.cells.emplace_back();
    } else if (letter == '"') {
      is_quoted = true;
    } else if (letter != '\r') {
      row.cells.back() += letter;
    }
  }
  text.remove_prefix(i);
  return row;
}

}  // namespace accel
