"""Networks for pictures and sound: ResNet, ViT, MLP-Mixer, a VAE, a DCGAN, convolutions over samples of sound.

The same text serves torch and gt; see zoo.py. Random numbers that a network draws in training come with the batch, so
that both libraries train with the same ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from zoo import Arrays, Data

# --- classifiers -------------------------------------------------------------------------------------


def resnet18(lib: Any, width: int, classes: int = 10) -> Any:
    """ResNet-18 as it is built for CIFAR: the first convolution has 3x3 and no pool behind it."""
    nn, F = lib.nn, lib.nn.functional

    class BasicBlock(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self, before: int, after: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(after)
            self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(after)
            self.shortcut = nn.Sequential()
            if stride != 1 or before != after:
                self.shortcut = nn.Sequential(
                    nn.Conv2d(before, after, 1, stride=stride, bias=False), nn.BatchNorm2d(after)
                )

        def forward(self, x: Any) -> Any:
            out = F.relu(self.bn1(self.conv1(x)))
            out = self.bn2(self.conv2(out))
            out += self.shortcut(x)
            return F.relu(out)

    class ResNet(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            blocks, before = [], width
            for k, after in enumerate((width, 2 * width, 4 * width, 8 * width)):
                for stride in (1 if k == 0 else 2, 1):
                    blocks.append(BasicBlock(before, after, stride))
                    before = after
            self.blocks = nn.Sequential(*blocks)
            self.linear = nn.Linear(before, classes)

        def forward(self, x: Any) -> Any:
            out = F.relu(self.bn1(self.conv1(x)))
            out = self.blocks(out)  # (B, 8 width, S/8, S/8)
            out = F.adaptive_avg_pool2d(out, 1).flatten(1)
            return self.linear(out)

    return ResNet()


def vit(lib: Any, layers: int, width: int, heads: int, size: int, patch: int, classes: int = 10) -> Any:
    """A vision transformer: patches by a convolution, a class token, q, k and v of one layer."""
    nn, F = lib.nn, lib.nn.functional
    patches = (size // patch) ** 2

    class Attention(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width)
            self.proj = nn.Linear(width, width)

        def forward(self, x: Any) -> Any:
            B, N, C = x.shape
            qkv = self.qkv(x).reshape(B, N, 3, heads, C // heads).permute(2, 0, 3, 1, 4)  # (3, B, heads, N, C/heads)
            q, k, v = qkv.unbind(0)
            x = F.scaled_dot_product_attention(q, k, v)
            return self.proj(x.transpose(1, 2).reshape(B, N, C))

    class Block(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.norm1 = nn.LayerNorm(width)
            self.attn = Attention()
            self.norm2 = nn.LayerNorm(width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: Any) -> Any:
            x = x + self.attn(self.norm1(x))
            return x + self.mlp(self.norm2(x))

    class ViT(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, width, kernel_size=patch, stride=patch)
            self.cls_token = nn.Parameter(lib.zeros(1, 1, width))
            self.positions = nn.Parameter(lib.zeros(1, patches + 1, width))
            self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
            self.norm = nn.LayerNorm(width)
            self.head = nn.Linear(width, classes)

        def forward(self, x: Any) -> Any:
            x = self.patch(x).flatten(2).transpose(1, 2)  # (B, patches, width)
            x = lib.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1)
            x = self.blocks(x + self.positions)
            return self.head(self.norm(x)[:, 0])

    return ViT()


def mixer(lib: Any, layers: int, width: int, size: int, patch: int, classes: int = 10) -> Any:
    """An MLP-Mixer: layers over the patches and layers over the channels, in turn."""
    nn = lib.nn
    patches = (size // patch) ** 2

    def mlp(features: int, hidden: int) -> Any:
        return nn.Sequential(nn.Linear(features, hidden), nn.GELU(), nn.Linear(hidden, features))

    class Block(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.tokens, self.channels = mlp(patches, width // 2), mlp(width, 4 * width)

        def forward(self, x: Any) -> Any:
            x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
            return x + self.channels(self.norm2(x))

    class Mixer(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.patch = nn.Conv2d(3, width, patch, stride=patch)
            self.blocks = nn.Sequential(*[Block() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

        def forward(self, x: Any) -> Any:
            x = self.patch(x).flatten(2).transpose(1, 2)  # (B, patches, width)
            return self.head(self.norm(self.blocks(x)).mean(dim=1))

    return Mixer()


def audio(lib: Any, width: int, classes: int = 35) -> Any:
    """Convolutions over the samples of a sound, as for spoken commands: (B, 1, samples) to classes."""
    nn, F = lib.nn, lib.nn.functional

    class M5(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.bn1 = nn.Conv1d(1, width, kernel_size=80, stride=16), nn.BatchNorm1d(width)
            self.conv2, self.bn2 = nn.Conv1d(width, width, kernel_size=3), nn.BatchNorm1d(width)
            self.conv3, self.bn3 = nn.Conv1d(width, 2 * width, kernel_size=3), nn.BatchNorm1d(2 * width)
            self.conv4, self.bn4 = nn.Conv1d(2 * width, 2 * width, kernel_size=3), nn.BatchNorm1d(2 * width)
            self.pool = nn.MaxPool1d(4)
            self.fc1 = nn.Linear(2 * width, classes)

        def forward(self, x: Any) -> Any:
            x = self.pool(F.relu(self.bn1(self.conv1(x))))
            x = self.pool(F.relu(self.bn2(self.conv2(x))))
            x = self.pool(F.relu(self.bn3(self.conv3(x))))
            x = F.relu(self.bn4(self.conv4(x)))
            x = F.avg_pool1d(x, x.shape[-1]).permute(0, 2, 1)  # (B, 1, 2 width)
            return F.log_softmax(self.fc1(x), dim=2)

    return M5()


def negative_log_likelihood(lib: Any, network: Any, x: Any, y: Any) -> Any:
    return lib.nn.functional.nll_loss(network(x).squeeze(1), y)


# --- a variational autoencoder -----------------------------------------------------------------------


def vae(lib: Any, pixels: int, hidden: int, latent: int) -> Any:
    nn, F = lib.nn, lib.nn.functional

    class VAE(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.fc1 = nn.Linear(pixels, hidden)
            self.fc21, self.fc22 = nn.Linear(hidden, latent), nn.Linear(hidden, latent)
            self.fc3, self.fc4 = nn.Linear(latent, hidden), nn.Linear(hidden, pixels)

        def forward(self, x: Any, noise: Any) -> tuple[Any, Any, Any]:
            h = F.relu(self.fc1(x.view(-1, pixels)))
            mu, logvar = self.fc21(h), self.fc22(h)
            z = mu + noise * lib.exp(0.5 * logvar)
            return lib.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar

    return VAE()


def pixels_and_noise(pixels: int, latent: int) -> Data:
    """Pictures with pixels between 0 and 1, and the noise that the decoder's input gets."""

    def data(rng: np.random.Generator, rows: int) -> Arrays:
        noise = rng.standard_normal((rows, latent), np.float32)
        return rng.random((rows, pixels), np.float32), noise

    return data


