"""Network configurations: JSON, validation, and the networks that they build."""

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import torch

from page4d.errors import ShapeError, UsageError
from page4d.networks.conditioning import Conditioning
from page4d.networks.config import FRAME_GLOBAL, NetworkConfig, Step, images_together, merge, split
from page4d.networks.config_parts import (
    BiasRows,
    CameraHeadConfig,
    DenseOutput,
    DPTHeadConfig,
    EpipolarConfig,
    FrameHeadConfig,
    MaskConfig,
    MatchConfig,
    MetricHeadConfig,
    MotionHeadConfig,
    SparseConfig,
    Streams,
)
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.encoders.vit import PatchEmbedding
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS
from tests.networks.small_networks import (
    DEMO_LIKE,
    EXPLICIT_INPUTS,
    OMEGA_LIKE,
    SMALL_DA3,
    SMALL_DA3_METRIC,
    SMALL_DA3_NESTED,
    SMALL_PI3X,
)
from tests.networks.test_encoders_in_networks import ENCODERS

TINY = PRESETS["mv-tiny"]
BARE = {"camera_head": None, "depth_head": None, "point_head": None, "mask": None}
PAGE4D_MASK = replace(PRESETS["page4d-mask"].mask, layers=(1, 2))


@pytest.mark.parametrize(
    "config",
    [
        *PRESETS.values(),
        EXPLICIT_INPUTS,
        SMALL_DA3_NESTED,
        *(replace(TINY, encoder=encoder, point_head=None) for encoder in ENCODERS.values()),
    ],
)
def test_json_round_trip(config: NetworkConfig) -> None:
    again = NetworkConfig.from_json(config.to_json())
    assert again == config
    assert again.to_json() == config.to_json()
    assert isinstance(again.schedule[0], Step)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"colour": 1}, "colour"),
        ({"depth": "4"}, "depth"),
        ({"depth": 4.5}, "depth"),
        ({"schedule": ["time", "sideways"]}, "schedule.1"),
        ({"schedule": ["time"]}, "schedule.1"),
        ({"encoder": {"kind": "squid"}}, "encoder"),
        ({"mask": {"layers": [1], "strength": 2}}, "mask.strength"),
    ],
)
def test_json_is_strict(change: dict, named: str) -> None:
    with pytest.raises(UsageError, match=f"network configuration: {named}:"):
        NetworkConfig.from_json(json.dumps({**json.loads(TINY.to_json()), **change}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}"])
def test_text_that_is_no_configuration_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="network configuration"):
        NetworkConfig.from_json(text)


def test_all_options_together_survive_json_and_run() -> None:
    config = replace(
        TINY,
        norm_eps=(1e-6, 1e-6, 1e-5, 1e-5),
        mask=replace(TINY.mask, fusion="gated"),
        sparse=SparseConfig(layers=(2, 3), strategy="memory"),
        epipolar=EpipolarConfig(layers=(0, 1)),
        time_encoding="alibi",
        full_attention="one-view",
    )
    assert NetworkConfig.from_json(config.to_json()) == config
    out = build_network(config)(torch.rand(1, 3, 2, 3, 28, 28), torch.rand(1, 3, 2, 28, 28))
    assert out.depth.shape == (1, 3, 2, 28, 28)
    assert set(out.memory) == {f"{layer}.{stream}" for layer in (2, 3) for stream in ("pose", "geometry")}


def test_norms_of_a_layer_have_its_epsilon() -> None:
    config = replace(TINY, norm_eps=(1e-6, 1e-6, 1e-5, 1e-4), sparse=SparseConfig(layers=(3,)))
    trunk = build_network(config).aggregator
    for layer, eps in enumerate(config.norm_eps):
        for step in config.schedule:
            block = trunk.blocks[step][layer]
            assert (block.norm1.eps, block.norm2.eps, block.attn.q_norm.eps) == (eps, eps, 1e-5)
    assert trunk.sparse.layers["3"].block.norm1.eps == 1e-4


def test_missing_fields_take_defaults() -> None:
    fields = json.loads(TINY.to_json())
    del fields["token_slots"]
    assert NetworkConfig.from_json(json.dumps(fields)) == TINY
    assert DPTHeadConfig().output is DenseOutput.CONVOLUTIONS, "as configurations before VGGT-Omega"


