"""Public models by torch and adopted, as a table: `python -m tests.adopt [part of a name]`; `make adopt` installs them.

Models are tiny and randomly initialized; nothing is downloaded.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("GT_AUTO_COMPILE", "0")

import torch

from .compare import compare

Case = tuple[str, Any, Any]

#: What a decoder or encoder of transformers is made of, as most of them call it.
SMALL = {
    "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}
#: Decoders, with the settings that differ.
DECODERS: dict[str, dict[str, Any]] = {
    "Llama": {"num_key_value_heads": 2}, "Mistral": {"num_key_value_heads": 2}, "Qwen2": {"num_key_value_heads": 2},
    "Qwen3": {"num_key_value_heads": 2, "head_dim": 8}, "Gemma": {"num_key_value_heads": 2, "head_dim": 8},
    "Gemma2": {"num_key_value_heads": 2, "head_dim": 8}, "Phi": {}, "Phi3": {"num_key_value_heads": 2}, "Olmo": {},
    "Olmo2": {}, "Cohere": {}, "GPTNeoX": {}, "Starcoder2": {"num_key_value_heads": 2}, "Granite": {},
    "Glm": {"num_key_value_heads": 2, "head_dim": 8}, "Mixtral": {"num_key_value_heads": 2, "num_local_experts": 4},
    "Qwen2Moe": {"num_key_value_heads": 2, **EXPERTS},
}  # fmt: skip
ENCODERS: dict[str, dict[str, Any]] = {
    "Bert": {}, "Roberta": {}, "Electra": {}, "Albert": {"embedding_size": 16}, "DebertaV2": {}, "Deberta": {},
    "ModernBert": {"cls_token_id": 1, "sep_token_id": 2}, "ConvBert": {}, "MPNet": {}, "XLMRoberta": {},
    "RoFormer": {}, "Nystromformer": {}, "FNet": {}, "Longformer": {"attention_window": 4},
}  # fmt: skip


def words(i: int) -> dict[str, Any]:
    seeded = torch.Generator().manual_seed(i)
    return {name: torch.randint(3, 60, (2, 7), generator=seeded) for name in ("input_ids", "labels")}


def masked(i: int) -> dict[str, Any]:
    return {**words(i), "attention_mask": torch.tensor([[1] * 7, [0, 0] + [1] * 5])}


def pictures(size: int, name: str = "pixel_values", channels: int = 3, **more: Any) -> Any:
    return lambda i: {name: torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(i)), **more}


def of_transformers() -> Iterator[Case]:
    import transformers as t

    def built(config: str, model: str, settings: dict[str, Any]) -> Any:
        return lambda: getattr(t, model)(getattr(t, config)(**settings))

    for name, more in DECODERS.items():
        yield name, built(f"{name}Config", f"{name}ForCausalLM", SMALL | more), masked
    for name, more in ENCODERS.items():
        yield name, built(f"{name}Config", f"{name}ForMaskedLM", SMALL | more), words if name == "FNet" else masked
    gpt = {"vocab_size": 64, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    yield "GPT2", built("GPT2Config", "GPT2LMHeadModel", gpt), masked
    t5 = {"vocab_size": 64, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
    yield "T5", built("T5Config", "T5ForConditionalGeneration", t5 | {"decoder_start_token_id": 0}), words
    seen = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    seen |= {"image_size": 16, "patch_size": 8, "num_labels": 3}
    labels = {"labels": torch.tensor([0, 2])}
    yield "ViT", built("ViTConfig", "ViTForImageClassification", seen), pictures(16, **labels)
    yield "Dinov2", built("Dinov2Config", "Dinov2ForImageClassification", seen), pictures(16, **labels)
    mamba = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}
    yield "Mamba", built("MambaConfig", "MambaForCausalLM", mamba), words


class Called(torch.nn.Module):  # type: ignore[misc]  # torch is Any to the type checker
    """A model that takes its input by position."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input: Any) -> Any:
        return self.model(input)


def of_timm() -> Iterator[Case]:
    import timm

    for name in ("resnet18", "mobilenetv3_small_050", "test_vit", "test_convnext", "test_efficientnet", "lcnet_035"):
        size = timm.create_model(name).default_cfg["input_size"][-1] if "vit" in name else 64
        yield name, lambda name=name: Called(timm.create_model(name, num_classes=3)), pictures(size, "input")


def of_diffusers() -> Iterator[Case]:
    import diffusers as d

    blocks = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8, "sample_size": 16}
    down, up = ("DownBlock2D", "AttnDownBlock2D"), ("AttnUpBlock2D", "UpBlock2D")
    unet = blocks | {"down_block_types": down, "up_block_types": up}
    yield "UNet2D", lambda: d.UNet2DModel(**unet), pictures(16, "sample", timestep=torch.tensor([3, 7]))
    vae = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    vae |= {"block_out_channels": (8, 16), "norm_num_groups": 4}
    yield "AutoencoderKL", lambda: d.AutoencoderKL(**vae), pictures(16, "sample")


def of_x_transformers() -> Iterator[Case]:
    import x_transformers as x

    for name in ("", "rotary_pos_emb", "alibi_pos_bias", "use_rmsnorm", "attn_flash", "rel_pos_bias", "attn_qk_norm"):

        def make(name: str = name) -> Any:
            layers = x.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **({name: True} if name else {}))
            return Called(
                x.AutoregressiveWrapper(x.TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers))
            )

        yield f"Decoder {name}", make, lambda i: {"input": words(i)["input_ids"]}


PACKAGES = {
    "transformers": of_transformers, "timm": of_timm, "diffusers": of_diffusers, "x_transformers": of_x_transformers
}  # fmt: skip


def main(wanted: list[str]) -> int:
    """Compare them; returns 1 if fewer than 98 of 100 are equal."""
    warnings.simplefilter("ignore")
    equal = total = 0
    print(f"{'model':40} {'equal':6} {'calls':>5} {'programs':>8}  reason")
    for package, cases in PACKAGES.items():
        try:
            found = [*cases()]
        except ImportError as e:
            print(f"{package:40} {'-':6} {'':5} {'':8}  not installed: {e}")
            continue
        for name, make, batch in found:
            label = f"{package} {name}".strip()
            if wanted and not any(part.lower() in label.lower() for part in wanted):
                continue
            total += 1
            try:
                outcome = compare(make, batch, steps=4)
            except Exception as e:
                print(f"{label:40} {'no':6} {'':5} {'':8}  {type(e).__name__}: {str(e)[:150]}", flush=True)
                continue
            equal += outcome.equal
            calls, programs = outcome.steps[-1]
            reason = "" if outcome.equal else f"losses {outcome.losses}, gradients {outcome.worst:.1e}"
            print(f"{label:40} {'yes' if outcome.equal else 'no':6} {calls:5} {programs:8}  {reason}", flush=True)
    print(f"{equal} of {total} equal")
    return 0 if total and equal >= 0.98 * total else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
