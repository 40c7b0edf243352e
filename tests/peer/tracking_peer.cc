// The C++ side of trackers.py: a small training whose numbers go to the trackers that it names.
//
//   tracking_peer FOLDER TRACKERS [STEPS [KWARGS...]]   TRACKERS: names with commas between; KWARGS: tracker.option=text
//
// Every rank runs it. Prints "STEP loss" as C hexadecimal floats from the main process, then "done".
// With ACCEL_TEST_KILL=1 it kills itself after the last step, ACCEL_TEST_PAUSE=FILE waits for the file before it ends training.

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/tracking.h>

namespace {

accel::LogWith trackers_of(const std::string& text) {
  std::vector<accel::LogWith::Choice> choices;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    choices.emplace_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return choices;
}

accel::TrackerDict kwargs_of(const std::vector<std::string>& words) {
  std::map<std::string, accel::TrackerDict> by_tracker;
  for (const std::string& word : words) {
    const std::size_t dot = word.find('.');
    const std::size_t equals = word.find('=');
    by_tracker[word.substr(0, dot)].emplace_back(word.substr(dot + 1, equals - dot - 1),
                                                 word.substr(equals + 1));
  }
  accel::TrackerDict all;
  for (const auto& [name, kwargs] : by_tracker) all.emplace_back(name, kwargs);
  return all;
}

void log_other_kinds(accel::Accelerator& accelerator, int steps, const std::string& trackers) {
  const auto has = [&trackers](const char* name) {
    return trackers.find(name) != std::string::npos;
  };
  accelerator.log(
      {{"note", "the end"}, {"best", accel::TrackerDict{{"train", 0.25}, {"eval", 0.5}}}}, steps);
  const at::Tensor images = at::arange(2 * 3 * 4 * 5, at::kFloat).reshape({2, 3, 4, 5}) / 120;
  accelerator.log_images({{"images", accel::image_batch(images)}}, steps);
  if (!accelerator.is_main_process()) return;
  if (has("tensorboard")) {
    std::vector<double> values;
    // Their squares have exact sums: numpy's order of summing depends on the CPU.
    for (int i = 0; i < 50; ++i) values.push_back((i - 20) * 0.375);
    accelerator.get_tracker<accel::TensorBoardTracker>("tensorboard")
        ->log_histogram("weights", values, steps);
  }
  if (has("wandb"))
    accelerator.get_tracker<accel::PythonTracker>("wandb")->log_table(
        "guesses", {"word", "count"}, {accel::TrackerList{"a", 1}, accel::TrackerList{"b", 2}});
  if (has("mlflow"))
    accelerator.get_tracker<accel::PythonTracker>("mlflow")->log_artifact("/etc/hostname", "facts");
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const int steps = words.size() > 2 ? std::stoi(words[2]) : 5;
  accel::Accelerator accelerator(
      {.log_with = trackers_of(words.at(1)), .project_dir = words.at(0)});
  accelerator.init_trackers(
      "project",
      {{"lr", 0.05}, {"layers", 1}, {"name", "linear"}, {"bias", true}, {"nothing", {}}},
      words.size() > 3 ? kwargs_of({words.begin() + 3, words.end()}) : accel::TrackerDict{});

  torch::nn::Linear net(4, 2);
  torch::nn::init::constant_(net->weight, 0.1);
  torch::nn::init::zeros_(net->bias);
  torch::optim::SGD sgd(net->parameters(), 0.05);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < steps; ++step) {
    const at::Tensor inputs = at::arange(12, at::kFloat).reshape({3, 4}) / 12 + 0.1 * step;
    const at::Tensor loss = at::mse_loss(model(inputs), inputs.narrow(1, 0, 2));
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    accelerator.log({{"train/loss", loss}, {"lr", 0.05}, {"epoch", step / 2}}, step);
    if (accelerator.is_main_process()) std::printf("%d %a\n", step, loss.item<double>());
  }
  if (std::getenv("ACCEL_TEST_KILL") != nullptr) {
    accelerator.get_tracker("jsonl").flush();
    std::fflush(stdout);
    std::raise(SIGKILL);
  }
  log_other_kinds(accelerator, steps, words[1]);
  std::fflush(stdout);
  if (const char* file = std::getenv("ACCEL_TEST_PAUSE")) {
    while (!std::filesystem::exists(file))
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  accelerator.end_training();
  if (accelerator.is_main_process()) std::puts("done");
  return 0;
}
