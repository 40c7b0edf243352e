// One rank of ddp_bench.py: trains a small transformer and reports the losses and the time of each step.
//
//   ddp_step FILE STEPS      prints "loss seconds forward_seconds" per step
//
// FILE is a safetensors file with the weights ("model.*"), tokens [steps, ranks, length + 1] and the shape
// of the model as metadata (width, layers, heads). Without a job (WORLD_SIZE 1) it trains alone, on the
// part of rank BENCH_RANK: that is the limit, a step without communication. BENCH_FUSED=1: AdamW by fused kernels.
// BENCH_MICRO_BATCHES=M: a step has M micro-batches over all ranks, of which each has a run (accel/micro_batches.h), with
// ACCEL_REPRODUCIBLE=1 or without; the loss is that of the last one. BENCH_NAN_WATCH=1: with AcceleratorOptions::nan_watch, 2: with
// one that throws. BENCH_CPU_TIME=1: the seconds are those of the processor. With
// BENCH_MEMORY=1 it prints one more line,
// "memory BEFORE AFTER": bytes of the process before prepare(), and after the last step while its gradients are held.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/safetensors_file.h>

namespace {

namespace nn = torch::nn;
constexpr std::int64_t kVocabulary = 256;

struct BlockImpl : nn::Module {
  std::int64_t heads;
  nn::LayerNorm norm1{nullptr};
  nn::LayerNorm norm2{nullptr};
  nn::Linear qkv{nullptr};
  nn::Linear projection{nullptr};
  nn::Linear up{nullptr};
  nn::Linear down{nullptr};

  BlockImpl(std::int64_t width, std::int64_t heads) : heads(heads) {
    norm1 = register_module("norm1", nn::LayerNorm(nn::LayerNormOptions({width})));
    qkv = register_module("qkv", nn::Linear(width, 3 * width));
    projection = register_module("projection", nn::Linear(width, width));
    norm2 = register_module("norm2", nn::LayerNorm(nn::LayerNormOptions({width})));
    up = register_module("up", nn::Linear(width, 4 * width));
    down = register_module("down", nn::Linear(4 * width, width));
  }

  at::Tensor attend(const at::Tensor& input) {
    const auto batch = input.size(0);
    const auto length = input.size(1);
    const auto width = input.size(2);
    const std::vector<at::Tensor> parts = qkv(input)
                                              .view({batch, length, 3, heads, width / heads})
                                              .permute({2, 0, 3, 1, 4})
                                              .unbind(0);
    const at::Tensor mixed =
        at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0, /*is_causal=*/true);
    return projection(mixed.transpose(1, 2).reshape({batch, length, width}));
  }

  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor mixed = input + attend(norm1(input));
    return mixed + down(nn::functional::gelu(up(norm2(mixed))));
  }
};
TORCH_MODULE(Block);

struct TransformerImpl : nn::Module {
  nn::Embedding tokens{nullptr};
  nn::Embedding positions{nullptr};
  nn::ModuleList blocks{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::Linear head{nullptr};

  TransformerImpl(std::int64_t width,
                  std::int64_t layers,
                  std::int64_t heads,
                  std::int64_t length) {
    tokens = register_module("tokens", nn::Embedding(kVocabulary, width));
    positions = register_module("positions", nn::Embedding(length, width));
    blocks = register_module("blocks", nn::ModuleList());
    for (std::int64_t i = 0; i < layers; ++i) blocks->push_back(Block(width, heads));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({width})));
    head = register_module("head", nn::Linear(width, kVocabulary));
  }

  at::Tensor forward(const at::Tensor& input) {
    at::Tensor hidden = tokens(input) + positions(at::arange(input.size(1), at::kLong));
    for (const auto& block : *blocks) hidden = block->as<Block>()->forward(hidden);
    return head(norm(hidden));
  }
};
TORCH_MODULE(Transformer);

int environment_int(const char* name, int fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : std::atoi(text);
}

// Data of this process, not the pages of program files: what it shares with others counts by its part.
std::int64_t proportional_bytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::int64_t sum = 0;
  for (std::string word; file >> word;) {
    std::int64_t kilobytes = 0;
    if ((word == "Pss_Anon:" || word == "Pss_Shmem:") && file >> kilobytes) sum += kilobytes * 1024;
  }
  return sum;
}

// While no rank changes its memory.
std::int64_t bytes_of_all_at_rest(const accel::Accelerator& accelerator) {
  accelerator.wait_for_everyone();
  const std::int64_t bytes = proportional_bytes();
  accelerator.wait_for_everyone();
  return bytes;
}

