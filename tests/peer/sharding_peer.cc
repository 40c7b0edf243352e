// The C++ side of sharding_peer.py: trains models of the zoo from the weights and batches of a file.
//
//   sharding_peer STRATEGY FOLDER CASE...   one rank. A case is MODEL or MODEL+WAY. Reads FOLDER/CASE.safetensors; prints
//                                           losses as C hexadecimal floats, one line each; rank 0 writes
//                                           FOLDER/CASE.STRATEGY.safetensors, and the checkpoints FOLDER/CASE.STRATEGY.TYPE
//                                           of two state dict types are written by who writes them
//
// WAY: "unreduced" and "reduced" step with every second batch; the gradients of the other one are reduced with it, or by
// themselves. "bf16" is a policy where the model is divided, else autocast. "recomputed" is activation_checkpointing of blocks.

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/safetensors_file.h>

#include "tests/support/model_zoo.h"

namespace {

using Tensors = std::map<std::string, at::Tensor>;

std::shared_ptr<accel::test::ZooModel> make_model(const std::string& name) {
  for (const accel::test::ZooEntry& entry : accel::test::model_zoo()) {
    if (name == entry.name) return entry.make();
  }
  throw accel::Error(accel::ErrorCode::kInvalidArgument, "no model is called " + name);
}

Tensors state_of(const accel::test::ZooModel& model) {
  Tensors state;
  for (const auto& item : model.named_parameters()) state[item.key()] = item.value().detach();
  for (const auto& item : model.named_buffers()) state[item.key()] = item.value();
  return state;
}

accel::AcceleratorOptions options_of(accel::ShardingStrategy strategy,
                                     const std::string& model,
                                     const std::string& way) {
  accel::AcceleratorOptions options;
  auto& plugin = options.fsdp_plugin.emplace();
  plugin.sharding_strategy = strategy;
  options.ddp.find_unused_parameters = model == "Experts";
  if (way == "unreduced" || way == "reduced") {
    options.gradient_accumulation_plugin =
        accel::GradientAccumulationPlugin{.num_steps = 2, .sync_each_batch = way == "reduced"};
  } else if (way == "bf16" && strategy == accel::ShardingStrategy::kNoShard) {
    options.mixed_precision = "bf16";
  } else if (way == "bf16") {
    plugin.mixed_precision_policy =
        accel::MixedPrecisionPolicy{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};
  } else if (way == "recomputed") {
    plugin.auto_wrap_policy = accel::AutoWrapPolicy::kTransformerBasedWrap;
    plugin.transformer_cls_names_to_wrap = {"GptBlock"};
    plugin.activation_checkpointing = true;
  } else if (!way.empty()) {
    throw accel::Error(accel::ErrorCode::kInvalidArgument, "no way is called " + way);
  }
  return options;
}

void train(const std::string& strategy, const std::string& folder, const std::string& name) {
  const Tensors tensors = accel::safetensors::load_file(folder + "/" + name + ".safetensors");
  const std::size_t plus = std::min(name.find('+'), name.size());
  const std::string way = name.substr(std::min(plus + 1, name.size()));
  const std::string model_name = name.substr(0, plus);
  accel::AcceleratorState::reset();  // the precision, which each case has of its own
  accel::Accelerator accelerator(
      options_of(accel::parse<accel::ShardingStrategy>(strategy), model_name, way));
  const auto net = make_model(model_name);
  {
    const at::NoGradGuard no_grad;
    for (auto& [key, tensor] : state_of(*net)) tensor.copy_(tensors.at("model." + key));
  }
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const at::Tensor& inputs = tensors.at("inputs");  // [steps, ranks, samples, 16]
  for (std::int64_t step = 0; step < inputs.size(0); ++step) {
    const auto scope = accelerator.accumulate(model);
    const at::Tensor output = model(inputs[step][accelerator.process_index()]);
    const at::Tensor loss = output.to(at::kFloat).square().mean();
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    std::printf("%a\n", loss.item<double>());
  }
  if (accelerator.is_main_process()) {
    Tensors state;
    for (const auto& [key, tensor] : state_of(*net)) state[key] = tensor.clone();
    accel::safetensors::save_file(state, folder + "/" + name + "." + strategy + ".safetensors");
  }
  for (const char* type : {"SHARDED_STATE_DICT", "FULL_STATE_DICT"}) {
    accelerator.set_state_dict_type(type);
    accelerator.save_state(folder + "/" + name + "." + strategy + "." + type);
  }
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  try {
    const accel::PartialState state;  // one group for all models
    for (int i = 3; i < argc; ++i) train(argv[1], argv[2], argv[i]);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sharding_peer: %s\n", error.what());
    return 1;
  }
  return 0;
}