def evidence(lib: Any, network: Any, x: Any, noise: Any) -> Any:
    recon, mu, logvar = network(x, noise)
    bce = lib.nn.functional.binary_cross_entropy(recon, x, reduction="sum")
    kld = -0.5 * lib.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return (bce + kld) / x.shape[0]


# --- a DCGAN -----------------------------------------------------------------------------------------


def dcgan(lib: Any, width: int, latent: int, channels: int = 3) -> Any:
    """`.generator` makes pictures of 32x32 of noise; `.discriminator` tells them from real ones, as a logit."""
    nn = lib.nn

    def up(before: int, after: int, *shape: int) -> list[Any]:
        return [nn.ConvTranspose2d(before, after, *shape, bias=False), nn.BatchNorm2d(after), nn.ReLU(True)]

    def down(before: int, after: int) -> list[Any]:
        conv = nn.Conv2d(before, after, 4, 2, 1, bias=False)
        return [conv, nn.BatchNorm2d(after), nn.LeakyReLU(0.2, inplace=True)]

    class DCGAN(nn.Module):  # type: ignore[misc]  # nn is torch's or GT's: Any
        def __init__(self) -> None:
            super().__init__()
            self.generator = nn.Sequential(
                *up(latent, 4 * width, 4, 1, 0),  # 4x4
                *up(4 * width, 2 * width, 4, 2, 1),  # 8x8
                *up(2 * width, width, 4, 2, 1),  # 16x16
                nn.ConvTranspose2d(width, channels, 4, 2, 1, bias=False),
                nn.Tanh(),
            )
            self.discriminator = nn.Sequential(
                nn.Conv2d(channels, width, 4, 2, 1, bias=False),
                nn.LeakyReLU(0.2, inplace=True),
                *down(width, 2 * width),
                *down(2 * width, 4 * width),
                nn.Conv2d(4 * width, 1, 4, 1, 0, bias=False),
            )

    return DCGAN()


def pictures_and_noise(channels: int, size: int, latent: int) -> Data:
    """Pictures with pixels between -1 and 1, and noise for the generator."""

    def data(rng: np.random.Generator, rows: int) -> Arrays:
        x = rng.random((rows, channels, size, size), np.float32) * np.float32(2) - np.float32(1)
        return x, rng.standard_normal((rows, latent, 1, 1), np.float32)

    return data
