#include "tests/support/model_zoo.h"

#include <cstdint>
#include <tuple>

#include <torch/csrc/jit/api/module.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/types.h>

#include <accel/script_module.h>

namespace accel::test {
namespace {

using torch::Tensor;

struct Mlp : ZooModel {
  Mlp() {
    register_module("fc1", fc1);
    register_module("fc2", fc2);
    register_module("fc3", fc3);
  }
  Tensor forward(const Tensor& x) override { return fc3(torch::relu(fc2(torch::relu(fc1(x))))); }
  torch::nn::Linear fc1{16, 64}, fc2{64, 64}, fc3{64, 8};
};

struct Encoder : ZooModel {
  Encoder() {
    register_module("table", table);
    register_module("layer", layer);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor tokens = (x.abs() * 7).to(torch::kLong).clamp_max(31);
    return layer(table(tokens));
  }
  torch::nn::Embedding table{32, 16};
  torch::nn::TransformerEncoderLayer layer{
      torch::nn::TransformerEncoderLayerOptions(16, 4).dim_feedforward(32).dropout(0.1)};
};

struct Lstm : ZooModel {
  Lstm() { register_module("lstm", lstm); }
  Tensor forward(const Tensor& x) override {
    return std::get<0>(lstm(x.unsqueeze(0).expand({5, x.size(0), x.size(1)})));
  }
  torch::nn::LSTM lstm{torch::nn::LSTMOptions(16, 24).num_layers(2).bidirectional(true)};
};

struct ConvNet : ZooModel {
  ConvNet() {
    register_module("conv1", conv1);
    register_module("norm", norm);
    register_module("conv2", conv2);
    conv2->weight.set_data(conv2->weight.contiguous(torch::MemoryFormat::ChannelsLast));
  }
  Tensor forward(const Tensor& x) override {
    return conv2(torch::relu(norm(conv1(x.view({-1, 1, 4, 4})))));
  }
  torch::nn::Conv2d conv1{torch::nn::Conv2dOptions(1, 8, 3).padding(1)};
  torch::nn::BatchNorm2d norm{8};
  torch::nn::Conv2d conv2{torch::nn::Conv2dOptions(8, 4, 3)};
};

// The same tensor under two names.
struct TiedEmbedding : ZooModel {
  TiedEmbedding() {
    register_module("table", table);
    register_module("mix", mix);
    head->weight = head->replace_parameter_with(table->weight);
    register_module("head", head);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor tokens = (x.abs() * 7).to(torch::kLong).clamp_max(31);
    return head(mix(table(tokens)));
  }
  struct HeadImpl : torch::nn::LinearImpl {
    using LinearImpl::LinearImpl;
    Tensor replace_parameter_with(const Tensor& other) {
      parameters_.find("weight");
      return parameters_["weight"] = other;
    }
  };
  TORCH_MODULE(Head);
  torch::nn::Embedding table{32, 16};
  torch::nn::Linear mix{16, 16};
  Head head{torch::nn::LinearOptions(16, 32).bias(false)};
};

// Two parameters over one storage, and another that is frozen.
struct SharedStorage : ZooModel {
  SharedStorage() {
    const Tensor both = torch::randn({2, 16, 16});
    low = register_parameter("low", both[0].detach());
    high = register_parameter("high", both[1].t().detach());
    frozen = register_parameter("frozen", torch::randn({16}), /*requires_grad=*/false);
  }
  Tensor forward(const Tensor& x) override {
    return torch::tanh(x.matmul(low)).matmul(high) * frozen;
  }
  Tensor low, high, frozen;
};

// As weight_norm does it: the weight is computed from views of parameters in each forward.
struct WeightNorm : ZooModel {
  WeightNorm() {
    direction = register_parameter("direction", torch::randn({16, 16}));
    size = register_parameter("size", torch::rand({16, 1}) + 0.5);
  }
  Tensor forward(const Tensor& x) override {
    if (rows.empty()) rows = direction.detach().unbind(0);  // views that live across steps
    const Tensor weight = size * direction / direction.norm(2, 1, true);
    return torch::linear(x, weight + torch::_weight_norm(direction, size)) + rows[3];
  }
  Tensor direction, size;
  std::vector<Tensor> rows;
};

struct HalfPrecision : ZooModel {
  HalfPrecision() {
    register_module("fc", fc);
    fc->to(torch::kBFloat16);
  }
  Tensor forward(const Tensor& x) override { return fc(x.to(torch::kBFloat16)).to(torch::kFloat); }
  torch::nn::Linear fc{16, 32};
};

// Blocks of convolutions with a way around them, and averages that forward() keeps.
struct ResNet : ZooModel {
  struct BlockImpl : torch::nn::Module {
    explicit BlockImpl(std::int64_t width) {
      conv1 = register_module("conv1", convolution(width, width));
      norm1 = register_module("norm1", torch::nn::BatchNorm2d(width));
      conv2 = register_module("conv2", convolution(width, width));
      norm2 = register_module("norm2", torch::nn::BatchNorm2d(width));
    }
    Tensor forward(const Tensor& x) {
      return torch::relu(x + norm2(conv2(torch::relu(norm1(conv1(x))))));
    }
    torch::nn::Conv2d conv1{nullptr}, conv2{nullptr};
    torch::nn::BatchNorm2d norm1{nullptr}, norm2{nullptr};
  };
  TORCH_MODULE(Block);
  static torch::nn::Conv2d convolution(std::int64_t in, std::int64_t out) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1).bias(false));
  }
  ResNet() {
    register_module("stem", stem);
    register_module("norm", norm);
    register_module("block1", block1);
    register_module("block2", block2);
    register_module("head", head);
  }
  Tensor forward(const Tensor& x) override {
    const Tensor image = torch::relu(norm(stem(x.view({-1, 1, 4, 4}))));
    return head(block2(block1(image)).mean({2, 3}));
  }
  torch::nn::Conv2d stem = convolution(1, 6);
  torch::nn::BatchNorm2d norm{6};
  Block block1{6}, block2{6};
  torch::nn::Linear head{6, 5};
};

