// Forwards in eval() and passes of train() of an exported model, timed; for bench/compiled_bench.py.
//
//   compiled_step MODEL INPUTS CALLS never|required    by the graph, or by the machine code of the file
//
// Prints the losses of eval() and of train(), then two lines with the seconds of each: forwards in eval() without autograd, and
// forwards with their backwards. The first call of each, which compares code with the graph, is none of them.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <accel/exported_model.h>
#include <accel/safetensors_file.h>

namespace {

using Clock = std::chrono::steady_clock;

struct Timed {
  double loss = 0;
  std::vector<double> seconds;
};

Timed timed(int calls, const std::function<at::Tensor()>& call) {
  Timed result{.loss = call().item<double>()};
  for (int i = 0; i < calls; ++i) {
    const auto start = Clock::now();
    result.loss = call().item<double>();
    result.seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count());
  }
  return result;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) return 64;
  at::set_num_threads(1);
  const bool is_compiled = std::strcmp(arguments[4], "required") == 0;
  accel::ExportedModel net(
      arguments[1],
      {.compiled = is_compiled ? accel::CompiledUse::kRequired : accel::CompiledUse::kNever});
  std::vector<std::pair<std::string, c10::IValue>> values;
  for (const auto& [name, tensor] : accel::safetensors::load_file(arguments[2]))
    values.emplace_back(name, tensor);
  const accel::ExportedInputs inputs(std::move(values));
  const int calls = std::atoi(arguments[3]);
  net->eval();
  const Timed evaluation = timed(calls, [&] {
    const at::NoGradGuard no_grad;
    return net(inputs).tensors.front();
  });
  net->train();
  const Timed training = timed(calls, [&] {
    const at::Tensor loss = net(inputs);
    loss.backward();
    for (const at::Tensor& parameter : net->parameters()) parameter.mutable_grad().reset();
    return loss.detach();
  });
  std::printf("%.9g %.9g\n", evaluation.loss, training.loss);
  for (const auto& times : {evaluation.seconds, training.seconds}) {
    for (const double time : times) std::printf("%.9g ", time);
    std::printf("\n");
  }
  return 0;
}
