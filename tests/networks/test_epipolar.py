"""The epipolar prior: recorded numbers, geometry, and pairs without a penalty."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import rigid
from page4d.networks.conditioning import Conditioning
from page4d.networks.config_parts import EpipolarConfig
from page4d.networks.inputs.known_cameras import EpipolarBand, epipolar_band, fundamental_matrices, line_distances
from page4d.networks.layers.attention import LogitsBias, attend
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.presets import PRESETS

MASK = PRESETS["mv-tiny"].mask
EXACT = {"rtol": 0, "atol": 1e-12}


def cameras(times: int = 2, views: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    turn = 0.3 * torch.randn(1, times, views, 3, generator=generator, dtype=torch.float64)
    move = torch.randn(1, times, views, 3, generator=generator, dtype=torch.float64)
    intrinsics = torch.tensor([[50.0, 0, 21], [0, 45, 14], [0, 0, 1]], dtype=torch.float64)
    return rigid(matrix_from_rotation_vector(turn), move), intrinsics.expand(1, times, views, 3, 3)


def test_recorded_numbers(golden: Callable) -> None:
    loaded = golden("mv_epipolar")
    meta = loaded.meta
    extrinsics = loaded.tensors["input/extrinsics_w2c"]
    intrinsics = loaded.tensors["input/intrinsics"]
    world_to_camera = rigid(extrinsics[..., :3], extrinsics[..., 3])
    ours = fundamental_matrices(world_to_camera, intrinsics)
    theirs = loaded.tensors["output/F"]
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    config = EpipolarConfig(penalty=meta["c"], band=meta["tau_px"] / 14)
    band = epipolar_band(config, world_to_camera[None], intrinsics[None], tuple(meta["patch_grid"]), 14, 5)
    torch.testing.assert_close(band.rows(0, 75).float(), loaded.tensors["output/bias"], **EXACT)
    homogeneous = torch.nn.functional.pad(band.centers, (0, 1), value=1.0)
    distances = line_distances(torch.einsum("tabij,pj->tapbi", theirs, homogeneous), band.centers)
    distinct = ~torch.eye(3, dtype=torch.bool)[:, None, :, None].expand(distances.shape[1:])
    torch.testing.assert_close(
        distances[:, distinct], loaded.tensors["output/distance"][:, distinct], rtol=1e-9, atol=1e-9
    )


def band_of(seed: int = 0, **changes: float) -> EpipolarBand:
    return epipolar_band(EpipolarConfig(**changes), *cameras(seed=seed), (2, 3), 14, 2)


def test_special_tokens_and_pairs_within_a_view_have_no_bias() -> None:
    rows = band_of(band=0.5).rows(0, 24).reshape(2, 3, 8, 3, 8)
    assert (rows == -2).any()
    assert set(rows.unique().tolist()) == {-2.0, 0.0}
    assert not rows[:, :, :2].any()
    assert not rows[..., :2].any()
    assert not any(rows[:, view, :, view].any() for view in range(3))
    assert not band_of(penalty=0.0).rows(0, 24).any()
    assert not band_of(band=1e6).rows(0, 24).any()


def test_views_without_a_baseline_have_no_bias() -> None:
    world_to_camera, intrinsics = cameras()
    world_to_camera = world_to_camera.clone()
    world_to_camera[:, :, 1, :3, 3] = (
        world_to_camera[:, :, 1, :3, :3]
        @ world_to_camera[:, :, 0, :3, :3].transpose(-1, -2)
        @ world_to_camera[:, :, 0, :3, 3:]
    )[..., 0]
    band = epipolar_band(EpipolarConfig(band=0.1), world_to_camera, intrinsics, (2, 3), 14, 2)
    rows = band.rows(0, 24).reshape(2, 3, 8, 3, 8)
    assert not rows[:, 0, :, 1].any()
    assert not rows[:, 1, :, 0].any()
    assert rows[:, 0, :, 2].any()
    assert (
        not epipolar_band(EpipolarConfig(), torch.full_like(world_to_camera, torch.nan), intrinsics, (2, 3), 14, 2)
        .rows(0, 24)
        .any()
    )
    one_place = epipolar_band(
        EpipolarConfig(), *(c[:, :, :1].expand(-1, -1, 3, -1, -1) for c in cameras()), (2, 3), 14, 2
    )
    assert not one_place.rows(0, 24).any()


def test_rows_and_groups_are_parts_of_the_whole() -> None:
    band = band_of(band=0.5)
    whole = band.rows(0, 24)
    assert torch.equal(torch.cat([band.rows(start, min(start + 7, 24)) for start in range(0, 24, 7)], dim=1), whole)
    assert torch.equal(band.of_groups(slice(1, 2)).rows(3, 20), whole[1:, 3:20])


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("max_queries", [None, 5])
def test_attention_adds_the_prior_to_other_biases(learned: bool, max_queries: int | None) -> None:
    band = band_of(band=0.5)
    query, key, value = torch.randn(3, 2, 4, 24, 8, dtype=torch.float64).unbind(0)
    added = torch.randn(2, 24, dtype=torch.float64)
    logits = query @ key.transpose(-1, -2) / 8**0.5 + added[:, None, None] + band.rows(0, 24)[:, None]
    bias = LogitsBias(key=added.clone().requires_grad_(learned), pairs=band)
    torch.testing.assert_close(attend(query, key, value, bias, max_queries), logits.softmax(-1) @ value, **EXACT)


def test_the_prior_in_a_network(randomized: Callable) -> None:
    config = EpipolarConfig(layers=(1, 3), band=0.5)
    images = torch.rand(1, 2, 3, 3, 28, 42, dtype=torch.float64)
    external = torch.rand(1, 2, 3, 28, 42, dtype=torch.float64)
    world_to_camera, intrinsics = cameras()
    known = Conditioning(world_to_camera=world_to_camera, intrinsics=intrinsics)
    for mask in (None, MASK):
        network, plain = randomized(epipolar=config, mask=mask), randomized(mask=mask)
        inputs = (images,) if mask is None else (images, external)
        with torch.no_grad():
            for name, parameter in (*network.named_parameters(), *plain.named_parameters()):
                if "lambda_" in name:
                    parameter.fill_(1.0)
            without, guided = network(*inputs), network(*inputs, conditioning=known)
            limited = network(*inputs, conditioning=known, limits=ForwardLimits(max_tokens=30, max_queries=7))
            assert torch.equal(without.depth, plain(*inputs).depth)
            assert torch.equal(plain(*inputs, conditioning=known).depth, without.depth)
        assert (guided.depth - without.depth).abs().max() > 1e-5
        assert (guided.pose_encoding - without.pose_encoding).abs().max() > 1e-6
        torch.testing.assert_close(guided.depth, limited.depth, rtol=1e-11, atol=0)
        order = [0, 2, 1]
        swapped = Conditioning(world_to_camera=world_to_camera[:, :, order], intrinsics=intrinsics[:, :, order])
        with torch.no_grad():
            permuted = network(*(value[:, :, order] for value in inputs), conditioning=swapped)
        torch.testing.assert_close(guided.depth[:, :, order], permuted.depth, rtol=1e-10, atol=0)
    network(*inputs, conditioning=known).depth.sum().backward()  # learned lambdas together with a fixed prior
    one_view = replace(known, world_to_camera=world_to_camera[:, :, :1], intrinsics=intrinsics[:, :, :1])
    full = randomized(epipolar=config, full_attention="one-view")
    assert full(images[:, :, :1], conditioning=one_view).depth.isfinite().all()
