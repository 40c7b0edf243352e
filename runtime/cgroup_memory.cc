#include "runtime/cgroup_memory.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "runtime/cgroup_folder.h"
#include "runtime/split.h"

namespace accel {
namespace {

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

std::vector<CgroupRoom> cgroup_rooms(System& system) {
  std::vector<CgroupRoom> rooms;
  for (const std::string_view controller : {"", "memory"}) {
    const Names& names = controller.empty() ? kVersion2 : kVersion1;
    for (const std::string& folder : cgroup_folders(system, controller)) {
      if (auto room = room_of(system, folder, names)) rooms.push_back(*std::move(room));
    }
  }
  return rooms;
}

}  // namespace accel
