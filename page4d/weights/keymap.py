"""Key maps from the tensor names of published checkpoints to those of page4d, as data."""

import re
from dataclasses import dataclass

from page4d.errors import WeightsError


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Rename names that match `pattern` in full to `target`, a template of `re`; None drops them on purpose."""

    pattern: str
    target: str | None


KeyMap = tuple[Rule, ...]
"""Rules in order of priority: the first match applies."""


def _dpt_rules(head: str) -> KeyMap:
    levels = [
        Rule(pattern=rf"{head}\.scratch\.layer{k}_rn\.(.*)", target=rf"{head}.adapters.{k - 1}.\1")
        for k in range(1, 5)
    ]
    units = [
        Rule(pattern=rf"{head}\.scratch\.refinenet{k}\.{theirs}(.*)", target=rf"{head}.fusions.{k - 1}.{ours}\1")
        for k in range(1, 5)
        for theirs, ours in (("resConfUnit1", "skip_unit"), ("resConfUnit2", "unit"), ("out_conv", "out_conv"))
    ]
    return (
        Rule(pattern=rf"{head}\.resize_layers\.(.*)", target=rf"{head}.resizes.\1"),
        *levels,
        *units,
        Rule(pattern=rf"{head}\.scratch\.output_conv1\.(.*)", target=rf"{head}.fused_conv.\1"),
        Rule(pattern=rf"{head}\.scratch\.output_conv2\.0\.(.*)", target=rf"{head}.out_conv1.\1"),
        Rule(pattern=rf"{head}\.scratch\.output_conv2\.2\.(.*)", target=rf"{head}.out_conv2.\1"),
        Rule(pattern=rf"({head}\.(?:norm|projects)\..*)", target=r"\1"),
    )


VGGT: KeyMap = (
    Rule(pattern=r"aggregator\.patch_embed\.mask_token", target=None),
    Rule(pattern=r"aggregator\.patch_embed\.(.*)", target=r"encoder.\1"),
    Rule(pattern=r"aggregator\.((?:camera|register)_token)", target=r"aggregator.special.\1"),
    Rule(pattern=r"aggregator\.frame_blocks\.(.*)", target=r"aggregator.blocks.frame.\1"),
    Rule(pattern=r"aggregator\.global_blocks\.(.*)", target=r"aggregator.blocks.global.\1"),
    Rule(pattern=r"camera_head\.empty_pose_tokens", target="camera_head.empty_pose"),
    Rule(pattern=r"camera_head\.poseLN_modulation\.1\.(.*)", target=r"camera_head.modulation.\1"),
    Rule(pattern=r"(camera_head\.(?:token_norm|trunk_norm|embed_pose|pose_branch|trunk)\..*)", target=r"\1"),
    *_dpt_rules("depth_head"),
    *_dpt_rules("point_head"),
    Rule(pattern=r"track_head\..*", target=None),
)
"""The public VGGT checkpoint, for the schedule frame, global."""

PAGE4D: KeyMap = (
    Rule(pattern=r"aggregator\.spatial_mask_head\.(head0\..*)", target=r"aggregator.dynamic.head.\1"),
    *VGGT,
)
"""The public PAGE-4D checkpoint that runs with its mask."""

_PI3_DECODERS = {
    "point_decoder": "point_decoder",
    "conf_decoder": "confidence_decoder",
    "camera_decoder": "camera_decoder",
}

PI3: KeyMap = (
    Rule(pattern=r"image_(?:mean|std)", target=None),
    Rule(pattern=r"(encoder\..*)", target=r"\1"),
    Rule(pattern=r"register_token", target="aggregator.special.register_token"),
    *(
        Rule(pattern=rf"decoder\.{2 * layer + place}\.(.*)", target=rf"aggregator.blocks.{step}.{layer}.\1")
        for layer in range(18)
        for place, step in enumerate(("frame", "global"))
    ),
    *(
        rule
        for theirs, ours in _PI3_DECODERS.items()
        for rule in (
            Rule(pattern=rf"{theirs}\.projects\.(.*)", target=rf"frame_head.{ours}.project_in.\1"),
            Rule(pattern=rf"{theirs}\.(blocks\..*)", target=rf"frame_head.{ours}.\1"),
            Rule(pattern=rf"{theirs}\.linear_out\.(.*)", target=rf"frame_head.{ours}.project_out.\1"),
        )
    ),
    Rule(pattern=r"point_head\.proj\.(.*)", target=r"frame_head.point_out.\1"),
    Rule(pattern=r"conf_head\.proj\.(.*)", target=r"frame_head.confidence_out.\1"),
    *(
        Rule(
            pattern=rf"camera_head\.res_conv\.(\d)\.res_conv{place + 1}\.(.*)",
            target=rf"frame_head.pose.residuals.\1.layers.{place}.\2",
        )
        for place in range(3)
    ),
    Rule(pattern=r"camera_head\.more_mlps\.(.*)", target=r"frame_head.pose.perceptron.\1"),
    Rule(pattern=r"camera_head\.fc_t\.(.*)", target=r"frame_head.pose.translation.\1"),
    Rule(pattern=r"camera_head\.fc_rot\.(.*)", target=r"frame_head.pose.rotation.\1"),
)
"""The public Pi3 checkpoint; its normalization constants are built into page4d."""


_BLOCK = r"(norm1|norm2|mlp\.fc1|mlp\.fc2)\.(weight|bias)"

VIT_TIMM: KeyMap = (
    Rule(pattern=r"(cls_token|pos_embed|norm\..*|head\..*)", target=r"\1"),
    Rule(pattern=r"patch_embed\.proj\.(.*)", target=r"patches.embed.proj.\1"),
    Rule(pattern=rf"blocks\.(\d+)\.{_BLOCK}", target=r"blocks.\1.\2.\3"),
    Rule(pattern=r"blocks\.(\d+)\.attn\.(qkv|proj)\.(weight|bias)", target=r"blocks.\1.attn.\2.\3"),
)


def _swin(merging: tuple[Rule, ...]) -> KeyMap:
    return (
        Rule(pattern=r"patch_embed\.proj\.(.*)", target=r"patch_embed.proj.\1"),
        Rule(pattern=r"patch_embed\.norm\.(.*)", target=r"patch_norm.\1"),
        Rule(pattern=r"layers\.(\d)\.blocks\.(\d+)\.attn\.(relative_position_index)", target=None),
        Rule(pattern=r"layers\.(\d)\.blocks\.(\d+)\.(attn_mask)", target=None),
        Rule(pattern=rf"layers\.(\d)\.blocks\.(\d+)\.{_BLOCK}", target=r"stages.\1.blocks.\2.\3.\4"),
        Rule(
            pattern=r"layers\.(\d)\.blocks\.(\d+)\.attn\.(qkv|proj)\.(weight|bias)",
            target=r"stages.\1.blocks.\2.attn.inside.\3.\4",
        ),
        *merging,
        Rule(pattern=r"norm\.(weight|bias)", target=r"norm.\1"),
        Rule(pattern=r"head\.(?:fc\.)?(weight|bias)", target=r"head.\1"),
    )


SWIN_TIMM: KeyMap = _swin((Rule(pattern=r"layers\.(\d)\.downsample\.(.*)", target=r"stages.\1.merging.\2"),))

# In Microsoft's code, patch merging ends a stage; in page4d it starts the next one.
SWIN_MICROSOFT: KeyMap = _swin(
    tuple(
        Rule(pattern=rf"layers\.{stage}\.downsample\.(.*)", target=rf"stages.{stage + 1}.merging.\1")
        for stage in range(3)
    )
)

TWINS_TIMM: KeyMap = (
    Rule(pattern=r"patch_embeds\.(\d)\.proj\.(.*)", target=r"stages.\1.patches.convolution.proj.\2"),
    Rule(pattern=r"patch_embeds\.(\d)\.norm\.(.*)", target=r"stages.\1.patches.norm.\2"),
    Rule(pattern=r"pos_block\.(\d)\.proj\.0\.(.*)", target=r"stages.\1.positions.proj.\2"),
    Rule(pattern=rf"blocks\.(\d)\.(\d+)\.{_BLOCK}", target=r"stages.\1.blocks.\2.\3.\4"),
    # Even blocks attend locally, odd blocks to sub-sampled keys.
    Rule(
        pattern=r"blocks\.(\d)\.(\d*[02468])\.attn\.(qkv|proj)\.(.*)", target=r"stages.\1.blocks.\2.attn.inside.\3.\4"
    ),
    Rule(pattern=r"blocks\.(\d)\.(\d+)\.attn\.(q|kv|proj|norm)\.(.*)", target=r"stages.\1.blocks.\2.attn.\3.\4"),
    Rule(pattern=r"blocks\.(\d)\.(\d+)\.attn\.sr\.(.*)", target=r"stages.\1.blocks.\2.attn.summary.proj.\3"),
    Rule(pattern=r"(norm|head)\.(weight|bias)", target=r"\1.\2"),
)

UNCHANGED: KeyMap = (Rule(pattern=r"(.*)", target=r"\1"),)
"""A file that page4d wrote."""


def target_name(name: str, rules: KeyMap) -> str | None:
    """Return the page4d name of a tensor, or None if it is dropped on purpose.

    Raises:
        WeightsError: if no rule matches.
    """
    for rule in rules:
        match = re.fullmatch(rule.pattern, name)
        if match is not None:
            return None if rule.target is None else match.expand(rule.target)
    raise WeightsError(f"no rule matches the tensor '{name}'", "these weights are of another network")
