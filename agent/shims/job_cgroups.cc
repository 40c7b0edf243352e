#include "agent/shims/job_cgroups.h"

#include <chrono>
#include <filesystem>

#include <sys/stat.h>

#include "agent/access/ticket_book.h"
#include "runtime/open_folder.h"
#include "runtime/supervisor/owner/delegated_cgroup.h"
#include "runtime/supervisor/spawn/job_cgroup.h"

namespace accel::agent {
namespace {

constexpr std::size_t kRandomBytes = 4;
constexpr std::chrono::seconds kEndLimit{2};

std::string name_of(const std::string& folder) {
  return std::filesystem::path(folder).filename();
}

// A seccomp filter, or a kernel before 5.7, may be against it.
bool can_start_below(const std::string& probe) {
  if (!supervisor::make_delegated_cgroup(probe, std::nullopt, {})) return false;
  const UniqueFd folder = open_folder(probe);
  const bool can_start = folder && supervisor::can_start_in_cgroup(folder.get());
  (void)supervisor::end_cgroup(real_system(), probe, kEndLimit);
  return can_start;
}

}  // namespace

JobCgroups::JobCgroups(std::string base, const std::string& state_dir, int max_pids)
    : base_(std::move(base)), prefix_("accel-agent-"), max_pids_(max_pids) {
  struct stat info = {};
  if (::stat(state_dir.c_str(), &info) != 0) base_.clear();
  prefix_ += std::to_string(info.st_dev) + "-" + std::to_string(info.st_ino) + "-";
}

JobCgroups JobCgroups::below_own(System& system, const std::string& state_dir, int max_pids) {
  JobCgroups made(supervisor::find_cgroup_base(system), state_dir, max_pids);
  if (!made.are_there()) return made;
  // Whether it worked shows when limits are written.
  for (const char* controller : {"+memory", "+pids"})
    supervisor::write_control(made.base_ + "/cgroup.subtree_control", controller);
  if (!can_start_below(made.base_ + "/" + made.prefix_ + to_hex(random_bytes(kRandomBytes))))
    made.base_.clear();
  return made;
}

Result<std::string> JobCgroups::make(const std::string& name,
                                     const std::optional<supervisor::Credentials>& user) {
  end_some();
  const auto refused = [this](const std::string& why) {
    return Error(ErrorCode::kUnsupported,
                 "job_pids is " + std::to_string(max_pids_) + ", and " + why,
                 "run the agent as its unit does (DelegateSubgroup=accel-main, of systemd 254), or "
                 "set job_pids to 0");
  };
  if (!are_there()) {
    if (max_pids_ > 0) return refused("there is no cgroup (version 2) that the agent may divide");
    return std::string();
  }
  std::vector<supervisor::CgroupLimit> limits;
  if (max_pids_ > 0) limits.push_back({"pids.max", static_cast<std::uint64_t>(max_pids_)});
  std::string folder = base_ + "/" + prefix_ + name + "." + to_hex(random_bytes(kRandomBytes));
  auto made = supervisor::make_delegated_cgroup(folder, user, limits);
  if (made) return folder;
  if (max_pids_ > 0) return refused(made.error().message());
  return std::string();
}

std::vector<std::string> JobCgroups::all() const {
  std::vector<std::string> ours;
  if (!are_there()) return ours;
  for (std::string& folder : supervisor::folders_in(base_)) {
    if (name_of(folder).starts_with(prefix_)) ours.push_back(std::move(folder));
  }
  return ours;
}

std::string JobCgroups::find(const std::string& name) const {
  const std::string start = prefix_ + name + ".";
  for (const std::string& folder : all()) {
    const std::string found = name_of(folder);
    if (found.starts_with(start) && found.size() == start.size() + 2 * kRandomBytes) return folder;
  }
  return {};
}

void JobCgroups::remove(const std::string& folder) {
  if (!folder.empty()) ending_.insert(folder);
  end_some();
}

void JobCgroups::end_some() {
  std::erase_if(ending_, [](const std::string& folder) {
    const auto end = supervisor::end_cgroup(real_system(), folder, std::chrono::milliseconds(0));
    return !end || end->num_left == 0;
  });
}

void JobCgroups::keep(const std::string& folder) {
  if (!folder.empty()) kept_.insert(folder);
}

int JobCgroups::remove_others() const {
  int removed = 0;
  for (const std::string& folder : all()) {
    if (kept_.contains(folder)) continue;
    (void)supervisor::end_cgroup(real_system(), folder, kEndLimit);
    ++removed;
  }
  return removed;
}

}  // namespace accel::agent
