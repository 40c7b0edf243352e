// What has to hold where libaccel trains on a GPU. scripts/gpu_check.sh runs each check in a process of its own.
//
//   gpu_checks --list
//   gpu_checks NAME            exits with 0: it holds; 1: it does not; 77: this machine cannot tell. Lines on stdout say what was seen
//
// Without a GPU, or with ACCELERATE_USE_CPU=1, the same checks compare the CPU with itself, and say so: so the program is tried
// everywhere.
//
// Tolerance of losses in fp32 (TF32 is off): a sum of K products in another order differs by at most K * eps of the sum of its
// magnitudes, forward and backward are some 10 such sums deep, and each step adds its own to the parameters:
// kTerms * 10 * eps * (step + 1), relative to the first loss. On the CPU the same kernels run: the difference is 0 there.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>
#include <torch/torch.h>
#include <unistd.h>

#include <accel/accel.h>
#include <accel/memory_use.h>
#include <accel/random.h>

namespace accel::gpu_checks {
namespace {

constexpr std::int64_t kRows = 320;
constexpr std::int64_t kWidth = 16;
constexpr std::int64_t kTerms = 64;  // the longest sum in the models below
constexpr std::int64_t kBatch = 16;  // of all ranks
constexpr double kLearningRate = 3e-3;
constexpr int kSkip = 77;

constexpr const char* kKinds[] = {"mlp", "conv", "attention", "lstm", "embedding"};

// [N, 16] -> [N, 1], one small model of each kind.
class NetImpl final : public torch::nn::Module {
 public:
  explicit NetImpl(std::string kind) : kind_(std::move(kind)) {
    if (kind_ == "conv") {
      conv_ =
          register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)));
    } else if (kind_ == "attention") {
      mix_ = register_module("mix", torch::nn::Linear(4, 3 * 16));
      norm_ = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({16})));
    } else if (kind_ == "lstm") {
      lstm_ = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(4, 64)));
    } else if (kind_ == "embedding") {
      embedding_ = register_module("embedding", torch::nn::Embedding(32, 4));
    } else {
      mix_ = register_module("mix", torch::nn::Linear(kWidth, 64));
    }
    head_ = register_module("head", torch::nn::Linear(64, 1));
  }

  at::Tensor forward(const at::Tensor& input) {
    const std::int64_t rows = input.size(0);
    at::Tensor hidden;
    if (kind_ == "conv") {
      hidden = torch::gelu(conv_(input.view({rows, 1, 4, 4}))).flatten(1);
    } else if (kind_ == "attention") {
      const auto parts = mix_(input.view({rows, 1, 4, 4})).chunk(3, -1);
      hidden = norm_(at::scaled_dot_product_attention(parts[0], parts[1], parts[2])).flatten(1);
    } else if (kind_ == "lstm") {
      hidden = std::get<0>(lstm_(input.view({rows, 4, 4}).transpose(0, 1)))[-1];
    } else if (kind_ == "embedding") {
      hidden = embedding_(((input + 1) * 16).to(at::kLong).clamp(0, 31)).flatten(1);
    } else {
      hidden = torch::tanh(mix_(input));
    }
    return head_(hidden);
  }

 private:
  std::string kind_;
  torch::nn::Linear mix_{nullptr};
  torch::nn::Conv2d conv_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::LSTM lstm_{nullptr};
  torch::nn::Embedding embedding_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Net);

// The same values on every machine and rank.
struct Rows {
  torch::data::Example<> get(std::size_t index) const {
    const auto place = at::arange(kWidth, at::kFloat) + static_cast<double>(index) * 0.37;
    const at::Tensor row = (place * 0.7).sin();
    return {row, row.mean().view({1}) + 0.5 * row[0] * row[1]};
  }
  std::size_t size() const { return kRows; }
};

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

// Equal to the bit on the CPU and the device: it is made on the CPU.
Net seeded_net(const std::string& kind) {
  set_seed(17);
  return Net(kind);
}

// After the Accelerator, which may load CUDA: what asks LibTorch for CUDA before it would find none for good.
void compute_in_fp32() {
  at::globalContext().setFloat32MatmulPrecision("highest");
  at::globalContext().setAllowTF32CuDNN(false);
}

