// Every rank says who it is and the sum of all ranks.
#include <cstdio>

#include <torch/types.h>

#include <accel/operations.h>
#include <accel/state.h>

int main() {
  accel::PartialState state;
  const at::Tensor mine = torch::full({1}, state.process_index() + 1);
  const at::Tensor sum = accel::reduce(mine, accel::Reduction::kSum);
  std::printf("rank %d of %d: sum %d\n",
              static_cast<int>(state.process_index()),
              static_cast<int>(state.num_processes()),
              static_cast<int>(sum.item<int64_t>()));
}
