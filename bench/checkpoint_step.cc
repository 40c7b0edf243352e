// One rank of checkpoint_bench.py: saves or loads a sharded model and its AdamW, and says how long that took.
//
//   checkpoint_step FILE FOLDER save|async|before_update|wait|train|load|memory ROUNDS      prints "bytes seconds" per round
//
// FILE is a safetensors file with the weights of a chain of square linear layers ("0.weight", "1.weight", ...). `async` counts
// the seconds in which the caller is held up, `before_update` the same where copies are made before the update. `wait` counts a forward,
// a backward and a step behind such a call, and `train` the same without a save. `load` reads what is in FOLDER/state already. `memory` saves into the memory of
// accel-launch, which has to start it. bytes: of this rank's part.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/ops/ones.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/async_save.h>
#include <accel/safetensors_file.h>

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

int run(const std::string& file,
        const std::filesystem::path& folder,
        const std::string& mode,
        int rounds) {
  const auto weights = accel::safetensors::load_file(file);
  accel::Accelerator accelerator;
  torch::nn::Sequential net;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const at::Tensor& weight = weights.at(std::to_string(i) + ".weight");
    net->push_back(
        torch::nn::Linear(torch::nn::LinearOptions(weight.size(1), weight.size(0)).bias(false)));
  }
  double bytes = 0;
  {
    const at::NoGradGuard no_grad;
    for (auto& item : net->named_parameters()) {
      item.value().copy_(weights.at(item.key()));
      bytes += 3.0 * static_cast<double>(item.value().nbytes()) / accelerator.num_processes();
    }
  }
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.0));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto train = [&, net = &model, adamw = &optimizer] {
    const Clock::time_point begin = Clock::now();
    accelerator.backward((*net)(at::ones({1, weights.at("0.weight").size(1)})).square().mean());
    adamw->step();
    adamw->zero_grad();
    return seconds_since(begin);
  };
  (void)train();
  const bool is_before_update = mode == "before_update" || mode == "wait";
  for (int round = 0; round < rounds; ++round) {
    // Not counted, as with the peer: freeing the files of the round before is no part of a save.
    if ((mode == "save" || mode == "async" || is_before_update) && accelerator.is_main_process())
      std::filesystem::remove_all(folder / "state");
    accelerator.wait_for_everyone();
    const Clock::time_point begin = Clock::now();
    double seconds = 0;
    if (mode == "load") {
      accelerator.load_state(folder / "state");
      seconds = seconds_since(begin);
    } else if (mode == "async") {
      accel::AsyncSave saving =
          accel::async_save_checkpoint(folder / "state", accelerator.checkpoint_objects());
      seconds = seconds_since(begin);
      saving.wait();
    } else if (is_before_update) {
      accel::AsyncSave saving =
          accel::async_save_checkpoint(folder / "state",
                                       accelerator.checkpoint_objects(),
                                       {.files = {.async_copy = accel::AsyncCopy::kBeforeUpdate}});
      seconds = seconds_since(begin);
      // A rate of 0 leaves the weights, and the averages move.
      if (mode == "wait") seconds = train();
      saving.wait();
    } else if (mode == "train") {
      seconds = train();
    } else if (mode == "memory") {
      if (!accelerator.save_state_in_memory()) return 3;
      seconds = seconds_since(begin);
    } else {
      accelerator.save_state(folder / "state");
      seconds = seconds_since(begin);
    }
    std::printf("%.0f %.9g\n", bytes, seconds);
  }
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr,
                 "use: checkpoint_step FILE FOLDER save|async|before_update|wait|train|load|memory "
                 "ROUNDS\n");
    return 2;
  }
  at::set_num_threads(1);
  return run(argv[1], argv[2], argv[3], std::atoi(argv[4]));
}
