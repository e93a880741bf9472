"""Networks from random checkpoints agree with naive twins, which follow the descriptions of the published ones.

The twins were written from the descriptions alone, in float64 and without parts of page4d.
"""

import pytest
import torch
from torch import Tensor

from page4d.networks.conditioning import NO_CONDITIONING, Conditioning
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.output import NetworkOutput
from page4d.weights.families.da3 import DA3MonoSettings, DA3Settings
from page4d.weights.families.pi3 import Pi3XSettings
from page4d.weights.families.shapes import NetworkSettings
from page4d.weights.families.vggt_omega import OmegaSettings
from tests.keymaps import converted
from tests.models.twins import da3, parts, pi3x, vggt_omega, weights

LIMITS = ForwardLimits(max_images=2, max_tokens=20, max_queries=7)


def network_of(tensors: dict[str, Tensor], settings: NetworkSettings) -> ViewTimeNetwork:
    config, state = converted(tensors, settings)
    network = build_network(config).eval().requires_grad_(False)
    network.load_state_dict(state)
    return network.double()


def random(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(seed: int, batch: int, views: int, size: tuple[int, int]) -> Tensor:
    return torch.rand(batch, views, 3, *size, generator=random(seed), dtype=torch.float64)


def poses(seed: int, batch: int, views: int, scale: float = 2.0) -> Tensor:
    """Return poses whose quaternions have either sign of w."""
    turn = torch.randn(batch, views, 4, generator=random(seed), dtype=torch.float64)
    move = scale * torch.randn(batch, views, 3, generator=random(seed + 1), dtype=torch.float64)
    return parts.pose_matrix(torch.cat([move, turn], -1))


def lenses(seed: int, batch: int, views: int, size: tuple[int, int]) -> Tensor:
    """Return intrinsics whose principal points are not in the middle."""
    values = torch.rand(batch, views, 4, generator=random(seed), dtype=torch.float64) + 0.3
    k = torch.zeros(batch, views, 3, 3, dtype=torch.float64)
    k[..., 0, 0], k[..., 0, 2] = size[1] * values[..., 0], size[1] * values[..., 1] / 1.5
    k[..., 1, 1], k[..., 1, 2], k[..., 2, 2] = size[0] * values[..., 2], size[0] * values[..., 3] / 1.5, 1
    return k


def assert_agree(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    """The published DPT positions are rounded to float32."""
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], rtol=1e-6, atol=1e-6, msg=lambda text, n=name: f"{n}: {text}")


def cameras(out: NetworkOutput) -> dict[str, Tensor]:
    return {"extrinsics": out.world_to_camera.flatten(1, 2)[..., :3, :], "intrinsics": out.intrinsics.flatten(1, 2)}


@pytest.mark.parametrize(
    ("seed", "depth", "start", "levels", "swiglu", "strategy", "batch", "views", "size"),
    [
        (0, 12, 4, (5, 7, 9, 11), False, "saddle_balanced", 2, 4, (28, 42)),
        (1, 12, 3, (5, 7, 9, 11), True, "middle", 2, 3, (56, 28)),
        (2, 12, 1, (3, 5, 7, 9), False, "saddle_sim_range", 2, 4, (14, 56)),
        (3, 10, 2, (3, 5, 7, 9), True, "first", 1, 1, (42, 42)),
    ],
)
def test_any_view(
    seed: int, depth: int, start: int, levels: tuple, swiglu: bool, strategy: str, batch: int, views: int, size: tuple
) -> None:
    sizes = {"depth": depth, "heads": 2, "start": start}
    tensors = weights.da3(
        random(seed), **sizes, width=16, side=3, swiglu=swiglu, features=8, widths=(4, 8, 12, 8), camera_depth=2,
        small=seed % 2 == 0,
    )  # fmt: skip
    encoder = {"embed_dim": 16, "depth": depth, "num_heads": 2, "alt_start": start, "out_layers": levels}
    given = {"model": "da3", "encoder": encoder, "cam_enc": {"num_heads": 4, "trunk_depth": 2}}
    network = network_of(tensors, DA3Settings.model_validate(given | {"ref_view_strategy": strategy}))
    frames, extrinsics = images(seed, batch, views, size), poses(seed, batch, views)
    intrinsics = lenses(seed, batch, views, size)
    options = {"heads": 2, "start": start, "levels": levels, "camera_heads": 4, "strategy": strategy}
    for known in (None, (extrinsics, intrinsics)):
        conditioning = NO_CONDITIONING
        if known is not None:
            conditioning = Conditioning(world_to_camera=extrinsics[:, None], intrinsics=intrinsics[:, None])
        out = network(frames[:, None], conditioning=conditioning, limits=LIMITS)
        ours = {"depth": out.depth, "depth_conf": out.depth_confidence, "ray": out.ray_map}
        ours = {name: value[:, 0] for name, value in (ours | {"ray_conf": out.ray_confidence}).items()}
        assert_agree(ours | cameras(out), da3.any_view(tensors, frames, cameras=known, **options))


@pytest.mark.parametrize("size", [(42, 42), (28, 70)])
def test_single_image(size: tuple[int, int]) -> None:
    tensors = weights.da3_mono(
        random(5), width=16, depth=6, heads=2, side=3, features=8, widths=(4, 8, 12, 8), small=True
    )
    encoder = {"embed_dim": 16, "depth": 6, "num_heads": 2, "out_layers": (0, 2, 3, 5)}
    network = network_of(tensors, DA3MonoSettings.model_validate({"model": "da3-mono", "encoder": encoder}))
    frames = images(5, 1, 2, size)
    out = network(frames[:, None])
    expected = da3.single_image(tensors, frames, heads=2, levels=(0, 2, 3, 5))
    assert_agree({"depth": out.depth[:, 0], "sky": out.sky[:, 0]}, expected)


