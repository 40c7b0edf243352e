// FolderNames: what stands in a folder, by name.
//
// Threads:  any; reads the folder.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace accel {

// Sorted. When the folder cannot be read to its end, error says why, and the names are those read so far.
[[nodiscard]] inline std::vector<std::string> names_in(const std::filesystem::path& folder,
                                                       std::error_code& error) {
  std::vector<std::string> names;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error))
    names.push_back(entry->path().filename());
  std::ranges::sort(names);
  return names;
}

}  // namespace accel
