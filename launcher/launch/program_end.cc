#include "launcher/launch/program_end.h"

#include <cerrno>
#include <cstdio>
#include <exception>
#include <new>

#include <accel/error.h>

#include "runtime/printable.h"

namespace accel::launcher {
namespace {

int told(const std::string& program, const Error& error) {
  std::fprintf(stderr, "%s\n", error.render(program).c_str());
  return error_info(error.code()).exit_status;
}

int status_of_run(const std::string& program, const std::function<int()>& run) {
  try {
    return run();
  } catch (const Error& error) {
    return told(program, error);
  } catch (const std::bad_alloc&) {
    return told(program, Error(ErrorCode::kOutOfMemory, "memory ran out"));
  } catch (const std::exception& error) {
    return told(program, Error(ErrorCode::kInternal, printable(error.what())));
  }
}

}  // namespace

int status_of_program(const std::string& program, const std::function<int()>& run) {
  const int status = status_of_run(program, run);
  errno = 0;
  const bool has_failed = std::ferror(stdout) != 0;
  if (std::fflush(stdout) == 0 && !has_failed) return status;
  const std::string reason = errno != 0 ? ": " + errno_text(errno) : "";
  const int failure =
      told(program, Error(ErrorCode::kFileIo, "the output cannot be written" + reason));
  return status != 0 ? status : failure;
}

}  // namespace accel::launcher
