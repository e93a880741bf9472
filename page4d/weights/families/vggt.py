"""Checkpoints of VGGT and PAGE-4D: key maps and sizes."""

from page4d.networks.config_parts import MaskHeadKind
from page4d.networks.presets import PRESETS
from page4d.weights.conversion.accounting import KeyMap, Rule, dpt_rules
from page4d.weights.families.family import NetworkReader, Specs, count, shape_of

VGGT: KeyMap = (
    Rule(r"aggregator\.patch_embed\.mask_token", None, "mask token: used in pretraining only"),
    Rule(r"aggregator\.patch_embed\.(.*)", r"encoder.\1"),
    Rule(r"aggregator\.((?:camera|register)_token)", r"aggregator.special.\1"),
    Rule(r"aggregator\.frame_blocks\.(.*)", r"aggregator.blocks.frame.\1"),
    Rule(r"aggregator\.global_blocks\.(.*)", r"aggregator.blocks.global.\1"),
    Rule(r"camera_head\.empty_pose_tokens", "camera_head.empty_pose"),
    Rule(r"camera_head\.poseLN_modulation\.1\.(.*)", r"camera_head.modulation.\1"),
    Rule(r"(camera_head\.(?:token_norm|trunk_norm|embed_pose|pose_branch|trunk)\..*)", r"\1"),
    *dpt_rules("depth_head"),
    *dpt_rules("point_head"),
    Rule(r"track_head\..*", None, "track head: not used"),
)
"""The public VGGT checkpoint, for the schedule frame, global."""

PAGE4D: KeyMap = (Rule(r"aggregator\.spatial_mask_head\.(head0\..*)", r"aggregator.dynamic.head.\1"), *VGGT)
"""The public PAGE-4D checkpoint that runs with its mask."""


def read_mask_head(specs: Specs) -> MaskHeadKind:
    """Return the structure of PAGE-4D's mask head from the shape of its second convolution."""
    shape = shape_of(specs, "aggregator.spatial_mask_head.head0.2.weight", 4)
    return MaskHeadKind.CKPT150 if shape[1] == 1 else MaskHeadKind.RELEASE


def trunk_sizes(specs: Specs) -> dict[str, int]:
    """Return the sizes of encoder and trunk, also of VGGT-Omega."""
    width = shape_of(specs, "aggregator.camera_token", 4)[-1]
    return {
        "encoder.embed_dim": width,
        "depth": count(specs, "aggregator.frame_blocks."),
        "num_heads": width // shape_of(specs, "aggregator.frame_blocks.0.attn.q_norm.weight", 1)[0],
        "encoder.depth": count(specs, "aggregator.patch_embed.blocks."),
    }


def _sizes(specs: Specs) -> dict[str, int]:
    return {**trunk_sizes(specs), "camera_head.trunk_depth": count(specs, "camera_head.trunk.")}


VGGT_READER = NetworkReader(published={"": PRESETS["vggt"]}, sizes=_sizes)
PAGE4D_READER = NetworkReader(published={"": PRESETS["page4d-mask"]}, sizes=_sizes)
