"""The renderer: depth, objects and moving pixels are exact, colours belong to points, fast paths change nothing."""

import dataclasses
from itertools import pairwise

import pytest
import torch
from scenes import EXACT, GARDEN, ROOM, SETTINGS, SIZE, TABLE, TIMES, distance_to_surface, filmed

from page4d.errors import ShapeError
from page4d.geometry.camera import unproject, world_points
from page4d.synthetic.blueprint import build_world
from page4d.synthetic.camera_rigs import build_rig
from page4d.synthetic.furnish import sample_plan
from page4d.synthetic.rays import Bundles, Pairs, blocked, nearest, reachable, split
from page4d.synthetic.render import render
from page4d.synthetic.rolling import render_rolling
from page4d.synthetic.world import Instants, Lights, Shape, World


def kind(setting):
    return f"{setting.family}-{'outdoors' if setting.outdoors else 'room'}-{setting.seed}"


@pytest.fixture(scope="module", params=SETTINGS, ids=kind)
def seen(request):
    return filmed(request.param)


def test_every_pixel_unprojects_onto_the_analytic_surface(seen):
    world, cameras, rendered = seen
    points = world_points(rendered.depth, cameras)
    for time in range(2):
        known = rendered.depth[:, time] > 0
        objects = rendered.objects[:, time][known]
        gap = distance_to_surface(world, points[:, time][known], objects, TIMES[:, time])
        assert float(gap.abs().max()) < EXACT
        assert len(objects.unique()) > 4


def test_no_surface_lies_before_the_one_that_is_seen(seen):
    """March along each ray and test each object's inside: the slow twin of the closed forms."""
    world, cameras, rendered = seen
    known = (rendered.depth[0, 0] > 0).flatten()
    things = range(1, world.shape.shape[1])
    steps = torch.linspace(0.02, 0.995, 25, dtype=torch.float64)
    points = torch.stack([world_points(rendered.depth * step, cameras)[0, 0].flatten(0, -2) for step in steps])
    points = points[:, known][:, ::17]
    for thing in things:
        numbers = torch.full(points.shape[:-1], thing)
        assert float(distance_to_surface(world, points, numbers, TIMES[:, 0]).min()) > -EXACT


def test_the_sky_has_no_depth_and_does_not_move():
    _, _, rendered = filmed(GARDEN)
    sky = rendered.depth == 0
    assert 0.02 < float(sky.double().mean()) < 0.8
    assert not bool(rendered.dynamic[sky].any())
    assert float(rendered.depth.max()) <= 65
    light = rendered.light.movedim(3, -1)[sky]
    assert bool((light[:, 2] >= 0.9 * light[:, 0]).all())


def every_pair(world: Instants, bundles: Bundles) -> Pairs:
    count = world.shape.shape[1]
    bundle = torch.arange(len(bundles.instant)).repeat_interleave(count)
    thing = torch.arange(count).repeat(len(bundles.instant))
    return Pairs(bundle=bundle, thing=thing, item=bundles.instant[bundle] * count + thing)


@pytest.mark.parametrize("setting", SETTINGS, ids=kind)
def test_what_bundles_cannot_reach_is_left_out_without_loss(setting):
    times = TIMES[:, :1]
    world, cameras = setting.world, setting.cameras(times)
    frozen = Instants.of(world, times, torch.float64)
    center = cameras.centers[0, 0, 0]
    generator = torch.Generator().manual_seed(setting.seed)
    spread = 0.4 * center.norm() * torch.randn(3, 40, 1, generator=generator, dtype=torch.float64)
    middle = torch.nn.functional.normalize(spread - center[:, None, None], dim=0)
    direction = middle + 0.2 * torch.rand(3, 40, 16, generator=generator, dtype=torch.float64)
    instant = torch.zeros(40, dtype=torch.int64)
    bundles = Bundles(instant=instant, origin=center[:, None].expand(3, 40), direction=6 * direction)
    pairs, all_pairs = reachable(frozen, bundles), every_pair(frozen, bundles)
    assert len(pairs.bundle) < 0.5 * len(all_pairs.bundle)
    for fast, slow in zip(nearest(frozen, bundles, pairs), nearest(frozen, bundles, all_pairs), strict=True):
        assert torch.equal(fast, slow)
    before = reachable(frozen, bundles, 1.0)
    parts, part_pairs = split(frozen, bundles, before, 4, 1.0)
    dark = blocked(frozen, bundles, all_pairs, 1.0)
    assert torch.equal(blocked(frozen, bundles, before, 1.0), dark)
    assert torch.equal(blocked(frozen, parts, part_pairs, 1.0).reshape(dark.shape), dark)
    assert 0.01 < float(dark.double().mean()) < 0.99


