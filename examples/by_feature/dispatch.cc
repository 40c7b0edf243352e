// One rank reads for all: data that only rank 0 can reach, or that must be read in order. The others get their rows of what it read.
//
//   accel-launch --num_processes 2 build/examples/by_feature/dispatch

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ops/full.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>

namespace {

// The numbers below 10, as a stream that does not know its length.
struct Stream {
  struct Position {
    int number;
    at::Tensor operator*() const { return at::full({}, number, at::kLong); }
    Position& operator++() {
      ++number;
      return *this;
    }
    bool operator!=(const Position& other) const { return number != other.number; }
  };
  [[nodiscard]] Position begin() const { return {0}; }
  [[nodiscard]] Position end() const { return {10}; }
};

}  // namespace

int main() {
  accel::Accelerator accelerator({.dataloader_config = {.dispatch_batches = true}});
  const accel::DataLoader stream(Stream{}, {.batch_size = 2});
  // Cut as you like: here each rank gets every num_processes-th row in place of rows that follow each other.
  const auto loader = accelerator.prepare_data_loader(
      stream,
      [](const at::Tensor& batch,
         std::int64_t begin,
         std::int64_t end,
         std::int64_t rank,
         std::int64_t num_processes) {
        return batch.slice(0, rank, batch.size(0), num_processes).slice(0, 0, end - begin);
      });

  for (const at::Tensor& batch : loader) {
    std::vector<std::int64_t> own;
    for (std::int64_t i = 0; i < batch.size(0); ++i) own.push_back(batch[i].item<std::int64_t>());
    const auto all = accel::gather_object(own);
    std::string line;
    for (const std::int64_t number : all) line += " " + std::to_string(number);
    accelerator.print("rows by rank:" + line);
  }
  accelerator.end_training();
}
