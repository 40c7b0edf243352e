// Each rank reads its part of the numbers 0 to n - 1; together, without what was repeated to make the last batch even,
// they are these numbers once each, whatever the way of dividing them.

#include <cstdint>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/core/Generator.h>

#include <accel/dataloader.h>
#include <accel/random.h>

#include "libaccel/api/selftest/self_test.h"

namespace accel::selftest {
namespace {

class Numbers {
 public:
  explicit Numbers(std::int64_t count) : count_(count) {}
  [[nodiscard]] at::Tensor get(std::size_t index) const {
    return at::scalar_tensor(static_cast<std::int64_t>(index), at::kLong);
  }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(count_); }

 private:
  std::int64_t count_;
};

struct LoaderCase {
  std::int64_t num_elements;
  std::int64_t batch_size;
  bool shuffle;
  DataLoaderConfiguration division;
  const char* name;
};

void check_loader(const Surroundings& here, const LoaderCase& at) {
  Accelerator accelerator({.mixed_precision = "no", .dataloader_config = at.division});
  DataLoader whole(Numbers(at.num_elements), {.batch_size = at.batch_size, .shuffle = at.shuffle});
  auto loader = accelerator.prepare(whole);
  std::vector<at::Tensor> seen;
  for (auto& batch : loader) seen.push_back(accelerator.gather_for_metrics(batch).to(at::kCPU));
  const auto sorted = std::get<0>(at::cat(seen).sort());
  here.expect_equal(sorted,
                    at::arange(at.num_elements, at::kLong),
                    std::string(at.name) + ", " + std::to_string(at.num_elements) +
                        " elements in batches of " + std::to_string(at.batch_size));
}

}  // namespace

void check_data_loaders(const Surroundings& here) {
  const std::int64_t ranks = here.num_ranks();
  for (const std::int64_t num_elements : {8 * ranks, 8 * ranks + 3, 4 * ranks + 1}) {
    check_loader(here, {num_elements, 4, false, {}, "in order"});
    check_loader(here, {num_elements, 4, true, {}, "shuffled"});
    check_loader(
        here,
        {num_elements, 4, true, {.use_seedable_sampler = true}, "shuffled by seed and epoch"});
    check_loader(here,
                 {num_elements, 4 * ranks, true, {.split_batches = true}, "with split batches"});
    check_loader(here,
                 {num_elements, 4, false, {.dispatch_batches = true}, "read by rank 0 for all"});
  }
}

void check_random_numbers(const Surroundings& here) {
  set_seed(static_cast<std::uint64_t>(here.rank()) + 11);
  const at::Tensor own = at::rand({4});
  const at::Tensor everybodys =
      gather(own.to(here.accelerator.device())).reshape({-1, 4}).to(at::kCPU);
  for (int rank = 0; rank < here.num_ranks(); ++rank) {
    set_seed(static_cast<std::uint64_t>(rank) + 11);
    here.expect_equal(
        everybodys[rank], at::rand({4}), "numbers after the seed of rank " + std::to_string(rank));
  }
  set_seed(static_cast<std::uint64_t>(here.rank()) + 11);
  synchronize_rng_states({RNGType::kTorch});
  const at::Tensor after = at::rand({4});
  here.expect_equal(after, everybodys[0], "numbers after synchronize_rng_states");
}

}  // namespace accel::selftest
