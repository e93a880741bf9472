"""Checkpoints of VGGT-Omega: key map, adaptation of attention weights, and sizes."""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from page4d.networks.config import NetworkConfig
from page4d.networks.encoders.dino import DinoV3Config
from page4d.networks.presets import PRESETS
from page4d.weights.conversion.accounting import KeyMap, Rule, dpt_rules
from page4d.weights.families.family import NetworkReader, Specs, count
from page4d.weights.families.vggt import trunk_sizes

_OMEGA = PRESETS["vggt-omega"]
_TEXT = replace(_OMEGA, encoder=replace(_OMEGA.encoder, image_size=256))
"""The network of the checkpoint with a text head, which page4d leaves out."""


def by_axis(rows: Tensor, head_dim: int) -> Tensor:
    """Reorder the channels of each head from [half, axis, frequency] to [axis, half, frequency].

    Rotary positions rotate pairs of channels of the two halves. In DINOv3 the halves are those of the whole head, in
    page4d those of each axis.
    """
    return torch.unflatten(rows, 0, (-1, 2, 2, head_dim // 4)).transpose(1, 2).flatten(0, 3)


def queries_and_keys_by_axis(rows: Tensor, mask: Tensor | None = None, *, head_dim: int) -> Tensor:
    """Apply `by_axis` to the queries and keys of a fused projection, after multiplication by the mask if given."""
    rows = rows if mask is None else rows * mask
    queries, keys, values = rows.chunk(3)
    return torch.cat([by_axis(queries, head_dim), by_axis(keys, head_dim), values])


def vggt_omega_keys(config: NetworkConfig) -> KeyMap:
    """Return the key map, with changes for the order of rotary channels and the masks of biases.

    Published files hold a mask of every bias of a fused projection, with which the public code multiplies it.
    """
    encoder = config.encoder
    assert isinstance(encoder, DinoV3Config)
    encoder_dim, trunk_dim = encoder.embed_dim // encoder.num_heads, encoder.embed_dim // config.num_heads
    rotary = (
        (r"aggregator\.patch_embed\.(blocks)", r"encoder.\1", encoder_dim),
        (r"aggregator\.(frame)_blocks", r"aggregator.blocks.\1", trunk_dim),
    )
    unordered = (
        (r"aggregator\.inter_(frame)_blocks", "aggregator.blocks.global"),
        (r"(camera_head)\.trunk", r"\1.trunk"),
    )
    return (
        Rule(r"aggregator\.patch_embed\.mask_token", None, "mask token: used in pretraining only"),
        Rule(r"text_alignment_head\..*", None, "text head: not used"),
        _wavelengths(r"aggregator\.patch_embed\.rope_embed\.periods", encoder.rope_base, encoder_dim),
        _wavelengths(r"aggregator\.rope_embed\.periods", config.rope_base, trunk_dim),
        *(rule for theirs, ours, head_dim in rotary for rule in _reordered(theirs, ours, head_dim)),
        *(
            Rule(
                rf"{theirs}\.(\d+\.attn\.qkv\.bias)",
                rf"{ours}.\2",
                "biases of queries, keys and values: multiplied by their masks",
                adapt=torch.mul,
                companion=r"\g<0>_mask",
            )
            for theirs, ours in unordered
        ),
        Rule(r"aggregator\.patch_embed\.storage_tokens", "encoder.register_tokens"),
        Rule(r"aggregator\.patch_embed\.(.*)", r"encoder.\1"),
        Rule(r"aggregator\.((?:camera|register)_token)", r"aggregator.special.\1"),
        Rule(r"aggregator\.frame_blocks\.(.*)", r"aggregator.blocks.frame.\1"),
        Rule(r"aggregator\.inter_frame_blocks\.(.*)", r"aggregator.blocks.global.\1"),
        Rule(r"camera_head\.camera_branch\.0\.(.*)", r"camera_head.pose_branch.fc1.\1"),
        Rule(r"camera_head\.camera_branch\.2\.(.*)", r"camera_head.pose_branch.fc2.\1"),
        Rule(r"(camera_head\.(?:token_norm|trunk|trunk_norm)\..*)", r"\1"),
        Rule(r"dense_head\.proj\.(.*)", r"depth_head.shuffled.value.\1"),
        Rule(r"dense_head\.proj_conf\.(.*)", r"depth_head.shuffled.confidence.\1"),
        *dpt_rules("depth_head", "dense_head"),
    )


def _wavelengths(pattern: str, base: float, head_dim: int) -> Rule:
    quarter = head_dim // 4
    periods = tuple(base ** (place / quarter) for place in range(quarter))
    return Rule(pattern, None, "wavelengths of rotary positions: built in", constant=periods)


def _reordered(theirs: str, ours: str, head_dim: int) -> KeyMap:
    """Return the rules of blocks with rotary positions."""
    return (
        Rule(
            rf"{theirs}\.(\d+\.attn\.qkv\.weight)",
            rf"{ours}.\2",
            "weights of queries and keys: channels in the order of axes",
            adapt=partial(queries_and_keys_by_axis, head_dim=head_dim),
        ),
        Rule(
            rf"{theirs}\.(\d+\.attn\.qkv\.bias)",
            rf"{ours}.\2",
            "biases of queries, keys and values: multiplied by their masks, channels in the order of axes",
            adapt=partial(queries_and_keys_by_axis, head_dim=head_dim),
            companion=r"\g<0>_mask",
        ),
        Rule(
            rf"{theirs}\.(\d+\.attn\.[qk]_norm\.(?:weight|bias))",
            rf"{ours}.\2",
            "norms of queries and keys: channels in the order of axes",
            adapt=partial(by_axis, head_dim=head_dim),
        ),
    )


def _sizes(specs: Specs) -> dict[str, int]:
    text = any(name.startswith("text_alignment_head.") for name in specs)
    return {
        **trunk_sizes(specs),
        "camera_head.depth": count(specs, "camera_head.trunk."),
        "encoder.image_size": (_TEXT if text else _OMEGA).encoder.image_size,
    }


READER = NetworkReader(published={"vggt_omega_1b_512": _OMEGA, "vggt_omega_1b_256_text": _TEXT}, sizes=_sizes)
