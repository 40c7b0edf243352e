// A model of Python without its weights' names: a TorchScript file or an exported program, trained here, and back.
//
//   python3 examples/from_python/models.py write models
//   accel-launch --cpu --num_processes 2 build/examples/python_models script models/net.pt models/tuned.pt
//   accel-launch --cpu --num_processes 2 build/examples/python_models exported models/net.pt2 models/tuned
//   python3 examples/from_python/models.py read models
//
// The code of the model comes with the file. What goes back is a TorchScript file, or the weights for the exported program.

#include <cstdio>
#include <string>

#include <torch/script.h>
#include <torch/torch.h>

#include <accel/accel.h>
#include <accel/exported_model.h>
#include <accel/script_module.h>

// 512 points of a sine.
struct SineWave {
  torch::data::Example<> get(std::size_t index) const {
    const auto x = torch::full({1}, static_cast<double>(index) / 256 * M_PI - M_PI);
    return {x, x.sin()};
  }
  std::size_t size() const { return 512; }
};

template <typename Net>
auto fit(accel::Accelerator& accelerator, Net net) {
  torch::optim::AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-2));
  accel::DataLoader points(SineWave{}, {.batch_size = 16, .shuffle = true});
  auto [model, optimizer, loader] = accelerator.prepare(net, adamw, points);
  torch::Tensor loss;
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (auto& batch : loader) {
      const torch::Tensor guess = model(batch.data);
      loss = torch::mse_loss(guess, batch.target);
      accelerator.backward(loss);
      optimizer.step();
      optimizer.zero_grad();
    }
  }
  accelerator.print(
      "loss", accelerator.reduce(loss.detach(), accel::Reduction::kMean).template item<float>());
  return model;
}

int main(int argc, char** argv) {
  const std::string kind = argc == 4 ? argv[1] : "";
  if (kind != "script" && kind != "exported")
    return std::fprintf(stderr, "python_models script|exported FILE_TO_READ PLACE_TO_WRITE\n"), 2;
  accel::Accelerator accelerator;
  accel::set_seed(0);
  if (kind == "script") {
    accel::ScriptModule net(torch::jit::load(argv[2]));
    fit(accelerator, net);
    accelerator.on_main_process([&] { net->script().save(argv[3]); });
  } else {
    const auto model = fit(accelerator, accel::ExportedModel(argv[2]));
    accelerator.save_model(model, argv[3]);  // model.safetensors
  }
  accelerator.end_training();
  return 0;
}
