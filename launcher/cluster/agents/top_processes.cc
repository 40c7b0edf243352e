#include "launcher/cluster/agents/top_processes.h"

#include <chrono>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

namespace accel::cluster {
namespace {

// User and system time of a process: the 14th and 15th field of its stat, the 12th and 13th after its name.
std::optional<std::uint64_t> processor_ticks(const std::string& folder) {
  std::ifstream file(folder + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream fields(text.substr(name_end + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  std::uint64_t user = 0;
  std::uint64_t system = 0;
  if (!(fields >> user >> system)) return std::nullopt;
  return user + system;
}

std::optional<double> resident_bytes(const std::string& folder) {
  std::ifstream file(folder + "/statm");
  double size = 0;
  double resident = 0;
  if (!(file >> size >> resident)) return std::nullopt;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

void TopProcesses::look_at(launcher::TopJob& job, unsigned uid, TimePoint now) {
  const auto ticks_a_second = static_cast<double>(::sysconf(_SC_CLK_TCK));
  for (launcher::TopRank& rank : job.ranks) {
    if (rank.pid <= 0) continue;
    const std::string folder = "/proc/" + std::to_string(rank.pid);
    struct stat info = {};
    if (::stat(folder.c_str(), &info) != 0 || info.st_uid != uid) continue;
    rank.memory_bytes = resident_bytes(folder);
    const auto ticks = processor_ticks(folder);
    if (!ticks) continue;
    const auto before = seen_.find(rank.pid);
    if (before != seen_.end() && now > before->second.at && *ticks >= before->second.ticks) {
      const double seconds = std::chrono::duration<double>(now - before->second.at).count();
      rank.cpu = static_cast<double>(*ticks - before->second.ticks) / ticks_a_second / seconds;
    }
    seen_[rank.pid] = {.ticks = *ticks, .at = now, .is_new = true};
  }
}

void TopProcesses::forget_others() {
  for (auto seen = seen_.begin(); seen != seen_.end();)
    seen = std::exchange(seen->second.is_new, false) ? std::next(seen) : seen_.erase(seen);
}

}  // namespace accel::cluster
