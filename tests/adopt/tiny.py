"""Any architecture of transformers in a tiny size, with inputs that its forward accepts.

Nothing is known of single architectures, but for a few settings: a configuration is its class's own with small sizes,
by the names that configurations use; inputs follow from the names that forward takes. torch itself decides whether an
attempt is good: the first class, configuration and input with which torch computes a gradient is the case.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch

from .compare import NotBuilt, first_loss, without_dropout

#: Sizes by the names that configurations use.
WIDTH, HEADS, LAYERS, WORDS = 32, 4, 2, 99
_NAMES: dict[str, tuple[str, ...]] = {
    "width": (
        "hidden_size d_model n_embd embed_dim dim embedding_size emb_dim embedding_dim projection_dim out_hidden_size "
        "output_dim decoder_hidden_size encoder_hidden_size text_hidden_size output_hidden_size hidden_dim "
        "pooler_hidden_size pooler_output_size encoder_hidden_dim decoder_hidden_dim fusion_hidden_size "
        "word_embed_proj_dim cross_hidden_size shared_hidden_size hidden_size_per_layer_input audio_hidden_size "
        "embed_size attention_hidden_size backbone_hidden_size latent_dim hidden_channels image_text_hidden_size "
        "reassemble_hidden_size head_hidden_size fpn_hidden_size mask_feature_size feature_size_ dim_model "
        "vision_hidden_size query_hidden_size projector_hidden_size hidden_size_global input_embed_dim "
        "vision_feature_dim text_embed_dim d_embed lm_hidden_size proj_dim codebook_dim_ encoder_embed_dim "
        "decoder_embed_dim conv_out_channels width"
    ).split(),
    "inner": (
        "intermediate_size encoder_ffn_dim decoder_ffn_dim ffn_dim d_ff mlp_dim d_inner ffn_hidden_size "
        "moe_intermediate_size shared_expert_intermediate_size expert_intermediate_size dim_feedforward dim_ff "
        "shared_intermediate_size decoder_intermediate_size intermediate_dim mlp_hidden_size dense_intermediate_size "
        "intermediate_size_mlp classifier_proj_size n_inner moe_shared_expert_intermediate_size ff_dim "
        "memory_fuser_intermediate_dim feed_forward_size projector_intermediate_size"
    ).split(),
    "heads": (
        "num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads attention_heads "
        "num_decoder_heads decoder_num_attention_heads encoder_num_attention_heads swa_num_attention_heads "
        "linear_num_heads num_encoder_heads head_num"
    ).split(),
    "pairs": (
        "num_key_value_heads num_kv_heads decoder_num_key_value_heads encoder_num_key_value_heads n_kv_heads "
        "swa_num_key_value_heads linear_num_key_heads num_global_key_value_heads"
    ).split(),
    "head": "head_dim d_kv d_head kv_channels v_head_dim qk_nope_head_dim qk_rope_head_dim dim_head attention_head_dim "
    "swa_head_dim attn_head_dim linear_key_head_dim linear_value_head_dim linear_head_dim "
    "global_head_dim attention_head_size swa_v_head_dim".split(),
    "layers": (
        "num_hidden_layers n_layer n_layers num_layers encoder_layers decoder_layers depth num_decoder_layers "
        "num_encoder_layers layers encoder_num_hidden_layers decoder_num_hidden_layers decoder_depth resampler_depth "
        "num_decoder_blocks num_stacks_ fsmt_layers num_block_layers"
    ).split(),
    "words": (
        "vocab_size text_vocab_size vocab_size_per_layer_input src_vocab_size tgt_vocab_size codebook_size "
        "audio_vocab_size decoder_vocab_size char_vocab_size speech_vocab_size"
    ).split(),
    "positions": (
        "max_position_embeddings n_positions max_source_positions_ max_seq_len max_target_positions seq_length "
        "model_max_length max_length n_ctx max_text_len max_2d_position_embeddings max_encoder_position_embeddings "
        "max_decoder_position_embeddings max_sequence_length"
    ).split(),
    "experts": (
        "num_experts num_local_experts n_routed_experts moe_num_experts num_moe_experts n_experts expert_num"
    ).split(),
    "chosen": "num_experts_per_tok num_experts_per_token moe_k moe_topk moe_top_k num_selected_experts".split(),
    "ranks": "q_lora_rank kv_lora_rank o_lora_rank".split(),
    "one": "n_group topk_group num_nextn_predict_layers first_k_dense_replace n_shared_experts_ moe_layer_freq".split(),
}
_SIZES: dict[str, int] = {
    "width": WIDTH, "inner": 48, "heads": HEADS, "pairs": 2, "head": WIDTH // HEADS, "layers": LAYERS, "words": WORDS,
    "positions": 128, "experts": 4, "chosen": 2, "ranks": 16, "one": 1,
}  # fmt: skip
RULES: dict[str, Any] = {name: _SIZES[kind] for kind, names in _NAMES.items() for name in names}
#: Other settings, by the value that they get.
_OTHERS: list[tuple[Any, str]] = [
    (-1, "max_relative_positions"),
    (0, "num_denoising"),
    (1, "num_random_blocks max_window_layers global_attn_every_n_layers attn_layer_offset decoder_start_token_id"),
    (2, "num_frames index_n_heads num_conv_pos_embedding_groups num_codebooks num_parallel_samples numb_quantizers "
        "num_quantizers attn_layer_period full_attention_interval"),
    (3, "num_labels"),
    (4, "window_size num_query_tokens linear_num_value_heads mamba_chunk_size chunk_size state_size time_step_rank "
        "block_size num_image_tokens index_topk num_conv_pos_embeddings num_filters mm_tokens_per_image "
        "image_seq_length num_groups"),
    (5, "num_queries"),
    (6, "image_token_index"),
    (7, "video_token_index"),
    (8, "sliding_window mamba_n_heads mamba_d_head mamba_d_state rotary_dim relative_attention_num_buckets "
        "query_pre_attn_scalar max_num_bins audio_token_index"),
    (16, "qk_head_dim num_mel_bins index_head_dim num_position_embeddings max_memory_length train_num_points "
         "speech_decoder_postnet_units xvector_output_dim"),
    (32, "pretrain_image_size input_size"),
    (WIDTH, "projection_hidden_size attention_hidden_size upsample_groups"),
    (64, "max_source_positions"),
    (0.0, "mask_time_prob mask_feature_prob layerdrop router_jitter_noise input_jitter_noise drop_path_rate "
          "jitter_noise"),
    (False, "apply_spec_augment use_timm_backbone scale_embedding_ use_mamba_kernels"),
    (None, "layer_types mlp_layer_types no_rope_layers moe_layers forced_eos_token_id compress_ratios"),
    ((1,), "fullatt_block_indexes global_attn_indexes"),
    ((0, 1), "deepstack_visual_indexes"),
]  # fmt: skip
RULES |= {name: value for value, names in _OTHERS for name in names.split()}
_TOKENS = "pad bos eos sep cls mask image video audio vision_start vision_end".split()
RULES |= {f"{name}_token_id": k for k, name in enumerate(_TOKENS)}
#: A function is given the value that the class has.
RULES |= {
    "image_size": lambda v: 32 if isinstance(v, int) else type(v)([32] * len(v)),
    "patch_size": lambda v: min(v, 8) if isinstance(v, int) else type(v)([min(x, 8) for x in v]),
    "attention_window": lambda v: 4 if isinstance(v, int) else [4, 4],
    "depths": lambda v: type(v)([1] * len(v)),
    "conv_dim": lambda v: type(v)([16] * len(v)) if isinstance(v, (list, tuple)) else 16,
    **dict.fromkeys(("hidden_sizes", "embed_dims", "neck_hidden_sizes"), lambda v: _scaled(v)),
    "context_length": lambda v: min(v, 32) if v else v,
    "tdnn_dim": lambda v: type(v)([16] * len(v)),
}
#: Settings of single architectures, where the rules give something that the class refuses.
OVERRIDES: dict[str, dict[str, Any]] = {
    "reformer": {"axial_pos_embds": False, "is_decoder": True, "attn_layers": ["local", "lsh"]}
    | {"num_hashes": 1, "lsh_attn_chunk_length": 4, "local_attn_chunk_length": 4, "num_buckets": 2, "hash_seed": 0},
    "xlnet": {"d_inner": 48, "n_layer": 2},
    "funnel": {"block_sizes": [1, 1], "d_head": 8, "max_position_embeddings": 64},
    "mpt": {"expansion_ratio": 2},
    "bloom": {},
    "ctrl": {"dff": 48},
    "mra": {"approx_mode": "full", "block_per_row": 1},
}


def _scaled(sizes: Any) -> Any:
    """A list of growing widths, the smallest of which is 16."""
    if not isinstance(sizes, (list, tuple)):
        return WIDTH
    return type(sizes)([max(8, 16 * s // min(sizes) // 8 * 8) for s in sizes])


def tiny(kind: Any, more: dict[str, Any] | None = None, only: set[str] | None = None) -> dict[str, Any]:
    """Arguments for a configuration class: its own, made small. `only`: the settings that are changed."""
    default = kind()
    found: dict[str, Any] = {}
    for name in (*vars(default), *_annotated(kind)):
        value = getattr(default, name, None)
        if name in found or (only is not None and name not in only):
            continue
        if name in RULES:
            rule = RULES[name]
            if rule is None or isinstance(rule, (bool, tuple)):
                if value is not None:
                    found[name] = rule
            elif isinstance(value, (list, tuple)) and isinstance(rule, int):
                found[name] = type(value)([rule] * len(value)) if value and isinstance(value[0], int) else value
            elif value is not None:
                found[name] = rule(value) if callable(rule) else rule
        elif "drop" in name and isinstance(value, float):
            found[name] = 0.0
        elif name.endswith(("_token_id", "_token_index")) and isinstance(value, int) and value >= WORDS:
            found[name] = 11 + len(found) % 80
    for name, part in getattr(kind, "sub_configs", {}).items():
        there = getattr(default, name, None)
        part = type(there) if there is not None else part
        if hasattr(part, "model_type") and not part.__name__.startswith("Auto"):
            found[name] = {"model_type": part.model_type, **tiny(part, None, only)}
    return found | (more or {})


def _annotated(kind: Any) -> Iterator[str]:
    for base in kind.__mro__:
        yield from vars(base).get("__annotations__", ())
    yield from inspect.signature(kind.__init__).parameters


# --- inputs ------------------------------------------------------------------------------------------


def _of(config: Any, *names: str, default: Any) -> Any:
    """A setting of a configuration or of one of its parts."""
    parts = [config, *(getattr(config, p, None) for p in getattr(config, "sub_configs", {}))]
    for part in parts:
        for name in names:
            value = getattr(part, name, None)
            if isinstance(value, (int, tuple, list)) and value:
                return value
    return default


def _one(x: Any) -> int:
    return int(x[0]) if isinstance(x, (list, tuple)) else int(x)


def inputs(model: Any, config: Any) -> Iterator[Callable[[int], dict[str, Any]]]:
    """Functions of a step's number that give arguments of the model's forward: attempts, the likeliest first."""
    taken = set(inspect.signature(type(model).forward).parameters)
    words = min(_of(config, "vocab_size", default=WORDS), WORDS)
    size = _one(_of(config, "image_size", "input_size", default=32))
    channels = _one(_of(config, "num_channels", "in_channels", "in_chans", default=3))
    bins = _one(_of(config, "num_mel_bins", "feature_size", "input_feat_per_channel", "input_dim", default=16))

    def noise(i: int, *shape: int) -> Any:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(i))

    def some(i: int, n: int, seed: int = 0) -> Any:
        return torch.randint(12, words, (2, n), generator=torch.Generator().manual_seed(i + seed))

    def text(n: int, labels: bool, mask: bool) -> Callable[[int], dict[str, Any]]:
        def batch(i: int) -> dict[str, Any]:
            made = {"input_ids": some(i, n)}
            if labels and "labels" in taken:
                made["labels"] = some(i, n, 50)
            elif "decoder_input_ids" in taken:
                made["decoder_input_ids"] = some(i, n, 90)
            if mask and "attention_mask" in taken:
                made["attention_mask"] = torch.tensor([[1] * n, [1] * (n - 2) + [0, 0]])
            return made

        return batch

    def seen(name: str, *shape: int) -> Callable[[int], dict[str, Any]]:
        return lambda i: {name: noise(i, *shape)}

    def with_words(batch: Callable[[int], dict[str, Any]], name: str, n: int = 8) -> Callable[[int], dict[str, Any]]:
        return lambda i: {**batch(i), name: some(i, n)}

    if "pixel_values" in taken:
        for s in dict.fromkeys((size, 64, 224)):
            picture = seen("pixel_values", 2, channels, s, s)
            if "input_ids" in taken:
                yield with_words(picture, "input_ids")
            if "decoder_input_ids" in taken:
                yield with_words(picture, "decoder_input_ids")
            yield picture
        frames = _one(_of(config, "num_frames", default=2))
        yield seen("pixel_values", 2, frames, channels, size, size)
    if "pixel_values_videos" in taken and "input_ids" not in taken:
        frames = _one(_of(config, "frames_per_clip", "num_frames", default=2))
        yield seen("pixel_values_videos", 1, frames, channels, size, size)
    if "input_features" in taken:
        for shape in ((2, bins, 128), (2, 24, bins), (2, bins, 64), (2, 1, 64, bins)):
            batch = seen("input_features", *shape)
            if "decoder_input_ids" in taken:
                yield with_words(batch, "decoder_input_ids")
            if "input_ids" in taken:
                yield with_words(batch, "input_ids")
            yield batch
    if "input_values" in taken:
        for shape in ((2, 2000), (2, 1, 2000), (2, _one(_of(config, "max_length", default=64)), bins), (2, 24, bins)):
            yield seen("input_values", *shape)
            yield with_words(seen("input_values", *shape), "decoder_input_ids")
    if "input_ids" in taken:
        for labels in (True, False):
            yield text(8, labels, True)
            yield text(8, labels, False)
        yield text(16, False, False)
        yield lambda i: {**text(8, True, False)(i), "bbox": some(i, 8)[..., None].expand(2, 8, 4).sort()[0] % 60}
        yield lambda i: {"input_ids": some(i, 8)[:1], "attention_mask": torch.ones(1, 8, dtype=torch.long)}
        if "pixel_values" in taken and "bbox" in taken:
            yield lambda i: {
                "input_ids": some(i, 8),
                "bbox": torch.ones(2, 8, 4, dtype=torch.long) * 3,
                "pixel_values": noise(i, 2, channels, size, size),
            }
    if "past_values" in taken:
        for n in (_one(_of(config, "context_length", default=32)), 32, 64):
            inputs_n = _one(_of(config, "num_input_channels", default=1))
            yield lambda i, n=n, k=inputs_n: {"past_values": noise(i, 2, n, k)}
            yield lambda i, n=n: {"past_values": noise(i, 2, n)}
    if "hidden_states" in taken:
        width = _one(_of(config, "hidden_size", "d_model", "embed_dim", default=WIDTH))
        patch = _one(_of(config, "patch_size", default=8))
        time = _one(_of(config, "temporal_patch_size", default=1))
        grid = torch.tensor([[1, 4, 4]])
        for w in (channels * time * patch * patch, width):
            if "grid_thw" in taken:
                yield lambda i, w=w: {"hidden_states": noise(i, 16, w), "grid_thw": grid}
        yield seen("hidden_states", 2, 8, width)
    for name in ("inputs_embeds", "query_embeds", "spectrogram", "audio_values", "inputs"):
        if name in taken:
            width = _one(_of(config, "hidden_size", "d_model", "model_in_dim", default=WIDTH))
            yield seen(name, 2, 8, width)
            yield seen(name, 2, width, 8)


# --- the search --------------------------------------------------------------------------------------

#: Mappings of transformers, by name, in the order in which a class is looked for; `-` is that of all models.
_TASKS = (
    "CAUSAL_LM SEQ_TO_SEQ_CAUSAL_LM MASKED_LM IMAGE_CLASSIFICATION - CTC SPEECH_SEQ_2_SEQ AUDIO_CLASSIFICATION "
    "PRETRAINING IMAGE_TEXT_TO_TEXT MULTIMODAL_LM DEPTH_ESTIMATION SEMANTIC_SEGMENTATION OBJECT_DETECTION BACKBONE "
    "IMAGE TEXT_ENCODING TIME_SERIES_PREDICTION VIDEO_CLASSIFICATION IMAGE_TO_IMAGE AUDIO_TOKENIZATION "
    "SEQUENCE_CLASSIFICATION UNIVERSAL_SEGMENTATION KEYPOINT_DETECTION MASK_GENERATION TEXT_TO_WAVEFORM "
    "TEXT_TO_SPECTROGRAM ZERO_SHOT_IMAGE_CLASSIFICATION ZERO_SHOT_OBJECT_DETECTION IMAGE_MATTING POSE_ESTIMATION"
).split()


def architectures() -> list[str]:
    """Every architecture of transformers, by the name of its configuration."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

    return sorted(CONFIG_MAPPING_NAMES)


