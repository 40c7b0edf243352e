// A process that ends right after it has written a file, for LD_PRELOAD: it kills itself when renameat() has put a file in
// its place, once the file $ACCEL_TEST_SUDDEN_END is there.

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include <dlfcn.h>
#include <unistd.h>

extern "C" int renameat(int old_folder, const char* from, int new_folder, const char* to) noexcept {
  using Rename = int (*)(int, const char*, int, const char*);
  static const auto real = reinterpret_cast<Rename>(::dlsym(RTLD_NEXT, "renameat"));
  const int done = real == nullptr ? (errno = ENOSYS, -1) : real(old_folder, from, new_folder, to);
  const char* when = std::getenv("ACCEL_TEST_SUDDEN_END");
  if (when != nullptr && done == 0 && ::access(when, F_OK) == 0) ::kill(::getpid(), SIGKILL);
  return done;
}
