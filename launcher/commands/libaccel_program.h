// LibaccelProgram: programs of libaccel that commands of `accel` start. An installation of the launcher alone lacks them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>

namespace accel::launcher {

inline constexpr const char* kTrainerProgram = "accel-trainer";

// Where `name` may be for the program `accel`, in the order of the search: beside it, then in the libexec folder of its prefix.
[[nodiscard]] std::vector<std::string> libaccel_program_places(const std::string& accel,
                                                               std::string_view name);

// The first of them that can be executed. Errors  kUnsupported: libaccel is not installed.
[[nodiscard]] Result<std::string> find_libaccel_program(std::string_view name);

// Becomes the command of that name of accel-trainer; the exit status where it cannot. Arguments: flags as the user wrote them.
int become_trainer(const char* command, const std::vector<std::string>& arguments);

}  // namespace accel::launcher
