// The C++ side of tracking_bench.py: what Accelerator::log() takes in steps of 20 ms, in microseconds, one line each.
//
//   tracking_step FOLDER TRACKER STEPS

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <accel/accelerator.h>
#include <accel/tracking.h>

namespace {

using Clock = std::chrono::steady_clock;

// A step computes: a core is busy, and caches are used.
double busy_step(Clock::time_point end) {
  double sum = 0;
  while (Clock::now() < end)
    for (int i = 1; i < 1000; ++i) sum += 1.0 / i;
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  accel::Accelerator accelerator(
      {.log_with = std::string(argv[2]), .project_dir = std::string(argv[1])});
  accelerator.init_trackers("bench", {{"lr", 0.1}});
  double sum = 0;
  for (int step = 0; step < std::atoi(argv[3]); ++step) {
    sum += busy_step(Clock::now() + std::chrono::milliseconds(20));
    const auto begin = Clock::now();
    accelerator.log({{"loss", 1.0 / (step + 1)}, {"lr", 0.1}, {"epoch", step / 100}}, step);
    std::printf("%.3f\n", std::chrono::duration<double, std::micro>(Clock::now() - begin).count());
  }
  accelerator.end_training();
  return sum > 0 ? 0 : 1;
}
