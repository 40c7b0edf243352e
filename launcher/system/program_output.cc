#include "launcher/system/program_output.h"

#include <cerrno>
#include <utility>

#include <unistd.h>

#include "launcher/text/shell_word.h"
#include "runtime/supervisor/spawn/program_answer.h"
#include "runtime/system.h"

namespace accel::launcher {
namespace {

using End = supervisor::ProgramAnswer::End;

Error cannot_start(const std::string& program, int error) {
  return Error(ErrorCode::kExecFailed, "cannot start " + program + ": " + errno_text(error));
}

}  // namespace

std::vector<std::string> assignments_of(const EnvMap& environment) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& words) {
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

Result<ProgramOutput> run_program(const std::vector<std::string>& words,
                                  const EnvMap& environment,
                                  std::chrono::milliseconds limit) {
  const auto path = environment.find("PATH");
  const auto program = supervisor::find_program(
      words.front(), path == environment.end() ? "/usr/local/bin:/usr/bin:/bin" : path->second);
  if (!program) return cannot_start(words.front(), ENOENT);
  supervisor::SpawnRequest request = {.argv = words, .env = environment};
  request.argv.front() = *program;
  request.session = supervisor::Session::kJoin;
  request.join_group = ::getpgrp();
  auto answer = supervisor::answer_of(std::move(request), {.time = limit});
  if (answer.end == End::kNotStarted)
    return cannot_start(words.front(), answer.failure->error_number);
  if (answer.end == End::kEnded)
    return ProgramOutput{.exit_code = answer.exit_code, .out = std::move(answer.out)};
  return Error(
      ErrorCode::kExecFailed,
      *program + (answer.end == End::kTooLong
                      ? " wrote more than 1 GiB"
                      : " did not end within " + std::to_string(limit.count() / 1000) + " s"),
      "run it by hand: `" + shell_words(words) + "`");
}

}  // namespace accel::launcher
