// CharGpt: a small GPT on bytes, written with plain torch::nn.
//
// Pre-norm blocks of causal self-attention and a two-layer perceptron, learned positions, no dropout:
// the same weights and data give the same loss wherever it runs. bench/ measures with it too.
//
//   kSmallGpt   width 128, 4 layers     0.86 million parameters
//   kLargeGpt   width 512, 6 layers    19.2  million parameters
//
// Shapes:   B = batch, T = positions, D = width, H = heads, V = 256 (bytes).
#pragma once

#include <cstdint>

#include <torch/torch.h>

struct GptConfig {
  std::int64_t width = 128;
  std::int64_t num_layers = 4;
  std::int64_t num_heads = 4;
  std::int64_t context = 64;  // positions at most
  std::int64_t vocabulary = 256;
};

inline constexpr GptConfig kSmallGpt{};
inline constexpr GptConfig kLargeGpt{.width = 512, .num_layers = 6, .num_heads = 8};

class GptBlockImpl : public torch::nn::Module {
 public:
  explicit GptBlockImpl(const GptConfig& config) : num_heads_(config.num_heads) {
    const std::int64_t D = config.width;
    using torch::nn::LayerNormOptions;
    attention_norm_ =
        register_module("attention_norm", torch::nn::LayerNorm(LayerNormOptions({D})));
    attention_ = register_module("attention", torch::nn::Linear(D, 3 * D));
    projection_ = register_module("projection", torch::nn::Linear(D, D));
    mlp_norm_ = register_module("mlp_norm", torch::nn::LayerNorm(LayerNormOptions({D})));
    widen_ = register_module("widen", torch::nn::Linear(D, 4 * D));
    narrow_ = register_module("narrow", torch::nn::Linear(4 * D, D));
  }

  torch::Tensor forward(torch::Tensor x_BTD) {
    x_BTD = x_BTD + projection_(attend(attention_norm_(x_BTD)));
    return x_BTD + narrow_(torch::gelu(widen_(mlp_norm_(x_BTD))));
  }

 private:
  torch::Tensor attend(const torch::Tensor& x_BTD) {
    const auto heads = [&](const torch::Tensor& part_BTD) {
      return part_BTD.unflatten(2, {num_heads_, -1}).transpose(1, 2);  // [B, H, T, D / H]
    };
    const auto parts = attention_(x_BTD).chunk(3, 2);
    const auto mixed = torch::scaled_dot_product_attention(
        heads(parts[0]), heads(parts[1]), heads(parts[2]), {}, 0.0, /*is_causal=*/true);
    return mixed.transpose(1, 2).flatten(2);
  }

  std::int64_t num_heads_;
  torch::nn::LayerNorm attention_norm_{nullptr}, mlp_norm_{nullptr};
  torch::nn::Linear attention_{nullptr}, projection_{nullptr}, widen_{nullptr}, narrow_{nullptr};
};
TORCH_MODULE(GptBlock);

class GptImpl : public torch::nn::Module {
 public:
  explicit GptImpl(const GptConfig& config = kSmallGpt) : config_(config) {
    tokens_ = register_module("tokens", torch::nn::Embedding(config.vocabulary, config.width));
    positions_ = register_module("positions", torch::nn::Embedding(config.context, config.width));
    blocks_ = register_module("blocks", torch::nn::Sequential());
    for (std::int64_t i = 0; i < config.num_layers; ++i) blocks_->push_back(GptBlock(config));
    norm_ =
        register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({config.width})));
    head_ = register_module(
        "head",
        torch::nn::Linear(torch::nn::LinearOptions(config.width, config.vocabulary).bias(false)));
    for (const auto& parameter : parameters()) {
      if (parameter.dim() == 2) torch::nn::init::normal_(parameter, 0.0, 0.02);
    }
  }

  // input_BT: kLong, bytes. Returns the logits [B, T, V] of the byte after each one.
  torch::Tensor forward(const torch::Tensor& input_BT) {
    const auto places_T = torch::arange(input_BT.size(1), input_BT.options());
    const auto x_BTD = tokens_(input_BT) + positions_(places_T);
    return head_(norm_(blocks_->forward(x_BTD)));
  }

  const GptConfig& config() const { return config_; }

 private:
  GptConfig config_;
  torch::nn::Embedding tokens_{nullptr}, positions_{nullptr};
  torch::nn::Sequential blocks_{nullptr};
  torch::nn::LayerNorm norm_{nullptr};
  torch::nn::Linear head_{nullptr};
};
TORCH_MODULE(Gpt);