def _classes(name: str) -> Iterator[Any]:
    import transformers
    from transformers.models.auto import modeling_auto

    for task in _TASKS:
        table = f"MODEL_FOR_{task}_MAPPING_NAMES" if task != "-" else "MODEL_MAPPING_NAMES"
        there = getattr(modeling_auto, table, None) or getattr(modeling_auto, table.replace("_MAPPING", ""), {})
        found = there.get(name)
        for one in found if isinstance(found, (list, tuple)) else [found]:
            made = getattr(transformers, one, None) if one else None
            if made is not None:
                yield made


def search(name: str) -> tuple[Callable[[], Any], Callable[[int], dict[str, Any]]]:
    """A tiny model of an architecture that torch can train, and its inputs."""
    from transformers import CONFIG_MAPPING

    reasons: dict[str, None] = {}
    kind = CONFIG_MAPPING[name]
    few = {n for k in ("layers", "words", "positions", "experts", "chosen") for n in _NAMES[k]} | {"image_size"}
    classes = list(dict.fromkeys(_classes(name)))
    if not classes:
        raise NotBuilt("no class of a model")
    for only in (None, few):
        try:
            config = kind(**tiny(kind, OVERRIDES.get(name), only))
        except Exception as e:
            reasons.setdefault(_short(e))
            continue
        for cls in classes:
            with contextlib.suppress(Exception), torch.device("meta"):
                count = sum(p.numel() for p in cls(config).parameters())
                if count > 12e6:
                    reasons.setdefault(f"{count / 1e6:.0f} million parameters")
                    continue
            try:
                make = _maker(cls, config)
                model = make()
            except Exception as e:
                reasons.setdefault(_short(e))
                continue
            for batch in inputs(model, config):
                try:
                    if _trains(model, batch(0)):
                        return make, batch
                    reasons.setdefault("no gradient")
                except Exception as e:
                    reasons.setdefault(_short(e))
    raise NotBuilt("; ".join(reasons)[:300])


def _maker(cls: Any, config: Any) -> Callable[[], Any]:
    def make() -> Any:
        torch.manual_seed(0)
        return cls(config).float().train()

    return make


def _trains(model: Any, batch: dict[str, Any]) -> bool:
    model = without_dropout(model)
    loss = first_loss(model(**batch))
    if not loss.requires_grad or not bool(torch.isfinite(loss)):
        return False
    loss.backward()
    model.zero_grad()
    return True


def _short(e: Exception) -> str:
    return f"{type(e).__name__}: {str(e).strip().splitlines()[0] if str(e).strip() else ''}"[:120]
