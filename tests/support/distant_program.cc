// distant_program: launches through a library of its own (distant_training.cc), which alone is linked to the launchers:
// libaccel is behind the C library then. Run by tests/integration/inproc/run.py.
//
//   distant_program NUM_THREADS
//
// The exit code is 0, or 4 where the launch was refused.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

extern "C" int launch_training();

int main(int argc, char** argv) {
  std::printf("main runs\n");
  std::fflush(stdout);
  std::atomic<bool> is_over = false;
  std::vector<std::thread> threads;
  const int num_threads = argc > 1 ? std::atoi(argv[1]) : 0;
  for (int i = 0; i < num_threads; ++i) threads.emplace_back([&] { is_over.wait(false); });
  const int status = launch_training();
  is_over = true;
  is_over.notify_all();
  for (std::thread& thread : threads) thread.join();
  return status;
}
