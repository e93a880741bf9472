"""A configuration survives JSON, is strict, and builds what it says."""

import json
from dataclasses import replace

import pytest
import torch

from page4d.encoders.dinov2 import DinoV2Config
from page4d.errors import ShapeError, UsageError
from page4d.models.config import PRESETS, CameraHeadConfig, DPTHeadConfig, MaskConfig, NetworkConfig, Streams
from page4d.models.limits import ForwardLimits
from page4d.models.network import build_network
from page4d.models.schedule import Step, images_together, merge, split
from page4d.models.tokens import SpecialTokens, token_positions

TINY = PRESETS["mv-tiny"]


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
        ({"encoder": {"kind": "swin"}}, "encoder.kind"),
        ({"mask": {"layers": [1], "strength": 2}}, "mask.strength"),
    ],
)
def test_json_is_strict(change: dict, named: str) -> None:
    with pytest.raises(UsageError, match=f"network configuration: {named}:"):
        NetworkConfig.from_json(json.dumps({**json.loads(TINY.to_json()), **change}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}"])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="network configuration"):
        NetworkConfig.from_json(text)


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
def test_contradictions_are_refused(build) -> None:
    with pytest.raises(UsageError) as caught:
        build()
    assert caught.value.hint


def test_heads_can_be_left_out() -> None:
    images = torch.rand(1, 1, 2, 3, 28, 28)
    for head, outputs in (
        ("camera_head", {"pose_enc"}),
        ("depth_head", {"depth", "depth_confidence"}),
        ("point_head", {"points", "points_confidence"}),
        ("mask", {"dynamic_mask", "dynamic_logit"}),
    ):
        network = build_network(replace(TINY, **{head: None}))
        out = network(images)
        empty = {name for name, value in vars(out).items() if value is None}
        assert empty == outputs
    bare = build_network(replace(TINY, camera_head=None, depth_head=None, point_head=None))
    assert bare(images).dynamic_mask.shape == (1, 1, 2, 28, 28)


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


def test_a_mask_needs_a_network_with_masks() -> None:
    network = build_network(replace(TINY, mask=None))
    with pytest.raises(UsageError, match="takes no masks"):
        network(torch.rand(1, 1, 1, 3, 28, 28), torch.rand(1, 1, 1, 28, 28))


@pytest.mark.parametrize("step", list(Step))
def test_merging_is_undone_by_splitting(step: Step) -> None:
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


def test_the_first_slot_belongs_to_the_first_image() -> None:
    special = SpecialTokens(8, num_registers=2, slots=2)
    tokens = special(2, 3, 4)
    assert tokens.shape == (2, 3, 4, 3, 8)
    assert torch.equal(tokens[1, 0, 0, 0], special.camera_token[0, 0, 0])
    assert torch.equal(tokens[0, 0, 0, 1:], special.register_token[0, 0])
    others = tokens.flatten(0, 2)[[1, 4, 11, 13]]
    assert (others == torch.cat([special.camera_token, special.register_token], dim=2)[0, 1]).all()


def test_positions_count_patches_from_one_row_by_row() -> None:
    positions = token_positions((2, 3), num_special=2)
    assert positions.tolist() == [[0, 0], [0, 0], [1, 1], [1, 2], [1, 3], [2, 1], [2, 2], [2, 3]]
