"""Rigs of mixed sizes: every view has its own patches, nothing is padded, and views meet as if they had one size."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.encoders.navit import NaViTConfig
from page4d.encoders.stem import StemConfig
from page4d.errors import ShapeError, UsageError
from page4d.models.conditioning import NO_CONDITIONING, Conditioning
from page4d.models.config import (
    PRESETS,
    CameraHeadConfig,
    DPTHeadConfig,
    EpipolarConfig,
    FrameHeadConfig,
    FullAttention,
    MaskConfig,
    MatchConfig,
    NetworkConfig,
    SparseConfig,
    Streams,
    TimeEncoding,
)
from page4d.models.limits import ForwardLimits
from page4d.models.network import ViewTimeNetwork, build_network
from page4d.models.output import MixedOutput, NetworkOutput
from page4d.models.schedule import FRAME_CROSS, FRAME_GLOBAL
from page4d.models.size_groups import SizeGroups

DENSE = DPTHeadConfig(layers=(0, 1, 2, 3), features=8, out_channels=(4, 4, 8, 8), hidden=8, fine_dim=8)
CONFIG = NetworkConfig(
    encoder=StemConfig(image_size=32, embed_dim=16, fine_dim=8, depth=1, num_heads=2),
    depth=4,
    num_heads=2,
    mask=MaskConfig(layers=(2, 3), teaches_trunk=True),
    matches=MatchConfig(dim=8, hidden=8, fine_dim=8),
    known_cameras=True,
    ray_head=True,
    camera_head=CameraHeadConfig(trunk_depth=1, num_heads=4, num_iterations=2),
    depth_head=DENSE,
    point_head=DENSE,
)
PLAIN = replace(CONFIG, matches=None, known_cameras=False)
CONFIGS = {
    "two streams, matches, rays": CONFIG,
    "one stream": replace(CONFIG, mask=replace(CONFIG.mask, streams=Streams.SINGLE)),
    "global attention": replace(PLAIN, schedule=FRAME_GLOBAL),
    "all images as one instant": replace(CONFIG, full_attention=FullAttention.ALWAYS),
    "ALiBi": replace(PLAIN, time_encoding=TimeEncoding.ALIBI),
    "rotary time": replace(PLAIN, time_encoding=TimeEncoding.ROPE),
    "frame head": replace(
        PLAIN,
        schedule=FRAME_GLOBAL,
        mask=None,
        ray_head=False,
        camera_head=None,
        depth_head=None,
        point_head=None,
        frame_head=FrameHeadConfig(dim=16, depth=1, num_heads=2, point_dim=16, camera_dim=8),
    ),
}
TIMES = 2
RIG = ((24, 16), (16, 24), (16, 24), (8, 16))
"""A portrait camera and three landscape ones, two of them alike."""


def lively(config: NetworkConfig) -> ViewTimeNetwork:
    """Build a network in which every part speaks."""
    torch.manual_seed(0)
    network = build_network(config).double().eval()
    with torch.no_grad():
        for parameter in network.parameters():
            if not parameter.any():
                parameter.normal_(std=0.1)
    return network


def frames(sizes: Sequence[tuple[int, int]], channels: tuple[int, ...] = (3,)) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.rand(1, TIMES, *channels, *size, dtype=torch.float64) for size in sizes]


def conditioning_for(config: NetworkConfig, sizes: Sequence[tuple[int, int]]) -> Conditioning:
    """Return known cameras, in pixels of each view's own image, where the network can use them."""
    torch.manual_seed(2)
    times = torch.tensor([[0.0, 1.5]], dtype=torch.float64)
    if not config.known_cameras:
        return Conditioning(times=times)
    poses = torch.eye(4, dtype=torch.float64).repeat(1, TIMES, len(sizes), 1, 1)
    poses[..., :3, 3] = torch.randn(1, TIMES, len(sizes), 3, dtype=torch.float64)
    lenses = [[[20.0, 0, width / 2], [0, 21.0, height / 2], [0, 0, 1]] for height, width in sizes]
    intrinsics = torch.tensor(lenses, dtype=torch.float64).expand(1, TIMES, -1, 3, 3)
    return Conditioning(times=times, world_to_camera=poses, intrinsics=intrinsics)


