"""Checkpoints of Pi3 and Pi3X: key maps and sizes."""

from page4d.conventions import IMAGE_DEVIATION, IMAGE_MEAN
from page4d.networks.presets import PRESETS
from page4d.weights.conversion.accounting import KeyMap, Rule
from page4d.weights.families.family import NetworkReader, Specs, count, shape_of

_PI3_DECODERS = {
    "point_decoder": "point_decoder",
    "conf_decoder": "confidence_decoder",
    "camera_decoder": "camera_decoder",
}

PI3: KeyMap = (
    Rule("image_mean", None, "normalization constants: built in", constant=IMAGE_MEAN),
    Rule("image_std", None, "normalization constants: built in", constant=IMAGE_DEVIATION),
    Rule(r"(encoder\..*)", r"\1"),
    Rule(r"register_token", "aggregator.special.register_token"),
    *(
        Rule(rf"decoder\.{2 * layer + place}\.(.*)", rf"aggregator.blocks.{step}.{layer}.\1")
        for layer in range(18)
        for place, step in enumerate(("frame", "global"))
    ),
    *(
        rule
        for theirs, ours in _PI3_DECODERS.items()
        for rule in (
            Rule(rf"{theirs}\.projects\.(.*)", rf"frame_head.{ours}.project_in.\1"),
            Rule(rf"{theirs}\.(blocks\..*)", rf"frame_head.{ours}.\1"),
            Rule(rf"{theirs}\.linear_out\.(.*)", rf"frame_head.{ours}.project_out.\1"),
        )
    ),
    Rule(r"point_head\.proj\.(.*)", r"frame_head.point_out.\1"),
    Rule(r"conf_head\.proj\.(.*)", r"frame_head.confidence_out.\1"),
    *(
        Rule(
            rf"camera_head\.res_conv\.(\d)\.res_conv{place + 1}\.(.*)",
            rf"frame_head.pose.residuals.\1.layers.{place}.\2",
        )
        for place in range(3)
    ),
    Rule(r"camera_head\.more_mlps\.(.*)", r"frame_head.pose.perceptron.\1"),
    Rule(r"camera_head\.fc_t\.(.*)", r"frame_head.pose.translation.\1"),
    Rule(r"camera_head\.fc_rot\.(.*)", r"frame_head.pose.rotation.\1"),
)
"""The public Pi3 checkpoint."""


def _sizes(specs: Specs) -> dict[str, int]:
    width = shape_of(specs, "register_token", 4)[-1]
    return {
        "encoder.embed_dim": width,
        "encoder.depth": count(specs, "encoder.blocks."),
        "depth": count(specs, "decoder.") // 2,
        "num_heads": width // shape_of(specs, "decoder.0.attn.q_norm.weight", 1)[0],
    }


PI3_READER = NetworkReader(published={"": PRESETS["pi3"]}, sizes=_sizes)

DEPTH_ENCODER = "depth_encoder."
"""Prefix of tensors of the inputs of known geometry, which files for images alone lack."""

_CONV_STAGES = (
    *((rf"0\.{place}\.", f"{place}.") for place in (0, 1)),
    *((rf"{place}\.", f"{place + 1}.") for place in (1, 2)),
)
"""Parts of an upsampling stage: transposed convolution, convolution, two residual units."""

PI3X: KeyMap = (
    Rule(r"depth_encoder\.(.*)", r"known_geometry.depth_encoder.\1"),
    Rule("depth_emb", "known_geometry.depth_token"),
    Rule(r"ray_embed\.(proj\..*)", r"known_geometry.rays.\1"),
    Rule(r"pose_inject_blk\.(.*)", r"aggregator.pose_injection.blocks.\1"),
    *(
        rule
        for theirs, ours in (("point_head", "point_out"), ("conf_head", "confidence_out"))
        for rule in (
            *(
                Rule(rf"{theirs}\.upsample_blocks\.(\d)\.{part}(.*)", rf"frame_head.{ours}.stages.\1.{place}\2")
                for part, place in _CONV_STAGES
            ),
            Rule(rf"{theirs}\.output_block\.(.*)", rf"frame_head.{ours}.outputs.\1"),
        )
    ),
    Rule("metric_token", "metric_head.token"),
    Rule(r"metric_decoder\.projects_x\.(.*)", r"metric_head.project_token.\1"),
    Rule(r"metric_decoder\.projects_y\.(.*)", r"metric_head.project_context.\1"),
    *(
        Rule(rf"metric_decoder\.blocks\.(\d+)\.{theirs}\.(.*)", rf"metric_head.blocks.\1.{ours}.\2")
        for theirs, ours in (
            ("norm2", "norm1"),
            ("norm_y", "context_norm"),
            ("norm3", "norm2"),
            (r"cross_attn\.q_proj", "attn.query"),
            (r"cross_attn\.k_proj", "attn.key"),
            (r"cross_attn\.v_proj", "attn.value"),
            (r"cross_attn\.proj", "attn.proj"),
            ("mlp", "mlp"),
        )
    ),
    Rule(r"metric_decoder\.linear_out\.(.*)", r"metric_head.project_out.\1"),
    Rule(r"metric_head\.(.*)", r"metric_head.log_scale.\1"),
    *PI3,
)
"""The public Pi3X checkpoint; the norms of the metric decoder are numbered without the one of self-attention."""

PI3X_READER = NetworkReader(published={"": PRESETS["pi3x"]}, sizes=_sizes)
