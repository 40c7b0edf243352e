// A wall clock that jumps, for LD_PRELOAD: CLOCK_REALTIME and its kin are off by the seconds that the file
// $ACCEL_TEST_CLOCK holds at the moment. Monotonic clocks stay as they are.

#include <cstdlib>
#include <ctime>

#include <fcntl.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

namespace {

long offset_seconds() {
  static const int file = [] {
    const char* path = std::getenv("ACCEL_TEST_CLOCK");
    return path == nullptr ? -1 : ::open(path, O_RDONLY | O_CLOEXEC);
  }();
  char text[32] = {};
  if (file < 0 || ::pread(file, text, sizeof text - 1, 0) <= 0) return 0;
  return std::strtol(text, nullptr, 10);
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const auto status = static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
  if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
    now->tv_sec += offset_seconds();
  }
  return status;
}

int gettimeofday(timeval* now, void*) noexcept {
  timespec precise{};
  const int status = clock_gettime(CLOCK_REALTIME, &precise);
  *now = {precise.tv_sec, precise.tv_nsec / 1000};
  return status;
}

time_t time(time_t* out) noexcept {
  timespec now{};
  (void)clock_gettime(CLOCK_REALTIME, &now);
  if (out != nullptr) *out = now.tv_sec;
  return now.tv_sec;
}
}
