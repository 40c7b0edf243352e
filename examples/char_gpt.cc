// CharGpt: trains a small GPT on the bytes of a text and writes some text of its own at the end.
//
//   accel-launch --num_processes 2 build/examples/char_gpt -- --epochs 3
//   accel-launch --num_processes 2 build/examples/char_gpt -- --epochs 3 --resume
//   accel-launch --num_processes 2 build/examples/char_gpt -- --large --fsdp FULL_SHARD
//
// Checkpoints every --save_steps steps, so a run goes on in the middle of an epoch.

#include "char_gpt.h"

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/progress.h>
#include <accel/random.h>
#include <accel/schedulers.h>

// Windows of a text: `context` bytes and the same moved on by one.
class Windows {
 public:
  Windows(const std::string& path, std::int64_t context) : context_(context) {
    std::ifstream file(path, std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    if (static_cast<std::int64_t>(text.size()) <= context) {
      throw std::runtime_error("cannot read enough text from " + path +
                               "; give a file with --data");
    }
    bytes_ = torch::tensor(at::ArrayRef<std::uint8_t>(
                               reinterpret_cast<const std::uint8_t*>(text.data()), text.size()))
                 .to(torch::kLong);
  }

  torch::data::Example<> get(std::size_t index) const {
    const auto begin = static_cast<std::int64_t>(index) * context_;
    return {bytes_.slice(0, begin, begin + context_),
            bytes_.slice(0, begin + 1, begin + context_ + 1)};
  }
  std::size_t size() const { return static_cast<std::size_t>((bytes_.size(0) - 1) / context_); }

 private:
  std::int64_t context_;
  torch::Tensor bytes_;
};

// `length` bytes that the model finds likely after `prompt`.
std::string sample(Gpt& model, const std::string& prompt, int length) {
  torch::NoGradGuard no_grad;
  model->eval();
  std::string text = prompt;
  const auto context = static_cast<std::size_t>(model->config().context);
  for (int i = 0; i < length; ++i) {
    const std::string recent = text.substr(text.size() > context ? text.size() - context : 0);
    std::vector<std::int64_t> bytes;
    for (const char letter : recent) bytes.push_back(static_cast<unsigned char>(letter));
    const auto logits = model(torch::tensor(bytes).unsqueeze(0)).select(1, -1);
    text += static_cast<char>(torch::multinomial(torch::softmax(logits / 0.8, 1), 1).item<int>());
  }
  return text;
}

struct Settings {
  int epochs = 3;
  std::int64_t batch_size = 32;  // of each process
  double lr = 1e-3;
  std::uint64_t seed = 0;
  std::string data = EXAMPLES_DATA_DIR "/kjv.txt";
  std::string project_dir = "char_gpt_run";
  bool resume = false;
  bool overwrite = false;
  bool large = false;
  std::optional<std::string> mixed_precision;  // what accel-launch was told, when not given
  std::optional<std::string> fsdp;  // a sharding strategy; otherwise as the environment says
  int gradient_accumulation_steps = 1;
  double max_grad_norm = 1.0;  // 0: gradients are not clipped
  std::int64_t save_steps = 100;
  int memory_checkpoint_every = 0;
  std::int64_t log_steps = 0;  // besides those that save
  std::int64_t max_steps = -1;
};

// Counts the optimizer steps of all epochs; saved with everything else.
struct StepCount : accel::Stateful {
  std::int64_t value = 0;
  accel::StateDict state_dict() const override { return {{}, {{"steps", value}}}; }
  void load_state_dict(const accel::StateDict& state) override {
    value = std::get<std::int64_t>(state.values.at("steps"));
  }
};

void train(const Settings& settings) {
  accel::AcceleratorOptions options{
      .mixed_precision = settings.mixed_precision,
      .gradient_accumulation_steps = settings.gradient_accumulation_steps,
      .project_config = {.project_dir = settings.project_dir,
                         .automatic_checkpoint_naming = true,
                         .total_limit = 2,
                         .memory_checkpoint_every = settings.memory_checkpoint_every},
      .on_preemption = accel::OnPreemption::kSaveAndExit};
  if (settings.fsdp) {
    options.fsdp_plugin.emplace().sharding_strategy =
        accel::parse<accel::ShardingStrategy>(*settings.fsdp);
  }
  accel::Accelerator accelerator(options);
  accel::set_seed(settings.seed);

  Gpt net(settings.large ? kLargeGpt : kSmallGpt);
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(settings.lr));
  accel::DataLoader windows(Windows(settings.data, net->config().context),
                            {.batch_size = settings.batch_size, .shuffle = true});
  const auto num_steps = *windows.size() * settings.epochs / settings.gradient_accumulation_steps;
  accel::LambdaLR schedule(
      adamw, accel::cosine_with_warmup({.num_warmup_steps = 50, .num_training_steps = num_steps}));
  StepCount steps;

