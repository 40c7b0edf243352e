#include "launcher/commands/libaccel_program.h"

#include <filesystem>
#include <system_error>

#include <unistd.h>

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

}  // namespace accel::launcher
