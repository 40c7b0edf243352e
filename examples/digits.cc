// Digits: trains a small convolutional network on 1,797 handwritten digits.
//
//   accel-launch --num_processes 2 build/examples/digits -- --epochs 15
//   accel-launch --num_processes 2 build/examples/digits -- --epochs 20 --resume
//
// Shows what an ordinary training program needs: prepare(), a loop, metrics over all ranks, a checkpoint
// after each epoch, and going on from the newest one, also when the job was restarted by itself.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <torch/torch.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/progress.h>
#include <accel/random.h>
#include <accel/schedulers.h>

namespace nn = torch::nn;
namespace F = torch::nn::functional;

// Images of 8x8 pixels and the digits on them. Every fifth image is for testing.
class Digits {
 public:
  Digits(const std::string& path, bool for_testing) {
    std::ifstream file(path);
    if (!file) throw std::runtime_error("cannot read " + path + "; give its path with --data");
    std::string line;
    for (int number = 0; std::getline(file, line); ++number) {
      if ((number % 5 == 4) != for_testing) continue;
      std::stringstream cells(line);
      std::vector<float> pixels(64);
      std::string cell;
      for (float& pixel : pixels) pixel = std::getline(cells, cell, ',') ? std::stof(cell) / 16 : 0;
      std::getline(cells, cell);
      images_.push_back(torch::tensor(pixels).reshape({1, 8, 8}));
      digits_.push_back(std::stoll(cell));
    }
  }

  torch::data::Example<torch::Tensor, std::int64_t> get(std::size_t index) const {
    return {images_[index], digits_[index]};
  }
  std::size_t size() const { return images_.size(); }

 private:
  std::vector<torch::Tensor> images_;
  std::vector<std::int64_t> digits_;
};

nn::Sequential make_model() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1)),
                        nn::ReLU(),
                        nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1)),
                        nn::ReLU(),
                        nn::MaxPool2d(2),
                        nn::Flatten(),
                        nn::Dropout(0.25),
                        nn::Linear(512, 10));
}

// The part of the test images whose digit the model knows, over all ranks.
template <typename Model, typename Loader>
double test_accuracy(const accel::Accelerator& accelerator, Model& model, Loader& loader) {
  torch::NoGradGuard no_grad;
  model->eval();
  std::int64_t right = 0;
  std::int64_t total = 0;
  for (auto& batch : loader) {
    const auto guesses = model(batch.data).argmax(1);
    const auto hits = accelerator.gather_for_metrics(guesses == batch.target);
    right += hits.sum().template item<std::int64_t>();
    total += hits.size(0);
  }
  return static_cast<double>(right) / static_cast<double>(total);
}

struct Settings {
  int epochs = 15;
  std::int64_t batch_size = 16;  // of each process
  double lr = 3e-3;
  std::uint64_t seed = 0;
  std::string data = EXAMPLES_DATA_DIR "/digits.csv";
  std::string project_dir = "digits_run";
  bool resume = false;
  bool overwrite = false;
  std::optional<std::string> mixed_precision;  // what accel-launch was told, when not given
  int gradient_accumulation_steps = 1;
};

void train(const Settings& settings) {
  accel::Accelerator accelerator(
      {.mixed_precision = settings.mixed_precision,
       .gradient_accumulation_steps = settings.gradient_accumulation_steps,
       .project_config = {.project_dir = settings.project_dir,
                          .automatic_checkpoint_naming = true,
                          .total_limit = 3},
       .on_preemption = accel::OnPreemption::kSaveAndExit});
  accel::set_seed(settings.seed);

  auto net = make_model();
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(settings.lr));
  accel::DataLoader train_digits(Digits(settings.data, false),
                                 {.batch_size = settings.batch_size, .shuffle = true});
  accel::DataLoader test_digits(Digits(settings.data, true), {.batch_size = 64});
  const auto num_steps =
      *train_digits.size() * settings.epochs / settings.gradient_accumulation_steps;
  accel::LambdaLR schedule(adamw, accel::linear_with_warmup({.num_training_steps = num_steps}));

  auto [model, optimizer, train_loader, test_loader, scheduler] =
      accelerator.prepare(net, adamw, train_digits, test_digits, schedule);

  const auto start = settings.resume      ? accel::RunStart::kResume
                     : settings.overwrite ? accel::RunStart::kAnew
                                          : accel::RunStart::kFirst;
  if (const auto checkpoint = accelerator.begin_run(start)) {
    accelerator.print("going on from", checkpoint->folder.string());
  }

  for (auto epoch = train_loader.epoch(); epoch < settings.epochs; ++epoch) {
    model->train();
    auto loss_sum = torch::zeros({});
    auto bar = accel::progress(train_loader, {.desc = "epoch " + std::to_string(epoch + 1)});
    for (auto& batch : bar) {
      const auto accumulating = accelerator.accumulate(model);
      const auto loss = F::cross_entropy(model(batch.data), batch.target);
      accelerator.backward(loss);
      optimizer.step();
      scheduler.step();
      optimizer.zero_grad();
      loss_sum += loss.detach();
    }
    const auto loss = accelerator.reduce(loss_sum, accel::Reduction::kMean) / *train_loader.size();
    accelerator.print("epoch", epoch + 1, "loss", loss.item<float>());
    accelerator.save_state();
  }

  const double accuracy = test_accuracy(accelerator, model, test_loader);
  char line[64];
  std::snprintf(line, sizeof line, "test accuracy %.4f", accuracy);
  accelerator.print(line);
  accelerator.end_training();
}

int main(int argc, char** argv) {
  Settings settings;
  CLI::App app("trains a classifier on handwritten digits");
  app.add_option("--epochs", settings.epochs, "passes over the training images")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--batch_size", settings.batch_size, "images per step and process")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--lr", settings.lr, "the first learning rate")
      ->check(CLI::Range(1e-6, 1e3))
      ->check([](const std::string& text) {  // nan is in every range
        return std::isnan(std::strtod(text.c_str(), nullptr)) ? "not a number: " + text : "";
      });
  app.add_option("--seed", settings.seed, "of weights, order and dropout");
  app.add_option("--data", settings.data, "the file digits.csv");
  app.add_option("--project_dir", settings.project_dir, "where checkpoints go");
  app.add_flag("--resume", settings.resume, "go on from the newest complete checkpoint");
  app.add_flag("--overwrite", settings.overwrite, "delete the checkpoints of an earlier run")
      ->excludes("--resume");
  app.add_option("--mixed_precision",
                 settings.mixed_precision,
                 "no, bf16 or fp16; otherwise as told to accel-launch");
  app.add_option("--gradient_accumulation_steps",
                 settings.gradient_accumulation_steps,
                 "batches per optimizer step")
      ->check(CLI::Range(1, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  try {
    train(settings);
  } catch (const accel::Error& error) {
    std::fprintf(stderr, "%s\n", error.render("digits").c_str());
    return accel::error_info(error.code()).exit_status;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "digits: %s\n", error.what());
    return 1;
  }
  return 0;
}
