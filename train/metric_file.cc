#include "train/metric_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <string_view>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

#include <accel/error.h>

#include "runtime/printable.h"
#include "runtime/text/joined.h"
#include "runtime/write_all.h"

namespace accel::train {
namespace {

std::string value_text(const std::variant<std::int64_t, double>& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return std::to_string(*whole);
  return metric_text(std::get<double>(value));
}

}  // namespace

std::string metric_text(double value) {
  if (!std::isfinite(value)) return "null";
  std::array<char, 32> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  return {text.data(), end.ptr};
}

MetricFile::MetricFile(const std::filesystem::path& path,
                       std::vector<std::string> columns,
                       bool appends)
    : path_(path), is_csv_(path.extension() == ".csv"), columns_(std::move(columns)) {
  std::error_code failure;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), failure);
  const int mode = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (appends ? 0 : O_TRUNC);
  file_ = UniqueFd(::open(path.c_str(), mode, 0666));
  if (!file_) {
    throw Error(
        ErrorCode::kFileIo,
        "the metrics cannot be written to " + printable(path.string()) + ": " + errno_text(errno),
        "give another --metrics_file");
  }
  const bool is_empty = ::lseek(file_.get(), 0, SEEK_END) == 0;
  if (is_csv_ && is_empty) write_text(joined(columns_, ",") + "\n");
}

void MetricFile::write(const MetricRow& row) {
  if (is_csv_) return write_text(csv_line(row));
  write_text("{" +
             joined(row,
                    ",",
                    [](const auto& entry) {
                      return "\"" + entry.first + "\":" + value_text(entry.second);
                    }) +
             "}\n");
}

std::string MetricFile::csv_line(const MetricRow& row) const {
  std::string line;
  for (const std::string& column : columns_) {
    const auto found = std::ranges::find(row, column, &MetricRow::value_type::first);
    if (found != row.end()) line += value_text(found->second);
    line += &column == &columns_.back() ? '\n' : ',';
  }
  return line;
}

void MetricFile::write_text(const std::string& text) {
  std::string_view rest = text;
  const int error = write_all(file_.get(), rest);
  if (error == 0) return;
  throw Error(
      error == ENOSPC || error == EDQUOT ? ErrorCode::kDiskFull : ErrorCode::kFileIo,
      "the metrics cannot be written to " + printable(path_.string()) + ": " + errno_text(error));
}

}  // namespace accel::train
