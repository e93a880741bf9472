"""Names of parameters in other sources as data: what becomes what, and what is left out on purpose."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from page4d.errors import WeightsError


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Names that match `pattern` as a whole become `target`, a template of `re`; None drops them on purpose."""

    pattern: str
    target: str | None


KeyMap = tuple[Rule, ...]
"""The first rule that matches a name decides."""


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


def _vggt_rules(frame: str, across: str) -> KeyMap:
    return (
        Rule(pattern=r"aggregator\.patch_embed\.mask_token", target=None),
        Rule(pattern=r"aggregator\.patch_embed\.(.*)", target=r"encoder.\1"),
        Rule(pattern=r"aggregator\.((?:camera|register)_token)", target=r"aggregator.special.\1"),
        Rule(pattern=r"aggregator\.frame_blocks\.(.*)", target=rf"aggregator.blocks.{frame}.\1"),
        Rule(pattern=r"aggregator\.global_blocks\.(.*)", target=rf"aggregator.blocks.{across}.\1"),
        Rule(pattern=r"camera_head\.empty_pose_tokens", target="camera_head.empty_pose"),
        Rule(pattern=r"camera_head\.poseLN_modulation\.1\.(.*)", target=r"camera_head.modulation.\1"),
        Rule(
            pattern=r"(camera_head\.(?:token_norm|trunk_norm|embed_pose|pose_branch|trunk)\..*)",
            target=r"\1",
        ),
        *_dpt_rules("depth_head"),
        *_dpt_rules("point_head"),
        Rule(pattern=r"track_head\..*", target=None),
    )


VGGT: KeyMap = _vggt_rules("frame", "global")
"""The public VGGT checkpoint into the schedule frame, global."""

VGGT_TO_TIME_VIEW: KeyMap = _vggt_rules("time", "view")
"""The same weights into the schedule time, view; exact for one instant."""

PAGE4D: KeyMap = (
    Rule(pattern=r"aggregator\.spatial_mask_head\.(head0\..*)", target=r"aggregator.dynamic.head.\1"),
    *VGGT,
)
"""The public PAGE-4D checkpoint that runs with its mask."""

PAGE4D_WITHOUT_MASK: KeyMap = (Rule(pattern=r"aggregator\.spatial_mask_head\..*", target=None), *VGGT)
"""The public PAGE-4D checkpoint that runs without: the head in it rests."""

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
"""The public Pi3 checkpoint; its constants of normalisation are those of every network here."""


def target_name(name: str, rules: KeyMap) -> str | None:
    """Return our name of a parameter, or None if it is dropped on purpose.

    Raises:
        WeightsError: if no rule knows the name.
    """
    for rule in rules:
        match = re.fullmatch(rule.pattern, name)
        if match is not None:
            return None if rule.target is None else match.expand(rule.target)
    raise WeightsError(f"no rule names the tensor '{name}'", "these weights are of another network")


def rename(tensors: Mapping[str, Tensor], rules: KeyMap) -> dict[str, Tensor]:
    """Return the tensors under our names.

    Raises:
        WeightsError: if no rule knows a name, or two tensors get the same name.
    """
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        target = target_name(name, rules)
        if target in renamed:
            raise WeightsError(f"two tensors would be named '{target}', one of them '{name}'", "correct the key map")
        if target is not None:
            renamed[target] = tensor
    return renamed
