// Models of C++ written as files of torch.export, for tests/peer/cpp_export.py, which opens them in PyTorch.
//
//   cpp_export MODEL FOLDER
//
// Writes FOLDER/MODEL.pt2, FOLDER/inputs.safetensors and FOLDER/outputs.safetensors: what the module gives in eval(). Where the
// batch may have any size, further_inputs and further_outputs are those of a larger one. Then trains
// ten steps from one seed, the module itself and the file as an ExportedModel, and prints for each step
// "step N LOSS LOSS_OF_FILE": hexadecimal, for those are to be the same bits.

#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <torch/torch.h>

#include <accel/error.h>
#include <accel/export_model.h>
#include <accel/exported_model.h>
#include <accel/safetensors_file.h>

namespace {

namespace nn = torch::nn;

constexpr int kSteps = 10;
constexpr std::uint64_t kSeed = 11;

using Tensors = std::vector<at::Tensor>;

// A module, how a loss is made of its inputs, and its inputs.
struct Subject {
  std::shared_ptr<nn::Module> module;
  accel::ExportForward loss;
  Tensors inputs;
  std::vector<std::string> input_names;
  std::map<std::string, std::int64_t> batch_axes = {};  // empty: the batch is fixed
  bool is_sgd = false;
};

at::Tensor classes(std::int64_t count, std::int64_t range) {
  return at::arange(count).remainder(range);
}

template <typename Net>
Subject of_classifier(Net net, const at::Tensor& x, std::int64_t range) {
  return {.module = net.ptr(),
          .loss =
              [net](const Tensors& in) mutable {
                const at::Tensor logits = net->forward(in[0]);
                return Tensors{at::cross_entropy_loss(logits, in[1]), logits};
              },
          .inputs = {x, classes(x.size(0), range)},
          .input_names = {"x", "labels"},
          .batch_axes = {{"x", 0}, {"labels", 0}}};
}

Subject mlp() {
  nn::Sequential net(nn::Linear(6, 16),
                     nn::GELU(),
                     nn::Dropout(0.25),
                     nn::Linear(16, 16),
                     nn::Tanh(),
                     nn::LayerNorm(nn::LayerNormOptions({16})),
                     nn::Linear(16, 3));
  return of_classifier(net, torch::randn({5, 6}), 3);
}

Subject conv() {
  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 8, 3).padding(1).bias(false)),
                     nn::BatchNorm2d(8),
                     nn::ReLU(nn::ReLUOptions(true)),
                     nn::MaxPool2d(2),
                     nn::Conv2d(nn::Conv2dOptions(8, 8, 3)),
                     nn::BatchNorm2d(8),
                     nn::ReLU(),
                     nn::Dropout2d(0.2),
                     nn::AdaptiveAvgPool2d(1),
                     nn::Flatten(),
                     nn::Linear(8, 4));
  Subject subject = of_classifier(net, torch::randn({6, 3, 12, 12}), 4);
  subject.is_sgd = true;
  return subject;
}

// A layer whose weight is that of another.
struct HeadImpl : nn::Module {
  explicit HeadImpl(const at::Tensor& shared) : weight(register_parameter("weight", shared)) {}
  at::Tensor forward(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor weight;
};
TORCH_MODULE(Head);

// A language model whose embedding is its output layer, too.
struct TransformerImpl : nn::Module {
  TransformerImpl() {
    register_module("embed", embed);
    register_module("encoder", encoder);
    register_module("norm", norm);
    register_module("head", head);
    mask = register_buffer("mask", at::full({7, 7}, -INFINITY).triu(1));
    places = torch::randn({7, 1, 16});  // registered nowhere: a constant
  }
  at::Tensor forward(const at::Tensor& ids) {
    const at::Tensor x = embed(ids).transpose(0, 1) + places;
    return head(norm(encoder(x, mask))).transpose(0, 1);
  }
  nn::Embedding embed{13, 16};
  nn::TransformerEncoder encoder{nn::TransformerEncoderOptions(
      nn::TransformerEncoderLayerOptions(16, 2).dim_feedforward(32).dropout(0.1), 2)};
  nn::LayerNorm norm{nn::LayerNormOptions({16})};
  Head head{embed->weight};
  at::Tensor mask;
  at::Tensor places;
};
TORCH_MODULE(Transformer);

Subject transformer() {
  Transformer net;
  return {
      .module = net.ptr(),
      .loss =
          [net](const Tensors& in) mutable {
            const at::Tensor logits = net->forward(in[0]);
            return Tensors{at::cross_entropy_loss(logits.flatten(0, 1), in[1].flatten()), logits};
          },
      .inputs = {torch::randint(13, {3, 7}), torch::randint(13, {3, 7})},
      .input_names = {"ids", "labels"},
      .batch_axes = {{"ids", 0}, {"labels", 0}}};
}

struct DecoderImpl : nn::Module {
  DecoderImpl() { register_module("net", net); }
  at::Tensor forward(const at::Tensor& source, const at::Tensor& target) {
    return net(source, target);
  }
  nn::Transformer net{nn::TransformerOptions(8, 2, 1, 1).dim_feedforward(16).dropout(0.1)};
};
TORCH_MODULE(Decoder);

Subject decoder() {
  Decoder net;
  return {.module = net.ptr(),
          .loss =
              [net](const Tensors& in) mutable {
                const at::Tensor out = net->forward(in[0], in[1]);
                return Tensors{at::mse_loss(out, in[1].roll(1, 0)), out};
              },
          .inputs = {torch::randn({5, 3, 8}), torch::randn({4, 3, 8})},
          .input_names = {"source", "target"}};
}

struct RecurrentImpl : nn::Module {
  RecurrentImpl() {
    register_module("lstm", lstm);
    register_module("gru", gru);
    register_module("out", out);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor hidden = std::get<0>(lstm(x));
    return out(std::get<0>(gru(hidden)).select(0, -1));
  }
  nn::LSTM lstm{nn::LSTMOptions(5, 8).num_layers(2).dropout(0.2).bidirectional(true)};
  nn::GRU gru{16, 8};
  nn::Linear out{8, 3};
};
TORCH_MODULE(Recurrent);

Subject recurrent() {
  Recurrent net;
  return {.module = net.ptr(),
          .loss =
              [net](const Tensors& in) mutable {
                const at::Tensor logits = net->forward(in[0]);
                return Tensors{at::cross_entropy_loss(logits, in[1]), logits};
              },
          .inputs = {torch::randn({6, 4, 5}), classes(4, 3)},
          .input_names = {"x", "labels"},
          .batch_axes = {{"x", 1}, {"labels", 0}}};
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const Subject& subject,
                                                      const nn::Module& module) {
  // Tied ones once: LibTorch's optimizers step each entry.
  Tensors parameters;
  for (const at::Tensor& parameter : module.parameters())
    if (std::none_of(parameters.begin(), parameters.end(), [&](const at::Tensor& one) {
          return one.is_same(parameter);
        }))
      parameters.push_back(parameter);
  if (subject.is_sgd)
    return std::make_unique<torch::optim::SGD>(parameters,
                                               torch::optim::SGDOptions(0.05).momentum(0.9));
  return std::make_unique<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(1e-2));
}