// M, or 0.
int micro_batches_of_step() {
  return environment_int("BENCH_MICRO_BATCHES", 0);
}

std::optional<accel::NanWatch> nan_watch_of_step() {
  const int kind = environment_int("BENCH_NAN_WATCH", 0);
  if (kind == 0) return std::nullopt;
  return accel::NanWatch{.action = kind == 2 ? accel::OnAnomaly::kThrow : accel::OnAnomaly::kWarn};
}

// That of this process on all its threads, or of the clock.
double seconds_now() {
  if (environment_int("BENCH_CPU_TIME", 0) == 0)
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  timespec used{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return static_cast<double>(used.tv_sec) + 1e-9 * static_cast<double>(used.tv_nsec);
}

accel::AcceleratorOptions options_of_step() {
  const int total = micro_batches_of_step();
  const bool is_reproducible = environment_int("ACCEL_REPRODUCIBLE", 0) != 0;
  const int ranks = is_reproducible ? 1 : environment_int("WORLD_SIZE", 1);
  return {.gradient_accumulation_steps = total == 0 ? 1 : total / ranks,
          .nan_watch = nan_watch_of_step()};
}

int run(const std::string& file, int steps) {
  const auto tensors = accel::safetensors::load_file(file);
  const auto shape = accel::safetensors::load_metadata(file);
  const at::Tensor& tokens = tensors.at("tokens");
  const std::int64_t length = tokens.size(2) - 1;
  accel::Accelerator accelerator(options_of_step());
  Transformer net(std::stoi(shape.at("width")),
                  std::stoi(shape.at("layers")),
                  std::stoi(shape.at("heads")),
                  length);
  {
    const at::NoGradGuard no_grad;
    for (auto& item : net->named_parameters())
      item.value().copy_(tensors.at("model." + item.key()));
  }
  const bool measures_memory = environment_int("BENCH_MEMORY", 0) != 0;
  const std::int64_t before = measures_memory ? bytes_of_all_at_rest(accelerator) : 0;
  std::int64_t after = 0;
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(3e-4));
  auto [model, optimizer] = accelerator.prepare(net, adamw);
  if (environment_int("BENCH_FUSED", 0) != 0) optimizer.use_fused_kernels();
  const int part = accelerator.use_distributed() ? accelerator.process_index()
                                                 : environment_int("BENCH_RANK", 0);
  const int total = micro_batches_of_step();
  const accel::MicroBatches own =
      total == 0 ? accel::MicroBatches{}
                 : accel::micro_batches_of(
                       total, accelerator.process_index(), accelerator.num_processes());
  const at::Tensor all_tokens = tokens.flatten(0, 1);
  struct Row {
    double loss = 0;
    double seconds = 0;
    double forward = 0;
  };
  std::vector<Row> results;
  for (int step = 0; step < steps; ++step) {
    const double started = seconds_now();
    Row row;
    for (std::int64_t i = own.begin; i < own.end; ++i) {
      const at::Tensor sample = (total == 0 ? tokens[step % tokens.size(0)][part]
                                            : all_tokens[(step * total + i) % all_tokens.size(0)])
                                    .unsqueeze(0);
      const double forward_began = seconds_now();
      const auto accumulating = accelerator.accumulate(model);
      const at::Tensor logits = model(sample.slice(1, 0, length));
      const at::Tensor loss =
          at::cross_entropy_loss(logits.flatten(0, 1), sample.slice(1, 1).flatten());
      row.forward += seconds_now() - forward_began;
      accelerator.backward(loss);
      optimizer.step();
      if (measures_memory && step + 1 == steps) after = bytes_of_all_at_rest(accelerator);
      optimizer.zero_grad();
      row.loss = loss.item<double>();
    }
    row.seconds = seconds_now() - started;
    results.push_back(row);
  }
  for (const Row& row : results)
    std::printf("%.9g %.9g %.9g\n", row.loss, row.seconds, row.forward);
  if (measures_memory) {
    std::printf(
        "memory %lld %lld\n", static_cast<long long>(before), static_cast<long long>(after));
  }
  accelerator.end_training();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "use: ddp_step FILE STEPS\n");
    return 2;
  }
  at::set_num_threads(1);
  try {
    return run(argv[1], std::atoi(argv[2]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ddp_step: %s\n", error.what());
    return 1;
  }
}