// On the CPU, with LibTorch alone.
std::vector<double> plain_losses(const std::string& kind, int num_steps) {
  Net net = seeded_net(kind);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(kLearningRate));
  std::vector<double> losses;
  for (int step = 0; step < num_steps; ++step) {
    std::vector<at::Tensor> data;
    std::vector<at::Tensor> targets;
    for (std::int64_t i = 0; i < kBatch; ++i) {
      const auto row = Rows{}.get(static_cast<std::size_t>((step * kBatch + i) % kRows));
      data.push_back(row.data);
      targets.push_back(row.target);
    }
    const at::Tensor loss = torch::mse_loss(net(at::stack(data)), at::stack(targets));
    adamw.zero_grad();
    loss.backward();
    torch::nn::utils::clip_grad_norm_(net->parameters(), 1.0);
    adamw.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

auto make_rows(int num_processes) {
  return DataLoader(Rows{}, {.batch_size = kBatch / num_processes, .pin_memory = true});
}

// What trains on the device of the process, step by step.
class Training {
 public:
  Training(Accelerator& accelerator, const std::string& kind)
      : accelerator_(accelerator),
        net_(seeded_net(kind)),
        adamw_(net_->parameters(), torch::optim::AdamWOptions(kLearningRate)),
        rows_(make_rows(accelerator.num_processes())),
        prepared_(accelerator.prepare(net_, adamw_, rows_)) {}

  // The mean over all ranks of each step's loss.
  std::vector<double> train(int num_steps, const std::function<void(int)>& after = {}) {
    std::vector<double> losses;
    while (static_cast<int>(losses.size()) < num_steps) {
      for (auto& batch : std::get<2>(prepared_)) {
        losses.push_back(step(batch.data, batch.target));
        if (after) after(static_cast<int>(losses.size()));
        if (static_cast<int>(losses.size()) == num_steps) break;
      }
    }
    return losses;
  }

  [[nodiscard]] MemoryUse memory() {
    return memory_use(std::get<0>(prepared_), std::get<1>(prepared_));
  }

 private:
  double step(const at::Tensor& data, const at::Tensor& target) {
    at::Tensor loss;
    {
      const auto autocast = accelerator_.autocast();
      loss = torch::mse_loss(std::get<0>(prepared_)(data).to(at::kFloat), target);
    }
    accelerator_.backward(loss);
    accelerator_.clip_grad_norm_(net_->parameters(), 1.0);
    std::get<1>(prepared_).step();
    std::get<1>(prepared_).zero_grad();
    return accelerator_.reduce(loss.detach(), Reduction::kMean).item<double>();
  }

  using Loader = decltype(make_rows(1));
  using Prepared = decltype(std::declval<Accelerator&>().prepare(
      std::declval<Net&>(), std::declval<torch::optim::AdamW&>(), std::declval<Loader&>()));

  Accelerator& accelerator_;
  Net net_;
  torch::optim::AdamW adamw_;
  Loader rows_;
  Prepared prepared_;
};

void say_device(Accelerator& accelerator) {
  say("device " + accelerator.device().str() +
      (accelerator.device().is_cpu() ? ": compared with itself" : "") + ", backend " +
      (PartialState().backend().empty() ? "none" : PartialState().backend()));
}

// Whether they lie as near as the comment at the top derives; says the largest distance.
bool are_near(const std::string& what,
              const std::vector<double>& seen,
              const std::vector<double>& wanted) {
  double most = 0;
  bool holds = seen.size() == wanted.size();
  for (std::size_t step = 0; holds && step < seen.size(); ++step) {
    const double distance = std::abs(seen[step] - wanted[step]);
    const double bound = kTerms * 10 * std::numeric_limits<float>::epsilon() *
                         static_cast<double>(step + 1) * std::max(1.0, wanted[0]);
    most = std::max(most, distance);
    holds = distance <= bound;  // false for NaN too
  }
  say(what + ": first loss " + text_of(wanted.front()) + ", last " + text_of(seen.back()) +
      ", largest distance " + text_of(most) + (holds ? "" : "  TOO FAR"));
  return holds;
}

int losses_fp32() {
  Accelerator accelerator;
  compute_in_fp32();
  say_device(accelerator);
  bool holds = true;
  for (const char* kind : kKinds) {
    const auto wanted = plain_losses(kind, 20);
    holds = are_near(kind, Training(accelerator, kind).train(20), wanted) && holds;
  }
  return holds ? 0 : 1;
}

// Each loss within a tenth of the first loss of fp32's, and the last below half of the first: 8 bits of bf16 and 11 of fp16 leave the
// curve, not the digits. The loss scale is one that overflows nowhere: a step that is left out makes another curve.
int curve(PrecisionType precision) {
  Accelerator accelerator(
      {.mixed_precision = precision, .grad_scaler = GradScalerKwargs{.init_scale = 256}});
  say_device(accelerator);
  bool holds = true;
  for (const char* kind : {"mlp", "attention"}) {
    const auto wanted = plain_losses(kind, 60);
    const auto seen = Training(accelerator, kind).train(60);
    double most = 0;
    for (std::size_t i = 0; i < seen.size(); ++i)
      most = std::max(most, std::abs(seen[i] - wanted[i]));
    const bool is_near = most <= 0.1 * wanted.front() && seen.back() < 0.5 * seen.front();
    say(std::string(kind) + ": first loss " + text_of(seen.front()) + ", last " +
        text_of(seen.back()) + " (fp32 " + text_of(wanted.back()) + "), largest distance " +
        text_of(most) + (is_near ? "" : "  TOO FAR"));
    holds = holds && is_near;
  }
  return holds ? 0 : 1;
}

// Five steps after a load are the five steps after the save, to the bit.
int checkpoint() {
  const auto folder =
      std::filesystem::temp_directory_path() / ("gpu_checks_" + std::to_string(::getpid()));
  Accelerator accelerator;
  compute_in_fp32();
  say_device(accelerator);
  Training training(accelerator, "mlp");
  (void)training.train(static_cast<int>(kRows / kBatch));  // whole epochs: the loader begins anew
  accelerator.save_state(folder);
  const at::Tensor drawn = at::rand({4}, accelerator.device());
  const auto first = training.train(5);
  accelerator.load_state(folder);
  const at::Tensor again = at::rand({4}, accelerator.device());
  const auto second = training.train(5);
  std::filesystem::remove_all(folder);
  const bool same_losses = first == second;
  const bool same_draws = at::equal(drawn, again);
  say("five losses after the load " + std::string(same_losses ? "equal" : "DIFFER") +
      ", random numbers " + (same_draws ? "equal" : "DIFFER"));
  return same_losses && same_draws ? 0 : 1;
}

std::int64_t bytes_in_use(const c10::Device& device) {
  if (!device.is_cpu())
    return at::getDeviceAllocator(device.type())
        ->getDeviceStats(device.index())
        .allocated_bytes[0]
        .current;
  std::ifstream statm("/proc/self/statm");
  std::int64_t pages = 0;
  std::int64_t resident = 0;
  statm >> pages >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

// What 900 further steps may add: nothing on a device, whose allocator counts each tensor; on the CPU the heap's own growth.
int leaks() {
  Accelerator accelerator;
  say_device(accelerator);
  Training training(accelerator, "mlp");
  std::int64_t early = 0;
  std::int64_t late = 0;
  (void)training.train(1000, [&](int step) {
    if (step == 100) early = bytes_in_use(accelerator.device());
    if (step == 1000) late = bytes_in_use(accelerator.device());
  });
  const MemoryUse use = training.memory();
  say("bytes in use after 100 steps " + std::to_string(early) + ", after 1,000 " +
      std::to_string(late) + "; parameters " + std::to_string(use.parameters) + ", optimizer " +
      std::to_string(use.optimizer));
  const std::int64_t allowed = accelerator.device().is_cpu() ? std::int64_t{16} << 20 : 0;
  return late - early <= allowed && use.parameters > 0 ? 0 : 1;
}

// ACCEL_WANTED_BACKEND: what must exchange gradients.
bool has_wanted_backend() {
  const char* const wanted = std::getenv("ACCEL_WANTED_BACKEND");
  return wanted == nullptr || *wanted == '\0' || PartialState().backend() == wanted;
}

// Under accel-launch.
int ranks() {
  Accelerator accelerator;
  compute_in_fp32();
  if (accelerator.num_processes() == 1) {
    say("one process: launch two");
    return kSkip;
  }
  say_device(accelerator);
  bool holds = has_wanted_backend();
  for (const char* kind : kKinds) {
    const auto wanted = plain_losses(kind, 20);
    holds = are_near(kind, Training(accelerator, kind).train(20), wanted) && holds;
  }
  accelerator.wait_for_everyone();
  return holds ? 0 : 1;
}

AcceleratorOptions divided_by(ShardingStrategy strategy) {
  AcceleratorOptions options;
  options.fsdp_plugin =
      FullyShardedDataParallelPlugin{.sharding_strategy = strategy,
                                     .auto_wrap_policy = AutoWrapPolicy::kSizeBasedWrap,
                                     .min_num_params = 40};  // several units of each model
  return options;
}

// As ranks(), of models that are divided; five steps after a load are the five steps after the save, to the bit.
int divided(const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  compute_in_fp32();
  if (accelerator.num_processes() == 1) {
    say("one process: launch two");
    return kSkip;
  }
  say_device(accelerator);
  bool holds = has_wanted_backend();
  for (const char* kind : kKinds) {
    const auto wanted = plain_losses(kind, 20);
    Training training(accelerator, kind);
    holds = are_near(kind, training.train(20), wanted) && holds;
    const MemoryUse use = training.memory();
    say(std::string(kind) + ": parameters " + std::to_string(use.parameters) +
        " bytes a rank, at most " + std::to_string(use.peak_paged) + " of whole units, optimizer " +
        std::to_string(use.optimizer));
    accelerator.free_memory();
  }
  const char* const port = std::getenv("MASTER_PORT");
  const auto folder = std::filesystem::temp_directory_path() /
                      ("gpu_checks_" + std::string(port == nullptr ? "0" : port));
  Training training(accelerator, "mlp");
  (void)training.train(static_cast<int>(kRows / kBatch));  // whole epochs: the loader begins anew
  accelerator.save_state(folder);
  const auto first = training.train(5);
  accelerator.load_state(folder);
  const auto second = training.train(5);
  accelerator.wait_for_everyone();
  if (accelerator.is_main_process()) std::filesystem::remove_all(folder);
  say("five losses after the load " + std::string(first == second ? "equal" : "DIFFER"));
  return holds && first == second ? 0 : 1;
}

int zero_1() {
  AcceleratorOptions options;
  options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1};
  return divided(options);
}

// Rank 1 is killed in the fifth step, and says when; the caller looks when the job has ended.
int killed() {
  Accelerator accelerator;
  Training training(accelerator, "mlp");
  (void)training.train(1'000'000, [&](int step) {
    if (step != 5 || accelerator.process_index() != 1) return;
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    say("killed at " +
        std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()));
    ::raise(SIGKILL);
  });
  return 1;
}

