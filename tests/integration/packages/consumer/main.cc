// Every rank says who it is, once all are there.
#include <cstdio>

#include <accel/state.h>

int main() {
  accel::PartialState state;
  state.wait_for_everyone();
  std::printf("rank %d of %d\n",
              static_cast<int>(state.process_index()),
              static_cast<int>(state.num_processes()));
}
