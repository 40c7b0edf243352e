// Evaluates machine code of AOTInductor, for tests that compare with Python and with the interpreter.
//
//   compiled_eval graph MODEL.pt2 INPUTS.safetensors [--compiled required|possible|never] [--steps N] [--lr X]
//                 [--strategy ddp|full_shard] [--mixed_precision no|bf16] [--rows N]
//   compiled_eval package MODEL.pt2 INPUTS.safetensors [--weights FILE] [--rows N]
//
// The inputs file has tensors by the names of the model's inputs, of a package in alphabetical order; of each the first N rows are
// taken. graph: prints a line before each step of SGD and one after the last: its number, the first output in eval() without
// autograd, the same with autograd, for which the graph is interpreted, the largest difference of all outputs, how often
// machine code ran for the first, and how often in the step before. Then twice "why" and what why_not_compiled() says, in eval() and in train(). package: prints the names and sums of the outputs.

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/compiled_model.h>
#include <accel/error.h>
#include <accel/exported_model.h>
#include <accel/fsdp.h>
#include <accel/safetensors_file.h>

namespace {

using Flags = std::map<std::string, std::string>;

int num_compiled_calls = 0;

std::unique_ptr<at::ObserverContext> count_call(const at::RecordFunction& function) {
  num_compiled_calls += std::string_view(function.name()) == "accel::run_compiled" ? 1 : 0;
  return nullptr;
}

std::string text_of(const Flags& flags, const std::string& name, const std::string& otherwise) {
  const auto found = flags.find(name);
  return found == flags.end() ? otherwise : found->second;
}

accel::safetensors::TensorMap inputs_of(const std::string& path, const Flags& flags) {
  auto tensors = accel::safetensors::load_file(path);
  const std::int64_t rows = std::stoll(text_of(flags, "rows", "0"));
  for (auto& [name, tensor] : tensors)
    if (rows > 0) tensor = tensor.narrow(0, 0, rows);
  return tensors;
}

double largest_difference(const accel::ExportedOutputs& a, const accel::ExportedOutputs& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.tensors.size(); ++i)
    if (a[i].defined() && a[i].numel() > 0)
      largest = std::max(largest,
                         (a[i].detach().to(at::kDouble) - b[i].detach().to(at::kDouble))
                             .abs()
                             .max()
                             .item<double>());
  return largest;
}

accel::CompiledUse use_of(const std::string& word) {
  if (word == "required") return accel::CompiledUse::kRequired;
  return word == "possible" ? accel::CompiledUse::kWherePossible : accel::CompiledUse::kNever;
}

int evaluate_graph(const std::string& path, const std::string& inputs, const Flags& flags) {
  accel::AcceleratorOptions options;
  options.mixed_precision = text_of(flags, "mixed_precision", "no");
  if (text_of(flags, "strategy", "ddp") == "full_shard")
    options.fsdp_plugin.emplace().sharding_strategy = accel::ShardingStrategy::kFullShard;
  accel::Accelerator accelerator(options);
  accel::ExportedModel net(path, {.compiled = use_of(text_of(flags, "compiled", "required"))});
  auto [model, optimizer] = accelerator.prepare(
      net,
      std::make_shared<torch::optim::SGD>(
          net->parameters(), torch::optim::SGDOptions(std::stod(text_of(flags, "lr", "0.1")))));
  std::vector<std::pair<std::string, c10::IValue>> given;
  for (const auto& [name, tensor] : inputs_of(inputs, flags)) given.emplace_back(name, tensor);
  const accel::ExportedInputs batch(given);
  const int steps = std::stoi(text_of(flags, "steps", "3"));
  int calls_of_step = 0;
  for (int step = 0; step <= steps; ++step) {
    model->eval();
    num_compiled_calls = 0;
    accel::ExportedOutputs compiled;
    {
      const at::NoGradGuard no_grad;
      compiled = model(batch);
    }
    const int calls = num_compiled_calls;
    const accel::ExportedOutputs interpreted =
        text_of(flags, "compiled", "required") == "required" ? compiled : model(batch);
    if (accelerator.is_main_process())
      std::printf("%d %.9g %.9g %.9g %d %d\n",
                  step,
                  compiled[0].item<double>(),
                  interpreted[0].item<double>(),
                  largest_difference(compiled, interpreted),
                  calls,
                  calls_of_step);
    if (step == steps) break;
    model->train();
    num_compiled_calls = 0;
    accelerator.backward(model(batch));
    calls_of_step = num_compiled_calls;
    optimizer.step();
    optimizer.zero_grad();
  }
  if (accelerator.is_main_process()) {
    std::printf("why %s\n", net->why_not_compiled().c_str());
    net->train();
    std::printf("why %s\n", net->why_not_compiled().c_str());
  }
  accelerator.end_training();
  return 0;
}

int evaluate_package(const std::string& path, const std::string& inputs, const Flags& flags) {
  accel::Accelerator accelerator;
  accel::CompiledModel net(path, {.weights = text_of(flags, "weights", "")});
  auto model = accelerator.prepare(net);
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : inputs_of(inputs, flags)) tensors.push_back(tensor);
  const at::NoGradGuard no_grad;
  const accel::ExportedOutputs outputs = model(tensors);
  for (std::size_t i = 0; i < outputs.names.size(); ++i)
    std::printf("%s %.9g\n",
                outputs.names[i].c_str(),
                outputs[i].defined() ? outputs[i].to(at::kDouble).sum().item<double>() : 0.0);
  return 0;
}

int run(std::vector<std::string> words) {
  Flags flags;
  std::vector<std::string> files;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i].starts_with("--") && i + 1 < words.size()) {
      flags[words[i].substr(2)] = words[i + 1];
      ++i;
    } else {
      files.push_back(words[i]);
    }
  }
  if (files.size() != 3)
    throw accel::Error(accel::ErrorCode::kUsage,
                       "expected graph or package, MODEL and INPUTS",
                       "see the head of tests/peer/compiled_eval.cc");
  at::set_num_threads(1);
  at::addThreadLocalCallback(
      at::RecordFunctionCallback(&count_call).scopes({at::RecordScope::FUNCTION}));
  return files[0] == "graph" ? evaluate_graph(files[1], files[2], flags)
                             : evaluate_package(files[1], files[2], flags);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return run({arguments + 1, arguments + count});
  } catch (const accel::Error& error) {
    std::fprintf(stderr, "%s\n", error.render("compiled_eval").c_str());
    return accel::error_info(error.code()).exit_status;
  }
}
