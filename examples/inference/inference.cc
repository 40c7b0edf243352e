// Distributed inference: each rank takes its part of the prompts, and all get all answers, in the order of the prompts.
//
//   accel-launch --cpu --num_processes 3 build/examples/inference [gpt.safetensors]
//
// The answers are the same on any number of processes. Weights are those that from_python/language writes; without a file they are
// random, but the same on each rank.

#include <string>
#include <vector>

#include <torch/torch.h>

#include <accel/accel.h>

#include "examples/char_gpt.h"

// The prompt and the `length` bytes that the model finds likeliest after it.
std::string continue_text(Gpt& model, std::string text, int length) {
  const auto context = static_cast<std::size_t>(model->config().context);
  for (int i = 0; i < length; ++i) {
    const std::string recent = text.substr(text.size() > context ? text.size() - context : 0);
    const std::vector<std::int64_t> bytes(recent.begin(), recent.end());
    const auto logits = model(torch::tensor(bytes).unsqueeze(0)).select(1, -1);
    text += static_cast<char>(logits.argmax(1).item<std::int64_t>() & 0x7f);
  }
  return text;
}

int main(int argc, char** argv) {
  accel::Accelerator accelerator;
  accel::set_seed(0);
  Gpt model(GptConfig{.width = 64, .num_layers = 2});
  if (argc > 1) accel::load_checkpoint_in_model(*model, argv[1], {.strict = true});
  model->to(accelerator.device());
  model->eval();

  torch::NoGradGuard no_grad;
  const std::vector<std::string> prompts = {
      "In the beginning ", "And God said, ", "The LORD is ", "Blessed ", "My son, "};
  std::vector<std::string> answers;
  for (const std::string& prompt : accelerator.split_between_processes(prompts))
    answers.push_back(continue_text(model, prompt, 24));
  const auto own = std::to_string(accelerator.process_index()) + ": " +
                   std::to_string(answers.size()) + " prompts";
  for (const std::string& line : accel::gather_object(std::vector<std::string>{own}))
    accelerator.print("process", line);
  for (const std::string& answer : accel::gather_object(answers))
    accelerator.print("answer:", answer);
  accelerator.end_training();
}
