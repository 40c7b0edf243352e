// What tests/peer/safetensors_interop.py and accelerate_checkpoints.py drive: moves weights between files of Python and ours.
//
//   weights_exchange copy IN OUT         loads a file and saves it again, metadata included
//   weights_exchange make OUT            views, single values and empty tensors
//   weights_exchange save-model FOLDER   a small network in shards of at most 100 bytes
//   weights_exchange load-model IN OUT   fills that network from a folder and saves it as one file
//   weights_exchange save-pickled-model FOLDER       the same network in shards of torch.save()
//   weights_exchange copy-object IN OUT  loads a file of torch.save() and saves it again

#include <iostream>
#include <map>
#include <string>
#include <string_view>

#include <ATen/core/ivalue.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/safetensors_file.h>
#include <accel/saved_object.h>

namespace st = accel::safetensors;

namespace {

struct Network : torch::nn::Module {
  Network() {
    register_module("linear1", torch::nn::Linear(3, 4));
    register_module("batchnorm", torch::nn::BatchNorm1d(4));
    register_module("linear2", torch::nn::Linear(4, 5));
    // Values that the script can compute: 0, 1, 2, ... in each parameter.
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : parameters()) {
      parameter.detach().copy_(
          at::arange(parameter.numel(), at::kFloat).reshape(parameter.sizes()));
    }
  }
};

void copy(char** arguments) {
  st::save_file(st::load_file(arguments[0]), arguments[1], st::load_metadata(arguments[0]));
}

void make(char** arguments) {
  const at::Tensor grid = at::arange(0, 24, at::kFloat).reshape({4, 6});
  st::save_file({{"transposed", grid.t()},
                 {"every second column", grid.slice(1, 0, 6, 2)},
                 {"row repeated", grid[1].expand({3, 6})},
                 {"half", grid.to(at::kBFloat16)},
                 {"single", grid[0][5].to(at::kLong)},
                 {"empty", at::empty({0, 3}, at::kInt)}},
                arguments[0],
                {{"format", "pt"}});
}

void save_network(char** arguments) {
  accel::save_model(Network(), arguments[0], {.max_shard_size = "100"});
}

void save_pickled_network(char** arguments) {
  accel::save_model(
      Network(), arguments[0], {.max_shard_size = "100", .safe_serialization = false});
}

void copy_object(char** arguments) {
  accel::save(accel::load(arguments[0]), arguments[1]);
}

void load_network(char** arguments) {
  Network network;
  accel::load_checkpoint_in_model(network, arguments[0]);
  st::TensorMap tensors;
  for (const auto& item : network.named_parameters()) tensors[item.key()] = item.value();
  for (const auto& item : network.named_buffers()) tensors[item.key()] = item.value();
  st::save_file(tensors, arguments[1]);
}

struct Command {
  int num_arguments;
  void (*run)(char** arguments);
};

}  // namespace

int main(int argc, char** argv) {
  const std::map<std::string_view, Command> commands = {
      {"copy", {2, copy}},
      {"make", {1, make}},
      {"save-model", {1, save_network}},
      {"load-model", {2, load_network}},
      {"save-pickled-model", {1, save_pickled_network}},
      {"copy-object", {2, copy_object}}};
  const auto command = commands.find(argc > 1 ? argv[1] : "");
  if (command == commands.end() || argc != command->second.num_arguments + 2) {
    std::cerr << "usage: weights_exchange copy IN OUT | make OUT | save-model FOLDER | load-model "
                 "IN OUT\n";
    return 2;
  }
  try {
    command->second.run(argv + 2);
  } catch (const accel::Error& error) {
    std::cerr << error.render("weights_exchange") << "\n";
    return 1;
  }
  return 0;
}
