"""Depth looked for along rays is where things that look alike are, and stays where nothing does."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from page4d.geometry.camera import Cameras, world_points
from page4d.ground_truth import GroundTruth
from page4d.models.config import MatchTarget
from page4d.models.inputs.matching import Appearance, ViewMatches, to_pixels
from page4d.models.output import NetworkOutput
from page4d.refinement.feature_sweep import sweep
from page4d.refinement.matched_view import MatchedView
from page4d.synthetic.sampler import ShotRequest, sample_truth

PATCH, FINER = 8, 2
SIZE = (64, 80)
KINDS = tuple(MatchTarget)
WAVES = 16
"""Spatial frequency of the descriptors."""

WRONG = 1.3
"""Factor by which the depths that are given are wrong."""


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth([1, 2], ShotRequest(num_times=2, num_views=3, image_size=SIZE, spacing_deg=(15, 16)))


def looks(points: Tensor, side: int) -> Tensor:
    """Describe what is in the middle of squares of an image by where it is: what is near looks alike.

    The middle is between pixels: the mean of the four around it. Far away, differences are seen less.
    """
    at = slice(side // 2 - 1, None, side), slice(side // 2, None, side)
    around = [points[:, :, :, row, column] for row in at for column in at]
    places = torch.stack(around).mean(dim=0).flatten(3, 4)
    unit = places.norm(dim=-1, keepdim=True).flatten(1).median(dim=1).values.reshape(-1, 1, 1, 1, 1)
    places = places / (unit + places.norm(dim=-1, keepdim=True))
    random = torch.Generator().manual_seed(0)
    waves = torch.randn(3, 64, generator=random, dtype=points.dtype) * WAVES
    phase = torch.rand(64, generator=random, dtype=points.dtype) * 2 * torch.pi
    return torch.nn.functional.normalize((places @ waves + phase).cos(), dim=-1)


@pytest.fixture(scope="module")
def views(truth: GroundTruth) -> list[MatchedView]:
    points = world_points(truth.depth.double(), cameras_of(truth))
    appearance = Appearance(
        patches=40 * looks(points, PATCH),
        cells=looks(points, PATCH // FINER),
        unseen=torch.tensor(28.0).double(),
        finer=FINER,
    )
    found = []
    for place in range(3):
        nothing = torch.zeros(2, 2, len(KINDS), 80)
        matches = ViewMatches(
            likelihoods=None,
            expected=nothing[..., None].expand(-1, -1, -1, -1, 2),
            confidence=nothing,
            targets=KINDS,
            appearance=appearance.of_view(place),
        )
        chosen = slice(place, place + 1)
        output = NetworkOutput(depth=truth.depth[:, :, chosen], dynamic=truth.dynamic[:, :, chosen].float())
        found.append(MatchedView(output=output, matches=matches, patch_size=PATCH))
    return found


def cameras_of(truth: GroundTruth) -> Cameras:
    return Cameras(
        world_to_camera=truth.cameras.world_to_camera.double(),
        intrinsics=truth.cameras.intrinsics.double(),
        image_size=SIZE,
    )


def flat(cameras: Cameras) -> Cameras:
    """Return cameras [B, T, V] as [B, T*V]."""
    return replace(
        cameras,
        world_to_camera=cameras.world_to_camera.flatten(1, 2),
        intrinsics=cameras.intrinsics.flatten(1, 2),
    )


def depth_of(views: list[MatchedView]) -> Tensor:
    return torch.stack([view.depth_at_middles for view in views], dim=2).flatten(1, 2)


def slips(found: Tensor, views: list[MatchedView]) -> Tensor:
    """Return |log| of the factor that depths are wrong by, of patches where there is anything."""
    true = depth_of(views)
    return (found / true).log().abs()[(true > 0) & true.isfinite()]


@pytest.mark.parametrize("wrong", [WRONG, 1 / WRONG])
def test_depth_is_found_where_others_see_what_looks_alike(
    truth: GroundTruth, views: list[MatchedView], wrong: float
) -> None:
    found = sweep(views, flat(cameras_of(truth)), depth_of(views) * wrong)
    before, after = slips(depth_of(views) * wrong, views), slips(found, views)
    assert after.median() < 0.25 * before.median()
    assert (after < 0.1).float().mean() > 0.6  # some patches are seen by one view only


def test_what_is_seen_nowhere_stays(truth: GroundTruth, views: list[MatchedView]) -> None:
    unlike = [
        replace(
            view,
            matches=replace(
                view.matches, appearance=replace(view.matches.appearance, unseen=torch.tensor(400.0).double())
            ),
        )
        for view in views
    ]
    blind = [replace(view, matches=replace(view.matches, appearance=None)) for view in views]
    given = depth_of(views) * WRONG
    for those in (unlike, blind):
        torch.testing.assert_close(sweep(those, flat(cameras_of(truth)), given), given)


def test_other_units_change_nothing(truth: GroundTruth, views: list[MatchedView]) -> None:
    cameras = flat(cameras_of(truth))
    pose = cameras.world_to_camera.clone()
    pose[..., :3, 3] *= 50
    given = depth_of(views) * WRONG
    there = sweep(views, replace(cameras, world_to_camera=pose), given * 50)
    torch.testing.assert_close(there / 50, sweep(views, cameras, given))


def test_scenes_do_not_mix(truth: GroundTruth, views: list[MatchedView]) -> None:
    given = depth_of(views) * WRONG
    cameras = flat(cameras_of(truth))
    alone = []
    for view in views:
        own = view.matches.appearance
        appearance = replace(own, patches=own.patches[:1], cells=own.cells[:1])
        output = NetworkOutput(depth=view.output.depth[:1], dynamic=view.output.dynamic[:1])
        alone.append(replace(view, output=output, matches=replace(view.matches, appearance=appearance)))
    torch.testing.assert_close(sweep(alone, cameras[:1], given[:1]), sweep(views, cameras, given)[:1])


def test_many_pairs_are_compared_in_parts(
    monkeypatch: pytest.MonkeyPatch, truth: GroundTruth, views: list[MatchedView]
) -> None:
    given = depth_of(views) * WRONG
    whole = sweep(views, flat(cameras_of(truth)), given)
    monkeypatch.setattr("page4d.refinement.feature_sweep._COMPARED_AT_ONCE", 100)
    torch.testing.assert_close(sweep(views, flat(cameras_of(truth)), given), whole)


def test_views_of_fewer_patches_are_padded_and_compared(truth: GroundTruth, views: list[MatchedView]) -> None:
    """The last view without its lowest rows: others still find the rest there, and it finds itself in others."""
    rows = 6
    last = views[2]
    own = last.matches.appearance
    lower = replace(
        last,
        output=NetworkOutput(
            depth=last.output.depth[..., : rows * PATCH, :], dynamic=last.output.dynamic[..., : rows * PATCH, :]
        ),
        matches=replace(
            last.matches,
            appearance=replace(
                own, patches=own.patches[:, :, : rows * 10], cells=own.cells[:, :, : rows * FINER * 10 * FINER]
            ),
        ),
    )
    given = depth_of(views) * WRONG
    found = torch.unflatten(sweep([*views[:2], lower], flat(cameras_of(truth)), given), 1, (2, 3))
    wanted = torch.unflatten(sweep(views, flat(cameras_of(truth)), given), 1, (2, 3))
    padding = found[:, :, 2, rows * 10 :]
    torch.testing.assert_close(padding, torch.unflatten(given, 1, (2, 3))[:, :, 2, rows * 10 :])
    inner = found[:, :, 2, : rows * 10] / wanted[:, :, 2, : rows * 10]
    assert (inner.log().abs() < 0.02).float().mean() > 0.8


def test_what_moves_is_not_looked_for_at_other_instants(truth: GroundTruth, views: list[MatchedView]) -> None:
    """With all that may be compared at the same instant left out, only what stands still is found anew."""
    between = tuple(kind for kind in KINDS if not kind.at_same_instant)
    assert between
    moving = [
        replace(
            view,
            matches=replace(view.matches, targets=between),
            output=replace(view.output, dynamic=torch.ones_like(view.output.dynamic)),
        )
        for view in views
    ]
    given = depth_of(views) * WRONG
    torch.testing.assert_close(sweep(moving, flat(cameras_of(truth)), given), given)


def test_middles_are_where_patches_meet(views: list[MatchedView]) -> None:
    assert views[0].middles[0].tolist() == pytest.approx([PATCH / 2, PATCH / 2], abs=1e-4)
    assert views[0].middles[-1].tolist() == pytest.approx([SIZE[1] - PATCH / 2, SIZE[0] - PATCH / 2], abs=1e-4)
    torch.testing.assert_close(to_pixels(torch.zeros(1, 2), views[0].grid, PATCH), torch.tensor([[40.0, 32.0]]))