// The batch says which expert is used: in a step, on some ranks, one or another, and some are never used.
struct Experts : ZooModel {
  Experts() {
    register_module("gate", gate);
    for (int i = 0; i < 4; ++i) {
      experts.emplace_back(16, 16);
      register_module("expert" + std::to_string(i), experts.back());
    }
  }
  Tensor forward(const Tensor& x) override {
    const auto chosen = static_cast<std::size_t>(x.abs().sum().item<double>() * 8) % 3;
    return experts[chosen](x) * torch::sigmoid(gate(x));
  }
  torch::nn::Linear gate{16, 1};
  std::vector<torch::nn::Linear> experts;
};

// TorchScript with a submodule, a buffer and a loop.
struct Script : ZooModel {
  Script() { register_module("script", net); }
  static torch::jit::Module make_script() {
    torch::jit::Module inner("Inner");
    inner.register_parameter("weight", torch::randn({32, 16}).div_(4).requires_grad_(), false);
    inner.register_attribute("training", c10::BoolType::get(), true);
    inner.define(R"(
      def forward(self, x):
          return torch.sigmoid(torch.matmul(x, self.weight))
    )");
    torch::jit::Module script("Net");
    script.register_parameter("weight", torch::randn({16, 32}).div_(4).requires_grad_(), false);
    script.register_parameter("bias", torch::randn({32}).requires_grad_(), false);
    script.register_buffer("scale", torch::full({16}, 0.5));
    script.register_attribute("training", c10::BoolType::get(), true);
    script.register_module("inner", inner);
    script.define(R"(
      def forward(self, x):
          for i in range(2):
              h = torch.tanh(torch.add(torch.matmul(x, self.weight), self.bias)) * 2.0 + 1.0
              x = x + self.inner.forward(h) * self.scale
          return x
    )");
    return script;
  }
  Tensor forward(const Tensor& x) override { return net->forward(x); }
  ScriptModule net{make_script()};
};

template <typename M>
std::shared_ptr<ZooModel> make() {
  return std::make_shared<M>();
}

}  // namespace

const std::vector<ZooEntry>& model_zoo() {
  static const std::vector<ZooEntry> all = {
      {"Mlp", make<Mlp>},
      {"Encoder", make<Encoder>},
      {"Lstm", make<Lstm>},
      {"ConvNet", make<ConvNet>},
      {"TiedEmbedding", make<TiedEmbedding>},
      {"SharedStorage", make<SharedStorage>, /*shares_storage=*/true},
      {"WeightNorm", make<WeightNorm>},
      {"HalfPrecision", make<HalfPrecision>},
      {"CharGpt", make_zoo_gpt},
      {"ResNet", make<ResNet>},
      {"Experts", make<Experts>},
      {"Script", make<Script>, /*shares_storage=*/false, /*is_script=*/true},
  };
  return all;
}

}  // namespace accel::test
