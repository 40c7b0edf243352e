#include "runtime/supervisor/kernel/process_table.h"

#include <algorithm>
#include <charconv>

namespace accel::supervisor {
namespace {

std::string proc_path(pid_t pid, const char* file) {
  return "/proc/" + std::to_string(pid) + "/" + file;
}

// The next word of `text`, which is cut off.
std::string_view next_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  const std::string_view word = text.substr(0, text.find(' '));
  text.remove_prefix(word.size());
  return word;
}

template <typename T>
bool parse_word(std::string_view word, T& out) {
  const auto parsed = std::from_chars(word.data(), word.data() + word.size(), out);
  return parsed.ec == std::errc{};
}

}  // namespace

// "PID (NAME) STATE PPID PGRP SESSION ...": the name may hold spaces and parentheses, so the fields
// are counted from the last ')'. The flags of the task are the 9th field, the start time is the 22nd.
std::optional<ProcessEntry> parse_stat(std::string_view stat) {
  ProcessEntry entry;
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string_view::npos || !parse_word(stat, entry.pid)) return std::nullopt;
  std::string_view rest = stat.substr(name_end + 1);
  const std::string_view state = next_word(rest);
  if (state.size() != 1) return std::nullopt;
  entry.state = state[0];
  bool is_valid = parse_word(next_word(rest), entry.parent);
  is_valid = parse_word(next_word(rest), entry.group) && is_valid;
  is_valid = parse_word(next_word(rest), entry.session) && is_valid;
  next_word(rest);                  // tty_nr
  next_word(rest);                  // tpgid
  constexpr unsigned kExiting = 4;  // PF_EXITING
  unsigned flags = 0;
  is_valid = parse_word(next_word(rest), flags) && is_valid;
  entry.is_exiting = (flags & kExiting) != 0;
  constexpr int kFieldsBetweenFlagsAndStart = 12;
  for (int i = 0; i < kFieldsBetweenFlagsAndStart; ++i) next_word(rest);
  is_valid = parse_word(next_word(rest), entry.start_time) && is_valid;
  return is_valid ? std::optional(entry) : std::nullopt;
}

std::optional<ProcessEntry> read_process(System& system, pid_t pid) {
  const auto stat = system.read_once(proc_path(pid, "stat"));
  return stat ? parse_stat(*stat) : std::nullopt;
}

std::vector<ProcessEntry> read_process_table(System& system,
                                             const std::unordered_set<pid_t>& except) {
  std::vector<ProcessEntry> table;
  for (const pid_t pid : system.process_ids()) {
    if (except.contains(pid)) continue;
    if (const auto entry = read_process(system, pid)) table.push_back(*entry);
  }
  return table;
}

std::optional<std::string> find_in_environ(std::string_view environ, std::string_view name) {
  while (!environ.empty()) {
    const std::string_view variable = environ.substr(0, environ.find('\0'));
    if (variable.size() > name.size() && variable.starts_with(name) &&
        variable[name.size()] == '=') {
      return std::string(variable.substr(name.size() + 1));
    }
    environ.remove_prefix(std::min(variable.size() + 1, environ.size()));
  }
  return std::nullopt;
}

std::string read_command(System& system, const ProcessEntry& process, std::size_t limit) {
  if (process.state != 'D') {
    auto line = system.read_file(proc_path(process.pid, "cmdline"), limit);
    if (line && !line->empty()) {
      while (!line->empty() && line->back() == '\0') line->pop_back();
      std::replace(line->begin(), line->end(), '\0', ' ');
      return *line;
    }
  }
  auto name = system.read_file(proc_path(process.pid, "comm"), limit);
  if (!name) return "(gone)";
  while (!name->empty() && name->back() == '\n') name->pop_back();
  return "[" + *name + "]";
}

}  // namespace accel::supervisor
