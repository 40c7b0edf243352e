#include "launcher/workers/output_settings.h"

#include <algorithm>
#include <set>
#include <utility>

#include "runtime/byte_size.h"
#include "runtime/text/number_text.h"

namespace accel::launcher {
namespace {

using supervisor::Streams;

std::optional<Streams> streams_of(std::string_view digit) {
  if (digit.size() != 1 || digit[0] < '0' || digit[0] > '3') return std::nullopt;
  return static_cast<Streams>(digit[0] - '0');
}

// "0,1", also of workers that are not there: machines have different numbers of them, and share a line. Errors
// kInvalidArgument.
Result<std::set<int>> parse_rank_list(std::string_view flag, std::string_view text) {
  std::set<int> ranks;
  std::string_view rest = text;
  while (true) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view word = rest.substr(0, comma);
    const auto rank = typed_number<int>(word);
    if (!rank) {
      return Error(
          ErrorCode::kInvalidArgument,
          std::string(flag) + " is '" + std::string(text) + "', expected local ranks, as in 0,1",
          "give " + std::string(flag) + " 0");
    }
    ranks.insert(*rank);
    if (comma == rest.size()) return ranks;
    rest.remove_prefix(comma + 1);
  }
}

// "3" for every worker, or "0:3,1:1" by local rank (others kNone). Ranks that are not here may be another machine's.
Result<std::vector<Streams>> parse_streams(const std::string& flag,
                                           std::string_view text,
                                           int num_workers) {
  const auto fault = [&](const std::string& expected) {
    return Error(ErrorCode::kInvalidArgument,
                 flag + " is '" + std::string(text) + "', expected " + expected,
                 "give " + flag + " 3 for all ranks, or 0:3,1:1 by local rank");
  };
  if (const std::optional<Streams> all = streams_of(text)) {
    return std::vector<Streams>(static_cast<size_t>(num_workers), *all);
  }
  std::vector<Streams> result(static_cast<size_t>(num_workers), Streams::kNone);
  std::string_view rest = text;
  while (true) {
    const size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view pair = rest.substr(0, comma);
    const size_t colon = pair.find(':');
    if (colon == std::string_view::npos) return fault("0, 1, 2 or 3, or pairs as in 0:3,1:1");
    const auto local_rank = number_of<int>(pair.substr(0, colon));
    const std::optional<Streams> streams = streams_of(pair.substr(colon + 1));
    if (!local_rank || *local_rank < 0 || !streams) {
      return fault("pairs of a local rank and 0, 1, 2 or 3, as in 0:3,1:1");
    }
    if (*local_rank < num_workers) result[static_cast<size_t>(*local_rank)] = *streams;
    if (comma == rest.size()) return result;
    rest.remove_prefix(comma + 1);
  }
}

class OutputChoice {
 public:
  OutputChoice(const CommandLine& line,
               int num_workers,
               std::vector<std::string>& notices,
               Faults& faults)
      : line_(line), num_workers_(num_workers), notices_(notices), faults_(faults) {}

