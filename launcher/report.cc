// The failing rank's own words come first (its Python traceback, else its last lines), then one
// block in the form of every other error. The block is an accel::Error, so codes, remedies and
// anchors come from the one table.
//
// What a worker printed is shown as a terminal would have left it: of a progress bar only the last
// state, no colours and no cursor movement, because a tail that is cut inside an escape sequence
// would change the user's terminal.

#include "launcher/report.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include <accel/error.h>

#include "runtime/printable.h"

namespace accel::launcher {
namespace {

using supervisor::ExitCause;
using supervisor::JobOutcome;
using supervisor::WorkerExit;

std::string plural(size_t count, std::string_view noun) {
  return std::to_string(count) + " " + std::string(noun) + (count == 1 ? "" : "s");
}

// "SIGSEGV (Segmentation fault)".
std::string signal_text(int signal) {
  const char* name = sigabbrev_np(signal);
  const char* meaning = sigdescr_np(signal);
  std::string text =
      name != nullptr ? std::string("SIG") + name : "signal " + std::to_string(signal);
  if (meaning != nullptr) text += std::string(" (") + meaning + ")";
  return text;
}

// ---- What the rank said itself

// One line without escape sequences and control letters; of text overwritten with \r the last
// state.
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

struct OwnWords {
  std::string message;    // "ValueError: bad data"; one line
  std::string traceback;  // of Python
};

// The error file of torch's @record and of libaccel: {"message": "..."} or
// {"message": {"message": "...", "extraInfo": {"py_callstack": "..."}}}. Hostile content gives
// nothing.
OwnWords read_error_file(const std::string& content) {
  OwnWords words;
  if (content.empty()) return words;
  const auto json = nlohmann::json::parse(content, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("message")) return words;
  const auto& outer = json["message"];
  const auto& inner = outer.is_object() && outer.contains("message") ? outer["message"] : outer;
  if (inner.is_string()) words.message = inner.get<std::string>();
  if (outer.is_object() && outer.contains("extraInfo") && outer["extraInfo"].is_object()) {
    const auto& info = outer["extraInfo"];
    if (info.contains("py_callstack") && info["py_callstack"].is_string()) {
      words.traceback = info["py_callstack"].get<std::string>();
    }
  }
  const std::vector<std::string> lines = last_lines(words.message, 1);
  words.message = lines.empty() ? "" : lines.front();
  return words;
}

void append_lines(std::string& out,
                  const std::string& title,
                  const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  out += title + ":\n";
  for (const std::string& line : lines) out += "  | " + line + "\n";
}

std::string own_words(const WorkerExit& exit, const OwnWords& words, size_t tail_lines) {
  constexpr size_t kMostTracebackLines = 40;
  const std::string rank = "rank " + std::to_string(exit.global_rank);
  std::string out;
  const std::vector<std::string> traceback = last_lines(words.traceback, kMostTracebackLines);
  const std::vector<std::string> tail = last_lines(exit.tail, tail_lines);
  // Python prints the traceback on stderr too, unless the program caught it.
  const bool is_in_tail =
      !traceback.empty() && std::find(tail.begin(), tail.end(), traceback.back()) != tail.end();
  if (!is_in_tail) append_lines(out, "traceback of " + rank, traceback);
  append_lines(out, "last lines of " + rank, tail);
  return out;
}

// ---- The cause

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

// ssh's own exit code, which a worker may have too: its last words tell.
Error unreachable(const std::string& host, const WorkerExit& exit) {
  constexpr int kOfSsh = 255;
  const std::vector<std::string> words = last_lines(exit.tail, 1);
  return Error(ErrorCode::kNodeLost,
               "host " + host + " ended with exit code " + std::to_string(kOfSsh) +
                   (words.empty() ? "" : ": " + words.front()),
               "check `ssh " + host + " true`, which must need no password");
}

std::string name_of(const WorkerExit& exit, int num_workers, const ReportStyle& style) {
  const auto index = static_cast<size_t>(exit.global_rank);
  if (index < style.hosts.size()) return "host " + style.hosts[index];
  if (index < style.names.size()) return style.names[index];
  return "rank " + std::to_string(exit.global_rank) +
         (num_workers > 1 ? " of " + std::to_string(num_workers) : std::string());
}

Error cause_of(const WorkerExit& exit, const std::string& rank) {
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
      return Error(ErrorCode::kExecFailed,
                   rank + " could not start: " + exit.stage + " of " + exit.program +
                       " failed: " + errno_text(exit.error_number));
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

// "others: 3 stopped, 1 failed after it; 2 restarts were used".
std::string consequences(const JobOutcome& outcome) {
  size_t stopped = 0, failed = 0, finished = 0;
  for (const WorkerExit& exit : outcome.exits) {
    if (exit.global_rank == outcome.first_failure->global_rank) continue;
    if (exit.cause == ExitCause::kOk) {
      ++finished;
    } else if (exit.cause == ExitCause::kStoppedByUs) {
      ++stopped;
    } else {
      ++failed;
    }
  }
  std::vector<std::string> parts;
  if (stopped > 0) {
    parts.push_back(plural(stopped, "other rank") + (stopped == 1 ? " was" : " were") + " stopped");
  }
  if (failed > 0) parts.push_back(plural(failed, "other rank") + " failed after it");
  if (finished > 0) parts.push_back(plural(finished, "other rank") + " had finished");
  if (outcome.restarts > 0) {
    parts.push_back(plural(static_cast<size_t>(outcome.restarts), "restart") +
                    (outcome.restarts == 1 ? " was" : " were") + " used");
  }
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : "; ") + part;
  return text;
}

std::string with_color(std::string block, const ReportStyle& style) {
  if (!style.color) return block;
  const size_t start = style.program.size() + 2;
  const size_t end = block.find("]:", start);
  if (end == std::string::npos) return block;
  block.insert(end + 1, "\x1b[0m");
  block.insert(start, "\x1b[1;31m");
  return block;
}

std::string describe(const supervisor::CommittedCheckpoint& checkpoint) {
  return plain_line(checkpoint.path) + " (step " + std::to_string(checkpoint.step) + ")";
}

std::string failure_block(const JobOutcome& outcome, int num_workers, const ReportStyle& style) {
  const WorkerExit& first = *outcome.first_failure;
  const OwnWords words = read_error_file(first.error_file);
  const auto index = static_cast<size_t>(first.global_rank);
  Error error = first.exit_code == 255 && index < style.hosts.size()
                    ? unreachable(style.hosts[index], first)
                    : cause_of(first, name_of(first, num_workers, style));
  const std::vector<std::string> channel = last_lines(first.last_error, 1);
  const std::string cause = !words.message.empty() ? words.message
                            : !channel.empty()     ? channel.front()
                                                   : "";
  if (!cause.empty()) error.with_detail("cause", cause);
  if (outcome.checkpoint) error.with_detail("checkpoint", describe(*outcome.checkpoint));
  if (std::string text = consequences(outcome); !text.empty()) error.with_detail("others", text);
  return own_words(first, words, style.tail_lines) +
         with_color(error.render(style.program), style) + "\n";
}

std::string warning(const ReportStyle& style, const std::string& text) {
  return style.program + ": warning: " + text + "\n";
}

}  // namespace

std::string render_report(const JobOutcome& outcome, int num_workers, const ReportStyle& style) {
  constexpr size_t kMostNamed = 4;
  std::string out;
  for (const std::string& notice : outcome.notices) out += warning(style, plain_line(notice));
  if (!outcome.leftovers.empty()) {
    std::string names;
    for (size_t i = 0; i < std::min(kMostNamed, outcome.leftovers.size()); ++i) {
      const supervisor::Leftover& leftover = outcome.leftovers[i];
      names +=
          (i == 0 ? "" : ", ") + std::to_string(leftover.pid) + " " + plain_line(leftover.command);
    }
    if (outcome.leftovers.size() > kMostNamed) names += ", ...";
    const size_t count = outcome.leftovers.size();
    out += warning(style,
                   std::to_string(count) + (count == 1 ? " process" : " processes") +
                       " outlived the rank and had to be ended: " + names);
  }
  if (outcome.success) return out;
  if (!outcome.first_failure) {
    out += style.program + ": " + outcome.reason + "\n";
    if (!outcome.checkpoint) return out;
    return out + style.program + ": the newest checkpoint is " + describe(*outcome.checkpoint) +
           "\n";
  }
  return out + failure_block(outcome, num_workers, style);
}

}  // namespace accel::launcher
