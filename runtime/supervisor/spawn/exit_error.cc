#include "runtime/supervisor/spawn/exit_error.h"

#include <algorithm>
#include <csignal>
#include <cstring>

#include <nlohmann/json.hpp>

#include "runtime/printable.h"
#include "runtime/supervisor/kernel/exhausted.h"
#include "runtime/trimmed.h"

namespace accel::supervisor {
namespace {

// "SIGSEGV (Segmentation fault)".
std::string signal_text(int signal) {
  const char* name = sigabbrev_np(signal);
  const char* meaning = sigdescr_np(signal);
  std::string text =
      name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
  if (meaning != nullptr) text += std::string(" (") + meaning + ")";
  return text;
}

// "libfoo.so.1" of the loader's "error while loading shared libraries: libfoo.so.1: cannot open
// ...".
std::string missing_library(std::string_view tail) {
  constexpr std::string_view kMark = "error while loading shared libraries: ";
  const size_t found = tail.rfind(kMark);
  if (found == std::string_view::npos) return "";
  tail.remove_prefix(found + kMark.size());
  return plain_line(tail.substr(0, tail.find(':')));
}

Error signal_error(const std::string& rank, const WorkerExit& exit) {
  Error error(ErrorCode::kWorkerSignaled, rank + " was ended by " + signal_text(exit.signal));
  if (exit.signal == SIGKILL) {
    return Error(ErrorCode::kWorkerSignaled,
                 error.message(),
                 "look in `dmesg` for the out-of-memory killer, or find who sent the signal");
  }
  if (!exit.core_path.empty()) {
    return Error(ErrorCode::kWorkerSignaled,
                 error.message(),
                 "gdb " + exit.program + " " + exit.core_path)
        .with_detail("core", exit.core_path);
  }
  if (exit.core_dumped) {
    return Error(
        ErrorCode::kWorkerSignaled, error.message(), "coredumpctl gdb " + std::to_string(exit.pid));
  }
  const bool would_dump = exit.signal == SIGSEGV || exit.signal == SIGBUS ||
                          exit.signal == SIGABRT || exit.signal == SIGFPE || exit.signal == SIGILL;
  if (would_dump) {
    return Error(ErrorCode::kWorkerSignaled,
                 error.message(),
                 "run `ulimit -c unlimited` first to get a core file, then start the job again");
  }
  return error;
}

Error library_error(const std::string& rank, const WorkerExit& exit) {
  const std::string library = missing_library(exit.tail);
  return Error(ErrorCode::kLibraryMissing,
               rank + " could not start: " + exit.program + " needs " +
                   (library.empty() ? std::string("a library") : library) + ", which was not found",
               "install the library or add its folder to LD_LIBRARY_PATH; `ldd " + exit.program +
                   "` lists them");
}

// What the system had no room for says nothing about the program.
Error exec_error(const std::string& rank, const WorkerExit& exit) {
  // ENOSPC of a cgroup: it has no processors.
  if (is_exhausted(exit.error_number) && exit.error_number != ENOSPC)
    return exhausted_error(rank + " could not start", exit.error_number);
  const std::string begin = rank + " could not start: ";
  if (exit.stage == "chdir" && !exit.detail.empty()) {
    return Error(ErrorCode::kExecFailed,
                 begin + "its folder " + printable(exit.detail) +
                     " cannot be entered: " + errno_text(exit.error_number),
                 "make the folder on every machine of the job, where its user may enter it, or "
                 "give another one");
  }
  return Error(
      ErrorCode::kExecFailed,
      begin + exit.stage + " of " + exit.program + " failed: " + errno_text(exit.error_number));
}

}  // namespace

std::string rank_name(const WorkerExit& exit, int num_workers) {
  return "rank " + std::to_string(exit.global_rank) +
         (num_workers > 1 ? " of " + std::to_string(num_workers) : std::string());
}

Error error_of(const WorkerExit& exit, const std::string& rank) {
  switch (exit.cause) {
    case ExitCause::kSignaled:
      return signal_error(rank, exit);
    case ExitCause::kLibraryMissing:
      return library_error(rank, exit);
    case ExitCause::kOutOfMemory:
      return Error(ErrorCode::kWorkerOutOfMemory,
                   rank + " was killed because memory ran out (it used at most " +
                       std::to_string(exit.peak_rss_bytes >> 20) + " MiB" +
                       (exit.detail.empty() ? "" : ", " + exit.detail) + ")");
    case ExitCause::kExecFailed:
      return exec_error(rank, exit);
    case ExitCause::kUnkillable:
      return Error(ErrorCode::kWorkerUnkillable,
                   rank + " (process " + std::to_string(exit.pid) + ") did not end after SIGKILL",
                   "look where it waits: cat /proc/" + std::to_string(exit.pid) + "/stack");
    case ExitCause::kHang:
      return Error(ErrorCode::kWorkerHung, rank + " made no progress: " + exit.detail);
    case ExitCause::kLost:
      return Error(ErrorCode::kShimLost, rank + " was lost: its supervisor ended before it");
    case ExitCause::kStoppedByUs:
      return Error(ErrorCode::kWorkerFailed, rank + " was stopped", "start the job again");
    case ExitCause::kNonZero:
    case ExitCause::kOk:
      break;
  }
  return Error(ErrorCode::kWorkerFailed,
               rank + " ended with exit code " + std::to_string(exit.exit_code));
}

std::string plain_line(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (const size_t back = line.rfind('\r'); back != std::string_view::npos)
    line.remove_prefix(back + 1);
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    const auto c = static_cast<unsigned char>(line[i]);
    if (c == 0x1b) {
      const bool is_csi = i + 1 < line.size() && line[i + 1] == '[';
      i += is_csi ? 2 : 1;
      while (is_csi && i < line.size() && (line[i] < 0x40 || line[i] > 0x7e)) ++i;
    } else if (c >= 0x20 ? c != 0x7f : c == '\t') {
      out += static_cast<char>(c);
    }
  }
  return printable(out);
}

