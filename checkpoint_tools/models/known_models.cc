// One function for each family, which adds its tensors to a Builder in the names that transformers gives them.

#include "checkpoint_tools/models/known_models.h"

#include <algorithm>
#include <string_view>

#include <accel/error.h>

#include "checkpoint_tools/models/idefics.h"
#include "checkpoint_tools/models/model_builder.h"
#include "checkpoint_tools/models/residual_networks.h"
#include "runtime/printable.h"
#include "runtime/text/joined.h"

namespace accel::launcher {
namespace {

// BERT, RoBERTa and their kin.
void bert(Sizes& sizes, Builder& build) {
  const Count width = sizes.of("hidden_size");
  const Count inner = sizes.of("intermediate_size");
  const Count positions = sizes.of("max_position_embeddings");
  build.keep_whole("embeddings");
  build.table("embeddings.word_embeddings", sizes.of("vocab_size"), width);
  build.table("embeddings.position_embeddings", positions, width);
  build.table("embeddings.token_type_embeddings", sizes.of({"type_vocab_size"}, 2), width);
  build.layer_norm("embeddings.LayerNorm", width);
  build.whole_numbers("embeddings.position_ids", positions);
  build.whole_numbers("embeddings.token_type_ids", positions);
  build.blocks("encoder.layer", sizes.of("num_hidden_layers"), [&] {
    for (const char* part : {"query", "key", "value"})
      build.linear(std::string("attention.self.") + part, width, width);
    build.linear("attention.output.dense", width, width);
    build.layer_norm("attention.output.LayerNorm", width);
    build.linear("intermediate.dense", width, inner);
    build.linear("output.dense", inner, width);
    build.layer_norm("output.LayerNorm", width);
  });
  build.linear("pooler.dense", width, width);
}

void distilbert(Sizes& sizes, Builder& build) {
  const Count width = sizes.of("dim");
  const Count inner = sizes.of("hidden_dim");
  build.table("embeddings.word_embeddings", sizes.of("vocab_size"), width);
  build.table("embeddings.position_embeddings", sizes.of("max_position_embeddings"), width);
  build.layer_norm("embeddings.LayerNorm", width);
  build.blocks("transformer.layer", sizes.of("n_layers"), [&] {
    for (const char* part : {"q_lin", "k_lin", "v_lin", "out_lin"})
      build.linear(std::string("attention.") + part, width, width);
    build.layer_norm("sa_layer_norm", width);
    build.linear("ffn.lin1", width, inner);
    build.linear("ffn.lin2", inner, width);
    build.layer_norm("output_layer_norm", width);
  });
}

void gpt2(Sizes& sizes, Builder& build) {
  const Count width = sizes.of({"n_embd", "hidden_size"});
  const Count inner = sizes.of({"n_inner"}, 4 * width);
  build.table("wte", sizes.of("vocab_size"), width);
  build.table("wpe", sizes.of({"n_positions", "n_ctx"}), width);
  build.blocks("h", sizes.of("n_layer"), [&] {
    build.layer_norm("ln_1", width);
    build.linear("attn.c_attn", width, 3 * width);
    build.linear("attn.c_proj", width, width);
    build.layer_norm("ln_2", width);
    build.linear("mlp.c_fc", width, inner);
    build.linear("mlp.c_proj", inner, width);
  });
  build.layer_norm("ln_f", width);
}

void gpt_neox(Sizes& sizes, Builder& build) {
  const Count width = sizes.of("hidden_size");
  const Count inner = sizes.of("intermediate_size");
  const bool has_bias = sizes.flag("attention_bias", true);
  build.table("embed_in", sizes.of("vocab_size"), width);
  build.blocks("layers", sizes.of("num_hidden_layers"), [&] {
    build.layer_norm("input_layernorm", width);
    build.layer_norm("post_attention_layernorm", width);
    build.linear("attention.query_key_value", width, 3 * width, has_bias);
    build.linear("attention.dense", width, width, has_bias);
    build.linear("mlp.dense_h_to_4h", width, inner);
    build.linear("mlp.dense_4h_to_h", inner, width);
  });
  build.layer_norm("final_layer_norm", width);
}

void bloom(Sizes& sizes, Builder& build) {
  const Count width = sizes.of({"hidden_size", "n_embed"});
  build.table("word_embeddings", sizes.of("vocab_size"), width);
  build.layer_norm("word_embeddings_layernorm", width);
  build.blocks("h", sizes.of({"n_layer", "num_hidden_layers"}), [&] {
    build.layer_norm("input_layernorm", width);
    build.linear("self_attention.query_key_value", width, 3 * width);
    build.linear("self_attention.dense", width, width);
    build.layer_norm("post_attention_layernorm", width);
    build.linear("mlp.dense_h_to_4h", width, 4 * width);
    build.linear("mlp.dense_4h_to_h", 4 * width, width);
  });
  build.layer_norm("ln_f", width);
}

void opt(Sizes& sizes, Builder& build) {
  constexpr Count kPositionOffset = 2;
  const Count width = sizes.of("hidden_size");
  const Count inner = sizes.of("ffn_dim");
  const Count word_width = sizes.of({"word_embed_proj_dim"}, width);
  build.table("decoder.embed_tokens", sizes.of("vocab_size"), word_width);
  build.table(
      "decoder.embed_positions", sizes.of("max_position_embeddings") + kPositionOffset, width);
  if (word_width != width) {
    build.linear("decoder.project_out", width, word_width, false);
    build.linear("decoder.project_in", word_width, width, false);
  }
  build.blocks("decoder.layers", sizes.of("num_hidden_layers"), [&] {
    for (const char* part : {"k_proj", "v_proj", "q_proj", "out_proj"})
      build.linear(std::string("self_attn.") + part, width, width, sizes.flag("enable_bias", true));
    build.layer_norm("self_attn_layer_norm", width);
    build.linear("fc1", width, inner);
    build.linear("fc2", inner, width);
    build.layer_norm("final_layer_norm", width);
  });
  const bool ends_with_norm =
      sizes.flag("do_layer_norm_before", true) && !sizes.flag("_remove_final_layer_norm", false);
  if (ends_with_norm) build.layer_norm("decoder.final_layer_norm", width);
}

struct Heads {
  Count query = 0;  // elements of all query heads
  Count key = 0;    // of all key heads; as many of values
  Count head = 0;   // of one
};

Heads heads_of(Sizes& sizes, Count width) {
  const Count num_heads = sizes.of("num_attention_heads");
  const Count head = sizes.of({"head_dim"}, width / num_heads);
  return {num_heads * head, sizes.of({"num_key_value_heads"}, num_heads) * head, head};
}

// What differs between those that came after LLaMA.
struct LlamaKind {
  bool has_qkv_bias = false;
  bool norms_heads = false;         // of queries and keys
  bool norms_feed_forward = false;  // before and after
  bool joins_projections = false;   // qkv_proj, gate_up_proj
};

void llama_attention(Sizes& sizes, Builder& build, const LlamaKind& kind, Count width) {
  const Heads heads = heads_of(sizes, width);
  const bool has_bias = sizes.flag("attention_bias", false);
  if (kind.joins_projections) {
    build.linear("self_attn.qkv_proj", width, heads.query + 2 * heads.key, false);
  } else {
    const bool has_qkv_bias = kind.has_qkv_bias || has_bias;
    build.linear("self_attn.q_proj", width, heads.query, has_qkv_bias);
    build.linear("self_attn.k_proj", width, heads.key, has_qkv_bias);
    build.linear("self_attn.v_proj", width, heads.key, has_qkv_bias);
  }
  build.linear("self_attn.o_proj", heads.query, width, has_bias);
  if (!kind.norms_heads) return;
  build.layer_norm("self_attn.q_norm", heads.head, false);
  build.layer_norm("self_attn.k_norm", heads.head, false);
}

template <typename FeedForward>
void llama_like(Sizes& sizes,
                Builder& build,
                const LlamaKind& kind,
                const FeedForward& feed_forward) {
  const Count width = sizes.of("hidden_size");
  build.table("embed_tokens", sizes.of("vocab_size"), width);
  build.blocks("layers", sizes.of("num_hidden_layers"), [&] {
    llama_attention(sizes, build, kind, width);
    feed_forward(width);
    build.layer_norm("input_layernorm", width, false);
    build.layer_norm("post_attention_layernorm", width, false);
    if (!kind.norms_feed_forward) return;
    build.layer_norm("pre_feedforward_layernorm", width, false);
    build.layer_norm("post_feedforward_layernorm", width, false);
  });
  build.layer_norm("norm", width, false);
}

void llama_of(Sizes& sizes, Builder& build, const LlamaKind& kind) {
  llama_like(sizes, build, kind, [&](Count width) {
    const Count inner = sizes.of("intermediate_size");
    const bool has_bias = sizes.flag("mlp_bias", false);
    if (kind.joins_projections) {
      build.linear("mlp.gate_up_proj", width, 2 * inner, false);
    } else {
      build.linear("mlp.gate_proj", width, inner, has_bias);
      build.linear("mlp.up_proj", width, inner, has_bias);
    }
    build.linear("mlp.down_proj", inner, width, has_bias);
  });
}

void llama(Sizes& sizes, Builder& build) {
  llama_of(sizes, build, {});
}
void qwen2(Sizes& sizes, Builder& build) {
  llama_of(sizes, build, {.has_qkv_bias = true});
}
void qwen3(Sizes& sizes, Builder& build) {
  llama_of(sizes, build, {.norms_heads = true});
}
void gemma2(Sizes& sizes, Builder& build) {
  llama_of(sizes, build, {.norms_feed_forward = true});
}
void phi3(Sizes& sizes, Builder& build) {
  llama_of(sizes, build, {.joins_projections = true});
}

void mixtral(Sizes& sizes, Builder& build) {
  llama_like(sizes, build, {}, [&](Count width) {
    const Count inner = sizes.of("intermediate_size");
    const Count num_experts = sizes.of("num_local_experts");
    build.linear("block_sparse_moe.gate", width, num_experts, false);
    build.blocks("block_sparse_moe.experts", num_experts, [&] {
      build.linear("w1", width, inner, false);
      build.linear("w2", inner, width, false);
      build.linear("w3", width, inner, false);
    });
  });
}

void phi(Sizes& sizes, Builder& build) {
  const Count width = sizes.of("hidden_size");
  const Count inner = sizes.of("intermediate_size");
  const Heads heads = heads_of(sizes, width);
  build.table("embed_tokens", sizes.of("vocab_size"), width);
  build.blocks("layers", sizes.of("num_hidden_layers"), [&] {
    build.linear("self_attn.q_proj", width, heads.query);
    build.linear("self_attn.k_proj", width, heads.key);
    build.linear("self_attn.v_proj", width, heads.key);
    build.linear("self_attn.dense", heads.query, width);
    build.linear("mlp.fc1", width, inner);
    build.linear("mlp.fc2", inner, width);
    build.layer_norm("input_layernorm", width);
  });
  build.layer_norm("final_layernorm", width);
}

void falcon(Sizes& sizes, Builder& build) {
  const Count width = sizes.of({"hidden_size", "n_embed"});
  const Count num_heads = sizes.of({"num_attention_heads", "n_head"});
  const Count head = width / num_heads;
  const bool is_new = sizes.flag("new_decoder_architecture", false);
  const bool is_multi_query = sizes.flag("multi_query", true);
  const Count num_keys = is_new ? sizes.of({"num_kv_heads", "n_head_kv"}, num_heads)
                                : (is_multi_query ? 1 : num_heads);
  const bool has_bias = sizes.flag("bias", false);
  const Count inner = sizes.of({"ffn_hidden_size"}, 4 * width);
  build.table("word_embeddings", sizes.of("vocab_size"), width);
  build.blocks("h", sizes.of({"num_hidden_layers", "n_layer"}), [&] {
    build.linear("self_attention.query_key_value", width, width + 2 * num_keys * head, has_bias);
    build.linear("self_attention.dense", width, width, has_bias);
    build.linear("mlp.dense_h_to_4h", width, inner, has_bias);
    build.linear("mlp.dense_4h_to_h", inner, width, has_bias);
    build.layer_norm(is_new ? "ln_attn" : "input_layernorm", width);
    if (is_new) build.layer_norm("ln_mlp", width);
    if (!is_new && !sizes.flag("parallel_attn", true))
      build.layer_norm("post_attention_layernorm", width);
  });
  build.layer_norm("ln_f", width);
}

void t5_attention(Sizes& sizes, Builder& build, const std::string& name) {
  const Count width = sizes.of("d_model");
  const Count all_heads = sizes.of("num_heads") * sizes.of("d_kv");
  for (const char* part : {".q", ".k", ".v"}) build.linear(name + part, width, all_heads, false);
  build.linear(name + ".o", all_heads, width, false);
}

void t5_stack(
    Sizes& sizes, Builder& build, const std::string& name, Count num_blocks, bool is_decoder) {
  const Count width = sizes.of("d_model");
  const Count inner = sizes.of("d_ff");
  const bool is_gated = sizes.text("feed_forward_proj").starts_with("gated");
  build.tensor(name + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight",
               sizes.of({"relative_attention_num_buckets"}, 32) * sizes.of("num_heads"));
  build.blocks(name + ".block", num_blocks, [&] {
    t5_attention(sizes, build, "layer.0.SelfAttention");
    build.layer_norm("layer.0.layer_norm", width, false);
    if (is_decoder) {
      t5_attention(sizes, build, "layer.1.EncDecAttention");
      build.layer_norm("layer.1.layer_norm", width, false);
    }
    const std::string last = is_decoder ? "layer.2." : "layer.1.";
    build.linear(last + "DenseReluDense.wi_0", width, inner, false);
    if (is_gated) build.linear(last + "DenseReluDense.wi_1", width, inner, false);
    build.linear(last + "DenseReluDense.wo", inner, width, false);
    build.layer_norm(last + "layer_norm", width, false);
  });
  build.layer_norm(name + ".final_layer_norm", width, false);
}

void t5(Sizes& sizes, Builder& build) {
  const Count num_layers = sizes.of("num_layers");
  build.keep_whole("encoder.block.*");
  build.keep_whole("decoder.block.*");
  build.table("shared", sizes.of("vocab_size"), sizes.of("d_model"));
  t5_stack(sizes, build, "encoder", num_layers, false);
  t5_stack(sizes, build, "decoder", sizes.of({"num_decoder_layers"}, num_layers), true);
}

void vit(Sizes& sizes, Builder& build) {
  const Count width = sizes.of("hidden_size");
  const Count inner = sizes.of("intermediate_size");
  const Count patch = sizes.of({"patch_size"}, 16);
  const Count side = sizes.of({"image_size"}, 224) / patch;
  build.keep_whole("embeddings");
  build.tensor("embeddings.cls_token", width);
  build.tensor("embeddings.position_embeddings", (side * side + 1) * width);
  build.linear("embeddings.patch_embeddings.projection",
               sizes.of({"num_channels"}, 3) * patch * patch,
               width);
  build.blocks("encoder.layer", sizes.of("num_hidden_layers"), [&] {
    for (const char* part : {"query", "key", "value"})
      build.linear(
          std::string("attention.attention.") + part, width, width, sizes.flag("qkv_bias", true));
    build.linear("attention.output.dense", width, width);
    build.linear("intermediate.dense", width, inner);
    build.linear("output.dense", inner, width);
    build.layer_norm("layernorm_before", width);
    build.layer_norm("layernorm_after", width);
  });
  build.layer_norm("layernorm", width);
  build.linear("pooler.dense", width, width);
}

struct Family {
  std::string_view model_type;
  void (*add)(Sizes&, Builder&);
};
constexpr Family kFamilies[] = {
    {"bert", bert},
    {"bloom", bloom},
    {"camembert", bert},
    {"distilbert", distilbert},
    {"falcon", falcon},
    {"gemma", llama},
    {"gemma2", gemma2},
    {"gpt2", gpt2},
    {"gpt_neox", gpt_neox},
    {"idefics", idefics},
    {"llama", llama},
    {"mistral", llama},
    {"mixtral", mixtral},
    {"opt", opt},
    {"phi", phi},
    {"phi3", phi3},
    {"qwen2", qwen2},
    {"qwen3", qwen3},
    {"resnet", resnet},
    {"roberta", bert},
    {"t5", t5},
    {"vit", vit},
    {"xlm-roberta", bert},
};

Error wrong(const std::string& path, const std::string& what, const std::string& remedy) {
  return Error(ErrorCode::kConfigInvalidValue, printable(path) + ": " + what, remedy);
}

const Family* find_family(const std::string& type) {
  const auto* found = std::ranges::find(kFamilies, type, &Family::model_type);
  return found == std::end(kFamilies) ? nullptr : found;
}

Error unknown(const std::string& path, const std::string& type) {
  const std::string known = joined(kFamilies, ", ", &Family::model_type);
  const std::string what =
      type.empty() ? "it has no model_type" : "model_type " + printable(type) + " is not known";
  return wrong(
      path,
      what,
      "name the model's safetensors files instead; known are " + known + ", and resnets of timm");
}

}  // namespace

Result<ModelInventory> inventory_of_config(const json& config, const std::string& path) {
  if (!config.is_object()) return wrong(path, "it is no JSON object", "name a config.json");
  Sizes sizes(config);
  const std::string type = sizes.text("model_type");
  const std::string architecture = sizes.text("architecture");
  ModelInventory model;
  Builder build(model);
  if (const Family* family = find_family(type)) {
    family->add(sizes, build);
  } else if (type.empty() && is_timm_resnet(architecture)) {
    timm_resnet(architecture, sizes, build);
  } else {
    return unknown(path, type);
  }
  if (model.tensors.size() >= kMostTensors)
    sizes.refuse("it has more than " + std::to_string(kMostTensors) + " tensors");
  if (!sizes.fault().empty()) {
    return wrong(
        path,
        sizes.fault(),
        "a config.json of " + (type.empty() ? architecture : "model_type " + type) + " has it");
  }
  model.source = path;
  return model;
}

}  // namespace accel::launcher