  // --log_dir alone writes everything to files and shows it too; --tee and --redirects say it
  // exactly.
  OutputSettings run() {
    output_.log_dir = line_.text("log_dir").value_or("");
    if (line_.has("log_dir") && output_.log_dir.empty()) {
      faults_.add(Error(ErrorCode::kInvalidArgument,
                        line_.spelled("log_dir") + " is empty",
                        "give " + line_.spelled("log_dir") + " DIR"));
    }
    const bool is_detailed = line_.has("tee") || line_.has("redirects");
    const std::string default_tee = !output_.log_dir.empty() && !is_detailed ? "3" : "0";
    const auto streams = [&](std::string_view flag, const std::string& otherwise) {
      Result<std::vector<Streams>> parsed =
          parse_streams(line_.spelled(flag), line_.text(flag).value_or(otherwise), num_workers_);
      if (parsed) return *std::move(parsed);
      faults_.add(std::move(parsed).error());
      return std::vector<Streams>();
    };
    output_.tee = streams("tee", default_tee);
    output_.redirect = streams("redirects", "0");
    choose_console_ranks();
    const bool is_about_stderr_alone = std::ranges::count(output_.tee, Streams::kErr) > 0 ||
                                       std::ranges::count(output_.redirect, Streams::kErr) > 0;
    if (line_.is_on("log_merge_stderr") && is_about_stderr_alone) {
      faults_.add(Error(ErrorCode::kUsage,
                        line_.spelled("log_merge_stderr") +
                            " leaves no stderr that --tee or --redirects could move alone",
                        "name stdout (1) or both (3): the merged stream goes where stdout goes"));
    }
    const std::string overflow = choice_flag(line_, "log_overflow", faults_).value_or("block");
    if (overflow == "drop") output_.overflow = supervisor::Overflow::kDrop;
    if (overflow == "sample") output_.overflow = supervisor::Overflow::kSample;
    choose_rotation();
    return std::move(output_);
  }

 private:
  // The streams of other ranks go to files alone.
  void choose_console_ranks() {
    const auto text = line_.text("local_ranks_filter");
    if (!text || text->empty()) return;
    const auto ranks = parse_rank_list(line_.spelled("local_ranks_filter"), *text);
    if (!ranks) return faults_.add(ranks.error());
    const auto is_here = [this](int rank) { return rank >= 0 && rank < num_workers_; };
    if (std::ranges::none_of(*ranks, is_here)) {
      notices_.push_back(line_.spelled("local_ranks_filter") + " '" + *text +
                         "' names none of the " + std::to_string(num_workers_) +
                         " workers here: all their output goes to files alone");
    }
    for (size_t rank = 0; rank < output_.redirect.size(); ++rank) {
      if (ranks->contains(static_cast<int>(rank))) continue;
      output_.redirect[rank] = Streams::kAll;
      output_.tee[rank] = Streams::kNone;
    }
  }

  void choose_rotation() {
    using supervisor::LogRotation;
    LogRotation& rotation = output_.rotation;
    if (const auto text = line_.text("log_rotate_bytes")) {
      const auto bytes = parse_byte_size(*text);
      if (!bytes || (*bytes != 0 && *bytes < LogRotation::kLeastBytes)) {
        faults_.add(Error(ErrorCode::kInvalidArgument,
                          line_.spelled("log_rotate_bytes") + " is '" + *text +
                              "', expected 0 or 4096 bytes and more, as in 4096, 64K, 256M or 1G"));
      }
      rotation.bytes = bytes.value_or(0);
    }
    rotation.keep = integer_flag(line_, "log_keep", 1, LogRotation::kMostKept, faults_)
                        .value_or(LogRotation().keep);
    if (line_.has("log_keep") && !line_.has("log_rotate_bytes")) {
      faults_.add(Error(ErrorCode::kUsage,
                        line_.spelled("log_keep") + " is for files that are rotated",
                        "give " + line_.spelled("log_rotate_bytes") + " too"));
    }
    const bool has_files = !output_.log_dir.empty() || line_.has("tee") || line_.has("redirects") ||
                           line_.is_on("agent");
    if (rotation.bytes > 0 && !has_files) {
      faults_.add(
          Error(ErrorCode::kUsage,
                line_.spelled("log_rotate_bytes") + " is for log files, and no stream goes to one",
                "give " + line_.spelled("log_dir") + " DIR too"));
    }
  }

  const CommandLine& line_;
  const int num_workers_;
  std::vector<std::string>& notices_;
  Faults& faults_;
  OutputSettings output_;
};

}  // namespace

OutputSettings choose_output(const CommandLine& line,
                             int num_workers,
                             std::vector<std::string>& notices,
                             Faults& faults) {
  return OutputChoice(line, num_workers, notices, faults).run();
}

}  // namespace accel::launcher
