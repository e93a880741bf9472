"""Renderer: depth, objects and motion masks are exact, textures follow objects, culling and batching are lossless."""

import dataclasses
from itertools import pairwise

import pytest
import torch

from page4d.errors import ShapeError
from page4d.geometry.camera import unproject, world_points
from page4d.lab.synthetic.furnish import sample_world
from page4d.lab.synthetic.rays import Candidates, RayPackets, closest_hit, cull, occluded
from page4d.lab.synthetic.render import render, render_rolling
from page4d.lab.synthetic.rigs import build_rig
from page4d.lab.synthetic.world import Lights, Shape, Snapshots, Worlds, build_world
from tests.synthetic.scenes import (
    EXACT,
    GARDEN,
    ROOM,
    SETTINGS,
    SIZE,
    TABLE,
    TIMES,
    Setting,
    distance_to_surface,
    filmed,
)


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
    """March along each ray and test the inside of each object: the slow twin of the closed forms."""
    world, cameras, rendered = seen
    known = (rendered.depth[0, 0] > 0).flatten()
    objects = range(1, world.shape.shape[1])
    steps = torch.linspace(0.02, 0.995, 25, dtype=torch.float64)
    points = torch.stack([world_points(rendered.depth * step, cameras)[0, 0].flatten(0, -2) for step in steps])
    points = points[:, known][:, ::17]
    for index in objects:
        numbers = torch.full(points.shape[:-1], index)
        assert float(distance_to_surface(world, points, numbers, TIMES[:, 0]).min()) > -EXACT


def test_the_sky_has_no_depth_and_does_not_move():
    _, _, rendered = filmed(GARDEN)
    sky = rendered.depth == 0
    assert 0.02 < float(sky.double().mean()) < 0.8
    assert not bool(rendered.dynamic[sky].any())
    assert float(rendered.depth.max()) <= 65
    light = rendered.light.movedim(3, -1)[sky]
    assert bool((light[:, 2] >= 0.9 * light[:, 0]).all())


def every_pair(snapshots: Snapshots, packets: RayPackets) -> Candidates:
    count = snapshots.shape.shape[1]
    packet = torch.arange(len(packets.instant)).repeat_interleave(count)
    index = torch.arange(count).repeat(len(packets.instant))
    return Candidates(packet=packet, object_index=index, instance=packets.instant[packet] * count + index)


@pytest.mark.parametrize("setting", SETTINGS, ids=kind)
def test_culling_leaves_hits_and_occlusion_unchanged(setting):
    times = TIMES[:, :1]
    world, cameras = setting.world, setting.cameras(times)
    snapshots = Snapshots.of(world, times, torch.float64)
    center = cameras.centers[0, 0, 0]
    generator = torch.Generator().manual_seed(setting.seed)
    spread = 0.4 * center.norm() * torch.randn(3, 40, 1, generator=generator, dtype=torch.float64)
    middle = torch.nn.functional.normalize(spread - center[:, None, None], dim=0)
    direction = middle + 0.2 * torch.rand(3, 40, 16, generator=generator, dtype=torch.float64)
    instant = torch.zeros(40, dtype=torch.int64)
    packets = RayPackets(instant=instant, origin=center[:, None].expand(3, 40), direction=6 * direction)
    candidates, all_candidates = cull(snapshots, packets), every_pair(snapshots, packets)
    assert len(candidates.packet) < 0.5 * len(all_candidates.packet)
    fast, slow = (closest_hit(snapshots, packets, some) for some in (candidates, all_candidates))
    assert all(torch.equal(a, b) for a, b in zip(fast, slow, strict=True))
    dark = occluded(snapshots, packets, all_candidates)
    assert torch.equal(occluded(snapshots, packets, cull(snapshots, packets, 1.0)), dark)
    assert 0.01 < float(dark.double().mean()) < 0.99


def test_a_distant_sun_casts_every_shadow_in_single_precision(monkeypatch):
    setting = Setting(1, outdoors=True)
    _, _, fast = filmed(setting, TIMES[:, :1], size=(252, 336), dtype=torch.float32)
    monkeypatch.setattr("page4d.lab.synthetic.render.cull", lambda *packets: every_pair(*packets[:2]))
    _, _, slow = filmed(setting, TIMES[:, :1], size=(252, 336), dtype=torch.float32)
    assert torch.equal(fast.light, slow.light)


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


def test_supersampling_changes_colours_mostly_at_edges():
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


