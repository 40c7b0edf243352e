// Vision: weights from Python, fine-tuned here, and back.
//
//   python3 examples/from_python/vision.py write digits
//   accel-launch --cpu --num_processes 2 build/examples/vision digits tuned
//   python3 examples/from_python/vision.py read tuned
//
// The file of safetensors is the only thing that both share: names and shapes of its tensors have to agree with the model below.

#include <cstdio>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <accel/accel.h>

namespace nn = torch::nn;

// Images of 8x8 pixels and the digits on them. Every fifth image is for testing.
struct DigitImages {
  torch::Tensor images, digits;

  explicit DigitImages(bool for_testing) {
    std::ifstream file(EXAMPLES_DATA_DIR "/digits.csv");
    if (!file) throw std::runtime_error("cannot read " EXAMPLES_DATA_DIR "/digits.csv");
    std::vector<float> cells;
    std::string line, cell;
    for (int number = 0; std::getline(file, line); ++number) {
      if ((number % 5 == 4) != for_testing) continue;
      for (std::stringstream row(line); std::getline(row, cell, ',');)
        cells.push_back(std::stof(cell));
    }
    const auto rows = torch::tensor(cells).reshape({-1, 65});
    images = rows.slice(1, 0, 64).reshape({-1, 1, 8, 8}) / 16;
    digits = rows.select(1, 64).to(torch::kLong);
  }
  torch::data::Example<> get(std::size_t i) const {
    const auto row = static_cast<std::int64_t>(i);
    return {images[row], digits[row]};
  }
  std::size_t size() const { return static_cast<std::size_t>(images.size(0)); }
};

// vision.py has the same.
struct NetImpl : nn::Module {
  nn::Conv2d first = register_module("first", nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1)));
  nn::BatchNorm2d norm = register_module("norm", nn::BatchNorm2d(16));
  nn::Conv2d second =
      register_module("second", nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1)));
  nn::Linear head = register_module("head", nn::Linear(512, 10));

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(norm(first(x)));
    return head(torch::max_pool2d(torch::relu(second(x)), 2).flatten(1));
  }
};
TORCH_MODULE(Net);

// The part of the test images whose digit the model knows, over all ranks.
template <typename Model, typename Loader>
double accuracy_of(const accel::Accelerator& accelerator, Model& model, Loader& loader) {
  torch::NoGradGuard no_grad;
  model->eval();
  std::vector<torch::Tensor> hits;
  for (auto& batch : loader)
    hits.push_back(accelerator.gather_for_metrics(model(batch.data).argmax(1) == batch.target));
  return torch::cat(hits).to(torch::kDouble).mean().template item<double>();
}

int main(int argc, char** argv) {
  if (argc != 3) return std::fprintf(stderr, "vision FOLDER_TO_READ FOLDER_TO_WRITE\n"), 2;
  accel::Accelerator accelerator;
  accel::set_seed(0);
  Net net;
  accel::load_checkpoint_in_model(*net, argv[1], {.strict = true});
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(2e-3));
  accel::DataLoader train_images(DigitImages(false), {.batch_size = 32, .shuffle = true});
  accel::DataLoader test_images(DigitImages(true), {.batch_size = 64});
  auto [model, optimizer, loader, test_loader] =
      accelerator.prepare(net, adamw, train_images, test_images);

  accelerator.print("accuracy before", accuracy_of(accelerator, model, test_loader));
  for (int epoch = 0; epoch < 5; ++epoch) {
    model->train();
    for (auto& batch : loader) {
      accelerator.backward(torch::cross_entropy_loss(model(batch.data), batch.target));
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  accelerator.print("accuracy after", accuracy_of(accelerator, model, test_loader));
  accelerator.save_model(model, argv[2]);  // model.safetensors
  accelerator.end_training();
  return 0;
}
