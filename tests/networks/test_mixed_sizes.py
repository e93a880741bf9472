"""Rigs of mixed image sizes: the same predictions as for one size, without padding."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.choices import FullAttention, TimeEncoding
from page4d.errors import ShapeError, UsageError
from page4d.networks.conditioning import NO_CONDITIONING, Conditioning, SizeGroups
from page4d.networks.config import FRAME_GLOBAL, NetworkConfig
from page4d.networks.config_parts import EpipolarConfig, FrameHeadConfig, SparseConfig, Streams
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.encoders.navit import NaViTConfig
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.output import NetworkOutput, RigOutput
from page4d.networks.presets import PRESETS
from tests.networks.small_networks import EXPLICIT_INPUTS as CONFIG
from tests.networks.small_networks import (
    OMEGA_LIKE,
    SMALL_DA3,
    SMALL_DA3_NESTED,
    SMALL_PI3X,
    fill_zeros,
    without_gradient,
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
    "pi3x": replace(
        SMALL_PI3X,
        encoder=CONFIG.encoder,
        known_geometry=replace(
            SMALL_PI3X.known_geometry,
            depth_encoder=DinoV2Config(
                image_size=24, patch_size=8, embed_dim=16, depth=1, num_heads=2, in_channels=2
            ),
        ),
    ),
    "Depth Anything 3, cameras known": SMALL_DA3,
    "Depth Anything 3, nested": SMALL_DA3_NESTED,
    "Depth Anything 3": replace(SMALL_DA3, camera_encoder=None),
    "VGGT-Omega": OMEGA_LIKE,
}
TIMES = 2
RIG = ((24, 16), (16, 24), (16, 24), (8, 16))
"""(Height, width) of a portrait camera and three landscape ones, two of one size."""


def randomized(config: NetworkConfig) -> ViewTimeNetwork:
    """Build a float64 network in which every part affects the output."""
    torch.manual_seed(0)
    return fill_zeros(build_network(config).double().eval())


def frames(sizes: Sequence[tuple[int, int]], channels: tuple[int, ...] = (3,)) -> list[Tensor]:
    torch.manual_seed(1)
    return [torch.rand(1, TIMES, *channels, *size, dtype=torch.float64) for size in sizes]


def conditioning_for(config: NetworkConfig, sizes: Sequence[tuple[int, int]]) -> Conditioning:
    """Return times, and known cameras in pixels of each view if the network accepts them."""
    torch.manual_seed(2)
    times = torch.tensor([[0.0, 1.5]], dtype=torch.float64)
    if not config.takes_cameras:
        return Conditioning(times=times)
    poses = torch.eye(4, dtype=torch.float64).repeat(1, TIMES, len(sizes), 1, 1)
    poses[..., :3, 3] = torch.randn(1, TIMES, len(sizes), 3, dtype=torch.float64)
    lenses = [[[20.0, 0, width / 2], [0, 21.0, height / 2], [0, 0, 1]] for height, width in sizes]
    intrinsics = torch.tensor(lenses, dtype=torch.float64).expand(1, TIMES, -1, 3, 3)
    given = Conditioning(times=times, world_to_camera=poses, intrinsics=intrinsics)
    if config.known_geometry is None:
        return given
    depths = [torch.rand(1, TIMES, *size, dtype=torch.float64) - 0.2 for size in sizes]
    known = (torch.arange(TIMES * len(sizes)) % 3 != 1).reshape(1, TIMES, -1)
    masks = {"known_intrinsics": known.flip(1), "known_poses": known, "known_depths": known.flip(2)}
    return replace(given, depths=depths, **masks)


def stacked(given: Conditioning) -> Conditioning:
    """Return the conditioning of images in one tensor."""
    return given if given.depths is None else replace(given, depths=torch.stack(given.depths, dim=2))


def run(network: ViewTimeNetwork, sizes: Sequence[tuple[int, int]], **options: object) -> RigOutput:
    masks = None if network.config.mask is None else frames(sizes, ())
    return network(frames(sizes), masks, conditioning=conditioning_for(network.config, sizes), **options)


def assert_close(one: NetworkOutput, other: NetworkOutput, atol: float = 1e-9) -> None:
    for name, value in vars(one).items():
        if isinstance(value, Tensor):
            torch.testing.assert_close(value, getattr(other, name), rtol=1e-7, atol=atol, msg=lambda m, n=name: n + m)


@pytest.mark.parametrize("name", CONFIGS)
def test_one_group_per_view_equals_one_group(name: str, monkeypatch: pytest.MonkeyPatch):
    """A tensor, one group of views, and one group per view give the same predictions."""
    network, sizes = randomized(CONFIGS[name]), [(16, 24)] * 3
    images = torch.stack(frames(sizes), dim=2)
    masks = None if network.config.mask is None else torch.stack(frames(sizes, ()), dim=2)
    uniform = network(images, masks, conditioning=stacked(conditioning_for(network.config, sizes)))
    together = run(network, sizes)
    monkeypatch.setattr(
        SizeGroups,
        "of",
        lambda grids: SizeGroups(grids=tuple(grids), members=tuple((view,) for view in range(len(grids)))),
    )
    separate = run(network, sizes, limits=ForwardLimits(max_images=1, max_tokens=20, max_queries=7))
    for view in range(3):
        assert_close(together.views[view], uniform.of_view(view), atol=0)
        assert_close(separate.views[view], uniform.of_view(view))
        if uniform.matches is not None:
            found, expected = separate.views[view].matches, uniform.matches.of_view(view)
            torch.testing.assert_close(found.expected, expected.expected)
            torch.testing.assert_close(found.confidence, expected.confidence)


@pytest.mark.parametrize("name", ["rotary time", "VGGT-Omega"])
def test_views_without_attention_across_views_are_predicted_as_single_views(name: str):
    """Attention across views is disabled by zero projections."""
    network = randomized(CONFIGS[name])
    with torch.no_grad():
        for block in network.aggregator.blocks["global" if name == "VGGT-Omega" else "view"]:
            block.attn.proj.weight.zero_()
            block.attn.proj.bias.zero_()
        for token in network.aggregator.special.parameters():
            token[:, 1] = token[:, 0]
    out = run(network, RIG)
    for view, (images, masks) in enumerate(zip(frames(RIG), frames(RIG, ()), strict=True)):
        mask = None if network.config.mask is None else masks[:, :, None]
        alone = network(images[:, :, None], mask, conditioning=conditioning_for(PLAIN, RIG[view : view + 1]))
        dense = ("depth", "points", "points_confidence", "rays", "dynamic")
        assert_close(NetworkOutput(**{part: getattr(alone, part) for part in dense}), out.views[view])


@pytest.mark.parametrize("name", CONFIGS)
def test_every_view_is_predicted_at_its_own_size(name: str):
    out = run(randomized(CONFIGS[name]), RIG)
    for view, (height, width) in enumerate(RIG):
        own = out.views[view]
        assert own.depth.shape == own.depth_confidence.shape == (1, TIMES, 1, height, width)
        assert own.points is None or own.points.shape == (1, TIMES, 1, height, width, 3)
        assert own.ray_map is None or own.ray_map.shape == (1, TIMES, 1, height, width, 6)
        assert own.dynamic is None or own.dynamic.shape == own.depth.shape
        middle = torch.tensor([width / 2, height / 2], dtype=torch.float64)
        torch.testing.assert_close(own.intrinsics[..., :2, 2], middle.expand(1, TIMES, 1, 2))
    assert out.world_to_camera.shape == (*out.intrinsics.shape[:3], 4, 4) == (1, TIMES, len(RIG), 4, 4)
    torch.testing.assert_close(out.intrinsics[:, :, 2:3], out.views[2].intrinsics)


@pytest.mark.parametrize("config", [CONFIG, OMEGA_LIKE], ids=["known cameras", "VGGT-Omega"])
def test_fields_of_view_are_decoded_with_the_size_of_each_view(config: NetworkConfig):
    out = run(randomized(config), RIG)
    half = torch.tensor([(width / 2, height / 2) for height, width in RIG], dtype=torch.float64)
    focal = torch.stack([out.intrinsics[..., 0, 0], out.intrinsics[..., 1, 1]], dim=-1)
    torch.testing.assert_close(2 * torch.atan(half / focal), out.pose_encoding[..., [8, 7]])


def test_the_trunk_has_no_padding_tokens():
    network = randomized(CONFIG)
    num_tokens: dict[str, int] = {}
    for name in ("view", "time"):
        block = network.aggregator.blocks[name][0]
        block.register_forward_pre_hook(
            lambda _, given, name=name: num_tokens.update({name: num_tokens.get(name, 0) + given[0][..., 0].numel()})
        )
    run(network, RIG)
    tokens = sum(height // 8 * (width // 8) + network.aggregator.special.count for height, width in RIG)
    assert num_tokens == {"view": TIMES * tokens, "time": TIMES * tokens}


@pytest.mark.parametrize("config", [PLAIN, OMEGA_LIKE], ids=["plain", "VGGT-Omega"])
def test_the_order_of_views_and_other_scenes_of_the_batch_do_not_matter(config: NetworkConfig):
    network = randomized(config)
    given = (frames(RIG),) if config.mask is None else (frames(RIG), frames(RIG, ()))
    out = network(*given)
    order = [0, 3, 1, 2]  # the first view defines the world
    reordered = network(*([views[view] for view in order] for views in given))
    for place, view in enumerate(order):
        assert_close(reordered.views[place], out.views[view])
    wider = network(*([torch.cat([view, 1 - view]) for view in views] for views in given))
    for view in range(len(RIG)):
        torch.testing.assert_close(wider.views[view].depth[:1], out.views[view].depth)


def test_images_are_encoded_equally_alone_and_in_batches():
    encoder = NaViTConfig(image_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, head_dim=8)
    dense = replace(CONFIG.depth_head, fine_dim=0)
    network = randomized(replace(PLAIN, encoder=encoder, depth_head=dense, point_head=dense))
    encoded: list[tuple[Tensor, Tensor]] = []
    hook = network.encoder.register_forward_hook(lambda _, given, made: encoded.append((given[0], made.tokens)))
    run(network, RIG)
    hook.remove()
    images = [image for batch, _ in encoded for image in batch]
    found = [tokens for _, batch in encoded for tokens in batch]
    assert sorted(len(batch) for batch, _ in encoded) == [TIMES, TIMES, 2 * TIMES]
    for image, own in zip(images, found, strict=True):
        torch.testing.assert_close(own, network.encoder(image[None]).tokens[0])


def test_every_parameter_gets_a_gradient_from_a_mixed_rig():
    network = randomized(CONFIG).train()
    out = run(network, RIG)
    loss = sum(view.matches.expected.square().mean() for view in out.views)
    for view in out.views:
        values = (*view.pose_encoding_iterations, view.depth, view.depth_confidence, view.points)
        loss = loss + sum(value.square().mean() for value in (*values, view.points_confidence, view.dynamic_logit))
        loss = loss + (view.rays * torch.randn_like(view.rays)).mean()
    loss.backward()
    assert without_gradient(network) == []


@pytest.mark.parametrize(
    ("change", "conditioning", "named"),
    [
        ({"sparse": SparseConfig(layers=(3,))}, NO_CONDITIONING, "sparse layers"),
        ({"epipolar": EpipolarConfig(layers=(1,))}, NO_CONDITIONING, "epipolar prior"),
        ({}, Conditioning(keypoints=torch.zeros(1, TIMES, 4, 2, 3)), "keypoints"),
    ],
)
def test_parts_that_need_one_size_are_refused_before_encoding(change: dict, conditioning: Conditioning, named: str):
    network = build_network(replace(PRESETS["mv-tiny"], **change))
    network.encoder.register_forward_pre_hook(lambda *_: pytest.fail("images were encoded"))
    with pytest.raises(UsageError, match=named):
        network([torch.rand(1, TIMES, 3, 28, 14 * side) for side in (1, 2, 3, 3)], conditioning=conditioning)


def test_mismatched_views_and_masks_are_refused():
    network = randomized(PLAIN)
    images = frames(RIG)
    for wrong in ([], [*images, images[0][:, :1]], [*images, images[0][..., :-1]], [images[0][0]]):
        with pytest.raises(ShapeError):
            network(wrong)
    for masks in (frames(RIG[:2], ()), frames(RIG[::-1], ())):
        with pytest.raises(ShapeError):
            network(images, masks)