def run(network: ViewTimeNetwork, sizes: Sequence[tuple[int, int]], **options: object) -> MixedOutput:
    masks = None if network.config.mask is None else frames(sizes, ())
    return network.forward_mixed(
        frames(sizes), masks, conditioning=conditioning_for(network.config, sizes), **options
    )


def assert_close(one: NetworkOutput, other: NetworkOutput, atol: float = 1e-9) -> None:
    for name, value in vars(one).items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(value, getattr(other, name), rtol=1e-7, atol=atol, msg=lambda m, n=name: n + m)


@pytest.mark.parametrize("name", CONFIGS)
def test_apart_or_together_views_of_one_size_give_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machinery of mixed sizes, with each view as if it had a size of its own, equals that of one size."""
    network, sizes = lively(CONFIGS[name]), [(16, 24)] * 3
    images = torch.stack(frames(sizes), dim=2)
    masks = None if network.config.mask is None else torch.stack(frames(sizes, ()), dim=2)
    uniform = network(images, masks, conditioning=conditioning_for(network.config, sizes))
    together = run(network, sizes)
    monkeypatch.setattr(
        SizeGroups,
        "of",
        lambda grids: SizeGroups(grids=tuple(grids), members=tuple((view,) for view in range(len(grids)))),
    )
    apart = run(network, sizes, limits=ForwardLimits(max_images=1, max_tokens=20, max_queries=7))
    for view in range(3):
        assert_close(together.views[view], uniform.of_view(view), atol=0)
        assert_close(apart.views[view], uniform.of_view(view))
        if uniform.matches is not None:
            found, expected = apart.matches[view], uniform.matches.of_view(view)
            torch.testing.assert_close(found.expected, expected.expected)
            torch.testing.assert_close(found.confidence, expected.confidence)


def test_views_that_do_not_exchange_see_what_they_would_see_alone() -> None:
    """With attention across views closed, each view of a mixed rig is predicted as on a rig of its own."""
    network = lively(replace(PLAIN, time_encoding=TimeEncoding.ROPE))
    with torch.no_grad():
        for block in network.aggregator.blocks["view"]:
            block.attn.proj.weight.zero_()
            block.attn.proj.bias.zero_()
        for token in network.aggregator.special.parameters():
            token[:, 1] = token[:, 0]
    out = run(network, RIG)
    for view, (images, masks) in enumerate(zip(frames(RIG), frames(RIG, ()), strict=True)):
        alone = network(
            images[:, :, None], masks[:, :, None], conditioning=conditioning_for(PLAIN, RIG[view : view + 1])
        )
        for part in ("depth", "points", "points_confidence", "rays", "dynamic"):
            torch.testing.assert_close(getattr(out.views[view], part), getattr(alone, part), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_view_comes_back_at_its_own_size(name: str) -> None:
    out = run(lively(CONFIGS[name]), RIG)
    for view, (height, width) in enumerate(RIG):
        own = out.views[view]
        assert own.depth.shape == own.depth_confidence.shape == (1, TIMES, 1, height, width)
        assert own.points.shape == (1, TIMES, 1, height, width, 3)
        assert own.dynamic is None or own.dynamic.shape == own.depth.shape
        middle = torch.tensor([width / 2, height / 2], dtype=torch.float64)
        torch.testing.assert_close(own.intrinsics[..., :2, 2], middle.expand(1, TIMES, 1, 2))
    assert out.world_to_camera.shape == (*out.intrinsics.shape[:3], 4, 4) == (1, TIMES, len(RIG), 4, 4)
    torch.testing.assert_close(out.intrinsics[:, :, 2:3], out.views[2].intrinsics)


def test_fields_of_view_are_decoded_with_the_pixels_of_each_view() -> None:
    out = run(lively(CONFIG), RIG)
    half = torch.tensor([(width / 2, height / 2) for height, width in RIG], dtype=torch.float64)
    focal = torch.stack([out.intrinsics[..., 0, 0], out.intrinsics[..., 1, 1]], dim=-1)
    torch.testing.assert_close(2 * torch.atan(half / focal), out.pose_encoding[..., [8, 7]])


def test_the_trunk_holds_the_patches_of_the_views_and_no_other_tokens() -> None:
    network = lively(CONFIG)
    seen: dict[str, int] = {}
    for name in ("view", "time"):
        block = network.aggregator.blocks[name][0]
        block.register_forward_pre_hook(
            lambda _, given, name=name: seen.update({name: seen.get(name, 0) + given[0][..., 0].numel()})
        )
    run(network, RIG)
    tokens = sum(height // 8 * (width // 8) + network.aggregator.special.count for height, width in RIG)
    assert seen == {"view": TIMES * tokens, "time": TIMES * tokens}


def test_the_order_of_views_and_other_entries_of_a_batch_do_not_matter() -> None:
    network = lively(PLAIN)
    images, masks = frames(RIG), frames(RIG, ())
    out = network.forward_mixed(images, masks)
    order = [0, 3, 1, 2]  # the first view defines the world
    moved = network.forward_mixed([images[view] for view in order], [masks[view] for view in order])
    for place, view in enumerate(order):
        assert_close(moved.views[place], out.views[view])
    wider = network.forward_mixed(
        [torch.cat([view, 1 - view]) for view in images], [torch.cat([mask, 1 - mask]) for mask in masks]
    )
    for view in range(len(RIG)):
        torch.testing.assert_close(wider.views[view].depth[:1], out.views[view].depth)


def test_an_image_is_encoded_as_if_it_were_alone_or_packed_with_others() -> None:
    encoder = NaViTConfig(image_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, head_dim=8)
    dense = replace(DENSE, fine_dim=0)
    network = lively(replace(PLAIN, encoder=encoder, depth_head=dense, point_head=dense))
    seen: list[tuple[Tensor, Tensor]] = []
    hook = network.encoder.register_forward_hook(lambda _, given, made: seen.append((given[0], made.tokens)))
    run(network, RIG)
    hook.remove()
    images = [image for batch, _ in seen for image in batch]
    found = [tokens for _, batch in seen for tokens in batch]
    packed = network.encoder.encode(images)
    assert sorted(len(batch) for batch, _ in seen) == [TIMES, TIMES, 2 * TIMES]
    for image, own, together in zip(images, found, packed, strict=True):
        torch.testing.assert_close(own, network.encoder(image[None]).tokens[0])
        torch.testing.assert_close(own, together.tokens[0])


def test_every_parameter_gets_a_gradient_from_a_mixed_rig() -> None:
    network = lively(CONFIG).train()
    out = run(network, RIG)
    loss = sum(match.expected.square().mean() for match in out.matches)
    for view in out.views:
        values = (*view.pose_encoding_iterations, view.depth, view.depth_confidence, view.points)
        loss = loss + sum(value.square().mean() for value in (*values, view.points_confidence, view.dynamic_logit))
        loss = loss + (view.rays * torch.randn_like(view.rays)).mean()
    loss.backward()
    without = [name for name, value in network.named_parameters() if value.grad is None or not value.grad.any()]
    assert without == []


@pytest.mark.parametrize(
    ("change", "conditioning", "named"),
    [
        ({"sparse": SparseConfig(layers=(3,))}, NO_CONDITIONING, "sparse layers"),
        ({"epipolar": EpipolarConfig(layers=(1,))}, NO_CONDITIONING, "epipolar prior"),
        ({"schedule": FRAME_CROSS}, NO_CONDITIONING, "rows and columns"),
        ({}, Conditioning(keypoints=torch.zeros(1, TIMES, 4, 2, 3)), "keypoints"),
    ],
)
def test_what_needs_one_size_is_refused_before_any_work(change: dict, conditioning: Conditioning, named: str) -> None:
    network = build_network(replace(PRESETS["mv-tiny"], **change))
    network.encoder.register_forward_pre_hook(lambda *_: pytest.fail("it encodes"))
    with pytest.raises(UsageError, match=named):
        network.forward_mixed(
            [torch.rand(1, TIMES, 3, 28, 14 * side) for side in (1, 2, 3, 3)], conditioning=conditioning
        )


def test_views_that_do_not_belong_together_are_refused() -> None:
    network = lively(PLAIN)
    images = frames(RIG)
    for wrong in ([], [*images, images[0][:, :1]], [*images, images[0][..., :-1]], [images[0][0]]):
        with pytest.raises(ShapeError):
            network.forward_mixed(wrong)
    for masks in (frames(RIG[:2], ()), frames(RIG[::-1], ())):
        with pytest.raises(ShapeError):
            network.forward_mixed(images, masks)
