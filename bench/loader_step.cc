// The C++ side of loader_bench.py. Seconds of each case, and a sum that depends on every element and its place.
//
//   loader_step index SAMPLES BATCH                 a loader made and its first batch; going on at 73 %; those two batches' sums
//   loader_step small SAMPLES BATCH WORKERS SEED    one pass over samples of 16 floats

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <torch/data/example.h>

#include <accel/dataloader.h>

namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Numbers {
  std::size_t count;
  [[nodiscard]] std::int64_t get(std::size_t index) const {
    return static_cast<std::int64_t>(index);
  }
  [[nodiscard]] std::size_t size() const { return count; }
};

// Rows of a table, each with its number.
struct Rows {
  at::Tensor table;
  [[nodiscard]] torch::data::Example<at::Tensor, std::int64_t> get(std::size_t index) const {
    return {table[static_cast<std::int64_t>(index)], static_cast<std::int64_t>(index)};
  }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(table.size(0)); }
};

class PlacedSum {
 public:
  void add(const at::Tensor& numbers) {
    const auto* const first = numbers.const_data_ptr<std::int64_t>();
    for (std::int64_t i = 0; i < numbers.numel(); ++i)
      sum_ = (sum_ + static_cast<std::uint64_t>(first[i]) * ++place_) % 1000000007;
  }
  [[nodiscard]] double value() const { return static_cast<double>(sum_); }

 private:
  std::uint64_t sum_ = 0;
  std::uint64_t place_ = 0;
};

double sum_of(const accel::IndexOrder& order, std::int64_t begin, std::int64_t count) {
  double sum = 0;
  for (std::int64_t i = begin; i < begin + count; ++i) sum += static_cast<double>(order[i]);
  return sum;
}

double first_sum(const accel::DataLoader<at::Tensor>& loader) {
  return (*loader.begin()).sum().item<double>();
}

int index(std::int64_t samples, std::int64_t batch) {
  const auto make = [&] {
    return accel::DataLoader(
        Numbers{static_cast<std::size_t>(samples)},
        {.batch_size = batch, .sampler = std::make_shared<accel::PermutationSampler>(samples, 5)});
  };
  const auto begin = Clock::now();
  const double first = first_sum(make());
  const double first_seconds = since(begin);

  const std::int64_t done = samples / 100 * 73 / batch * batch;
  accel::StateDict state = make()->state_dict();
  state.values["samples"] = done;
  auto loader = make();
  const auto resumed = Clock::now();
  loader->load_state_dict(state);
  const double next = first_sum(loader);
  const double resume_seconds = since(resumed);

  const accel::IndexOrder order = accel::PermutationSampler(samples, 5).begin_pass();
  const bool is_right = first == sum_of(order, 0, batch) && next == sum_of(order, done, batch);
  std::printf("%.9f %.9f %d\n", first_seconds, resume_seconds, is_right ? 1 : 0);
  return is_right ? 0 : 1;
}

int small(std::int64_t samples, std::int64_t batch, int workers, std::uint64_t seed) {
  const Rows rows{at::arange(samples * 16, at::kFloat).view({samples, 16})};
  accel::DataLoader loader(rows,
                           {.batch_size = batch,
                            .shuffle = true,
                            .num_workers = workers,
                            .generator = at::detail::createCPUGenerator(seed)});
  PlacedSum sum;
  const auto begin = Clock::now();
  for (const auto& each : loader) sum.add(each.target);
  std::printf("%.9f %.0f\n", since(begin), sum.value());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  if (mode == "index" && argc == 4) return index(std::atoll(argv[2]), std::atoll(argv[3]));
  if (mode == "small" && argc == 6)
    return small(std::atoll(argv[2]),
                 std::atoll(argv[3]),
                 std::atoi(argv[4]),
                 std::strtoull(argv[5], nullptr, 10));
  std::fprintf(stderr, "use: loader_step index SAMPLES BATCH | small SAMPLES BATCH WORKERS SEED\n");
  return 2;
}