INVALID: list[tuple[Any, dict[str, list]]] = [
    (TINY, {"schedule": [(Step.TIME, Step.FRAME), (Step.GLOBAL, Step.VIEW)], "token_slots": [3], "num_heads": [3]}),
    (TINY, {"depth": [3], "norm_eps": [(1e-5, 1e-6)], "camera_token": [False], "epipolar": [EpipolarConfig()]}),
    (TINY, {"mask": [MaskConfig(layers=(4,))], "frame_head": [FrameHeadConfig()]}),
    (TINY, {"camera_head": [CameraHeadConfig(num_heads=5)], "depth_head": [replace(TINY.depth_head, fine_dim=8)]}),
    (TINY, {"sparse": [SparseConfig(layers=(4,)), SparseConfig(layers=(0, 3))]}),
    (replace(TINY, **BARE, frame_head=FrameHeadConfig()), {"mask": [TINY.mask]}),
    (replace(TINY, mask=PAGE4D_MASK, schedule=FRAME_GLOBAL), {"schedule": [(Step.VIEW, Step.TIME)]}),
    (replace(TINY, schedule=FRAME_GLOBAL), {"epipolar": [EpipolarConfig(layers=(1,))], "time_encoding": ["alibi"]}),
    (PAGE4D_MASK, {"layers": [(0, 1)], "streams": [Streams.DUAL], "bias_rows": [BiasRows.ALL]}),
    (EpipolarConfig(), {"layers": [()], "band": [0], "penalty": [-1]}),
    (SparseConfig(layers=(1,)), {"layers": [(), (3, 2)], "landmarks": [0], "dilations": [(), (0, 1)]}),
    (SparseConfig(layers=(1,)), {"lambda_limit": [0]}),
    (FrameHeadConfig(num_heads=4), {"dim": [30], "depth": [0]}),
    (MaskConfig(), {"layers": [(), (-1,), (1, 3)], "external_floor": [0.5]}),
    (MaskConfig(streams=Streams.SINGLE), {"own_blocks": [True]}),
    (CameraHeadConfig(), {"num_iterations": [0]}),
    (DPTHeadConfig(), {"layers": [(0, 2, 1, 3)], "features": [12], "out_channels": [(4, 4, 4, 6)]}),
    (DinoV2Config(num_heads=4), {"image_size": [100], "embed_dim": [10], "depth": [-1]}),
    (ForwardLimits(), {"max_images": [0], "max_tokens": [0], "max_queries": [-2]}),
    (MatchConfig(), {"dim": [0], "finer": [0], "targets": [(), ("next-view", "next-view")]}),
    (EXPLICIT_INPUTS, {"matches": [MatchConfig(fine_dim=4), MatchConfig(fine_dim=8, finer=3)]}),
    (EXPLICIT_INPUTS, {"depth_head": [replace(EXPLICIT_INPUTS.depth_head, fine_dim=4)]}),
    (replace(EXPLICIT_INPUTS, point_head=None), {"depth_head": [None]}),
]


