"""Worlds and rigs: the same seed, the same room; motions are rigid; things stay where cameras do not stand."""

import dataclasses
import math

import pytest
import torch

from page4d.errors import ShapeError, UsageError
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.geometry.rotation import rotation_angle, rotation_defect
from page4d.synthetic.furnish import CLEAR_RADIUS, WALL_DISTANCE, sample_world
from page4d.synthetic.rig import sample_rig
from page4d.synthetic.texture import fractal_noise, lattice_values, value_noise
from page4d.synthetic.world import Shape, World, stack_worlds

SEEDS = range(12)


def tensors(world: World) -> list[torch.Tensor]:
    parts = (world.motion, world.texture, world.lights)
    return [world.half_sizes, *(value for part in parts for value in vars(part).values())]


def test_a_seed_names_one_world():
    for first, second in zip(tensors(sample_world(5)), tensors(sample_world(5)), strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(sample_world(5).half_sizes, sample_world(6).half_sizes)
    assert not torch.equal(sample_world(5).texture.palette, sample_world(6).texture.palette)


@pytest.mark.parametrize("seed", SEEDS)
def test_five_objects_move_and_their_poses_are_rigid(seed):
    world = sample_world(seed)
    assert int(world.moving.sum()) == 5
    assert not bool(world.moving[0])
    start, later = world.object_to_world(0.0), world.object_to_world(1.3)
    assert float(rotation_defect(later[:, :3, :3]).max()) < 1e-12
    change = (later - start).abs().amax(dim=(-1, -2))
    assert bool((change[world.moving] > 1e-2).all())
    assert float(change[~world.moving].max()) == 0.0


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_leaves_the_room_or_reaches_the_cameras(seed):
    world = sample_world(seed)
    inner = [i for i in range(1, len(world.shapes)) if float(world.motion.center[i, [0, 2]].norm()) < CLEAR_RADIUS]
    for time in torch.linspace(0, 10, 41).tolist():
        poses = world.object_to_world(time)
        signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3)
        corners = transform_points(poses, signs * world.half_sizes[:, None])
        balls = torch.tensor([shape is Shape.SPHERE for shape in world.shapes])
        lowest = torch.where(balls, poses[:, 1, 3] + world.half_sizes[:, 1], corners[..., 1].amax(-1))
        assert float(lowest[inner].max()) < 1e-9
        assert float(corners[inner].abs()[..., [0, 2]].max()) < WALL_DISTANCE
        assert float(poses[inner][:, [0, 2], 3].norm(dim=-1).max()) < CLEAR_RADIUS


def test_a_rolling_ball_does_not_slip():
    world = sample_world(3)
    motion = world.motion
    ball = int(((motion.turn_swing != 0) & (motion.swing_hz[:, 0] != 0)).nonzero()[0])
    first, second = world.object_to_world(0.40)[ball], world.object_to_world(0.41)[ball]
    path = float((second - first)[:3, 3].norm())
    turned = float(rotation_angle(first[:3, :3], second[:3, :3]))
    assert turned * float(world.half_sizes[ball, 0]) == pytest.approx(path, rel=1e-4)
    contact = first[:3, 3] + torch.tensor([0.0, float(world.half_sizes[ball, 1]), 0.0], dtype=torch.float64)
    moved = transform_points(second, transform_points(invert_rigid(first), contact))
    assert float((moved - contact).norm()) < 0.15 * path


def test_worlds_stack_and_only_if_they_are_made_up_alike():
    stacked = stack_worlds([sample_world(0), sample_world(1)])
    assert stacked.batch == (2,)
    assert torch.equal(stacked.half_sizes[1], sample_world(1).half_sizes)
    alone = sample_world(0)
    other = dataclasses.replace(alone, shapes=(Shape.ROOM, *(Shape.BOX,) * (len(alone.shapes) - 1)))
    with pytest.raises(ShapeError, match="shapes differ"):
        stack_worlds([alone, other])
    with pytest.raises(ShapeError, match="a world of shapes"):
        dataclasses.replace(alone, shapes=alone.shapes[::-1])
    with pytest.raises(ShapeError, match="sizes, motions and textures"):
        dataclasses.replace(alone, half_sizes=alone.half_sizes[:-1])


def test_noise_is_continuous_even_and_its_own_for_each_seed():
    random = torch.Generator().manual_seed(0)
    points = torch.rand(4000, 3, generator=random, dtype=torch.float64) * 20 - 10
    seed = torch.zeros(4000, dtype=torch.int64)
    noise = fractal_noise(points, seed)
    assert 0 <= float(noise.min()) < 0.25
    assert 0.75 < float(noise.max()) <= 1
    assert float(noise.mean()) == pytest.approx(0.5, abs=0.02)
    assert float((fractal_noise(points + 1e-6, seed) - noise).abs().max()) < 1e-4
    assert float((fractal_noise(points, seed + 100) - noise).abs().mean()) > 0.05
    corner = torch.tensor([[3.0, -2.0, 5.0]])
    expected = lattice_values(corner.long(), seed[:1])
    assert float(value_noise(corner, seed[:1])) == pytest.approx(float(expected), abs=1e-7)


def test_a_static_rig_stands_still_on_an_arc_and_sees_the_middle():
    rig = sample_rig(4, 5, (64, 48), spacing_deg=20.0, radius=2.6, height=1.4)
    cameras = rig.cameras(torch.tensor([0.0, 1.0, 2.5]))
    assert cameras.world_to_camera.shape == (3, 5, 4, 4)
    assert cameras.world_to_camera.dtype == torch.float64
    assert rig.is_static
    assert torch.equal(cameras.world_to_camera[0], cameras.world_to_camera[2])
    assert float(rotation_defect(cameras.world_to_camera[0, :, :3, :3]).max()) < 1e-12
    centers = cameras.centers[0]
    azimuth = torch.rad2deg(torch.atan2(centers[:, 2], centers[:, 0]))
    gaps = (azimuth.diff() + 180).remainder(360) - 180
    assert float((gaps - 20).abs().max()) < 4
    assert float((centers[:, [0, 2]].norm(dim=-1) - 2.6).abs().max()) < 0.1
    assert float((-centers[:, 1] - 1.4).abs().max()) < 0.16
    middle = torch.tensor([0.0, -0.6, 0.0], dtype=torch.float64)
    seen = transform_points(cameras.world_to_camera[0], middle.expand(5, 3))
    assert bool((seen[:, 2] > 2).all())
    assert float((seen[:, :2] / seen[:, 2:]).abs().max()) < 0.08
    assert torch.equal(rig.intrinsics[:, :2, 2], torch.tensor([[24.0, 32.0]] * 5, dtype=torch.float64))


def test_a_moving_rig_sways_smoothly():
    rig = sample_rig(4, 3, moving=True)
    assert not rig.is_static
    centers = rig.cameras(torch.linspace(0, 2, 41)).centers
    steps = centers.diff(dim=0).norm(dim=-1)
    assert 0 < float(steps.max()) < 0.03
    assert bool(((centers[-1] - centers[0]).norm(dim=-1) > 1e-3).all())


def test_field_of_view_spans_the_longer_side():
    for size in ((48, 64), (64, 48)):
        focal = sample_rig(0, 1, size, field_of_view_deg=60.0).focal_px
        assert float(focal) == pytest.approx(32 / math.tan(math.radians(30)), rel=0.031)


def test_impossible_rigs_are_refused():
    with pytest.raises(UsageError, match="0 views"):
        sample_rig(0, 0)
    with pytest.raises(UsageError, match="field of view of 170"):
        sample_rig(0, 2, field_of_view_deg=170.0)
