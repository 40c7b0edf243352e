#include "launcher/run/rank_failure.h"

#include <regex>

#include "runtime/supervisor/spawn/exit_error.h"

namespace accel::launcher {
namespace {

// The last match, because ranks may print what they like before mpirun has the last word.
bool find_last(const std::string& text, const std::regex& pattern, std::smatch& found) {
  bool is_there = false;
  for (std::sregex_iterator match(text.begin(), text.end(), pattern), end; match != end; ++match) {
    found = *match;
    is_there = true;
  }
  return is_there;
}

}  // namespace

std::string describe_rank_failure(std::string_view output) {
  // In a line of a few hundred letters each; std::regex recurses with the length of what it matches.
  static const std::regex kSignalOfOpenMpi(
      R"(noticed that process rank (\d{1,9}) with PID \d{1,9} on node (\S{1,255}) exited on signal (\d{1,3}(?: \([\w ]{1,40}\))?))");
  static const std::regex kExitOfOpenMpi(
      R"(Process name: \[\[\d{1,9},\d{1,9}\],(\d{1,9})\] {1,8}Exit code: {1,8}(\d{1,3}))");
  constexpr std::size_t kMostLines = 40;
  std::string text;
  for (const std::string& line : supervisor::last_lines(output, kMostLines)) text += line + " ";
  std::smatch found;
  if (find_last(text, kSignalOfOpenMpi, found))
    return "rank " + found.str(1) + " on " + found.str(2) + " was ended by signal " + found.str(3);
  if (find_last(text, kExitOfOpenMpi, found))
    return "rank " + found.str(1) + " ended with exit code " + found.str(2);
  return "";
}

}  // namespace accel::launcher