@pytest.mark.parametrize(
    ("seed", "register_blocks", "masked", "batch", "views", "size"),
    [(0, (0, 4), "random", 2, 2, (32, 48)), (1, (), "keys", 1, 1, (80, 16)), (2, (1, 2), "ones", 1, 4, (16, 32))],
)
def test_omega(seed: int, register_blocks: tuple, masked: str, batch: int, views: int, size: tuple[int, int]) -> None:
    tensors = weights.vggt_omega(
        random(seed), width=16, encoder_depth=1, encoder_heads=1, depth=5, heads=2, registers=2, storage=3,
        camera_depth=2, features=8, widths=(4, 8, 12, 8), masked=masked, small=seed % 2 == 0,
    )  # fmt: skip
    settings = {
        "model": "vggt-omega",
        "embed_dim": 16,
        "depth": 5,
        "num_heads": 2,
        "register_attention_blocks": register_blocks,
        "encoder": {"depth": 1, "num_heads": 1},
        "camera_head": {"num_heads": 4, "trunk_depth": 2},
        "dense_head": {"intermediate_layer_idx": (0, 1, 3, 4)},
    }
    network = network_of(tensors, OmegaSettings.model_validate(settings))
    frames = images(seed, batch, views, size)
    out = network(frames[:, None], limits=LIMITS)
    options = {"encoder_heads": 1, "heads": 2, "camera_heads": 4, "levels": (0, 1, 3, 4)}
    expected = vggt_omega.forward(tensors, frames, register_blocks=register_blocks, **options)
    ours = {"depth": out.depth[:, 0, ..., None], "depth_conf": out.depth_confidence[:, 0]}
    assert_agree(ours | cameras(out), expected)


INJECTED = (1, 5)
HALF = torch.tensor([[True, False, True], [False, False, True]])
KNOWN = {"poses": "world_to_camera", "depths": "depths", "intrinsics": "intrinsics"}
MASKS = {"mask_pose": "known_poses", "mask_depth": "known_depths", "mask_ray": "known_intrinsics"}


@pytest.fixture(scope="module")
def pi3x_weights() -> dict[str, Tensor]:
    return weights.pi3x(
        random(7), width=16, encoder_depth=1, encoder_heads=2, depth=6, heads=1, inject_heads=2, injections=2,
        registers=3, decoder=16, decoder_heads=2, decoder_depth=1, camera_width=8, metric=16, metric_depth=1,
        metric_out=8, upsampling=(32, 16, 16), side=3, small=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "masks", "scale"),
    [
        ((), {}, 1),
        (("intrinsics",), {"mask_ray": HALF}, 1),
        (("poses",), {}, 1),
        (("poses", "intrinsics"), {"mask_pose": HALF}, 1),
        (("depths",), {"mask_depth": HALF}, 1),
        (("poses", "depths"), {"mask_depth": HALF, "mask_pose": ~HALF}, 1),
        (("poses", "intrinsics", "depths"), {"mask_depth": ~HALF & False}, 0.003),
    ],
)
def test_pi3x(pi3x_weights: dict[str, Tensor], given: tuple, masks: dict[str, Tensor], scale: float) -> None:
    """Masks differ between the scenes; a single known pose in one; cameras at rest with depth that is not known."""
    settings = {
        "model": "pi3x",
        "rope_freq": 100,
        "heads": {"dec_num_heads": 2},
        "metric": {"num_heads": 4},
        "encoder": {"embed_dim": 16, "depth": 1, "num_heads": 2},
        "decoder": {"depth": 6, "num_heads": 1},
        "pose_inject": {"num_heads": 2, "after_blocks": INJECTED},
    }
    network = network_of(pi3x_weights, Pi3XSettings.model_validate(settings))
    size = (28, 42)
    depths = 9 * torch.rand(2, 3, *size, generator=random(8), dtype=torch.float64)
    depths[:, :, 3] = 0
    depths[1, 1] = 0
    every = {"poses": poses(8, 2, 3, scale), "intrinsics": lenses(8, 2, 3, size), "depths": depths}
    known = {name: every[name] for name in given}
    ours = {KNOWN[name]: value[:, None] for name, value in known.items()}
    if "poses" in known:
        ours["world_to_camera"] = torch.linalg.inv(known["poses"])[:, None]
    ours |= {MASKS[name]: mask[:, None] for name, mask in masks.items()}
    frames = images(8, 2, 3, size)
    out = network(frames[:, None], conditioning=Conditioning(**ours), limits=LIMITS)
    heads = {"encoder_heads": 2, "heads": 1, "decoder_heads": 2, "metric_heads": 4, "inject_heads": 2}
    expected = pi3x.forward(pi3x_weights, frames, known=known | masks, inject_after=INJECTED, **heads)
    found = {"points": out.points, "local_points": out.local_points, "camera_poses": out.camera_to_world}
    found = {name: value[:, 0] for name, value in (found | {"conf": out.confidence_logits[..., None]}).items()}
    assert_agree(found | {"metric": out.metric_scale}, expected)
