#include "runtime/supervisor/kernel/thread_stacks.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "runtime/printable.h"

namespace accel::supervisor {
namespace {

constexpr std::size_t kMostThreads = 256;
constexpr std::size_t kMostBytes = 60 * 1024;

std::string read_line(System& system, const std::string& path) {
  auto text = system.read_once(path);
  if (!text) return {};
  return printable(text->substr(0, text->find('\n')));
}

// The state in the content of /proc/PID/task/TID/stat: the letter after the name in parentheses.
char state_of(const std::string& stat) {
  const std::size_t end = stat.rfind(')');
  return end == std::string::npos || end + 2 >= stat.size() ? '?' : stat[end + 2];
}

std::vector<std::string> thread_folders(pid_t pid) {
  std::vector<std::string> folders;
  std::error_code error;
  const std::filesystem::path tasks = "/proc/" + std::to_string(pid) + "/task";
  std::filesystem::directory_iterator entry(tasks, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    folders.push_back(entry->path().string());
    if (folders.size() == kMostThreads) break;
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}

}  // namespace

std::string read_thread_stacks(System& system, pid_t pid) {
  std::string text;
  for (const std::string& folder : thread_folders(pid)) {
    const std::string number = folder.substr(folder.rfind('/') + 1);
    const auto stat = system.read_once(folder + "/stat");
    if (!stat) continue;  // it has ended meanwhile
    text += "thread " + number + " (" + read_line(system, folder + "/comm") + "), state " +
            state_of(*stat);
    const std::string wait = read_line(system, folder + "/wchan");
    if (!wait.empty() && wait != "0") text += ", waits in " + wait;
    text += "\n";
    const auto stack = system.read_file(folder + "/stack", 16 * 1024);
    if (stack && !stack->empty()) {
      text += *stack;
      if (text.back() != '\n') text += '\n';
    }
    if (text.size() > kMostBytes) {
      text.resize(kMostBytes);
      return text + "\n[cut]\n";
    }
  }
  return text;
}

}  // namespace accel::supervisor
