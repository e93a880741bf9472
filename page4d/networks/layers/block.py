"""Patch embedding and pre-norm transformer blocks, with stochastic depth and weight initialization."""

from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from page4d.conventions import IMAGE_DEVIATION, IMAGE_MEAN
from page4d.errors import ImageSizeError
from page4d.io.json_records import config_record
from page4d.networks.layers.attention import Attention, Context, LogitsBias, Neighbours, RotaryTables
from page4d.networks.layers.execution import Epsilon, Ratio, Width, in_chunks

_SWIGLU_MULTIPLE = 8

INIT_STD = 0.02


class FeedForwardKind(StrEnum):
    """Nonlinearity of a feed-forward network."""

    MLP = "mlp"
    """Exact GELU."""

    SWIGLU = "swiglu"
    """SiLU of one projection of the tokens times a second projection."""


class FeedForward(nn.Module):
    """Two linear layers with an exact GELU between them."""

    def __init__(self, dim: int, hidden_dim: int, out_dim: int | None = None) -> None:
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, dim if out_dim is None else out_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform the last axis."""
        hidden: Tensor = self.fc1(tokens)
        # The widest tensor of a transformer: in place without gradient, so that it exists once.
        hidden = functional.gelu(hidden) if hidden.requires_grad else torch.ops.aten.gelu_(hidden)
        return self.fc2(hidden)


class SwiGLU(nn.Module):
    """SwiGLU: a linear layer of SiLU(gate) * value, with one projection for both factors.

    `hidden_dim` is the width of an MLP with as many parameters; the actual width is 2/3 of it, rounded up to a
    multiple of 8.

    Source: Shazeer (2020), "GLU variants improve transformer"; names and rounding of the public DINOv2 code, which
    uses it in its giant model.
    """

    def __init__(self, dim: int, hidden_dim: int) -> None:
        super().__init__()
        inner_dim = swiglu_width(hidden_dim)
        self.w12 = nn.Linear(dim, 2 * inner_dim)
        self.w3 = nn.Linear(inner_dim, dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """Transform the last axis."""
        gate, value = self.w12(tokens).chunk(2, dim=-1)
        return self.w3(functional.silu(gate) * value)


def swiglu_width(hidden_dim: int) -> int:
    """Return the width of a SwiGLU with as many parameters as an MLP of width `hidden_dim`."""
    return -(-(hidden_dim * 2 // 3) // _SWIGLU_MULTIPLE) * _SWIGLU_MULTIPLE


FEED_FORWARDS: dict[FeedForwardKind, type[FeedForward | SwiGLU]] = {
    FeedForwardKind.MLP: FeedForward,
    FeedForwardKind.SWIGLU: SwiGLU,
}


@config_record("blocks")
class BlockOptions:
    """Settings of blocks that configurations inherit, so that their JSON is flat."""

    num_heads: Width = 16
    mlp_ratio: Ratio = 4.0
    norm_eps: Epsilon = 1e-5
    layer_scale: float | None = 1.0


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """Architecture of a block; `qk_norm_eps` or `layer_scale` None leaves that part out."""

    dim: int
    num_heads: int
    mlp_ratio: float = 4.0
    feed_forward: FeedForwardKind = FeedForwardKind.MLP
    norm_eps: float = 1e-5
    qk_norm_eps: float | None = None
    layer_scale: float | None = None
    drop_path: float = 0.0

    @classmethod
    def of(cls, options: BlockOptions, dim: int, **others: Any) -> Self:
        """Return the block of `dim` channels with these options."""
        return cls(dim=dim, **{field.name: getattr(options, field.name) for field in fields(BlockOptions)}, **others)


class LayerScale(nn.Module):
    """One learned factor per channel."""

    def __init__(self, dim: int, initial: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), initial))

    def forward(self, tokens: Tensor) -> Tensor:
        """Scale the last axis."""
        return tokens * self.gamma


class DropPath(nn.Module):
    """Stochastic depth: drop a residual branch for random samples of a batch in training.

    Source: Huang et al. (2016), in the rescaled form.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, branch: Tensor) -> Tensor:
        """Return the branch, zero for dropped samples and scaled by 1 / (1 - probability) for the others."""
        if not self.training or self.probability == 0:
            return branch
        keep = 1 - self.probability
        kept = torch.rand(branch.shape[0], *(1,) * (branch.ndim - 1), device=branch.device) < keep
        return branch * kept / keep