std::string described(const std::vector<Leftover>& processes, std::string_view what) {
  constexpr size_t kMostNamed = 4;
  const size_t count = processes.size();
  std::string text = std::to_string(count) + (count == 1 ? " process " : " processes ");
  text += std::string(what) + ": ";
  for (size_t i = 0; i < std::min(count, kMostNamed); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(processes[i].pid) + " " +
            plain_line(processes[i].command);
  return count > kMostNamed ? text + ", ..." : text;
}

std::vector<std::string> last_lines(std::string_view text, size_t most) {
  std::vector<std::string> lines;
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.remove_suffix(1);
  while (!text.empty() && lines.size() < most) {
    const size_t newline = text.rfind('\n');
    const size_t start = newline == std::string_view::npos ? 0 : newline + 1;
    lines.push_back(plain_line(text.substr(start)));
    text = text.substr(0, newline == std::string_view::npos ? 0 : newline);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

namespace {

// The line of `text` that says what is wrong: its first, as stack frames and advice follow. Of a line that ends with a
// colon ("Error(s) in loading state_dict for Net:") the next one is a part.
std::string headline(std::string_view text) {
  std::string line;
  while (!text.empty() && (line.empty() || line.ends_with(':'))) {
    const size_t newline = std::min(text.find('\n'), text.size());
    const std::string plain = plain_line(text.substr(0, newline));
    const std::string next(trimmed(plain, " \t"));
    if (!next.empty()) line += (line.empty() ? "" : " ") + next;
    text.remove_prefix(std::min(newline + 1, text.size()));
  }
  return line;
}

}  // namespace

OwnWords read_error_file(const std::string& content) {
  OwnWords words;
  if (content.empty()) return words;
  const auto json = nlohmann::json::parse(content, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("message")) return words;
  const auto& outer = json["message"];
  const auto& inner = outer.is_object() && outer.contains("message") ? outer["message"] : outer;
  if (inner.is_string()) words.text = inner.get<std::string>();
  if (outer.is_object() && outer.contains("extraInfo") && outer["extraInfo"].is_object()) {
    const auto& info = outer["extraInfo"];
    if (info.contains("py_callstack") && info["py_callstack"].is_string()) {
      words.traceback = info["py_callstack"].get<std::string>();
    }
  }
  words.message = headline(words.text);
  return words;
}

std::string own_reason(const WorkerExit& exit, const OwnWords& words) {
  if (!words.message.empty()) return words.message;
  return headline(exit.last_error);
}

}  // namespace accel::supervisor
