// One forward of a model whose weights lie on disk, for offload_bench.py.
//
//   offload_step FOLDER LAYERS WIDTH TOKENS
//
// FOLDER holds the weights of LAYERS square linear layers, as offload_state_dict() of Accelerate writes them. Prints the sum and some
// values of the output, then the seconds of the first forward (nothing in memory), and of the second one (all in memory).

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <ATen/core/grad_mode.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <accel/big_model.h>
#include <accel/offload.h>

namespace {

double seconds_of(torch::nn::Sequential& model, const at::Tensor& input, at::Tensor& output) {
  const auto begin = std::chrono::steady_clock::now();
  output = model->forward(input);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "use: offload_step FOLDER LAYERS WIDTH TOKENS\n");
    return 2;
  }
  const at::NoGradGuard no_grad;
  const int layers = std::atoi(argv[2]);
  const std::int64_t width = std::atoll(argv[3]);
  torch::nn::Sequential model;
  {
    const auto empty = accel::init_empty_weights();
    for (int i = 0; i < layers; ++i)
      model->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
  }
  accel::disk_offload(*model, argv[1]);
  const std::int64_t count = std::atoll(argv[4]) * width;
  const at::Tensor input =
      (at::arange(count) * 37 % 1021).to(at::kFloat).div_(1024).view({-1, width});
  (void)at::mm(input, at::ones({width, 16}));  // starts the threads of BLAS
  at::Tensor output;
  const double cold = seconds_of(model, input, output);
  const at::Tensor flat = output.flatten();
  std::printf("%.17g", flat.to(at::kDouble).sum().item<double>());
  for (int i = 0; i < 8; ++i) std::printf(" %.17g", flat[i * (count / 8)].item<double>());
  const double warm = seconds_of(model, input, output);
  std::printf("\n%.6f %.6f\n", cold, warm);
  return 0;
}
