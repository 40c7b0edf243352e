// Trains a model that torch.export.save() wrote, for tests that compare with Python.
//
//   exported_train MODEL.pt2 INPUTS.safetensors [--steps N] [--lr X] [--optimizer adamw|sgd]
//                  [--strategy ddp|zero1|zero2|full_shard] [--mixed_precision no|bf16|fp16] [--accumulate K]
//                  [--weights FILE] [--threads N] [--seed N] [--save FOLDER] [--double MODULE]
//
// The inputs file has tensors by the names of the model's inputs. Dimension 0 is the batch: each rank takes its part of it, in
// order, and with --accumulate each of K batches takes its part of that; a tensor without dimensions goes to all as it is.
// Prints a line for each step: its number, the mean of the loss over ranks and batches, and the norm of the gradients;
// then "eval" and the loss in eval(). --save writes the weights. --double gives a submodule a hook that doubles its first output.

#include <charconv>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/exported_model.h>
#include <accel/fsdp.h>
#include <accel/model_hooks.h>
#include <accel/safetensors_file.h>

namespace {

using Flags = std::map<std::string, std::string>;

struct Run {
  std::string model;
  std::string inputs;
  Flags flags;

  [[nodiscard]] std::string text(const std::string& flag, const std::string& otherwise) const {
    const auto found = flags.find(flag);
    return found == flags.end() ? otherwise : found->second;
  }
  [[nodiscard]] double number(const std::string& flag, double otherwise) const {
    const auto found = flags.find(flag);
    return found == flags.end() ? otherwise : std::stod(found->second);
  }
};

[[noreturn]] void refuse(const std::string& what) {
  throw accel::Error(
      accel::ErrorCode::kUsage, what, "see the head of tests/peer/exported_train.cc");
}

Run parse(int count, char** arguments) {
  Run run;
  std::vector<std::string> files;
  for (int i = 1; i < count; ++i) {
    const std::string argument = arguments[i];
    if (!argument.starts_with("--")) {
      files.push_back(argument);
    } else if (i + 1 < count) {
      run.flags[argument.substr(2)] = arguments[++i];
    } else {
      refuse(argument + " has no value");
    }
  }
  if (files.size() != 2) refuse("expected MODEL and INPUTS");
  run.model = files[0];
  run.inputs = files[1];
  return run;
}

accel::AcceleratorOptions options_of(const Run& run) {
  accel::AcceleratorOptions options;
  options.mixed_precision = run.text("mixed_precision", "no");
  options.gradient_accumulation_steps = static_cast<int>(run.number("accumulate", 1));
  const std::string strategy = run.text("strategy", "ddp");
  if (strategy == "zero2") {
    options.fsdp_plugin.emplace().sharding_strategy = accel::ShardingStrategy::kShardGradOp;
  } else if (strategy == "full_shard") {
    options.fsdp_plugin.emplace().sharding_strategy = accel::ShardingStrategy::kFullShard;
  } else if (strategy == "zero1") {
    options.deepspeed_plugin.emplace().zero_stage = 1;
  } else if (strategy != "ddp") {
    refuse("there is no strategy " + strategy);
  }
  return options;
}

std::shared_ptr<torch::optim::Optimizer> optimizer_of(const Run& run, torch::nn::Module& net) {
  const double rate = run.number("lr", 1e-3);
  std::vector<at::Tensor> trained;
  for (const at::Tensor& parameter : net.parameters())
    if (parameter.requires_grad()) trained.push_back(parameter);
  const std::string name = run.text("optimizer", "adamw");
  if (name == "sgd")
    return std::make_shared<torch::optim::SGD>(trained, torch::optim::SGDOptions(rate));
  if (name != "adamw") refuse("there is no optimizer " + name);
  return std::make_shared<torch::optim::AdamW>(trained,
                                               torch::optim::AdamWOptions(rate).weight_decay(0.01));
}

// Part `index` of `count` parts of the batch.
at::Tensor part_of(const at::Tensor& tensor, std::int64_t index, std::int64_t count) {
  if (tensor.dim() == 0) return tensor;
  const std::int64_t rows = tensor.size(0) / count;
  if (rows * count != tensor.size(0))
    refuse("a batch of " + std::to_string(tensor.size(0)) + " is not for " + std::to_string(count));
  return tensor.narrow(0, index * rows, rows);
}

accel::ExportedInputs inputs_of(const accel::safetensors::TensorMap& tensors,
                                std::int64_t index,
                                std::int64_t count) {
  std::vector<std::pair<std::string, c10::IValue>> inputs;
  for (const auto& [name, tensor] : tensors)
    inputs.emplace_back(name, part_of(tensor, index, count));
  return accel::ExportedInputs(std::move(inputs));
}

struct DoubledOutput final : accel::ModelHook {
  void post_forward(const accel::HookedModule& /*module*/, accel::HookValues& outputs) override {
    outputs.values[0] = outputs.values[0].toTensor() * 2;
  }
};

// Of the whole batch.
template <typename Model>
at::Tensor loss_in_evaluation(accel::Accelerator& accelerator,
                              Model& model,
                              const accel::safetensors::TensorMap& tensors) {
  const at::NoGradGuard no_grad;
  model->eval();
  const at::Tensor loss =
      model(inputs_of(tensors, accelerator.process_index(), accelerator.num_processes()));
  return accelerator.reduce(loss.to(at::kFloat), accel::Reduction::kMean);
}

int train(const Run& run) {
  at::set_num_threads(static_cast<int>(run.number("threads", 1)));
  accel::Accelerator accelerator(options_of(run));
  accel::ExportedModel net(run.model, {.weights = run.text("weights", "")});
  if (const std::string path = run.text("double", ""); !path.empty())
    accel::add_hook_to_module(*net, path, std::make_shared<DoubledOutput>());
  auto [model, optimizer] = accelerator.prepare(net, optimizer_of(run, *net));
  if (run.flags.contains("seed"))
    at::manual_seed(static_cast<std::uint64_t>(run.number("seed", 0)));
  const auto tensors = accel::safetensors::load_file(run.inputs);
  const auto batches = static_cast<std::int64_t>(run.number("accumulate", 1));
  const std::int64_t count = accelerator.num_processes() * batches;
  const auto steps = static_cast<int>(run.number("steps", 10));
  for (int step = 0; step < steps; ++step) {
    at::Tensor sum;
    at::Tensor norm;
    for (std::int64_t batch = 0; batch < batches; ++batch) {
      const auto scope = accelerator.accumulate(model);
      const at::Tensor loss =
          model(inputs_of(tensors, accelerator.process_index() * batches + batch, count));
      accelerator.backward(loss);
      sum = sum.defined() ? sum + loss.detach() : loss.detach();
      if (accelerator.sync_gradients()) norm = accelerator.clip_grad_norm_(net->parameters(), 1e30);
      optimizer.step();
      optimizer.zero_grad();
    }
    const at::Tensor mean = accelerator.reduce(sum.to(at::kFloat) / static_cast<double>(batches),
                                               accel::Reduction::kMean);
    if (accelerator.is_main_process())
      std::printf("%d %.9g %.9g\n", step, mean.item<double>(), norm.item<double>());
  }
  const at::Tensor loss = loss_in_evaluation(accelerator, model, tensors);
  if (accelerator.is_main_process()) std::printf("eval %.9g\n", loss.item<double>());
  if (const std::string folder = run.text("save", ""); !folder.empty())
    accelerator.save_model(model, folder);
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    return train(parse(count, arguments));
  } catch (const accel::Error& error) {
    std::fprintf(stderr, "%s\n", error.render("exported_train").c_str());
    return accel::error_info(error.code()).exit_status;
  }
}