std::vector<float> train(const Subject& subject,
                         nn::Module& module,
                         const std::function<at::Tensor(const Tensors&)>& loss_of) {
  module.train();
  const auto optimizer = optimizer_of(subject, module);
  at::manual_seed(kSeed);
  std::vector<float> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer->zero_grad();
    const at::Tensor loss = loss_of(subject.inputs);
    loss.backward();
    optimizer->step();
    losses.push_back(loss.item<float>());
  }
  return losses;
}

// The batch, and another one behind it.
Tensors larger(const Subject& subject) {
  Tensors inputs = subject.inputs;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const std::int64_t axis = subject.batch_axes.at(subject.input_names[i]);
    inputs[i] = at::cat({inputs[i], inputs[i].flip(axis)}, axis).contiguous();
  }
  return inputs;
}

// The inputs, and what the module makes of them in eval().
void write_results(const Subject& subject, const Tensors& inputs, const std::string& prefix) {
  accel::safetensors::TensorMap named;
  for (std::size_t i = 0; i < inputs.size(); ++i) named[subject.input_names[i]] = inputs[i];
  accel::safetensors::save_file(named, prefix + "inputs.safetensors");
  const at::NoGradGuard no_grad;
  subject.module->eval();
  const Tensors outputs = subject.loss(inputs);
  accel::safetensors::save_file({{"loss", outputs[0]}, {"logits", outputs[1].contiguous()}},
                                prefix + "outputs.safetensors");
}

void run(const Subject& subject, const std::string& file, const std::string& folder) {
  at::manual_seed(kSeed);
  const accel::ExportReport report = accel::export_model(*subject.module,
                                                         subject.loss,
                                                         subject.inputs,
                                                         file,
                                                         {.input_names = subject.input_names,
                                                          .output_names = {"loss", "logits"},
                                                          .batch_axes = subject.batch_axes});
  std::printf("nodes %zu\n", report.num_nodes);
  for (const std::string& constant : report.constants)
    std::printf("constant %s\n", constant.c_str());
  write_results(subject, subject.inputs, folder + "/");
  if (!subject.batch_axes.empty()) write_results(subject, larger(subject), folder + "/further_");
  accel::ExportedModel loaded{std::filesystem::path(file)};
  const auto of_module =
      train(subject, *subject.module, [&](const Tensors& in) { return subject.loss(in).front(); });
  const auto of_file = train(subject, *loaded, [&](const Tensors& in) -> at::Tensor {
    return loaded(in[0], in[1])["loss"];
  });
  for (int step = 0; step < kSteps; ++step)
    std::printf("step %d %a %a\n", step, of_module[step], of_file[step]);
}

const std::map<std::string, Subject (*)()> kSubjects = {{"mlp", mlp},
                                                        {"conv", conv},
                                                        {"transformer", transformer},
                                                        {"decoder", decoder},
                                                        {"recurrent", recurrent}};

}  // namespace

int main(int count, char** arguments) {
  try {
    if (count != 3 || !kSubjects.contains(arguments[1])) {
      std::fprintf(stderr, "usage: cpp_export mlp|conv|transformer|decoder|recurrent FOLDER\n");
      return 2;
    }
    at::set_num_threads(1);
    at::manual_seed(3);
    const std::string folder = arguments[2];
    run(kSubjects.at(arguments[1])(), folder + "/" + arguments[1] + ".pt2", folder);
    return 0;
  } catch (const accel::Error& error) {
    std::fprintf(stderr, "%s\n", error.render("cpp_export").c_str());
    return 1;
  }
}
