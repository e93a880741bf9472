"""Network configurations: JSON, validation, and the networks that they build."""

import json
from dataclasses import replace

import pytest
import torch

from page4d.errors import ShapeError, UsageError
from page4d.networks.conditioning import Conditioning
from page4d.networks.config import FRAME_GLOBAL, NetworkConfig, Step, images_together, merge, split
from page4d.networks.config_parts import (
    BiasRows,
    CameraHeadConfig,
    DPTHeadConfig,
    EpipolarConfig,
    FrameHeadConfig,
    MaskConfig,
    SparseConfig,
    Streams,
)
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS
from page4d.networks.tokens import SpecialTokens, token_positions

TINY = PRESETS["mv-tiny"]
BARE = {"camera_head": None, "depth_head": None, "point_head": None, "mask": None}
PAGE4D_MASK = replace(PRESETS["page4d-mask"].mask, layers=(1, 2))


@pytest.mark.parametrize("name", list(PRESETS))
def test_json_round_trip(name: str) -> None:
    config = PRESETS[name]
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


@pytest.mark.parametrize(
    "build",
    [
        lambda: replace(TINY, schedule=(Step.TIME, Step.FRAME)),
        lambda: replace(TINY, token_slots=3),
        lambda: replace(TINY, num_heads=3),
        lambda: replace(TINY, depth=3),
        lambda: replace(TINY, mask=MaskConfig(layers=(4,))),
        lambda: replace(TINY, mask=MaskConfig(layers=(-1,))),
        lambda: replace(TINY, camera_head=CameraHeadConfig(num_heads=5)),
        lambda: replace(TINY, frame_head=FrameHeadConfig()),
        lambda: replace(TINY, camera_token=False),
        lambda: replace(TINY, **{**BARE, "mask": TINY.mask}, frame_head=FrameHeadConfig()),
        lambda: replace(TINY, mask=PAGE4D_MASK, schedule=(Step.VIEW, Step.TIME)),
        lambda: replace(PAGE4D_MASK, layers=(0, 1)),
        lambda: replace(PAGE4D_MASK, streams=Streams.DUAL),
        lambda: replace(PAGE4D_MASK, bias_rows=BiasRows.ALL),
        lambda: replace(TINY, schedule=(Step.GLOBAL, Step.CROSS)),
        lambda: replace(TINY, norm_eps=(1e-5, 1e-6)),
        lambda: replace(TINY, epipolar=EpipolarConfig()),
        lambda: replace(TINY, schedule=FRAME_GLOBAL, epipolar=EpipolarConfig(layers=(1,))),
        lambda: EpipolarConfig(layers=()),
        lambda: EpipolarConfig(band=0),
        lambda: EpipolarConfig(penalty=-1),
        lambda: replace(TINY, schedule=FRAME_GLOBAL, time_encoding="alibi"),
        lambda: replace(TINY, sparse=SparseConfig(layers=(4,))),
        lambda: replace(TINY, sparse=SparseConfig(layers=(0, 3))),
        lambda: SparseConfig(layers=()),
        lambda: SparseConfig(layers=(3, 2)),
        lambda: SparseConfig(layers=(1,), landmarks=0),
        lambda: SparseConfig(layers=(1,), dilations=()),
        lambda: SparseConfig(layers=(1,), dilations=(0, 1)),
        lambda: SparseConfig(layers=(1,), lambda_limit=0),
        lambda: FrameHeadConfig(dim=30, num_heads=4),
        lambda: FrameHeadConfig(depth=0),
        lambda: MaskConfig(layers=()),
        lambda: MaskConfig(layers=(1, 3)),
        lambda: MaskConfig(external_floor=0.5),
        lambda: MaskConfig(streams=Streams.SINGLE, own_blocks=True),
        lambda: CameraHeadConfig(num_iterations=0),
        lambda: DPTHeadConfig(layers=(0, 2, 1, 3)),
        lambda: DPTHeadConfig(features=12),
        lambda: DPTHeadConfig(out_channels=(4, 4, 4, 6)),
        lambda: DinoV2Config(image_size=100),
        lambda: DinoV2Config(embed_dim=10, num_heads=4),
        lambda: DinoV2Config(depth=-1),
        lambda: ForwardLimits(max_images=0),
        lambda: ForwardLimits(max_tokens=0),
        lambda: ForwardLimits(max_queries=-2),
    ],
)
def test_invalid_configurations_are_refused(build) -> None:
    with pytest.raises(UsageError) as caught:
        build()
    assert caught.value.hint


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


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_integer_images_are_refused(dtype: torch.dtype) -> None:
    images = torch.zeros(1, 1, 2, 3, 28, 28, dtype=dtype)
    kind = str(dtype).removeprefix("torch.")
    for given in (images, list(images.unbind(2))):
        with pytest.raises(UsageError, match=f"images are {kind}") as caught:
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
        Step.CROSS: values[1].flatten(0, 2),
    }
    assert torch.equal(merged[1], expected[step])


def test_the_first_slot_is_used_for_the_first_image_only() -> None:
    special = SpecialTokens(8, num_registers=2, slots=2)
    tokens = special(2, 3, 4)
    assert tokens.shape == (2, 3, 4, 3, 8)
    assert torch.equal(tokens[1, 0, 0, 0], special.camera_token[0, 0, 0])
    assert torch.equal(tokens[0, 0, 0, 1:], special.register_token[0, 0])
    others = tokens.flatten(0, 2)[[1, 4, 11, 13]]
    assert (others == torch.cat([special.camera_token, special.register_token], dim=2)[0, 1]).all()


def test_patch_positions_start_at_one_in_row_major_order() -> None:
    positions = token_positions((2, 3), num_special=2)
    assert positions.tolist() == [[0, 0], [0, 0], [1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3]]
