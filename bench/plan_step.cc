// One side of plan_bench.py: plans a step of the GPT of the examples with AdamW, and measures one.
//
//   plan_step plan WIDTH LAYERS CONTEXT ROUNDS    prints "parameters peak", then the seconds of each plan
//   plan_step again WIDTH LAYERS CONTEXT ROUNDS   the same, with all blocks computed again
//   plan_step fit WIDTH LAYERS CONTEXT ROUNDS     the same, with the blocks computed again that have to be, to save a tenth
//   plan_step run WIDTH LAYERS CONTEXT            prints "planned measured": the most bytes of two steps, then the seconds of a step
//
// Batches are samples of CONTEXT tokens, one of them where it runs. A plan has a model without memory; the one that is measured has values.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include <accel/big_model.h>
#include <accel/plan.h>
#include <accel/recomputed_units.h>

#include "examples/char_gpt.h"
#include "tests/support/real_peak.h"

namespace {

constexpr std::int64_t kPlannedBatch = 64;

struct Training {
  Training(const GptConfig& config, std::int64_t batch)
      : sizes{batch, config.context}, net(config), adamw(net->parameters()) {}

  [[nodiscard]] std::function<void()> step(accel::RecomputedUnits* units = nullptr) {
    return [this, units] {
      const at::Tensor tokens = at::zeros(sizes, at::kLong);
      at::Tensor loss;
      {
        std::optional<accel::RecomputedUnits::Forward> forward;
        if (units != nullptr) forward.emplace(units->forward());
        loss = at::cross_entropy_loss(net(tokens).flatten(0, 1), tokens.flatten());
      }
      loss.backward();
    };
  }

  std::vector<std::int64_t> sizes;  // of a batch
  Gpt net;
  torch::optim::AdamW adamw;
};

accel::StepPlan planned(Training& training, accel::RecomputedUnits* units) {
  return {*training.net, &training.adamw, training.step(units)};
}

double seconds_since(std::chrono::steady_clock::time_point begun) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
}

// Its peak.
std::int64_t fit(Training& training, accel::RecomputedUnits& units, std::int64_t bytes) {
  const auto fitted = accel::fit_recomputed_units(
      units, *training.net, &training.adamw, training.step(&units), bytes);
  return fitted ? fitted->memory.peak : 0;
}

void plan(const std::string& mode, const GptConfig& config, int rounds) {
  const auto made = [&] {
    const auto empty = accel::init_empty_weights({.include_buffers = true});
    return std::make_unique<Training>(config, kPlannedBatch);
  }();
  Training& training = *made;
  accel::RecomputedUnits units(*training.net, {"GptBlock"});
  const accel::StepPlan kept = planned(training, nullptr);
  const accel::StepPlan all = planned(training, &units);
  const std::int64_t most = kept.memory().peak;
  const std::int64_t bytes = most - (most - all.memory().peak) / 10;
  std::printf(
      "%lld %lld\n", static_cast<long long>(kept.num_parameters()), static_cast<long long>(most));
  for (int i = 0; i < rounds; ++i) {
    const auto begun = std::chrono::steady_clock::now();
    if (mode == "fit")
      (void)fit(training, units, bytes);
    else
      (void)planned(training, mode == "again" ? &units : nullptr).memory();
    std::printf("%.9g\n", seconds_since(begun));
  }
}

void measure(const GptConfig& config) {
  Training training(config, /*batch=*/1);
  const accel::StepPlan told = planned(training, nullptr);
  const std::int64_t real = accel::test::real_peak(*training.net, &training.adamw, training.step());
  std::printf(
      "%lld %lld\n", static_cast<long long>(told.memory().peak), static_cast<long long>(real));
  const auto step = training.step();
  std::vector<double> times;
  for (int i = 0; i < 7; ++i) {
    const auto begun = std::chrono::steady_clock::now();
    training.net->zero_grad();
    step();
    training.adamw.step();
    times.push_back(seconds_since(begun));
  }
  std::sort(times.begin(), times.end());
  std::printf("%.9g %.9g\n", told.seconds(accel::measure_machine_rates()), times[times.size() / 2]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "use: plan_step plan|again|fit|run WIDTH LAYERS CONTEXT [ROUNDS]\n");
    return 2;
  }
  at::set_num_threads(1);
  const std::string mode = argv[1];
  GptConfig config{.width = std::atoi(argv[2]), .num_layers = std::atoi(argv[3])};
  config.num_heads = config.width / 64;
  config.context = std::atoi(argv[4]);
  config.vocabulary = 50304;
  if (mode == "run")
    measure(config);
  else
    plan(mode, config, argc > 5 ? std::atoi(argv[5]) : 1);
  return 0;
}
