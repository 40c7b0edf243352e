"""Small random instances of 50 architectures: the configuration of each, as values of transformers' own classes.

DECODER, ENCODER and VISION are what most of a kind share; a row adds what is its own. A row is (task, model_type, values).
"""

DECODER = dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
               num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
ENCODER = dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
               max_position_embeddings=128, pad_token_id=0)
VISION = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8,
              num_labels=10)
SEQ2SEQ = dict(vocab_size=256, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
               encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2,
               decoder_start_token_id=2, forced_eos_token_id=2)
GPT2 = dict(vocab_size=256, n_positions=128, n_embd=64, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)
T5 = dict(vocab_size=256, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4, decoder_start_token_id=0)

ARCHITECTURES = {
    # decoders
    "gpt2": ("causal-lm", "gpt2", GPT2),
    "gpt_neo": ("causal-lm", "gpt_neo", dict(vocab_size=256, hidden_size=64, num_layers=2, num_heads=4, intermediate_size=128,
                                             max_position_embeddings=128, attention_types=[[["global", "local"], 1]], window_size=8,
                                             bos_token_id=1, eos_token_id=2)),
    "gpt_neox": ("causal-lm", "gpt_neox", ENCODER | dict(bos_token_id=1, eos_token_id=2)),
    "gptj": ("causal-lm", "gptj", GPT2 | dict(rotary_dim=8)),
    "gpt_bigcode": ("causal-lm", "gpt_bigcode", GPT2),
    "codegen": ("causal-lm", "codegen", GPT2 | dict(rotary_dim=8)),
    "llama": ("causal-lm", "llama", DECODER | dict(tie_word_embeddings=True)),
    "qwen2": ("causal-lm", "qwen2", DECODER),
    "qwen3": ("causal-lm", "qwen3", DECODER | dict(head_dim=16)),
    "mistral": ("causal-lm", "mistral", DECODER | dict(sliding_window=16)),
    "phi": ("causal-lm", "phi", DECODER),
    "phi3": ("causal-lm", "phi3", DECODER),
    "gemma": ("causal-lm", "gemma", DECODER | dict(head_dim=16)),
    "gemma2": ("causal-lm", "gemma2", DECODER | dict(head_dim=16, sliding_window=16)),
    "gemma3": ("causal-lm", "gemma3_text", DECODER | dict(head_dim=16, sliding_window=16)),
    "opt": ("causal-lm", "opt", dict(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, ffn_dim=128,
                                     max_position_embeddings=128, word_embed_proj_dim=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)),
    "bloom": ("causal-lm", "bloom", dict(vocab_size=256, hidden_size=64, n_layer=2, n_head=4, pad_token_id=0, bos_token_id=1,
                                         eos_token_id=2)),
    "falcon": ("causal-lm", "falcon", dict(vocab_size=256, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, bos_token_id=1,
                                           eos_token_id=2)),
    "stablelm": ("causal-lm", "stablelm", DECODER),
    "starcoder2": ("causal-lm", "starcoder2", DECODER),
    "olmo": ("causal-lm", "olmo", DECODER),
    "olmo2": ("causal-lm", "olmo2", DECODER),
    "granite": ("causal-lm", "granite", DECODER),
    "cohere": ("causal-lm", "cohere", DECODER),
    "mamba": ("causal-lm", "mamba", dict(vocab_size=256, hidden_size=64, num_hidden_layers=2, state_size=8, pad_token_id=0, bos_token_id=1,
                                         eos_token_id=2)),
    "mixtral": ("causal-lm", "mixtral", DECODER | dict(num_local_experts=4)),
    "qwen2_moe": ("causal-lm", "qwen2_moe", DECODER | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64,
                                                           shared_expert_intermediate_size=64)),
    "qwen3_moe": ("causal-lm", "qwen3_moe", DECODER | dict(head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64)),
    "xlnet": ("causal-lm", "xlnet", dict(vocab_size=256, d_model=64, n_layer=2, n_head=4, d_inner=128, bos_token_id=1, eos_token_id=2,
                                         pad_token_id=0)),
    # encoders
    "bert": ("classification", "bert", ENCODER),
    "roberta": ("masked-lm", "roberta", ENCODER | dict(pad_token_id=1, bos_token_id=0, eos_token_id=2)),
    "albert": ("masked-lm", "albert", ENCODER | dict(embedding_size=32)),
    "electra": ("masked-lm", "electra", ENCODER | dict(embedding_size=32)),
    "deberta": ("masked-lm", "deberta", ENCODER | dict(relative_attention=True, pos_att_type=["c2p", "p2c"])),
    "deberta-v2": ("classification", "deberta-v2", ENCODER | dict(relative_attention=True, pos_att_type=["c2p", "p2c"])),
    "distilbert": ("masked-lm", "distilbert", dict(vocab_size=256, dim=64, n_layers=2, n_heads=4, hidden_dim=128,
                                                     max_position_embeddings=128)),
    "mpnet": ("masked-lm", "mpnet", ENCODER | dict(pad_token_id=1, bos_token_id=0, eos_token_id=2)),
    "modernbert": ("masked-lm", "modernbert", ENCODER | dict(bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
                                                             local_attention=16)),
    # encoders with decoders
    "t5": ("seq2seq", "t5", T5),
    "mt5": ("seq2seq", "mt5", T5),
    "bart": ("seq2seq", "bart", SEQ2SEQ),
    "pegasus": ("seq2seq", "pegasus", SEQ2SEQ),
    "marian": ("seq2seq", "marian", SEQ2SEQ),
    "whisper": ("seq2seq", "whisper", SEQ2SEQ | dict(num_mel_bins=8, max_source_positions=32, max_target_positions=128,
                                                     suppress_tokens=None, begin_suppress_tokens=None)),
    # images
    "vit": ("image", "vit", VISION),
    "deit": ("image", "deit", VISION),
    "beit": ("image", "beit", VISION),
    "swin": ("image", "swin", dict(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4,
                                    num_labels=10)),
    "convnext": ("image", "convnext", dict(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2, image_size=32, num_labels=10)),
    "resnet": ("image", "resnet", dict(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=10)),
    "clip": ("image-text", "clip", dict(
        text_config=dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
                         max_position_embeddings=32, bos_token_id=0, eos_token_id=255, pad_token_id=1),
        vision_config=dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8),
        projection_dim=32)),
}

# Of other libraries: (source, name or configuration). Those of torchvision see large images and few of them here: relu, pooling and
# batch norm carry a rounding of the fused optimizer to 2e-5 of the loss within ten steps.
OTHERS = {
    "timm": ("timm", "test_vit.r160_in1k"),
    "diffusers": ("diffusers", dict(_class_name="UNet2DConditionModel", sample_size=8, in_channels=4, out_channels=4, layers_per_block=1,
                                    block_out_channels=[16, 32], norm_num_groups=8, cross_attention_dim=32, attention_head_dim=8,
                                    down_block_types=["CrossAttnDownBlock2D", "DownBlock2D"],
                                    up_block_types=["UpBlock2D", "CrossAttnUpBlock2D"])),
}
