// DashboardPage: the files of the dashboard's page, which stand in this program.
//
// Threads:  free of state.
#pragma once

#include <optional>
#include <string_view>

namespace accel::supervisor {

struct DashboardFile {
  std::string_view type;  // of its content, as HTTP names it
  std::string_view text;
};

// `path`: "/index.html", "/dashboard.css", "/dashboard.js". std::nullopt: there is no such file.
[[nodiscard]] std::optional<DashboardFile> dashboard_file(std::string_view path);

}  // namespace accel::supervisor
