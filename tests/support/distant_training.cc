// distant_training: a library that launches its own registered function; see distant_program.cc.

#include <cstdio>
#include <cstdlib>

#include <accel/launchers.h>

namespace {

void train() {
  std::printf("trained %s\n", std::getenv("RANK"));
}
ACCEL_LAUNCH_FUNCTION(train);

}  // namespace

// The exit code of the program.
extern "C" ACCEL_EXPORT int launch_training() {
  try {
    accel::debug_launcher("train", 2);
  } catch (const std::exception& error) {
    std::printf("refused %s\n", error.what());
    return 4;
  }
  return 0;
}
