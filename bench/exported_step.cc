// Steps of an exported model, timed; for bench/exported_bench.py.
//
//   exported_step train MODEL INPUTS STEPS   losses of all steps in one line; seconds of forward and backward, of whole steps;
//                                            the peak of memory above what was there before the first step, in bytes; when
//                                            the first step was done, in seconds since 1970. INPUTS.RANK are a rank's inputs;
//                                            rank 0 prints
//   exported_step nodes MODEL CALLS          nanoseconds of each node of a chain of aten::neg on one number, and of the same
//                                            operators called from a loop

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/exported_model.h>
#include <accel/safetensors_file.h>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

// A line of /proc/self/status, in bytes.
std::int64_t status_bytes(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind(key, 0) == 0) return std::strtoll(line.c_str() + key.size(), nullptr, 10) * 1024;
  return 0;
}

int train(char** arguments) {
  const int steps = std::atoi(arguments[2]);
  accel::Accelerator accelerator;
  accel::ExportedModel net(arguments[0]);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3).weight_decay(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const std::string inputs_of_rank =
      arguments[1] + ("." + std::to_string(accelerator.process_index()));
  std::vector<std::pair<std::string, c10::IValue>> values;
  for (const auto& [name, tensor] : accel::safetensors::load_file(inputs_of_rank))
    values.emplace_back(name, tensor);
  const accel::ExportedInputs inputs(std::move(values));

  std::int64_t before = 0;
  std::int64_t peak = 0;
  double first = 0;
  std::vector<double> losses;
  std::vector<double> passes;
  std::vector<double> whole;
  for (int step = 0; step < steps; ++step) {
    if (step ==
        1) {  // code that is first read, and what the optimizer keeps, are of the step before
      before = status_bytes("VmRSS:");
      std::ofstream("/proc/self/clear_refs") << 5;
    }
    const auto start = Clock::now();
    const at::Tensor loss = model(inputs);
    accelerator.backward(loss);
    passes.push_back(seconds_since(start));
    if (step == 1) peak = status_bytes("VmHWM:");
    optimizer.step();
    optimizer.zero_grad();
    whole.push_back(seconds_since(start));
    losses.push_back(loss.item<double>());
    if (step == 0) first = seconds_since_1970();
  }
  const std::vector<std::vector<double>> rows = {
      losses, passes, whole, {static_cast<double>(peak - before)}, {first}};
  if (accelerator.is_main_process())
    for (const auto& row : rows) {
      for (const double value : row) std::printf("%.17g ", value);
      std::printf("\n");
    }
  accelerator.end_training();
  return 0;
}

template <typename Call>
double nanoseconds(int calls, std::size_t nodes, const Call& call) {
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    const auto start = Clock::now();
    call();
    times.push_back(seconds_since(start));
  }
  std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
  return times[static_cast<std::size_t>(calls / 2)] * 1e9 / static_cast<double>(nodes);
}

int nodes(char** arguments) {
  const int calls = std::atoi(arguments[1]);
  accel::ExportedModel net(arguments[0]);
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::ones({1});
  const std::size_t count = net->region("").num_nodes();
  const double graph = nanoseconds(calls, count, [&] { net(x); });
  const double loop = nanoseconds(calls, count, [&] {
    at::Tensor y = x;
    for (std::size_t i = 0; i < count; ++i) y = at::neg(y);
  });
  std::printf("%zu %.9g %.9g\n", count, graph, loop);
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  at::set_num_threads(1);
  if (count == 5 && std::strcmp(arguments[1], "train") == 0) return train(arguments + 2);
  if (count == 4 && std::strcmp(arguments[1], "nodes") == 0) return nodes(arguments + 2);
  std::fprintf(stderr, "usage: exported_step train MODEL INPUTS STEPS | nodes MODEL CALLS\n");
  return 2;
}