def test_single_precision_agrees_with_double():
    _, _, double = filmed(ROOM)
    _, _, single = filmed(ROOM, dtype=torch.float32)
    same = single.objects == double.objects
    assert float(same.double().mean()) > 0.998
    assert float((single.depth - double.depth).abs()[same].max()) < 1e-4
    assert single.light.dtype == torch.float32
    assert float((single.light - double.light).abs().mean()) < 2e-3


def test_the_moving_mask_is_where_parts_whose_pose_changes_are_seen(seen):
    world, _, rendered = seen
    poses = world.object_to_world(torch.linspace(0, 7, 15, dtype=torch.float64)[None])[0]
    moves = (poses - poses[:1]).abs().amax(dim=(0, 2, 3)) > 1e-9
    assert torch.equal(rendered.dynamic, moves[rendered.objects] & (rendered.depth > 0))


def test_z_depth_times_the_pixel_ray_is_the_point(seen):
    _, cameras, rendered = seen
    assert torch.equal(unproject(rendered.depth, cameras.intrinsics)[..., 2], rendered.depth)


def test_supersampling_changes_colours_at_edges_only():
    _, _, coarse = filmed(TABLE)
    _, _, fine = filmed(TABLE, supersample=3)
    assert torch.equal(coarse.depth, fine.depth)
    assert torch.equal(coarse.objects, fine.objects)
    changed = (coarse.light - fine.light).abs().amax(3) > 1e-9
    edge = torch.zeros_like(changed)
    for axis in (-1, -2):
        size = changed.shape[axis]
        first, second = (coarse.objects.narrow(axis, start, size - 1) for start in (0, 1))
        edge.narrow(axis, 0, size - 1).logical_or_(first != second)
        edge.narrow(axis, 1, size - 1).logical_or_(first != second)
    assert float(changed[edge].double().mean()) > 0.9
    assert float(changed[~edge].double().mean()) < 0.35


def darkened(world: World) -> World:
    """Put out the lamp: what is left of the light changes slowly over a surface."""
    return dataclasses.replace(world, lights=Lights(**(vars(world.lights) | {"color": 0 * world.lights.color})))


@pytest.mark.parametrize("setting", [ROOM, GARDEN], ids=kind)
def test_a_shadow_falls_where_something_stands_before_the_lamp(setting):
    times = TIMES[:, :1]
    world, cameras, lit = filmed(setting, times)
    points = world_points(lit.depth, cameras)
    chosen = (lit.objects == 0) & (lit.depth > 0) & (points[..., 1].abs() < 1e-6)
    floor, lamp = points[chosen][::5], world.lights.position[0]
    reach = min(1.0, 12 / float((lamp - floor).norm(dim=-1).max()))
    steps = reach * torch.linspace(0.001, 1, 300, dtype=torch.float64)[:, None, None]
    path = floor + steps * (lamp - floor)
    margins = [
        distance_to_surface(world, path, torch.full(path.shape[:2], thing), times[:, 0]).amin(0)
        for thing in range(1, world.shape.shape[1])
    ]
    dark = render(darkened(world), cameras, times, dtype=torch.float64)
    gain = (lit.light - dark.light).movedim(3, -1)[chosen][::5].amax(-1)
    margin = torch.stack(margins).amin(0)
    shadowed, free = margin < -0.005, margin > 0.03
    assert int(shadowed.sum()) > 3
    assert int(free.sum()) > 3
    assert float(gain[shadowed].max()) < 1e-9
    # Far away outdoors, and between steps, something thin may shade what this path found free.
    assert float((gain[free] > 0).double().mean()) > 0.95


