// Language: a small GPT from Python, fine-tuned here on a text, and back.
//
//   python3 examples/from_python/language.py write gpt
//   accel-launch --cpu --num_processes 2 build/examples/language gpt tuned
//   python3 examples/from_python/language.py read tuned
//
// The model of char_gpt.h in its own size; language.py has the same.

#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accel/accel.h>

#include "examples/char_gpt.h"

// Windows of a text: 64 bytes and the same moved on by one. The last 64 windows are for testing.
struct TextWindows {
  torch::Tensor bytes;
  std::int64_t first, last;

  explicit TextWindows(bool for_testing) {
    std::ifstream file(EXAMPLES_DATA_DIR "/kjv.txt", std::ios::binary);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    bytes = torch::tensor(std::vector<std::int64_t>(text.begin(), text.end()));
    const auto number = (bytes.size(0) - 1) / 64;
    first = for_testing ? number - 64 : 0;
    last = for_testing ? number : 3200;  // a third of the text: enough to see it learn
  }
  torch::data::Example<> get(std::size_t index) const {
    const auto begin = 64 * (first + static_cast<std::int64_t>(index));
    return {bytes.slice(0, begin, begin + 64), bytes.slice(0, begin + 1, begin + 65)};
  }
  std::size_t size() const { return static_cast<std::size_t>(last - first); }
};

template <typename Model>
torch::Tensor loss_of(Model& model, const torch::data::Example<>& batch) {
  return torch::cross_entropy_loss(model(batch.data).flatten(0, 1), batch.target.flatten());
}

// The mean over the test windows, of all ranks.
template <typename Model, typename Loader>
double test_loss(const accel::Accelerator& accelerator, Model& model, Loader& loader) {
  torch::NoGradGuard no_grad;
  model->eval();
  auto sum = torch::zeros({});
  for (auto& batch : loader) sum += loss_of(model, batch);
  return accelerator.reduce(sum, accel::Reduction::kMean).template item<double>() /
         static_cast<double>(*loader.size());
}

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "language FOLDER_TO_READ FOLDER_TO_WRITE\n"), 2;
  accel::Accelerator accelerator;
  accel::set_seed(0);
  Gpt net(GptConfig{.width = 64, .num_layers = 2});
  accel::load_checkpoint_in_model(*net, argv[1], {.strict = true});
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(3e-3));
  accel::DataLoader windows(TextWindows(false), {.batch_size = 16, .shuffle = true});
  accel::DataLoader test_windows(TextWindows(true), {.batch_size = 16});
  auto [model, optimizer, loader, test_loader] =
      accelerator.prepare(net, adamw, windows, test_windows);

  accelerator.print("loss before", test_loss(accelerator, model, test_loader));
  model->train();
  for (auto& batch : loader) {
    accelerator.backward(loss_of(model, batch));
    accelerator.clip_grad_norm_(model->parameters(), 1.0);
    optimizer.step();
    optimizer.zero_grad();
  }
  accelerator.print("loss after", test_loss(accelerator, model, test_loader));
  accelerator.save_model(model, argv[2]);  // model.safetensors
  accelerator.end_training();
  return 0;
}
