#include "launcher/commands/libaccel_program.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <system_error>

#include <unistd.h>

#include "launcher/flags/command_parser.h"
#include "launcher/system/program_output.h"

namespace accel::launcher {

namespace fs = std::filesystem;

std::vector<std::string> libaccel_program_places(const std::string& accel, std::string_view name) {
  const fs::path folder = fs::path(accel).parent_path();
  return {(folder / name).string(),
          (folder / ".." / "libexec" / "accel" / name).lexically_normal().string()};
}

Result<std::string> find_libaccel_program(std::string_view name) {
  std::error_code failure;
  const std::string accel = fs::read_symlink("/proc/self/exe", failure).string();
  const std::vector<std::string> places = libaccel_program_places(accel, name);
  for (const std::string& place : places) {
    if (::access(place.c_str(), X_OK) == 0) return place;
  }
  return Error(ErrorCode::kUnsupported,
               "there is no " + std::string(name) + ": neither " + places[0] + " nor " + places[1] +
                   " can be executed; it is part of libaccel, which this installation lacks",
               "install libaccel as well, or build accel with -DACCEL_WITH_TORCH=ON");
}

int become_trainer(const char* command, const std::vector<std::string>& arguments) {
  const auto program = find_libaccel_program(kTrainerProgram);
  if (!program) return print_error(command, program.error());
  std::vector<std::string> words = {*program, command};
  std::ranges::transform(arguments, std::back_inserter(words), with_underscores);
  const std::vector<char*> pointers = pointers_to(words);
  ::execv(program->c_str(), pointers.data());
  return print_error(command,
                     Error(ErrorCode::kExecFailed,
                           *program + " cannot be started: " + std::strerror(errno),
                           "see whether the file is a program for this machine"));
}

}  // namespace accel::launcher