@pytest.mark.parametrize(
    ("config", "name", "value"),
    [(config, name, value) for config, changes in INVALID for name, values in changes.items() for value in values],
    ids=lambda value: str(value) if isinstance(value, str) else type(value).__name__,
)
def test_invalid_configurations_are_refused(config: Any, name: str, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        replace(config, **{name: value})
    assert caught.value.hint


CONTRADICTIONS = (
    (SMALL_PI3X.known_geometry, {"num_heads": 8}, "width 32 is not a multiple of 8"),
    (SMALL_PI3X.known_geometry, {"depth_encoder": DinoV2Config()}, "depth encoder of 3 channels"),
    (SMALL_PI3X.known_geometry, {"pose_layers": (2, 0)}, "known geometry: layers"),
    (SMALL_PI3X, {"known_geometry": PRESETS["pi3x"].known_geometry, "depth": 18}, "depth encoder of width"),
    (SMALL_PI3X, {"depth": 2}, "a layer outside"),
    (SMALL_PI3X, {"encoder": replace(SMALL_PI3X.encoder, in_channels=2)}, "images of 2 channels"),
    (MetricHeadConfig(), {"dim": 8, "num_heads": 4}, "metric head: width 8"),
    (OMEGA_LIKE, {"encoder": replace(OMEGA_LIKE.encoder, patch_size=14, image_size=28)}, "on patches of 14 px"),
    (DPTHeadConfig(), {"output": DenseOutput.PIXEL_SHUFFLE, "fine_dim": 8}, "pixel-shuffle with a fine map"),
    (OMEGA_LIKE, {"mask": MaskConfig(layers=(1,))}, "a mask with register layers"),
    (
        OMEGA_LIKE,
        {"camera_head": None, "camera_token": False, "num_registers": 0},
        "register layers without special tokens",
    ),
    (
        SMALL_DA3,
        {"camera_token": False, "camera_head": None, "num_registers": 1},
        "camera encoder without a camera token",
    ),
    (
        SMALL_DA3,
        {"depth_head": replace(SMALL_DA3.depth_head, layers=(0, 1, 2, 3))},
        "layer 0, which has no step within",
    ),
    (SMALL_DA3, {"camera_encoder": replace(SMALL_DA3.camera_encoder, num_heads=3)}, "encoder: width 16 is not"),
    (SMALL_DA3_NESTED, {"camera_head": None}, "without a camera head"),
    (
        SMALL_DA3_NESTED,
        {"depth_head": replace(SMALL_DA3.depth_head, confidence=False)},
        "a depth head with confidence",
    ),
    (SMALL_DA3_NESTED, {"point_head": SMALL_DA3.depth_head}, "a metric network with a point head"),
    (SMALL_DA3_NESTED, {"metric_focal": 300.0}, "a motion head or a metric_focal"),
    (SMALL_DA3_NESTED, {"metric_network": SMALL_DA3}, "with a trunk, or without metric_focal"),
    (SMALL_DA3_NESTED, {"metric_network": replace(SMALL_DA3_METRIC, metric_focal=None)}, "without metric_focal"),
    (
        SMALL_DA3_NESTED,
        {"metric_network": replace(SMALL_DA3_METRIC, encoder=replace(SMALL_DA3_METRIC.encoder, patch_size=16))},
        "patches of 8 px with a metric network of 16 px",
    ),
    (PRESETS["da3-mono"], {"depth_head": None}, "depth 0, with levels (4, 11, 17, 23) of the encoder"),
    (PRESETS["da3-mono"], {"encoder": DinoV2Config(num_registers=0)}, "depth 0, with levels () of the encoder"),
    (PRESETS["da3-mono"], {"num_registers": 4}, "depth 0 with special tokens"),
    (PRESETS["da3-mono"], {"camera_token": True, "camera_head": CameraHeadConfig()}, "parts other than a depth head"),
    (PRESETS["da3-mono"], {"ray_head": True}, "parts other than a depth head"),
    (DinoV2Config(), {"levels": (0, 24)}, "levels"),
    (DEMO_LIKE, {"mask": None}, "motion head without a mask"),
    (DEMO_LIKE, {"motion_head": MotionHeadConfig(fine_dim=9)}, "motion head reads a fine map of 9 channels"),
    (MotionHeadConfig(), {"dim": 0}, "motion head: dim is 0"),
    (TINY, {"encoder": replace(ENCODERS["vit"], num_classes=10)}, "an encoder with 10 classes"),
    (
        TINY,
        {"encoder": replace(ENCODERS["vit"], patch_width=8, patch_embedding=PatchEmbedding.DUAL_NORMED)},
        "patches of 8 x 4 px",
    ),
)


@pytest.mark.parametrize(("config", "changes", "message"), CONTRADICTIONS)
def test_contradictions_are_named(config, changes: dict, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        replace(config, **changes)


def test_lengths_are_in_metres_where_a_part_predicts_them() -> None:
    assert PRESETS["pi3x"].takes_cameras
    metres = {name: PRESETS[name].predicts_metres for name in ("pi3", "pi3x", "da3-giant", "da3-nested")}
    assert metres == {"pi3": False, "pi3x": True, "da3-giant": False, "da3-nested": True}


UNUSED = {"local_points", "confidence_logits", "camera_to_world", "rays", "matches", "memory", "motion_logit"} | {
    "ray_map",
    "ray_confidence",
    "metric_scale",
    "sky",
    "reference",
}


def test_heads_can_be_left_out() -> None:
    images = torch.rand(1, 1, 2, 3, 28, 28)
    for head, outputs in (
        ("camera_head", {"pose_encoding", "world_to_camera", "intrinsics"}),
        ("depth_head", {"depth", "depth_confidence"}),
        ("point_head", {"points", "points_confidence"}),
        ("mask", {"dynamic", "dynamic_logit"}),
    ):
        out = build_network(replace(TINY, **{head: None}))(images)
        empty = {name for name, value in vars(out).items() if value is None}
        assert empty == outputs | UNUSED
    bare = build_network(replace(TINY, camera_head=None, depth_head=None, point_head=None))
    assert bare(images).dynamic.shape == (1, 1, 2, 28, 28)


@pytest.mark.parametrize(
    ("shape", "mask_shape", "message"),
    [
        ((1, 1, 1, 3, 28, 30), None, "30 x 28 px do not divide into patches of 14"),
        ((1, 1, 1, 3, 13, 28), None, "28 x 13 px"),
        ((1, 1, 3, 28, 28), None, r"shape \(1, 1, 3, 28, 28\)"),
        ((1, 1, 1, 4, 28, 28), None, "shape"),
        ((1, 1, 2, 3, 28, 28), (1, 2, 1, 28, 28), "masks have shape"),
    ],
)
def test_wrong_shapes_are_refused(shape: tuple, mask_shape: tuple | None, message: str) -> None:
    network = build_network(TINY)
    with pytest.raises(ShapeError, match=message):
        network(torch.rand(shape), None if mask_shape is None else torch.rand(mask_shape))


@pytest.mark.parametrize(
    ("dtype", "value", "found"),
    [
        (torch.uint8, 0, "are uint8"),
        (torch.int64, 0, "are int64"),
        (torch.float32, 255.0, "reach 255"),
        (torch.float32, torch.nan, "reach nan"),
    ],
)
def test_images_of_other_values_are_refused(dtype: torch.dtype, value: float, found: str) -> None:
    images = torch.full((1, 1, 2, 3, 28, 28), value, dtype=dtype)
    for given in (images, list(images.unbind(2))):
        with pytest.raises(UsageError, match=f"images {found}") as caught:
            build_network(TINY)(given)
        assert "[0, 1]" in caught.value.hint


def test_poses_without_intrinsics_are_refused() -> None:
    conditioning = Conditioning(world_to_camera=torch.eye(4).expand(1, 1, 2, 4, 4))
    with pytest.raises(ShapeError, match="without their intrinsics"):
        build_network(TINY)(torch.rand(1, 1, 2, 3, 28, 28), conditioning=conditioning)


def test_conditioning_of_other_shapes_is_refused() -> None:
    with pytest.raises(ShapeError, match="keypoints have shape"):
        build_network(TINY)(
            torch.rand(1, 1, 2, 3, 28, 28), conditioning=Conditioning(keypoints=torch.rand(1, 1, 2, 4))
        )


def test_masks_are_refused_by_networks_without_a_mask_head() -> None:
    network = build_network(replace(TINY, mask=None))
    with pytest.raises(UsageError, match="takes no masks"):
        network(torch.rand(1, 1, 1, 3, 28, 28), torch.rand(1, 1, 1, 28, 28))


@pytest.mark.parametrize("step", list(Step))
def test_split_inverts_merge(step: Step) -> None:
    values = torch.arange(2 * 3 * 4 * 5 * 6).reshape(2, 3, 4, 5, 6)
    merged = merge(values, step)
    assert merged.shape[1] == 5 * images_together(step, 3, 4)
    assert torch.equal(split(merged, step, (2, 3, 4, 5)), values)
    expected = {
        Step.FRAME: values[0, 0, 1],
        Step.VIEW: values[0, 1].flatten(0, 1),
        Step.TIME: values[0, :, 1].flatten(0, 1),
        Step.GLOBAL: values[1].flatten(0, 2),
    }
    assert torch.equal(merged[1], expected[step])