  auto [model, optimizer, loader, scheduler] = accelerator.prepare(net, adamw, windows, schedule);
  accelerator.register_for_checkpointing(steps);

  const auto start = settings.resume      ? accel::RunStart::kResume
                     : settings.overwrite ? accel::RunStart::kAnew
                                          : accel::RunStart::kFirst;
  if (const auto checkpoint = accelerator.begin_run(start)) {
    const std::string folder = checkpoint->folder.string();
    accelerator.print("going on from", folder.empty() ? "memory" : folder, "at step", steps.value);
  }

  const auto is_done = [&] { return settings.max_steps >= 0 && steps.value >= settings.max_steps; };
  while (loader.epoch() < settings.epochs && !is_done()) {
    model->train();
    auto bar = accel::progress(loader, {.desc = "epoch " + std::to_string(loader.epoch() + 1)});
    for (auto& batch : bar) {
      const auto accumulating = accelerator.accumulate(model);
      const auto logits = model(batch.data);
      const auto loss =
          torch::nn::functional::cross_entropy(logits.flatten(0, 1), batch.target.flatten());
      accelerator.backward(loss);
      if (accelerator.sync_gradients() && settings.max_grad_norm > 0)
        accelerator.clip_grad_norm_(model->parameters(), settings.max_grad_norm);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      if (!accelerator.sync_gradients()) continue;  // gradients of half a step are not saved
      ++steps.value;
      const bool saves = steps.value % settings.save_steps == 0;
      if (saves || (settings.log_steps > 0 && steps.value % settings.log_steps == 0)) {
        const auto mean = accelerator.reduce(loss.detach(), accel::Reduction::kMean);
        accelerator.print("step", steps.value, "loss", mean.item<float>());
      }
      if (saves) accelerator.save_state();
      if (is_done()) break;
    }
  }
  accelerator.save_state();
  accelerator.on_main_process([&] { std::printf("%s\n", sample(net, "And the ", 300).c_str()); });
  accelerator.end_training();
}

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("trains a small GPT on the bytes of a text");
  app.add_option("--epochs", settings.epochs, "passes over the text")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--batch_size", settings.batch_size, "windows per step and process")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--lr", settings.lr, "the highest learning rate")
      ->check(CLI::Range(1e-6, 1e3))
      ->check([](const std::string& text) {  // nan is in every range
        return std::isnan(std::strtod(text.c_str(), nullptr)) ? "not a number: " + text : "";
      });
  app.add_option("--seed", settings.seed, "of weights, order and the text at the end");
  app.add_option("--data", settings.data, "a text file");
  app.add_option("--project_dir", settings.project_dir, "where checkpoints go");
  app.add_flag("--resume", settings.resume, "go on from the newest complete checkpoint");
  app.add_flag("--overwrite", settings.overwrite, "delete the checkpoints of an earlier run")
      ->excludes("--resume");
  app.add_flag("--large", settings.large, "19.2 million parameters instead of 0.86 million");
  app.add_option("--mixed_precision",
                 settings.mixed_precision,
                 "no, bf16 or fp16; otherwise as told to accel-launch");
  app.add_option("--fsdp",
                 settings.fsdp,
                 "divide the model over the processes: FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, "
                 "HYBRID_SHARD or HYBRID_SHARD_ZERO2");
  app.add_option("--gradient_accumulation_steps",
                 settings.gradient_accumulation_steps,
                 "batches per optimizer step")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option(
         "--max_grad_norm", settings.max_grad_norm, "clip gradients to this norm; 0: do not")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--save_steps", settings.save_steps, "steps between two checkpoints")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--memory_checkpoint_every",
                 settings.memory_checkpoint_every,
                 "steps between two checkpoints in the launcher's memory, for --max_restarts")
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--log_steps", settings.log_steps, "steps between two losses that are shown")
      ->check(CLI::Range(0, 1'000'000));
  app.add_option("--max_steps", settings.max_steps, "stop after so many steps");
  CLI11_PARSE(app, argc, argv);
  try {
    train(settings);
  } catch (const accel::Error& error) {
    std::fprintf(stderr, "%s\n", error.render("char_gpt").c_str());
    return accel::error_info(error.code()).exit_status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "char_gpt: %s\n", error.what());
    return 1;
  }
  return 0;
}
