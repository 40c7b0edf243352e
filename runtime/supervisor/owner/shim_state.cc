#include "runtime/supervisor/owner/shim_state.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <set>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/open_folder.h"
#include "runtime/supervisor/kernel/process_table.h"
#include "runtime/supervisor/kernel/sealed_file.h"
#include "runtime/supervisor/protocol/json_fields.h"
#include "runtime/supervisor/stop/orphan_sweep.h"

namespace accel::supervisor {
namespace {

constexpr std::size_t kMaxStateBytes = 64 * 1024;
constexpr Seal kStateSeal = {.magic = "accel-shim-state ",
                             .version = ShimState::kVersion,
                             .kind = "state file of accel-shim"};

Error unusable_state(std::string what) {
  return Error(ErrorCode::kShimState, std::move(what));
}

template <typename T, typename Visit>
void each_state_member(T& state, Visit&& visit) {
  visit("job_id", state.job_id);
  visit("node_id", state.node_id);
  visit("build", state.build);
  visit("protocol", state.protocol);
  visit("pid", state.pid);
  visit("start_time", state.start_time);
  visit("boot_id", state.boot_id);
  visit("socket", state.socket);
}

constexpr const char* kInstance = "instance";  // not in the files of the first builds

std::string without_newline(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// The state in `json`, whose place must be a file name and whose number a process number.
ShimState state_from(const Json& json) {
  ShimState state;
  each_state_member(state,
                    [&](const char* name, auto& member) { read_member(json, name, member); });
  read_new_member(json, kInstance, state.instance);
  if (state.pid < 2 || state.pid > std::numeric_limits<pid_t>::max()) {
    throw FieldError("pid is not that of a process");
  }
  if (state.socket.empty() || state.socket.find('/') != std::string::npos) {
    throw FieldError("socket is not a file name");
  }
  return state;
}

}  // namespace

std::string state_file_name(const std::string& job_id) {
  return job_id + ".shim";
}
std::string socket_name(const std::string& job_id) {
  return job_id + ".sock";
}

Result<UniqueFd> open_runtime_folder(const std::string& folder) {
  UniqueFd fd = open_folder(folder);
  struct stat info {};
  if (!fd || ::fstat(fd.get(), &info) != 0) {
    return unusable_state("cannot open the runtime folder " + folder + ": " + errno_text(errno));
  }
  if (info.st_uid != ::geteuid()) {
    return unusable_state("the runtime folder " + folder + " belongs to uid " +
                          std::to_string(info.st_uid) + ", not to " + std::to_string(::geteuid()));
  }
  if ((info.st_mode & 077) != 0) {
    char mode[8];
    std::snprintf(mode, sizeof mode, "%04o", static_cast<unsigned>(info.st_mode & 07777));
    return unusable_state("the runtime folder " + folder + " is open to others (mode " + mode +
                          ")");
  }
  return fd;
}

Result<void> write_shim_state(int folder, const ShimState& state) {
  Json json = Json::object();
  each_state_member(state,
                    [&](const char* name, const auto& member) { json[name] = to_field(member); });
  json[kInstance] = to_field(state.instance);
  return replace_file(folder, state_file_name(state.job_id), seal(kStateSeal, json.dump()));
}

// The folder may be another user's, who may have put anything there.
Result<ShimState> read_shim_state(const std::string& path) {
  const auto text = read_plain_file(AT_FDCWD, path, kMaxStateBytes);
  if (!text) return text.error();
  const auto body = unseal(kStateSeal, *text, path);
  if (!body) return body.error();
  auto state = decode_json(*body, "the state of a shim", state_from);
  if (!state) return unusable_state(path + ": " + state.error().message());
  return state;
}

ShimState own_state(System& system) {
  ShimState state;
  state.pid = ::getpid();
  state.start_time = own_start_time(system);
  if (const auto boot = system.read_file("/proc/sys/kernel/random/boot_id")) {
    state.boot_id = without_newline(*boot);
  }
  return state;
}

bool is_running(System& system, const ShimState& state) {
  const auto boot = system.read_file("/proc/sys/kernel/random/boot_id");
  if (!boot || without_newline(*boot) != state.boot_id) return false;
  const auto entry = read_process(system, static_cast<pid_t>(state.pid));
  return entry && entry->start_time == state.start_time && entry->state != 'Z';
}

std::vector<std::string> find_jobs_of_node(System& system, const std::string& node_id) {
  std::set<std::string> jobs;
  for (const ProcessEntry& entry : read_process_table(system)) {
    if (entry.state == 'Z' || entry.state == 'X') continue;
    const auto environ = system.read_file("/proc/" + std::to_string(entry.pid) + "/environ");
    if (!environ || find_in_environ(*environ, "ACCEL_NODE_ID") != node_id) continue;
    if (const auto job = find_in_environ(*environ, "ACCEL_JOB_ID")) jobs.insert(*job);
  }
  return {jobs.begin(), jobs.end()};
}

}  // namespace accel::supervisor