def darkened(world: Worlds) -> Worlds:
    """Switch off the lamp: ambient and fill light vary slowly over a surface."""
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
        distance_to_surface(world, path, torch.full(path.shape[:2], index), times[:, 0]).amin(0)
        for index in range(1, world.shape.shape[1])
    ]
    dark = render(darkened(world), cameras, times, dtype=torch.float64)
    gain = (lit.light - dark.light).movedim(3, -1)[chosen][::5].amax(-1)
    margin = torch.stack(margins).amin(0)
    shadowed, free = margin < -0.005, margin > 0.03
    assert int(shadowed.sum()) > 3
    assert int(free.sum()) > 3
    assert float(gain[shadowed].max()) < 1e-9
    # Between the steps of this path, a thin object may still cast a shadow.
    assert float((gain[free] > 0).double().mean()) > 0.95


def test_textures_move_with_their_objects():
    """The mean colour of a moving object is the same at both instants without lamp and fill light."""
    world, cameras, _ = filmed(ROOM)
    world = dataclasses.replace(
        world, lights=Lights(**(vars(world.lights) | {n: 0 * getattr(world.lights, n) for n in ("color", "fill")}))
    )
    poses = world.object_to_world(TIMES)
    rendered = render(world, cameras, TIMES, dtype=torch.float64)
    moving = [int(i) for i in rendered.objects[0, 0].unique() if bool(world.moving[0, i])]
    assert moving
    assert (poses[0, 0, moving] - poses[0, 1, moving]).abs().amax() > 1e-3
    for index in moving:
        light = [rendered.light[0, t].movedim(1, -1)[rendered.objects[0, t] == index] for t in (0, 1)]
        if min(len(part) for part in light) > 30:
            assert float((light[0].mean(0) - light[1].mean(0)).abs().max()) < 0.05


def test_batched_rendering_equals_rendering_one_by_one():
    """Three worlds, two instants and three views in one call equal three separate calls."""
    settings = (ROOM, TABLE, GARDEN)
    times = TIMES.repeat(3, 1) + torch.arange(3)[:, None]
    rigs = [setting.rig for setting in settings]
    specs = [sample_world(s.seed, s.rig, float(s.outdoors)) for s in settings]
    cameras = build_rig(rigs).cameras(times, SIZE)
    options = {"dtype": torch.float64, "supersample": 2}
    together = render(build_world(specs), cameras, times, **options)
    assert together.light.shape == (3, 2, 3, 3, *SIZE)
    for index, spec in enumerate(specs):
        one = slice(index, index + 1)
        alone = render(build_world([spec]), cameras[one], times[one], **options)
        assert float((alone.depth - together.depth[one]).abs().max()) < EXACT
        assert torch.equal(alone.dynamic, together.dynamic[one])
        assert float((alone.light - together.light[one]).abs().max()) < 1e-6


@pytest.mark.parametrize("size", [(1, 70), (9, 13), (30, 6)])
def test_any_image_size_is_cut_into_tiles_and_joined_again(size):
    """A smaller image is a crop of a larger one with the same intrinsics."""
    times = TIMES[:, :1]
    world, cameras = TABLE.world, TABLE.cameras(times, (32, 72))
    whole = render(world, cameras, times, dtype=torch.float64)
    part = render(world, dataclasses.replace(cameras, image_size=size), times, dtype=torch.float64)
    for name in ("depth", "objects", "dynamic"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[..., : size[0], : size[1]])


def test_rows_of_a_rolling_shutter_are_taken_at_their_own_instants():
    rig, world, readout = build_rig([GARDEN.rig]), GARDEN.world, 0.2
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


def test_mismatched_worlds_cameras_and_times_are_refused():
    world, cameras = ROOM.world, ROOM.cameras(TIMES)
    with pytest.raises(ShapeError, match=r"1 worlds at times \(1, 3\)"):
        render(world, cameras, torch.zeros(1, 3))
    with pytest.raises(ShapeError, match="motions and"):
        dataclasses.replace(world, shape=world.shape[:, 1:])


def test_shapes_of_all_kinds_are_seen():
    kinds = {int(k) for s in SETTINGS for w, _, r in [filmed(s)] for k in w.shape[0][r.objects.unique()]}
    assert kinds == {int(shape) for shape in Shape if shape is not Shape.ABSENT}
    assert all(a < b for a, b in pairwise(Shape))
