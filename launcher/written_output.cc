#include "launcher/written_output.h"

#include <cerrno>
#include <cstdio>

#include <accel/error.h>

namespace accel::launcher {

int status_with_output(const std::string& program, int status) {
  errno = 0;
  const bool has_failed = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !has_failed) return status;
  const std::string reason = errno != 0 ? ": " + errno_text(errno) : "";
  const Error error(ErrorCode::kFileIo, "the output cannot be written" + reason);
  std::fprintf(stderr, "%s\n", error.render(program).c_str());
  return status != 0 ? status : error_info(error.code()).exit_status;
}

}  // namespace accel::launcher
