// The failing rank's own words come first (its Python traceback, else its last lines), then one
// block in the form of every other error. The block is an accel::Error, so codes, remedies and
// anchors come from the one table.
//
// What a worker printed is shown as a terminal would have left it: of a progress bar only the last
// state, no colours and no cursor movement, because a tail that is cut inside an escape sequence
// would change the user's terminal.

#include "launcher/run/report.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include <accel/error.h>

#include "launcher/flags/flag_spelling.h"
#include "launcher/run/rank_failure.h"
#include "runtime/supervisor/spawn/exit_error.h"
#include "runtime/text/counted.h"
#include "runtime/text/joined.h"

namespace accel::launcher {
namespace {

using supervisor::error_of;
using supervisor::ExitCause;
using supervisor::JobOutcome;
using supervisor::last_lines;
using supervisor::OwnWords;
using supervisor::plain_line;
using supervisor::WorkerExit;

// ---- What the rank said itself

void append_lines(std::string& out,
                  const std::string& title,
                  const std::vector<std::string>& lines) {
  if (lines.empty()) return;
  out += title + ":\n";
  for (const std::string& line : lines) out += "  | " + line + "\n";
}

bool has_line(const std::vector<std::string>& lines, const std::string& line) {
  return std::ranges::find(lines, line) != lines.end();
}

// Nothing that is on the screen already, and nothing twice.
std::string own_words(const WorkerExit& exit, const OwnWords& words, bool is_on_screen) {
  constexpr size_t kMostTailLines = 20;
  constexpr size_t kMostTracebackLines = 40;
  const std::string rank = "rank " + std::to_string(exit.global_rank);
  std::string out;
  const std::vector<std::string> traceback = last_lines(words.traceback, kMostTracebackLines);
  const std::vector<std::string> tail = last_lines(exit.tail, kMostTailLines);
  const std::vector<std::string> printed = last_lines(exit.tail, exit.tail.size());
  // Python prints the traceback on stderr too, unless the program caught it. Of a rank that has the terminal itself there is
  // no tail: one that ended as Python does printed it.
  const bool is_in_tail = !traceback.empty() && has_line(tail, traceback.back());
  const bool is_printed = !traceback.empty() && has_line(printed, traceback.back());
  const bool is_shown = is_printed || (exit.tail.empty() && exit.exit_code == 1);
  if (is_on_screen ? !is_shown : !is_in_tail) append_lines(out, "traceback of " + rank, traceback);
  if (!is_on_screen && (is_in_tail || !is_printed))
    append_lines(out, "last lines of " + rank, tail);
  return out;
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

std::string shown_name(const WorkerExit& exit, int num_workers, const ReportStyle& style) {
  const auto index = static_cast<size_t>(exit.global_rank);
  if (index < style.hosts.size()) return "host " + style.hosts[index];
  if (index < style.names.size()) return style.names[index];
  return supervisor::rank_name(exit, num_workers);
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
    parts.push_back(counted(stopped, "other rank") + (stopped == 1 ? " was" : " were") +
                    " stopped");
  }
  if (failed > 0) parts.push_back(counted(failed, "other rank") + " failed after it");
  if (finished > 0) parts.push_back(counted(finished, "other rank") + " had finished");
  if (outcome.restarts > 0) {
    parts.push_back(counted(static_cast<size_t>(outcome.restarts), "restart") +
                    (outcome.restarts == 1 ? " was" : " were") + " used");
  }
  return joined(parts, "; ");
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

std::string checkpoint_text(const supervisor::CommittedCheckpoint& checkpoint) {
  return plain_line(checkpoint.path) + " (step " + std::to_string(checkpoint.step) + ")";
}

std::string failure_block(const JobOutcome& outcome, int num_workers, const ReportStyle& style) {
  const WorkerExit& first = *outcome.first_failure;
  const OwnWords words = supervisor::read_error_file(first.error_file);
  const auto index = static_cast<size_t>(first.global_rank);
  Error error = first.exit_code == 255 && index < style.hosts.size()
                    ? unreachable(style.hosts[index], first)
                    : error_of(first, shown_name(first, num_workers, style));
  std::string cause = supervisor::own_reason(first, words);
  if (cause.empty() && index < style.names.size()) cause = describe_rank_failure(first.tail);
  if (!cause.empty()) error.with_detail("cause", cause);
  if (outcome.checkpoint) error.with_detail("checkpoint", checkpoint_text(*outcome.checkpoint));
  if (std::string text = consequences(outcome); !text.empty()) error.with_detail("others", text);
  return own_words(first, words, style.is_on_screen) +
         with_color(rendered(error, style.program), style) + "\n";
}

std::string warning(const ReportStyle& style, const std::string& text) {
  return style.program + ": warning: " + text + "\n";
}

}  // namespace

std::string render_report(const JobOutcome& outcome, int num_workers, const ReportStyle& style) {
  std::string out;
  std::set<std::string> told;  // a generation that was restarted may say the same again
  for (const std::string& notice : outcome.notices)
    if (told.insert(notice).second) out += warning(style, plain_line(notice));
  if (!outcome.leftovers.empty())
    out += warning(
        style, supervisor::described(outcome.leftovers, "outlived the rank and had to be ended"));
  if (outcome.success) return out;
  if (!outcome.first_failure) {
    out += style.program + ": " + outcome.reason + "\n";
    if (!outcome.checkpoint) return out;
    return out + style.program + ": the newest checkpoint is " +
           checkpoint_text(*outcome.checkpoint) + "\n";
  }
  return out + failure_block(outcome, num_workers, style);
}

}  // namespace accel::launcher