def test_objects_take_their_texture_along():
    """A surface point found at one instant has the same colour at another, where the pose says it is."""
    world, cameras, _ = filmed(ROOM)
    world = dataclasses.replace(
        world,
        lights=Lights(**(vars(world.lights) | {n: 0 * getattr(world.lights, n) for n in ("color", "fill")})),
    )
    poses = world.object_to_world(TIMES)
    fresh = render(world, cameras, TIMES, dtype=torch.float64)
    first = [int(i) for i in fresh.objects[0, 0].unique() if bool(world.moving[0, i])]
    assert first
    assert (poses[0, 0, first] - poses[0, 1, first]).abs().amax() > 1e-3
    for thing in first:
        light = [fresh.light[0, t].movedim(1, -1)[fresh.objects[0, t] == thing] for t in (0, 1)]
        if min(len(part) for part in light) > 30:
            assert float((light[0].mean(0) - light[1].mean(0)).abs().max()) < 0.05


def test_batched_is_one_by_one():
    """Three worlds, two instants and three views in one call are the worlds one after the other."""
    settings = (ROOM, TABLE, GARDEN)
    times = TIMES.repeat(3, 1) + torch.arange(3)[:, None]
    shots = [setting.shot for setting in settings]
    plans = [sample_plan(s.seed, s.shot, float(s.outdoors)) for s in settings]
    cameras = build_rig(shots).cameras(times, SIZE)
    options = {"dtype": torch.float64, "supersample": 2}
    together = render(build_world(plans), cameras, times, **options)
    assert together.light.shape == (3, 2, 3, 3, *SIZE)
    for index, plan in enumerate(plans):
        one = slice(index, index + 1)
        alone = render(build_world([plan]), cameras[one], times[one], **options)
        assert float((alone.depth - together.depth[one]).abs().max()) < EXACT
        assert torch.equal(alone.dynamic, together.dynamic[one])
        assert float((alone.light - together.light[one]).abs().max()) < 1e-6


@pytest.mark.parametrize("size", [(1, 70), (9, 13), (30, 6)])
def test_any_image_size_is_cut_into_tiles_and_joined_again(size):
    """A smaller image is a cut of a larger one with the same intrinsics."""
    times = TIMES[:, :1]
    world, cameras = TABLE.world, TABLE.cameras(times, (32, 72))
    whole = render(world, cameras, times, dtype=torch.float64)
    part = render(world, dataclasses.replace(cameras, image_size=size), times, dtype=torch.float64)
    for name in ("depth", "objects", "dynamic"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[..., : size[0], : size[1]])


def test_rows_of_a_rolling_shutter_are_taken_at_their_own_instants():
    rig, world, readout = build_rig([GARDEN.shot]), GARDEN.world, 0.2
    assert not rig.is_static
    rolled = render_rolling(world, rig, TIMES, SIZE, readout)
    for row in (0, 13, SIZE[0] - 1):
        instants = TIMES + ((row + 0.5) / SIZE[0] - 0.5) * readout
        whole = render(world, rig.cameras(instants, SIZE), instants)
        for name in vars(rolled):
            first, second = (getattr(one, name)[..., row, :].double() for one in (rolled, whole))
            assert float((first - second).abs().max()) < 1e-4
    still = render_rolling(world, rig, TIMES, SIZE, 0.0)
    assert torch.equal(still.objects, render(world, rig.cameras(TIMES, SIZE), TIMES).objects)
    assert not torch.equal(still.objects, rolled.objects)


def test_worlds_cameras_and_times_must_belong_together():
    world, cameras = ROOM.world, ROOM.cameras(TIMES)
    with pytest.raises(ShapeError, match=r"1 worlds at times \(1, 3\)"):
        render(world, cameras, torch.zeros(1, 3))
    with pytest.raises(ShapeError, match="motions and"):
        dataclasses.replace(world, shape=world.shape[:, 1:])


def test_shapes_of_all_kinds_are_seen():
    kinds = {int(k) for s in SETTINGS for w, _, r in [filmed(s)] for k in w.shape[0][r.objects.unique()]}
    assert kinds == {int(shape) for shape in Shape if shape is not Shape.ABSENT}
    assert all(a < b for a, b in pairwise(Shape))
