// A rank of tests/integration/memory that is killed in the middle of an in-memory checkpoint.
//
//   memory_worker KILL_AT_STEP      0: never
//   memory_worker async PROJECT     after an in-memory checkpoint that came after a save in the background
//   memory_worker uncounted PROJECT after an in-memory checkpoint that came after one on disk; it goes on in a generation that
//                                   counts as no restart, as those do that begin because nodes came or went
//   memory_worker halfway           in the middle of an accumulation; it ends in order
//   memory_worker apart             after an in-memory checkpoint of ranks whose copies differ, as in a loop that steps without
//                                   reduction
//
// One of its objects lies in memory whose second half cannot be read when rank 0 makes the copy of that step, in the first
// generation: so the first half is copied, and SIGKILL ends the process at the very byte.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <sys/mman.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <unistd.h>

#include <accel/accelerator.h>
#include <accel/random.h>

namespace {

constexpr std::size_t kBytes = 2 << 20;
constexpr int kSteps = 12;

class Trap final : public accel::Stateful {
 public:
  Trap()
      : data_(static_cast<float*>(
            ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {}

  [[nodiscard]] at::Tensor tensor() const {
    return at::from_blob(data_, {static_cast<std::int64_t>(kBytes / sizeof(float))}, at::kFloat);
  }
  [[nodiscard]] accel::StateDict state_dict() const override { return {{{"trap", tensor()}}, {}}; }
  void load_state_dict(const accel::StateDict& state) override {
    tensor().copy_(state.tensors.at("trap"));
  }
  void arm() const {
    std::signal(SIGSEGV, [](int) { ::kill(::getpid(), SIGKILL); });
    ::mprotect(reinterpret_cast<char*>(data_) + kBytes / 2, kBytes / 2, PROT_NONE);
  }

 private:
  float* data_;
};

// The run counts generations above those on its disk, where restarts count from 0.
int save_in_background_first(const std::filesystem::path& project) {
  accel::Accelerator accelerator(
      {.project_config = {.project_dir = project.string(), .automatic_checkpoint_naming = true}});
  torch::nn::Linear net(8, 8);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto train = [&, &model = model, &optimizer = optimizer] {
    accelerator.backward(model(at::full({4, 8}, 0.1)).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  };
  if (const auto found = accelerator.begin_run(accel::RunStart::kAnew)) {
    accelerator.print(
        "went on from", found->folder.empty() ? "memory" : "disk", "at step", found->step);
    accelerator.end_training();
    return 0;
  }
  train();
  accelerator.save_state();
  accelerator.load_state();
  train();
  accelerator.async_save_state();
  train();
  if (!accelerator.save_state_in_memory()) return 4;
  while (!std::filesystem::exists(project / "checkpoints" / "checkpoint_1"))
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ::kill(::getpid(), SIGKILL);
  return 5;
}

int go_on_uncounted(const std::filesystem::path& project) {
  ::setenv("TORCHELASTIC_RESTART_COUNT", "0", 1);
  accel::Accelerator accelerator(
      {.project_config = {.project_dir = project.string(), .automatic_checkpoint_naming = true}});
  torch::nn::Linear net(8, 8);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto found = accelerator.begin_run(accel::RunStart::kAnew);
  const accel::CheckpointInfo saved = accelerator.save_state();
  if (found) {
    accelerator.print("went on from memory and saved", saved.folder.filename().string());
    accelerator.end_training();
    return 0;
  }
  if (!accelerator.save_state_in_memory()) return 4;
  accelerator.wait_for_everyone();
  ::kill(::getpid(), SIGKILL);
  return 5;
}

// All go on from the values of rank 0.
int go_on_after_ranks_differed() {
  accel::Accelerator accelerator;
  torch::nn::Linear net(64, 64);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  if (accelerator.load_state_in_memory()) {
    if (!net->weight.eq(1).all().item<bool>()) return 3;
    accelerator.print("went on from the copy of rank 0");
    accelerator.end_training();
    return 0;
  }
  {
    const at::NoGradGuard no_grad;
    net->weight.fill_(1 + accelerator.process_index());
  }
  if (!accelerator.save_state_in_memory()) return 4;
  accelerator.wait_for_everyone();
  ::kill(::getpid(), SIGKILL);
  return 5;
}

int save_in_the_middle_of_an_accumulation() {
  accel::Accelerator accelerator({.gradient_accumulation_steps = 2});
  torch::nn::Linear net(8, 8);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  const auto accumulating = accelerator.accumulate(model);
  accelerator.backward(model(at::full({4, 8}, 0.1)).square().mean());
  if (!accelerator.save_state_in_memory()) return 4;
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int, char** argv) {
  if (argv[1] == std::string("apart")) return go_on_after_ranks_differed();
  if (argv[1] == std::string("halfway")) return save_in_the_middle_of_an_accumulation();
  if (argv[1] == std::string("uncounted")) return go_on_uncounted(argv[2]);
  if (argv[1] == std::string("async")) return save_in_background_first(argv[2]);
  const int kill_at = std::atoi(argv[1]);
  accel::Accelerator accelerator;
  accel::set_seed(1);
  torch::nn::Linear net(64, 64);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(0.01));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  Trap trap;
  accelerator.register_for_checkpointing(trap);
  int step = 0;
  if (const auto found = accelerator.load_state_in_memory()) {
    step = static_cast<int>(found->step);
    accelerator.print("went on at step", step);
    if (!trap.tensor().eq(step).all().item<bool>()) return 3;
  }
  while (step < kSteps) {
    accelerator.backward(model(at::full({4, 64}, 0.1 * ++step)).square().mean());
    optimizer.step();
    optimizer.zero_grad();
    trap.tensor().fill_(step);
    const bool is_last =
        step == kill_at && accelerator.restart_count() == 0 && accelerator.is_main_process();
    if (is_last) trap.arm();
    if (!accelerator.save_state_in_memory()) return 4;
  }
  std::uint32_t bits = 0;
  const float sum = net->weight.detach().sum().item<float>();
  std::memcpy(&bits, &sum, sizeof bits);
  accelerator.print("weights", bits, "of step", step);
  accelerator.end_training();
  return 0;
}
