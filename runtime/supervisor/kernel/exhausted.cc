#include "runtime/supervisor/kernel/exhausted.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

namespace accel::supervisor {
namespace {

struct Resource {
  int error_number;
  std::string_view what;
  std::string_view remedy;
};

constexpr std::array<Resource, 5> kResources = {{
    {EMFILE,
     "no more files can be opened",
     "raise the limit with `ulimit -n`: a job wants some 20 and 5 more for each worker"},
    {ENFILE,
     "no more files can be opened",
     "raise fs.file-max, the limit of all programs of this machine"},
    {EAGAIN,
     "no more processes and threads can be started",
     "raise the limit with `ulimit -u`, or pids.max of the cgroup (of a container: its limit on "
     "processes)"},
    {ENOSPC,
     "no more files can be watched",
     "raise fs.epoll.max_user_watches, the limit of all programs of a user"},
    {ENOMEM, "no memory is left", "free memory, or raise the limit with `ulimit -v`"},
}};

const Resource* find(int error_number) {
  const auto* found =
      std::find_if(kResources.begin(), kResources.end(), [&](const Resource& resource) {
        return resource.error_number == error_number;
      });
  return found == kResources.end() ? nullptr : found;
}

}  // namespace

bool is_exhausted(int error_number) noexcept {
  return find(error_number) != nullptr;
}

Error exhausted_error(const std::string& what, int error_number) {
  const Resource* resource = find(error_number);
  const std::string text = errno_text(error_number);
  if (resource == nullptr) return Error(ErrorCode::kSpawnFailed, what + ": " + text);
  return Error(ErrorCode::kSpawnFailed,
               what + ": " + std::string(resource->what) + ": " + text,
               std::string(resource->remedy));
}

}  // namespace accel::supervisor
