// A worker in one of the states that a supervisor asks about: "throw" ends with an uncaught error on
// rank 1, "sleep" waits until it is stopped.
#include <chrono>
#include <cstdio>
#include <string_view>
#include <thread>

#include <accel/error.h>
#include <accel/state.h>

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  accel::PartialState state;
  std::printf("ready %d\n", state.process_index());
  std::fflush(stdout);
  if (what == "throw" && state.process_index() == 1) {
    throw accel::Error(accel::ErrorCode::kDataSharding,
                       "a batch of 7 cannot be split over 2 ranks");
  }
  std::this_thread::sleep_for(std::chrono::minutes(2));
}
