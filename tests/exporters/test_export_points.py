"""Selection of points: filters, bounds, static points once, budgets."""

from dataclasses import dataclass

import numpy as np
import pytest

from page4d.choices import PointLayer
from page4d.errors import InputError, UsageError
from page4d.exporters import points
from page4d.exporters.points import CloudReader, PointFilter, stratified_subset
from page4d.formats.ply import PointCloud

STATIC, MOVING = 3000, 200


@dataclass
class FakeRun:
    """Clouds of a static wall that is measured again at every instant with noise, and a moving ball."""

    num_times: int = 6
    noise: float = 0.0005
    far: int = 0
    reads: int = 0
    has_layers = False

    def points(self, index: int) -> PointCloud:
        self.reads += 1
        rng = np.random.default_rng(index)
        wall = np.random.default_rng(99).uniform([-1, -1, 2], [1, 1, 2], (STATIC, 3))
        ball = [0.1 * index, 0, 1] + 0.1 * np.random.default_rng(7).normal(size=(MOVING, 3))
        far = rng.uniform(900, 1000, (self.far, 3))
        xyz = np.concatenate([wall + self.noise * rng.normal(size=wall.shape), ball, far]).astype(np.float32)
        number = len(xyz)
        return PointCloud(
            xyz=xyz,
            rgb=rng.integers(0, 256, (number, 3)).astype(np.uint8),
            confidence=np.linspace(0.1, 0.9, number, dtype=np.float32),
            view=(np.arange(number) % 10 == 0).astype(np.uint8),
            dynamic=np.repeat([0, 1, 0], [STATIC, MOVING, self.far]).astype(np.uint8),
        )


def reader(run: FakeRun, *, cuts: bool = False, seed: int = 0, **selection: object) -> CloudReader:
    selected = PointFilter(**{"views": (0, 1), **selection})
    return CloudReader(run, range(run.num_times), selected, cuts_outliers=cuts, seed=seed)


