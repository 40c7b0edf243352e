#include "runtime/cgroup_memory.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace accel {
namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return parts;
}

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

std::optional<std::uint64_t> number_in(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end != text.data() ? std::optional(number) : std::nullopt;
}

// What the files of a version are called.
struct Names {
  const char* limit;
  const char* usage;
  std::string_view inactive;  // a line of memory.stat, of the cgroup and all below it
};
constexpr Names kVersion2{"memory.max", "memory.current", "inactive_file "};
constexpr Names kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};

// Without a limit version 2 says "max", and version 1 a number near 2^63.
constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;

std::optional<CgroupRoom> room_of(System& system, const std::string& folder, const Names& names) {
  CgroupRoom room{.file = folder + "/" + names.limit};
  const auto limit = system.read_file(room.file);
  const auto usage = system.read_file(folder + "/" + names.usage);
  if (!limit || !usage) return std::nullopt;
  const auto most = number_in(*limit);
  const auto used = number_in(*usage);
  if (!most || !used || *most >= kNoLimit) return std::nullopt;
  std::uint64_t given_back = 0;
  if (const auto stat = system.read_file(folder + "/memory.stat")) {
    for (const std::string_view line : split(*stat, '\n')) {
      if (line.starts_with(names.inactive))
        given_back = number_in(line.substr(names.inactive.size())).value_or(0);
    }
  }
  const std::uint64_t taken = *used - std::min(*used, given_back);
  room.limit_bytes = *most;
  room.free_bytes = *most - std::min(*most, taken);
  return room;
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

std::vector<CgroupRoom> cgroup_rooms(System& system) {
  const auto mountinfo = system.read_file("/proc/self/mountinfo");
  const auto cgroup = system.read_file("/proc/self/cgroup");
  if (!mountinfo || !cgroup) return {};
  std::vector<CgroupRoom> rooms;
  for (const std::string_view controller : {"", "memory"}) {
    const Names& names = controller.empty() ? kVersion2 : kVersion1;
    std::string folder = cgroup_folder(*mountinfo, *cgroup, controller);
    // Above the mount point there are no such files.
    while (folder.size() > 1) {
      if (auto room = room_of(system, folder, names)) rooms.push_back(*std::move(room));
      folder.resize(std::min(folder.size(), folder.rfind('/')));
    }
  }
  return rooms;
}

}  // namespace accel
