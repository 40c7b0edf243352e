// LabelledTable: a CSV file of numbers, one row a sample, one column its class.
//
// The first line has the names of the columns. All other cells are numbers; the class is a whole number of at least 0.
//
// Threads:  a value.
// Cost:     4 bytes a cell, in memory.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

namespace accel::train {

struct LabelledTable {
  std::vector<std::string> columns;  // without that of the class
  std::vector<float> values;         // row after row
  std::vector<std::int64_t> labels;

  [[nodiscard]] std::size_t num_rows() const noexcept { return labels.size(); }
};

// Errors  kInvalidArgument with `name`, line and column: a column that is missing or there twice, a line with another number of
// cells, a cell that is no number; no row at all. Pure.
[[nodiscard]] Result<LabelledTable> parse_labelled_table(std::string_view text,
                                                         std::string_view label_column,
                                                         const std::string& name);

// Throws those and Error kFileIo. At most 16 GiB.
[[nodiscard]] LabelledTable read_labelled_table(const std::filesystem::path& path,
                                                std::string_view label_column);

}  // namespace accel::train
