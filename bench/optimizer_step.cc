// One side of optimizer_bench.py: steps AdamW over parameters of given sizes and reports results and times.
//
//   optimizer_step MODE SIZES STEPS     prints "sum|sample..." of the parameters, then a line of seconds per step
//   optimizer_step copy SIZES STEPS     the seconds to copy the memory of all parameters once, per step
//   optimizer_step disk SIZES STEPS FOLDER
//
// MODE is own (torch::optim::AdamW), apart (fused kernels, each parameter in memory of its own) or unit (fused kernels,
// all parameters in one memory, as the pieces of a sharded model). disk is apart with the states in a file in FOLDER. SIZES is a file with one number of elements per
// line. Element i of all parameters and gradients has the same value in every mode and in the peer's program.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adamw.h>

#include "libaccel/engine/optim/disk_step.h"
#include "libaccel/engine/optim/fused_step.h"

namespace {

// [numel] multiples of 1/1024 between -0.5 and 0.5; exact in fp32.
at::Tensor values(std::int64_t numel, std::int64_t factor) {
  const at::Tensor index = at::arange(numel, at::kLong).mul_(factor).remainder_(1024);
  return index.to(at::kFloat).div_(1024).sub_(0.5);
}

struct Parameters {
  at::Tensor memory;  // of all, in mode unit
  at::Tensor gradient_memory;
  std::vector<at::Tensor> list;
};

Parameters make_parameters(const std::vector<std::int64_t>& sizes, bool in_one_memory) {
  Parameters made;
  std::int64_t total = 0;
  for (const std::int64_t numel : sizes) total += (numel + 15) / 16 * 16;
  if (in_one_memory) {
    made.memory = at::zeros({total});
    made.gradient_memory = at::zeros({total});
  }
  std::int64_t begin = 0;
  for (const std::int64_t numel : sizes) {
    at::Tensor parameter = values(numel, 37);
    at::Tensor gradient = values(numel, 101);
    if (in_one_memory) {
      parameter = made.memory.narrow(0, begin, numel).copy_(parameter).detach();
      gradient = made.gradient_memory.narrow(0, begin, numel).copy_(gradient);
    }
    parameter.requires_grad_(true);
    parameter.mutable_grad() = gradient;
    made.list.push_back(parameter);
    begin += (numel + 15) / 16 * 16;
  }
  return made;
}

template <typename Step>
std::vector<double> timed(int steps, Step step) {
  std::vector<double> seconds;
  for (int i = 0; i < steps; ++i) {
    const auto started = std::chrono::steady_clock::now();
    step();
    seconds.push_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count());
  }
  return seconds;
}

void print(const std::vector<double>& numbers) {
  for (const double number : numbers) std::printf("%.17g ", number);
  std::printf("\n");
}

int run(const std::string& mode,
        const std::vector<std::int64_t>& sizes,
        int steps,
        const std::string& folder) {
  const at::NoGradGuard no_grad;
  Parameters parameters = make_parameters(sizes, mode == "unit" || mode == "copy");
  if (mode == "copy") {
    print(timed(steps, [&] { parameters.gradient_memory.copy_(parameters.memory); }));
    return 0;
  }
  torch::optim::AdamW optimizer(parameters.list, torch::optim::AdamWOptions(3e-4));
  accel::FusedStep fused(optimizer);
  std::optional<accel::DiskStep> disk;
  if (mode == "disk") disk.emplace(optimizer, folder);
  const auto is_padded = [is_unit = mode == "unit"](const at::Tensor&) { return is_unit; };
  const auto fused_step = [&](const auto& padded) { fused.step(padded); };
  const auto seconds = timed(steps, [&] {
    if (mode == "own") {
      optimizer.step();
    } else if (disk) {
      disk->step(fused_step, is_padded);
    } else {
      fused_step(is_padded);
    }
  });
  std::vector<double> results;
  for (const at::Tensor& parameter : parameters.list) {
    results.push_back(parameter.to(at::kDouble).sum().item<double>());
    results.push_back(parameter[parameter.numel() / 2].item<double>());
  }
  print(results);
  print(seconds);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const bool has_folder = argc > 1 && std::string(argv[1]) == "disk";
  if (argc != (has_folder ? 5 : 4)) {
    std::fprintf(stderr, "use: optimizer_step own|apart|unit|copy|disk SIZES STEPS [FOLDER]\n");
    return 2;
  }
  at::set_num_threads(1);
  std::ifstream file(argv[2]);
  std::vector<std::int64_t> sizes;
  for (std::int64_t numel = 0; file >> numel;) sizes.push_back(numel);
  return run(argv[1], sizes, std::atoi(argv[3]), has_folder ? argv[4] : "");
}