// Exits with 0 where libaccel trains on a GPU, else with 77; the first line is the device's name for a report.
int device() {
  const PartialState state;
  say(state.device().str());
  return state.device().is_cpu() ? kSkip : 0;
}

const std::map<std::string, std::function<int()>>& checks() {
  static const std::map<std::string, std::function<int()>> all = {
      {"device", device},
      {"losses_fp32", losses_fp32},
      {"curve_bf16", [] { return curve(PrecisionType::kBf16); }},
      {"curve_fp16", [] { return curve(PrecisionType::kFp16); }},
      {"checkpoint", checkpoint},
      {"leaks", leaks},
      {"ranks", ranks},
      {"zero_1", zero_1},
      {"shard_grad_op", [] { return divided(divided_by(ShardingStrategy::kShardGradOp)); }},
      {"full_shard", [] { return divided(divided_by(ShardingStrategy::kFullShard)); }},
      {"killed", killed},
  };
  return all;
}

int run(int count, char** arguments) {
  const std::string name = count == 2 ? arguments[1] : "--list";
  if (name == "--list") {
    for (const auto& [check, act] : checks()) say(check);
    return 0;
  }
  const auto found = checks().find(name);
  if (found == checks().end()) {
    std::fprintf(stderr, "gpu_checks: no check '%s' (try --list)\n", name.c_str());
    return 2;
  }
  return found->second();
}

}  // namespace
}  // namespace accel::gpu_checks

int main(int count, char** arguments) {
  try {
    return accel::gpu_checks::run(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_checks: %s\n", error.what());
    return 1;
  }
}