class Block(nn.Module):
    """Attention and a feed-forward network, each with a pre-norm and a residual connection."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        dim, scale = config.dim, config.layer_scale
        self.norm1 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.attn = Attention(dim, config.num_heads, qk_norm_eps=config.qk_norm_eps)
        self.ls1 = nn.Identity() if scale is None else LayerScale(dim, scale)
        self.norm2 = nn.LayerNorm(dim, eps=config.norm_eps)
        self.mlp = FEED_FORWARDS[config.feed_forward](dim, int(dim * config.mlp_ratio))
        self.ls2 = nn.Identity() if scale is None else LayerScale(dim, scale)
        self.drop_path = DropPath(config.drop_path)

    def forward(
        self,
        tokens: Float[Tensor, "batch N C"],
        rope: RotaryTables | None = None,
        bias: LogitsBias | None = None,
        max_queries: int | None = None,
        *,
        context: Context | None = None,
        neighbours: Neighbours | None = None,
    ) -> Float[Tensor, "batch N C"]:
        """Transform the tokens; options go to the attention, a context is normalized like the tokens.

        `max_queries` also limits the number of tokens in the feed-forward network at once.
        """
        if context is not None:
            context = replace(context, tokens=self.norm1(context.tokens))
        mixed = self.attn(self.norm1(tokens), rope, bias, max_queries, context=context, neighbours=neighbours)
        tokens = tokens + self.drop_path(self.ls1(mixed))
        drops = self.training and self.drop_path.probability > 0  # drops whole samples, not single tokens
        at_once = None if drops else max_queries
        return in_chunks(lambda rows: self._feed_forward(tokens[:, rows]), tokens.shape[1], at_once, dim=1)

    def _feed_forward(self, tokens: Tensor) -> Tensor:
        return tokens + self.drop_path(self.ls2(self.mlp(self.norm2(tokens))))


class MixerBlock(nn.Module):
    """A pre-norm block around any token mixer, for tokens in a sequence or on a grid.

    Without `norm_bias` the norms have gains only.
    """

    def __init__(
        self,
        dim: int,
        mixer: nn.Module,
        *,
        hidden_dim: int,
        norm_eps: float = 1e-5,
        norm_bias: bool = True,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=norm_eps, bias=norm_bias)
        self.attn = mixer
        self.norm2 = nn.LayerNorm(dim, eps=norm_eps, bias=norm_bias)
        self.mlp = FeedForward(dim, hidden_dim)
        self.drop_path = DropPath(drop_path)

    def forward(self, tokens: Float[Tensor, "batch *N C"], **options: Any) -> Float[Tensor, "batch *N C"]:
        """Transform the tokens; options go to the mixer."""
        tokens = tokens + self.drop_path(self.attn(self.norm1(tokens), **options))
        return tokens + self.drop_path(self.mlp(self.norm2(tokens)))


def drop_path_rates(depth: int, largest: float) -> list[float]:
    """Return the `DropPath` probabilities of `depth` blocks: linear from 0 in the first to `largest` in the last.

    Source: Huang et al. (2016), eq. 4 counts from 1; from 0 as in Touvron et al. (2021), DeiT.
    """
    return [largest * layer / max(depth - 1, 1) for layer in range(depth)]


def initialise_linears(module: nn.Module) -> None:
    """Initialize every linear layer of `module`: truncated normal weights (std 0.02) and zero biases."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.trunc_normal_(part.weight, std=INIT_STD)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


def patch_grid(height: int, width: int, patch_size: int, patch_width: int | None = None) -> tuple[int, int]:
    """Return the number of rows and columns of patches of an image; `patch_width` defaults to `patch_size`.

    Raises:
        ImageSizeError: if a side is not a positive multiple of the side of a patch.
    """
    across = patch_width or patch_size
    if height % patch_size or width % across or height < patch_size or width < across:
        square = across == patch_size
        raise ImageSizeError(
            f"images of {width} x {height} px do not divide into patches of "
            + (f"{patch_size} px" if square else f"{across} x {patch_size} px"),
            f"resize both sides to multiples of {patch_size}" if square else "resize both sides to multiples",
        )
    return height // patch_size, width // across


def cut_patches(
    maps: Float[Tensor, "F rows columns C"], patch: tuple[int, int]
) -> Float[Tensor, "F rows2 columns2 patch_dim"]:
    """Flatten every patch of (height, width) to one vector, row by row with the channels last."""
    frames, rows, columns, channels = maps.shape
    height, width = patch
    cut = maps.reshape(frames, rows // height, height, columns // width, width, channels)
    return cut.transpose(2, 3).reshape(frames, rows // height, columns // width, height * width * channels)


def join_patches(
    patches: Float[Tensor, "F rows columns patch_dim"], patch: tuple[int, int]
) -> Float[Tensor, "F rows2 columns2 C"]:
    """Invert `cut_patches`."""
    frames, rows, columns, _ = patches.shape
    height, width = patch
    cut = patches.reshape(frames, rows, columns, height, width, -1)
    return cut.transpose(2, 3).reshape(frames, rows * height, columns * width, -1)


def normalize_images(images: Float[Tensor, "*batch 3 H W"]) -> Float[Tensor, "*batch 3 H W"]:
    """Subtract `IMAGE_MEAN` from images in [0, 1] and divide by `IMAGE_DEVIATION`."""
    mean, deviation = (images.new_tensor(values)[:, None, None] for values in (IMAGE_MEAN, IMAGE_DEVIATION))
    return (images - mean) / deviation


class NormedPatchEmbed(nn.Module):
    """A linear layer between two norms, on flattened patches; without `norm_bias` the norms have gains only.

    Source: Kumar et al. (2023), "Dual PatchNorm".
    """

    def __init__(self, patch_dim: int, dim: int, *, norm_bias: bool = True) -> None:
        super().__init__()
        self.patch_norm = nn.LayerNorm(patch_dim, bias=norm_bias)
        self.proj = nn.Linear(patch_dim, dim)
        self.norm = nn.LayerNorm(dim, bias=norm_bias)

    def forward(self, patches: Float[Tensor, "*batch patch_dim"]) -> Float[Tensor, "*batch C"]:
        """Embed each patch independently."""
        return self.norm(self.proj(self.patch_norm(patches)))


class PatchEmbed(nn.Module):
    """A convolution whose stride is its kernel size: one token per patch, row by row."""

    def __init__(self, dim: int, patch_size: int, in_channels: int = 3) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.proj = nn.Conv2d(in_channels, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, images: Float[Tensor, "F channels H W"]) -> Float[Tensor, "F P C"]:
        """Embed images whose sides are multiples of the patch size."""
        patch_grid(images.shape[-2], images.shape[-1], self.patch_size)
        return self.proj(images).flatten(2).transpose(1, 2)
