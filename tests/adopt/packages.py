"""Models of public packages besides transformers, at small examples. Each function returns its cases by name: a
function that makes the model, and a function of a step's number that gives its arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

Batch = Callable[[int], dict[str, Any]]
Case = tuple[Callable[[], Any], Batch]
Cases = dict[str, Case]


def seeded(i: int) -> torch.Generator:
    return torch.Generator().manual_seed(i)


def noise(*shape: int, name: str = "input", **more: Any) -> Batch:
    return lambda i: {name: torch.randn(*shape, generator=seeded(i)), **more}


def words(*shape: int, below: int = 60, name: str = "input") -> Batch:
    return lambda i: {name: torch.randint(3, below, shape, generator=seeded(i))}


def called(make: Callable[..., Any], *args: Any, **named: Any) -> Callable[[], Any]:
    """What makes a model that takes its input by position."""
    return lambda: Called(make(*args, **named))


class Called(torch.nn.Module):  # type: ignore[misc]  # torch is Any to the type checker
    """A model that takes its input by position, or a function with parameters."""

    def __init__(self, model: Any, call: Any = None) -> None:
        super().__init__()
        self.model, self.call = model, call or (lambda model, input: model(input))

    def forward(self, input: Any) -> Any:
        return self.call(self.model, input)


def import_torchvision() -> Any:
    """torchvision; its library needs the torch that it was built with, and is left out with another one."""
    try:
        import torchvision
    except RuntimeError:
        for name in [n for n in sys.modules if n.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        import torchvision
    return torchvision


# --- pictures ----------------------------------------------------------------------------------------

#: Families of timm; the smallest model of each is taken.
TIMM = (
    "bat_resnext26ts beit_base_patch16_224 botnet26t_256 caformer_s18 cait_xxs24_224 coat_tiny "
    "coatnet_nano_rw_224 convit_tiny convmixer_768_32 convnext_atto crossvit_tiny_240 cspresnet50 darknet17 "
    "davit_tiny deit_tiny_patch16_224 densenet121 dla34 dm_nfnet_f0 dpn48b eca_botnext26ts_256 edgenext_xx_small "
    "efficientformer_l1 efficientnet_b0 efficientvit_b0 efficientvit_m0 eva02_tiny_patch14_224 fasternet_t0 "
    "fastvit_t8 fbnetc_100 focalnet_tiny_srf gcresnext26ts gcvit_xxtiny gernet_s ghostnet_050 ghostnetv2_100 "
    "haloregnetz_b halonet26t hardcorenas_a hgnet_tiny hgnetv2_b0 hiera_tiny_224 hrnet_w18_small "
    "inception_next_atto inception_v3 lambda_resnet26t lcnet_035 legacy_seresnet18 levit_128s mambaout_femto "
    "maxvit_nano_rw_256 maxxvit_rmlp_nano_rw_256 mixer_s32_224 mixnet_s mnasnet_050 mobilenet_edgetpu_100 "
    "mobilenetv1_100 mobilenetv2_035 mobilenetv3_small_050 mobilenetv4_conv_small_035 mobileone_s0 mobilevit_xxs "
    "mobilevitv2_050 mvitv2_tiny nest_tiny nextvit_small nf_resnet26 pit_ti_224 poolformer_s12 pvt_v2_b0 "
    "regnetx_002 regnety_002 regnetz_005 repghostnet_050 repvgg_a0 repvit_m0_9 res2net50_14w_8s resmlp_12_224 "
    "resnest14d resnet10t resnet18 resnetv2_18 resnext26ts rexnet_100 rexnetr_100 samvit_base_patch16 "
    "sebotnet33ts_256 selecsls42 semnasnet_050 sequencer2d_s seresnet18 shvit_s1 skresnet18 spnasnet_100 "
    "starnet_s1 swiftformer_xs swin_tiny_patch4_window7_224 swinv2_cr_tiny_224 swinv2_tiny_window8_256 "
    "test_byobnet test_convnext test_efficientnet test_mambaout test_nfnet test_resnet test_vit test_vit2 "
    "tf_efficientnetv2_b0 tiny_vit_5m_224 tinynet_e tiny_vit_11m_224 tresnet_m twins_pcpvt_small vgg11 "
    "visformer_tiny vit_tiny_patch16_224 volo_d1_224 vovnet39a wide_resnet50_2 xception41 xcit_nano_12_p16_224 "
).split()


def of_timm() -> Cases:
    import_torchvision()
    import timm

    def picture(name: str) -> Batch:
        config = timm.get_pretrained_cfg(name)
        side = config.input_size[-1] if config is not None and config.fixed_input_size else 64
        return noise(2, 3, side, side)

    known = set(timm.list_models())
    return {n: (called(timm.create_model, n, num_classes=3), picture(n)) for n in TIMM if n in known}


#: Models of torchvision that take a picture of 64 x 64 pixels and have no other settings.
TORCHVISION = (
    "alexnet convnext_tiny densenet121 efficientnet_b0 efficientnet_v2_s mnasnet0_5 mobilenet_v2 mobilenet_v3_small "
    "regnet_x_400mf regnet_y_400mf resnet18 resnext50_32x4d shufflenet_v2_x0_5 squeezenet1_0 squeezenet1_1 vgg11_bn "
    "swin_t swin_v2_t"
).split()


def of_torchvision() -> Cases:
    models = import_torchvision().models

    def case(name: str, side: int = 64, **settings: Any) -> Case:
        make = called(models.get_model, name, weights=None, num_classes=3, **settings)
        return make, noise(2, 3, side, side)

    plain, whole = {"aux_logits": False, "init_weights": False}, {"weights_backbone": None, "aux_loss": False}
    return {name: case(name) for name in TORCHVISION} | {
        "maxvit_t": case("maxvit_t", 224),
        "vit_b_16": case("vit_b_16", 32, image_size=32),
        "googlenet": case("googlenet", **plain),
        "inception_v3": case("inception_v3", 96, **plain),
        "fcn_resnet50": case("fcn_resnet50", **whole),
        "deeplabv3_mobilenet_v3_large": case("deeplabv3_mobilenet_v3_large", **whole),
        "lraspp_mobilenet_v3_large": case("lraspp_mobilenet_v3_large", weights_backbone=None),
        "r3d_18": (called(models.video.r3d_18, num_classes=3), noise(1, 3, 4, 32, 32)),
    }


def of_diffusers() -> Cases:
    import_torchvision()
    import diffusers

    def blocks(dims: str, *down: str) -> dict[str, Any]:
        """Settings for blocks of these kinds on the way down, and of the same in reverse on the way up."""
        ways = {"down": down, "up": down[::-1]}
        return {f"{way}_block_types": tuple(k.format(way.title()) + dims for k in of) for way, of in ways.items()}

    unet = {"block_out_channels": (16, 32), "layers_per_block": 1, "norm_num_groups": 8, "sample_size": 16}
    latent = unet | {"in_channels": 4, "out_channels": 4, "cross_attention_dim": 24, "attention_head_dim": 4}
    vae = {"down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}
    vae |= {"block_out_channels": (8, 16), "norm_num_groups": 4}
    heads = {"num_attention_heads": 2, "attention_head_dim": 8}
    patches = heads | {"in_channels": 4, "num_layers": 2, "sample_size": 8, "patch_size": 2}
    conditional = blocks("2D", "{}Block", "CrossAttn{}Block")
    control = {k: v for k, v in latent.items() if k not in ("sample_size", "out_channels")}
    control["down_block_types"] = conditional["down_block_types"]

    words = torch.linspace(-1, 1, 2 * 5 * 24).reshape(2, 5, 24)
    timed = {"timestep": torch.tensor([3, 7])}
    crossed = timed | {"encoder_hidden_states": words}
    picture, sample = noise(2, 3, 16, 16, name="sample"), partial(noise, name="sample")
    hidden = partial(noise, name="hidden_states")

    cases: dict[str, tuple[dict[str, Any], Batch]] = {
        "UNet2DModel": (unet | blocks("2D", "{}Block", "Attn{}Block"), sample(2, 3, 16, 16, **timed)),
        "UNet2DConditionModel": (latent | conditional, sample(2, 4, 16, 16, **crossed)),
        "UNet1DModel": (
            blocks("1D", "{}Block", "{}Block")
            | {"sample_size": 32, "block_out_channels": (8, 16), "mid_block_type": "UNetMidBlock1D"}
            | {"in_channels": 2, "out_channels": 2, "extra_in_channels": 16, "time_embedding_type": "fourier"}
            | {"use_timestep_embedding": False, "norm_num_groups": 4, "layers_per_block": 1},
            sample(2, 2, 64, **timed),
        ),
        "AutoencoderKL": (vae, picture),
        "VQModel": (vae | {"num_vq_embeddings": 12}, picture),
        "AutoencoderTiny": (
            {f"{side}_block_out_channels": (8, 8) for side in ("encoder", "decoder")}
            | {f"num_{side}_blocks": (1, 1) for side in ("encoder", "decoder")},
            picture,
        ),
        "Transformer2DModel": (
            heads | {"in_channels": 8, "num_layers": 1, "norm_num_groups": 4, "cross_attention_dim": 24},
            hidden(2, 8, 8, 8, encoder_hidden_states=words),
        ),
        "DiTTransformer2DModel": (
            patches | {"norm_num_groups": 4, "num_embeds_ada_norm": 10},
            hidden(2, 4, 8, 8, **timed, class_labels=torch.tensor([1, 2])),
        ),
        "PixArtTransformer2DModel": (
            patches | {"cross_attention_dim": 16, "caption_channels": 24},
            hidden(2, 4, 8, 8, **crossed, added_cond_kwargs={"resolution": None, "aspect_ratio": None}),
        ),
        "PriorTransformer": (
            heads | {"num_layers": 2, "embedding_dim": 16, "num_embeddings": 5, "additional_embeddings": 4},
            hidden(
                2, 16, **timed, proj_embedding=torch.ones(2, 16),
                encoder_hidden_states=torch.linspace(0, 1, 160).reshape(2, 5, 16),
            ),
        ),
        "SD3Transformer2DModel": (
            patches
            | {"joint_attention_dim": 24, "caption_projection_dim": 16, "pooled_projection_dim": 12, "out_channels": 4},
            hidden(2, 4, 8, 8, **crossed, pooled_projections=torch.ones(2, 12)),
        ),
        "ControlNetModel": (
            control | {"conditioning_embedding_out_channels": (8, 16)},
            sample(2, 4, 16, 16, **crossed, controlnet_cond=torch.ones(2, 3, 32, 32)),
        ),
        "UNet3DConditionModel": (
            latent | blocks("3D", "CrossAttn{}Block", "{}Block"),
            sample(1, 4, 2, 16, 16, timestep=torch.tensor([3]), encoder_hidden_states=words[:1]),
        ),
    }  # fmt: skip
    return {n: (partial(getattr(diffusers, n), **settings), batch) for n, (settings, batch) in cases.items()}


# --- sequences ---------------------------------------------------------------------------------------


def of_x_transformers() -> Cases:
    import x_transformers as x

    def decoder(**more: Any) -> Any:
        layers = x.Decoder(dim=32, depth=2, heads=4, attn_dim_head=8, **more)
        return x.AutoregressiveWrapper(x.TransformerWrapper(num_tokens=64, max_seq_len=32, attn_layers=layers))

    def encoder(wrapper: str, **settings: Any) -> Callable[[], Any]:
        return called(lambda: getattr(x, wrapper)(attn_layers=x.Encoder(dim=32, depth=2, heads=4), **settings))

    def both() -> Any:
        sizes = {"num_tokens": 64, "depth": 1, "heads": 4, "max_seq_len": 16}
        model = x.XTransformer(dim=32, **{f"{side}_{k}": n for side in ("enc", "dec") for k, n in sizes.items()})
        return Called(model, lambda model, input: model(input, input.flip(1)))

    switches = (
        "rotary=rotary_pos_emb alibi=alibi_pos_bias rmsnorm=use_rmsnorm flash=attn_flash rel_pos=rel_pos_bias "
        "qk_norm=attn_qk_norm glu=ff_glu macaron=macaron sandwich=sandwich_norm gated=gate_residual "
        "gates=attn_gate_values relu=ff_relu_squared simple_rmsnorm=use_simple_rmsnorm scalenorm=use_scalenorm "
        "xpos=rotary_xpos dynamic_pos=dynamic_pos_bias post_ff=ff_post_act_ln heads_scale=attn_head_scale"
    )
    options: dict[str, dict[str, Any]] = {
        "": {},
        **{name: {switch: True} for name, switch in (pair.split("=") for pair in switches.split())},
        "swish": {"ff_swish": True, "ff_glu": True},
        "shift": {"shift_tokens": 1},
        "kv_heads": {"attn_kv_heads": 2},
        "talking": {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
        "memory": {"attn_num_mem_kv": 2},
        "sparse": {"attn_sparse_topk": 3},
    }
    return {f"Decoder {name}".strip(): (called(decoder, **more), words(2, 9)) for name, more in options.items()} | {
        "Encoder": (encoder("TransformerWrapper", num_tokens=64, max_seq_len=32), words(2, 9)),
        "ViT": (encoder("ViTransformerWrapper", image_size=16, patch_size=8, num_classes=3), noise(2, 3, 16, 16)),
        "Continuous": (encoder("ContinuousTransformerWrapper", dim_in=6, dim_out=6, max_seq_len=16), noise(2, 9, 6)),
        "XTransformer": (both, words(2, 9)),
    }


def of_einops() -> Cases:
    from einops import rearrange, reduce, repeat
    from einops.layers.torch import EinMix, Rearrange, Reduce

    def layers() -> Any:
        mix = EinMix("b t c -> b t d", weight_shape="c d", bias_shape="d", c=6, d=8)
        return torch.nn.Sequential(mix, Rearrange("b t (h d) -> b h t d", h=2), Reduce("b h t d -> b h d", "mean"))

    def functions(model: Any, x: Any) -> Any:
        y = rearrange(model(x), "b t (h d) -> (b h) t d", h=2)
        return reduce(repeat(y, "n t d -> n (t r) d", r=2), "n (t r) d -> n t d", "max", r=4)

    made = {"layers": called(layers), "functions": lambda: Called(torch.nn.Linear(6, 8), functions)}
    return {name: (make, noise(2, 4, 6)) for name, make in made.items()}


# --- others ------------------------------------------------------------------------------------------


def of_kornia() -> Cases:
    import kornia as k

    turn = torch.tensor([[[0.9, -0.2, 1.0], [0.2, 0.9, 0.5], [0.0, 0.0, 1.0]]]).expand(2, 3, 3)
    calls: dict[str, Any] = {
        "gaussian_blur2d": lambda x: k.filters.gaussian_blur2d(x, (5, 5), (1.5, 1.5)),
        "sobel": k.filters.sobel,
        "laplacian": lambda x: k.filters.laplacian(x, 3),
        "canny": lambda x: k.filters.canny(x.sigmoid())[0],
        "median_blur": lambda x: k.filters.median_blur(x, (3, 3)),
        "unsharp_mask": lambda x: k.filters.unsharp_mask(x, (3, 3), (1.5, 1.5)),
        "bilateral_blur": lambda x: k.filters.bilateral_blur(x, (3, 3), 0.1, (1.5, 1.5)),
        "spatial_gradient": k.filters.spatial_gradient,
        "box_blur": lambda x: k.filters.box_blur(x, (3, 3)),
        "warp_perspective": lambda x: k.geometry.transform.warp_perspective(x, turn.to(x.device), (16, 16)),
        "rotate": lambda x: k.geometry.transform.rotate(x, torch.tensor([30.0, 45.0])),
        "resize": lambda x: k.geometry.transform.resize(x, (8, 8)),
        "pyrdown": k.geometry.transform.pyrdown,
        "rgb_to_hsv": lambda x: k.color.rgb_to_hsv(x.sigmoid()),
        "rgb_to_lab": lambda x: k.color.rgb_to_lab(x.sigmoid()),
        "rgb_to_grayscale": k.color.rgb_to_grayscale,
        "rgb_to_yuv": k.color.rgb_to_yuv,
        "ssim": lambda x: k.metrics.ssim(x, x.flip(3), 5),
        "ssim_loss": lambda x: k.losses.ssim_loss(x, x.flip(3), 5),
        "total_variation": k.losses.total_variation,
        "psnr": lambda x: k.losses.psnr_loss(x, x.flip(3), 1.0),
        "harris": k.feature.harris_response,
        "gftt": k.feature.gftt_response,
        "dilation": lambda x: k.morphology.dilation(x, torch.ones(3, 3)),
        "closing": lambda x: k.morphology.closing(x, torch.ones(3, 3)),
        "equalize_hist": lambda x: k.enhance.normalize_min_max(x),
        "adjust_hue": lambda x: k.enhance.adjust_hue(x.sigmoid(), 0.3),
        "spatial_softmax": lambda x: k.geometry.subpix.spatial_soft_argmax2d(x),
        "dsnt": lambda x: k.geometry.subpix.conv_soft_argmax2d(x, (3, 3)),
    }

    def filtered(call: Any) -> Callable[[], Any]:
        """A filter, behind a layer so that there is something to train."""
        return lambda: Called(torch.nn.Conv2d(3, 3, 1), lambda m, x: call(m(x)))

    return {name: (filtered(call), noise(2, 3, 16, 16)) for name, call in calls.items()}


def of_torch_geometric() -> Cases:
    import torch_geometric.nn as g

    edges = torch.tensor([[0, 1, 2, 3, 4, 5, 1, 2], [1, 2, 3, 4, 5, 0, 0, 1]])
    batch = torch.tensor([0, 0, 0, 1, 1, 1])
    plain = "GCNConv GATv2Conv SAGEConv GraphConv TransformerConv TAGConv ARMAConv LEConv ClusterGCNConv GENConv"
    plain += " FeaStConv SuperGATConv"
    layers: dict[str, Any] = {name: partial(getattr(g, name), 6, 4) for name in plain.split()}
    layers |= {name: partial(getattr(g, name), 6, 8, 2, 4) for name in ("GCN", "GAT", "GraphSAGE", "GIN")}
    layers |= {
        "GATConv": lambda: g.GATConv(6, 4, heads=2),
        "ChebConv": lambda: g.ChebConv(6, 4, K=2),
        "SGConv": lambda: g.SGConv(6, 4, K=2),
        "GINConv": lambda: g.GINConv(torch.nn.Linear(6, 4)),
        "GatedGraphConv": lambda: g.GatedGraphConv(6, 2),
        "EdgeConv": lambda: g.EdgeConv(torch.nn.Linear(12, 4)),
        "PNA": lambda: g.PNA(
            6, 8, 2, 4, aggregators=["mean", "max"], scalers=["identity"], deg=torch.tensor([0, 4, 2])
        ),
    }

    def layer(make: Any) -> Case:
        return lambda: Called(make(), lambda m, x: m(x, edges)), noise(6, 6)

    def pool(call: Any) -> Case:
        return lambda: Called(torch.nn.Linear(6, 4), lambda m, x: call(m(x), batch)), noise(6, 6)

    pools = [f"global_{kind}_pool" for kind in ("mean", "max", "add")]
    return {n: layer(make) for n, make in layers.items()} | {n: pool(getattr(g, n)) for n in pools}


#: Metrics of two tensors of floats, and of predicted and true classes.
OF_FLOATS = (
    "mean_squared_error mean_absolute_error pearson_corrcoef cosine_similarity r2_score explained_variance "
    "concordance_corrcoef mean_squared_log_error"
).split()
OF_CLASSES = (
    "accuracy f1_score precision recall confusion_matrix auroc average_precision specificity jaccard_index "
    "cohen_kappa matthews_corrcoef calibration_error"
).split()


def of_torchmetrics() -> Cases:
    import torchmetrics.functional as metrics

    def floats(name: str) -> Callable[[], Any]:
        def run(model: Any, x: Any) -> Any:
            a, b = model(x), x[:, :5].contiguous()
            if name == "mean_squared_log_error":
                a, b = a.exp(), b.exp()
            return getattr(metrics, name)(a, b)

        return lambda: Called(torch.nn.Linear(6, 5), run)

    def classes(name: str) -> Callable[[], Any]:
        """A metric of predictions; what is trained is beside it, because it has no gradient."""

        def run(model: Any, x: Any) -> Any:
            y, true = model(x), (x[:, 0] * 10).long().abs() % 5
            found = getattr(metrics, name)(y.detach().softmax(1), true, task="multiclass", num_classes=5)
            return y.mean() + found.float().mean()

        return lambda: Called(torch.nn.Linear(6, 5), run)

    made = {name: floats(name) for name in OF_FLOATS} | {name: classes(name) for name in OF_CLASSES}
    return {name: (make, noise(8, 6)) for name, make in made.items()}


def of_gpytorch() -> Cases:
    import gpytorch as g

    class Process(g.models.ExactGP):  # type: ignore[misc]  # it is Any to the type checker
        def __init__(self, x: Any, y: Any, kernel: Any) -> None:
            super().__init__(x, y, g.likelihoods.GaussianLikelihood())
            self.mean_module, self.covar_module = g.means.ConstantMean(), kernel

        def forward(self, x: Any) -> Any:
            return g.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    class Fit(torch.nn.Module):  # type: ignore[misc]  # likewise
        def __init__(self, kernel: Any) -> None:
            super().__init__()
            x = torch.linspace(0, 1, 12)
            self.process = Process(x, torch.sin(6 * x), g.kernels.ScaleKernel(kernel))
            self.marginal = g.mlls.ExactMarginalLogLikelihood(self.process.likelihood, self.process)

        def forward(self, input: Any) -> Any:
            return -self.marginal(
                self.process(self.process.train_inputs[0]), self.process.train_targets + 0 * input.sum()
            )

    def fit(kernel: str) -> Callable[[], Any]:
        return lambda: Fit(getattr(g.kernels, f"{kernel}Kernel")())

    return {kernel: (fit(kernel), noise(2)) for kernel in "RBF Matern Periodic Linear RQ Cosine".split()}


def of_torchdiffeq() -> Cases:
    import torchdiffeq as t

    class Field(torch.nn.Module):  # type: ignore[misc]  # torch is Any to the type checker
        def __init__(self) -> None:
            super().__init__()
            self.net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

        def forward(self, time: Any, y: Any) -> Any:
            return self.net(y**3)

    def solved(solve: Any, method: str) -> Case:
        return lambda: Called(Field(), lambda m, x: solve(m, x, torch.linspace(0, 1, 5), method=method)), noise(3, 2)

    methods = "euler midpoint rk4 dopri5 bosh3 fehlberg2 adaptive_heun explicit_adams implicit_adams".split()
    adjoint = {f"{method} adjoint": solved(t.odeint_adjoint, method) for method in ("rk4", "dopri5")}
    return {method: solved(t.odeint, method) for method in methods} | adjoint


PACKAGES: dict[str, Callable[[], Cases]] = {
    "timm": of_timm,
    "torchvision": of_torchvision,
    "diffusers": of_diffusers,
    "x_transformers": of_x_transformers,
    "einops": of_einops,
    "kornia": of_kornia,
    "torch_geometric": of_torch_geometric,
    "torchmetrics": of_torchmetrics,
    "gpytorch": of_gpytorch,
    "torchdiffeq": of_torchdiffeq,
}