def test_static_points_are_written_once_and_moving_ones_at_every_instant():
    run = FakeRun()
    points = reader(run).model()
    moving = points.cloud.dynamic != 0
    assert np.bincount(points.place[moving]).tolist() == [MOVING] * run.num_times
    static = points.place[~moving]
    assert (static == run.num_times // 2).sum() == STATIC
    assert len(static) < 1.05 * STATIC


def test_static_points_that_only_another_instant_shows_are_added():
    class Growing(FakeRun):
        def points(self, index: int) -> PointCloud:
            cloud = super().points(index)
            visible = cloud.xyz[:, 0] < (0.5 if index < 5 else 2.0)  # the last instant shows more of the wall
            return cloud[visible]

    points = reader(Growing()).model()
    static = points.cloud.dynamic == 0
    added = points.cloud.xyz[static & (points.place == 5)]
    assert len(added) > 400
    assert added[:, 0].min() > 0.45


def test_voxels_for_static_points_follow_the_distance_between_points():
    """A hole of 0.6 in the wall is filled although the scene is 1,000 wide."""

    class WithHole(FakeRun):
        def points(self, index: int) -> PointCloud:
            cloud = super().points(index)
            radius = np.abs(cloud.xyz[:, :2] + 0.5).max(axis=1)
            hidden = (radius < 0.3) & (cloud.dynamic == 0) & (index < 5)
            return cloud[~hidden]

    points = reader(WithHole(far=30)).model()
    static = points.cloud.dynamic == 0
    filled = points.cloud.xyz[static & (points.place == 5)]
    filled = filled[filled[:, 2] < 3]
    assert 50 < len(filled) < 270
    assert np.abs(filled[:, :2] + 0.5).max() < 0.31


def test_noise_of_depth_does_not_make_several_surfaces_of_one():
    """The noise is about four distances between points."""
    points = reader(FakeRun(noise=0.15)).model()
    static = points.cloud.dynamic == 0
    assert static.sum() < 1.1 * STATIC


def test_a_budget_draws_from_every_view_and_instant_in_proportion():
    points = reader(FakeRun()).limited(1000).model()
    assert points.cloud.num_points == 1000
    assert reader(FakeRun()).limited(997).model().cloud.num_points == 997
    assert (points.cloud.view == 1).mean() == pytest.approx(0.1, abs=0.01)
    assert (points.cloud.dynamic != 0).mean() == pytest.approx(6 * MOVING / (STATIC + 6 * MOVING), abs=0.02)
    sample = reader(FakeRun()).limited(500).sampled(2)
    assert sample.num_points == 500
    assert (sample.view == 1).sum() == 50


def test_clouds_are_not_read_more_often_than_needed():
    run = FakeRun(noise=0)
    every = reader(run)
    for place in range(run.num_times):
        every.read(place)
    assert run.reads == 1 + run.num_times  # the first one shows that there are points

    once = 1 + run.num_times + 1 + run.num_times  # also for bounds, and first the static points of the middle
    run = FakeRun(noise=0)
    assert reader(run).limited(10_000).model().cloud.num_points < 10_000
    assert run.reads == once
    run = FakeRun(noise=0)
    assert reader(run, only=PointLayer.STATIC).limited(100).model().cloud.num_points == 100
    assert run.reads == once + 1  # only the middle has new points


@pytest.mark.parametrize("limit", [1, 3, 50])
def test_a_small_budget_is_used_in_full(limit: int):
    points = reader(FakeRun()).limited(limit).model()
    assert points.cloud.num_points == limit
    assert limit < 50 or (points.cloud.dynamic != 0).any()


def test_a_small_view_does_not_vanish():
    view = np.repeat([0, 1, 2, 3], [9900, 10, 10, 80]).astype(np.uint8)
    for number in (4, 7, 100, 5000, 9999):
        chosen = stratified_subset(view, number, np.random.default_rng(0))
        assert len(chosen) == number
        assert (np.diff(chosen) > 0).all()
        assert set(view[chosen]) == {0, 1, 2, 3}
    assert len(stratified_subset(view, 2, np.random.default_rng(0))) == 2


def test_the_seed_decides_which_points_are_drawn():
    first, again, other = (reader(FakeRun(), seed=seed).limited(100).sampled(1).xyz for seed in (1, 1, 2))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_points_far_outside_the_scene_are_cut_and_counted_where_the_format_needs_it():
    run = FakeRun(far=2)
    cutting = reader(run, cuts=True)
    assert STATIC + MOVING - 5 < cutting.read(0).num_points <= STATIC + MOVING
    assert cutting.read(0).xyz.max() < 10
    at_one = cutting.num_cut
    assert at_one == STATIC + MOVING + 2 - cutting.read(0).num_points
    cutting.read(1)
    assert cutting.num_cut >= at_one + 2
    assert reader(run).read(0).num_points == STATIC + MOVING + 2


def test_filters_select_views_confidence_and_motion():
    run = FakeRun()
    assert reader(run, only=PointLayer.MOVING).read(0).num_points == MOVING
    assert reader(run, only=PointLayer.STATIC).read(0).num_points == STATIC
    assert set(reader(run, views=(1,)).read(0).view) == {1}
    assert reader(run, min_confidence=0.5).read(0).confidence.min() >= 0.5
    assert reader(run, voxel=0.5).read(0).num_points < 100


def test_filters_that_leave_no_point_name_the_highest_confidence():
    with pytest.raises(UsageError, match=r"min_confidence=0.95 \(highest: 0.90\)"):
        reader(FakeRun(), min_confidence=0.95)
    with pytest.raises(UsageError, match="no points"):
        reader(FakeRun(), views=(3,))


@pytest.mark.parametrize("field", ["xyz", "confidence"])
def test_points_that_are_not_finite_are_refused(field: str):
    class Damaged(FakeRun):
        def points(self, index: int) -> PointCloud:
            cloud = super().points(index)
            getattr(cloud, field)[7] = np.nan
            return cloud

    with pytest.raises(InputError, match="instant 0 of the run has points that are not finite"):
        reader(Damaged())


def test_points_at_a_single_instant_of_many_are_found():
    class Once(FakeRun):
        def points(self, index: int) -> PointCloud:
            cloud = super().points(index)
            return cloud[np.full(cloud.num_points, index == 1)]

    found = reader(Once(num_times=40))
    assert found.model().cloud.num_points == STATIC + MOVING
    assert found.bounds.diagonal < 10


def test_the_memory_for_bounds_does_not_grow_with_the_number_of_instants(monkeypatch):
    monkeypatch.setattr(points, "_BOUNDS_POINTS", 12_000)
    sizes = []
    measure = np.percentile

    def percentile(values: np.ndarray, *arguments: object, **options: object) -> object:
        sizes.append(len(values))
        return measure(values, *arguments, **options)

    monkeypatch.setattr(points.np, "percentile", percentile)
    few, many = reader(FakeRun(num_times=6)).bounds, reader(FakeRun(num_times=24)).bounds
    assert max(sizes) < 2 * 12_000
    np.testing.assert_allclose(many.lower[:2], few.lower[:2], atol=0.1)


def grid(side: int, step: float) -> np.ndarray:
    axis = np.arange(side, dtype=np.float32) * np.float32(step)
    return np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1).reshape(-1, 3)


@pytest.mark.parametrize(
    ("cloud", "spacing"),
    [
        (grid(10, 0.25), 0.25),
        (np.empty((0, 3), dtype=np.float32), 0),
        (np.zeros((1, 3), dtype=np.float32), 0),
        (np.float32([[0, 0, 0], [0, 3, 4]]), 5),
    ],
    ids=["grid", "empty", "single", "pair"],
)
def test_the_spacing_of_points_is_the_distance_of_neighbours(cloud: np.ndarray, spacing: float, monkeypatch):
    assert points.point_spacing(cloud) == pytest.approx(spacing)
    monkeypatch.setattr(points, "_SAMPLE", 50)  # neighbours are those of the whole cloud
    assert points.point_spacing(cloud) == pytest.approx(spacing)
