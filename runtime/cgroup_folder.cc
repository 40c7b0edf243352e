#include "runtime/cgroup_folder.h"

#include <algorithm>
#include <optional>

#include "runtime/split.h"

namespace accel {
namespace {

bool has(const std::vector<std::string_view>& parts, std::string_view part) {
  return std::find(parts.begin(), parts.end(), part) != parts.end();
}

// Mount points in mountinfo have their spaces as \040 and so on.
std::string unescape(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out +=
          static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + text[i + 3] - '0');
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

// "0::/user.slice/session-1.scope" for version 2, "4:memory:/a" or "3:cpu,cpuacct:/a" for version 1.
std::optional<std::string_view> own_path(std::string_view cgroup, std::string_view controller) {
  std::optional<std::string_view> own;
  for (const std::string_view line : split(cgroup, '\n')) {
    if (controller.empty()) {
      if (line.starts_with("0::")) own = line.substr(3);
      continue;
    }
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    if (has(split(line.substr(first + 1, second - first - 1), ','), controller))
      own = line.substr(second + 1);
  }
  return own;
}

}  // namespace

// A line of mountinfo: "41 31 0:38 ROOT MOUNT_POINT rw,relatime - cgroup2 cgroup2 rw",
// of version 1:        "35 31 0:32 ROOT MOUNT_POINT rw,relatime - cgroup cgroup rw,memory".
std::string cgroup_folder(std::string_view mountinfo,
                          std::string_view cgroup,
                          std::string_view controller) {
  const std::optional<std::string_view> own = own_path(cgroup, controller);
  if (!own || own->starts_with("/..")) return {};  // outside of what this namespace shows
  std::string found;
  for (const std::string_view line : split(mountinfo, '\n')) {
    const std::size_t dash = line.find(controller.empty() ? " - cgroup2 " : " - cgroup ");
    if (dash == std::string_view::npos) continue;
    const auto fields = split(line.substr(0, dash), ' ');
    if (fields.size() < 5) continue;
    if (!controller.empty()) {
      const auto behind = split(line.substr(dash + 3), ' ');  // type, source, options
      if (behind.size() < 3 || !has(split(behind[2], ','), controller)) continue;
    }
    const std::string root = unescape(fields[3]);
    std::string_view below = *own;
    if (root != "/") {
      if (!below.starts_with(root)) continue;
      below.remove_prefix(root.size());
      if (!below.empty() && below[0] != '/') continue;
    }
    found = unescape(fields[4]);
    if (below != "/") found += below;
  }
  return found;
}

std::vector<std::string> cgroup_folders(System& system, std::string_view controller) {
  const auto mountinfo = system.read_file("/proc/self/mountinfo");
  const auto cgroup = system.read_file("/proc/self/cgroup");
  if (!mountinfo || !cgroup) return {};
  std::vector<std::string> folders;
  std::string folder = cgroup_folder(*mountinfo, *cgroup, controller);
  // Above the mount point there are no files of the hierarchy: reading them fails.
  while (folder.size() > 1) {
    folders.push_back(folder);
    folder.resize(std::min(folder.size(), folder.rfind('/')));
  }
  return folders;
}

}  // namespace accel
