// Images go through a vision transformer, a resampler makes a fixed number of vectors of each, and gated layers between
// those of a LLaMA attend to them.

#include "checkpoint_tools/models/idefics.h"

#include <string>

namespace accel::launcher {
namespace {

struct TextSizes {
  Count width;
  Count inner;
  Count head;
  Count image_width;  // of what the gated layers attend to
};

void rotary_tables(Builder& build, const std::string& name, Count head) {
  constexpr Count kPositions = 2048;
  build.buffer(name + ".inv_freq", head / 2);
  build.buffer(name + ".cos_cached", kPositions * head);
  build.buffer(name + ".sin_cached", kPositions * head);
}

// key_width: of what is attended to.
void attention(Builder& build, const std::string& name, const TextSizes& text, Count key_width) {
  build.linear(name + ".q_proj", text.width, text.width, false);
  build.linear(name + ".k_proj", key_width, text.width, false);
  build.linear(name + ".v_proj", key_width, text.width, false);
  build.linear(name + ".o_proj", text.width, text.width, false);
  rotary_tables(build, name + ".rotary_emb", text.head);
}

void feed_forward_and_norms(Builder& build, const TextSizes& text) {
  build.linear("mlp.gate_proj", text.width, text.inner, false);
  build.linear("mlp.up_proj", text.width, text.inner, false);
  build.linear("mlp.down_proj", text.inner, text.width, false);
  build.layer_norm("input_layernorm", text.width, false);
  build.layer_norm("post_attention_layernorm", text.width, false);
}

void vision(Sizes& sizes, Builder& build, Count width) {
  const Count inner = sizes.of({"intermediate_size"}, 5120);
  const Count patch = sizes.of({"patch_size"}, 14);
  const Count side = sizes.of({"image_size"}, 224) / patch;
  const Count positions = side * side + 1;
  build.tensor("vision_model.embeddings.class_embedding", width);
  build.convolution(
      "vision_model.embeddings.patch_embedding", sizes.of({"num_channels"}, 3), width, patch);
  build.table("vision_model.embeddings.position_embedding", positions, width);
  build.whole_numbers("vision_model.embeddings.position_ids", positions);
  build.layer_norm("vision_model.pre_layrnorm", width);
  build.blocks("vision_model.encoder.layers", sizes.of({"num_hidden_layers"}, 32), [&] {
    for (const char* part : {"k_proj", "v_proj", "q_proj", "out_proj"})
      build.linear(std::string("self_attn.") + part, width, width);
    build.layer_norm("layer_norm1", width);
    build.linear("mlp.fc1", width, inner);
    build.linear("mlp.fc2", inner, width);
    build.layer_norm("layer_norm2", width);
  });
  build.layer_norm("vision_model.post_layernorm", width);
}

void resampler(Sizes& sizes, Builder& build, Count width) {
  const Count head = sizes.of({"resampler_head_dim"}, 96);
  const Count heads = head * sizes.of({"resampler_n_heads"}, 16);
  const bool norms_heads = sizes.flag("qk_layer_norms_perceiver", false);
  build.tensor("perceiver_resampler.latents", sizes.of({"resampler_n_latents"}, 64) * width);
  build.blocks("perceiver_resampler.blocks", sizes.of({"resampler_depth"}, 6), [&] {
    build.layer_norm("0.context_layer_norm", width);
    build.layer_norm("0.latents_layer_norm", width);
    if (norms_heads) build.layer_norm("0.q_layer_norm", head);
    if (norms_heads) build.layer_norm("0.k_layer_norm", head);
    for (const char* part : {"q_proj", "k_proj", "v_proj"})
      build.linear(std::string("0.") + part, width, heads, false);
    build.linear("0.output_proj", heads, width, false);
    build.layer_norm("1.ln", width);
    build.linear("1.fc", width, 4 * width, false);
    build.linear("1.c_proj", 4 * width, width, false);
  });
  build.layer_norm("perceiver_resampler.layer_norm", width);
}

void gated_layer(Sizes& sizes, Builder& build, const TextSizes& text) {
  const Count gate = sizes.text("alpha_type") == "vector" ? text.width : 1;
  attention(build, "cross_attn", text, text.image_width);
  if (sizes.flag("qk_layer_norms", false)) {
    build.layer_norm("cross_attn.q_layer_norm", text.head, false);
    build.layer_norm("cross_attn.k_layer_norm", text.head, false);
  }
  feed_forward_and_norms(build, text);
  build.tensor("alpha_cross_attn", gate);
  build.tensor("alpha_dense", gate);
}

}  // namespace

void idefics(Sizes& sizes, Builder& build) {
  Sizes vision_sizes = sizes.inside("vision_config");
  Sizes resampler_sizes = sizes.inside("perceiver_config");
  const Count width = sizes.of({"hidden_size"}, 4096);
  const TextSizes text = {.width = width,
                          .inner = sizes.of({"intermediate_size"}, 11008),
                          .head = width / sizes.of({"num_attention_heads"}, 32),
                          .image_width = vision_sizes.of({"embed_dim"}, 768)};
  const Count num_layers = sizes.of({"num_hidden_layers"}, 32);
  build.table("embed_tokens", sizes.of({"vocab_size"}, 32000), width);
  if (const Count more = sizes.of_or_none("additional_vocab_size"); more > 0)
    build.table("embed_tokens.additional_embedding", more, width);
  vision(vision_sizes, build, text.image_width);
  if (sizes.flag("use_resampler", false)) resampler(resampler_sizes, build, text.image_width);
  build.blocks("layers", num_layers, [&] {
    attention(build, "self_attn", text, width);
    feed_forward_and_norms(build, text);
  });
  build.keep_whole("gated_cross_attn_layers.*");
  build.blocks("gated_cross_attn_layers", num_layers / sizes.of({"cross_layer_interval"}, 1), [&] {
    gated_layer(sizes, build, text);
  });
  build.layer_norm("norm", width, false);
  sizes.take_fault("vision_config", vision_sizes);
  sizes.take_fault("perceiver_config", resampler_sizes);
}

}  // namespace accel::launcher
