#include "agent/main/job_curves.h"

#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "agent/access/user_account.h"
#include "runtime/printable.h"
#include "runtime/supervisor/dashboard/dashboard_curves.h"
#include "runtime/supervisor/spawn/program_answer.h"
#include "runtime/system.h"
#include "runtime/text/seconds_text.h"
#include "runtime/unique_fd.h"

namespace accel::agent {
namespace {

using supervisor::json_of_unread_curves;
using supervisor::ProgramAnswer;

constexpr std::uint64_t kMostMemory = std::uint64_t{2} << 30;
constexpr std::uint64_t kMostSeconds = 10;  // of a processor

std::string json_of(const std::string& path,
                    ProgramAnswer answer,
                    std::chrono::milliseconds limit) {
  switch (answer.end) {
    case ProgramAnswer::End::kNotStarted:
      return json_of_unread_curves("accel cannot be started (" + answer.failure->stage + ": " +
                                   errno_text(answer.failure->error_number) + ")");
    case ProgramAnswer::End::kOutOfTime:
      return json_of_unread_curves("reading " + printable(path) + " took longer than " +
                                   seconds_text(limit));
    case ProgramAnswer::End::kTooLong:
      return json_of_unread_curves("there are too many");
    case ProgramAnswer::End::kEnded:
      break;
  }
  if (answer.exit_code == 0 && nlohmann::json::accept(answer.out)) return std::move(answer.out);
  return json_of_unread_curves("`accel plot --json` ended with " +
                               std::to_string(answer.exit_code));
}

// Blocks.
std::string look(const TrackingFolder& folder, const JobCurvesOptions& options) {
  supervisor::SpawnRequest request = {
      .argv = {options.program, "plot", "--json", "--", folder.path},
      .env = {{"LC_ALL", "C.UTF-8"}, {"PATH", "/usr/bin:/bin"}},
      .cwd = "/"};
  const UniqueFd nothing(::open("/dev/null", O_WRONLY | O_CLOEXEC));
  if (!nothing) return json_of_unread_curves("/dev/null: " + errno_text(errno));
  request.stdio[2] = nothing.get();
  request.drops_oom_protection = true;
  request.limits = {{RLIMIT_CORE, 0}, {RLIMIT_AS, kMostMemory}, {RLIMIT_CPU, kMostSeconds}};
  if (options.changes_user) {
    auto user = find_user(folder.owner);
    if (!user) return json_of_unread_curves(user.error().message());
    request.credentials = std::move(user->credentials);
  }
  return json_of(
      folder.path,
      supervisor::answer_of(std::move(request),
                            {.time = options.look_limit, .bytes = JobCurves::kMostBytes}),
      options.look_limit);
}

}  // namespace

JobCurves::JobCurves(boost::asio::io_context& loop, FileReaders& files, JobCurvesOptions options)
    : loop_(loop), files_(files), options_(std::move(options)) {}

void JobCurves::read(const TrackingFolder& folder, Tell done) {
  if (folder.path.empty())
    return done(
        json_of_unread_curves("nobody said where this job logs: give --tracking_dir to accel run"));
  const auto late = [] { return json_of_unread_curves("the file system does not answer"); };
  const bool is_first = !waiting_.contains(folder);
  waiting_[folder].push_back(Answer::begin(loop_, options_.patience, late, std::move(done)));
  if (!is_first) return;
  const auto json = std::make_shared<std::string>();
  files_.add(
      folder.owner,
      [json, folder, options = options_] { *json = look(folder, options); },
      [this, json, folder] {
        const auto answers = std::move(waiting_.extract(folder).mapped());
        for (const auto& answer : answers) answer->give(*json);
      });
}

std::string accel_beside_agent() {
  std::error_code failure;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", failure);
  return (self.parent_path() / "accel").string();
}

}  // namespace accel::agent
