"""Worlds and rigs: reproducible from seeds, rigid and connected motion, cameras with a free view of their subject."""

import dataclasses
import math

import pytest
import torch

from page4d.choices import SceneFamily, Subject
from page4d.errors import UsageError
from page4d.geometry.camera import project
from page4d.geometry.rotation import rotation_angle, rotation_defect
from page4d.geometry.time_axis import map_tensors
from page4d.geometry.transforms import invert_rigid, transform_points
from page4d.lab.synthetic.figure import Figures, Joint, Part
from page4d.lab.synthetic.furnish import sample_world
from page4d.lab.synthetic.materials import lattice_hash, noise
from page4d.lab.synthetic.people import Activity, circling_box, flying, rolling_ball, sample_person, spinning
from page4d.lab.synthetic.render import render
from page4d.lab.synthetic.rigs import SPACING_DEG, RigSpec, Rng, build_rig, sample_rig
from page4d.lab.synthetic.world import Person, Shape, Worlds, build_world
from tests.synthetic.scenes import SIZE, distance_from_origin

TIMES = torch.linspace(0, 9, 10, dtype=torch.float64)[None]


def made(seed: int, family: SceneFamily = SceneFamily.ARC, outdoors: bool = False) -> tuple[RigSpec, Worlds]:
    rig = sample_rig(seed, family, 1 if family is SceneFamily.SINGLE else 4, moving_probability=0.7)
    return rig, build_world([sample_world(seed, rig, float(outdoors))])


def tensors(world: Worlds) -> list[torch.Tensor]:
    seen: list[torch.Tensor] = []
    map_tensors(world, lambda value: seen.append(value) or value)
    return seen


def test_a_seed_determines_the_world():
    for first, second in zip(tensors(made(5)[1]), tensors(made(5)[1]), strict=True):
        assert torch.equal(first, second)
    assert not torch.equal(made(5)[1].texture.palette[:, :6], made(6)[1].texture.palette[:, :6])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("family", list(SceneFamily))
def test_cameras_collide_with_nothing_at_any_instant(seed, family):
    """No camera is ever inside an object, below the ground or outside its room."""
    outdoors = seed == 2
    rig, world = made(seed, family, outdoors)
    cameras = build_rig([rig]).cameras(TIMES, SIZE)
    to_object = invert_rigid(world.object_to_world(TIMES))[0, :, :, None]
    local = transform_points(to_object, cameras.centers[0, :, None])
    gap = distance_from_origin(world.shape[0][:, None], world.half_size[0][:, None], local)
    assert float(gap.min()) > 0.08


@pytest.mark.parametrize("family", list(SceneFamily))
def test_the_subject_is_in_every_image(family):
    for seed in range(20):
        rig = sample_rig(seed, family, 1 if family is SceneFamily.SINGLE else 5)
        for size in ((48, 64), (64, 48)):
            cameras = build_rig([rig]).cameras(TIMES[:, ::4], size)
            middle = torch.tensor(rig.volume.center, dtype=torch.float64).expand(*cameras.centers.shape)
            pixels, depth = project(transform_points(cameras.world_to_camera, middle), cameras.intrinsics)
            assert float(depth.min()) > 0.3
            share = pixels / torch.tensor([size[1], size[0]])
            assert float(share.min()) > 0.05
            assert float(share.max()) < 0.95


def test_stages_stand_in_large_halls_and_their_cameras_differ_in_elevation():
    """The background of real capture stages and laboratory tables is many times farther away than the subject."""
    depths, elevations = [], []
    for seed in range(12):
        rig = sample_rig(seed, SceneFamily.STAGE, 4, moving_probability=0.0, subject=Subject.TABLE)
        world = build_world([sample_world(seed, rig, 0.0)])
        rendered = render(world, build_rig([rig]).cameras(TIMES[:, :1], SIZE), TIMES[:, :1])
        depths.append(float(rendered.depth.max()))
        low = [-camera.center[1] - rig.volume.table_height for camera in rig.cameras]
        elevations.append(max(low) - min(low))
    assert max(depths) > 8.0
    assert sum(depth > 4.0 for depth in depths) >= 8
    assert sum(difference > 0.4 for difference in elevations) >= 6


@pytest.mark.parametrize("family", [SceneFamily.ARC, SceneFamily.RING, SceneFamily.HANDHELD, SceneFamily.STAGE])
def test_the_spacing_of_cameras_is_that_of_the_family(family):
    low, high = SPACING_DEG[family]
    apart = []
    for seed in range(40):
        for given in (None, (12.0, 12.0)):
            rig = sample_rig(seed, family, 3, given, moving_probability=0.0)
            azimuth = [math.atan2(camera.center[2], camera.center[0]) for camera in rig.cameras]
            gaps = [math.degrees((b - a) % math.tau) for a, b in zip(azimuth, azimuth[1:], strict=False)]
            if given:
                assert gaps == pytest.approx([12.0, 12.0], abs=3)
            else:
                apart += gaps
    assert 0.7 * low < min(apart) < low + 0.35 * (high - low)
    assert low + 0.65 * (high - low) < max(apart) < 1.3 * high


def test_fields_of_view_heights_and_rolls_are_in_the_documented_ranges():
    cameras = [camera for seed in range(100) for camera in sample_rig(seed, SceneFamily.RING, 3).cameras]
    fields = [2 * math.degrees(math.atan(0.5 / camera.focal)) for camera in cameras]
    assert 40 <= min(fields) < 45 < 80 < max(fields) <= 85
    assert all(0.3 < -camera.center[1] <= 3.0 for camera in cameras)
    away = [math.hypot(camera.center[0], camera.center[2]) for camera in cameras]
    assert 1.7 < min(away) < 2.6 < 5.0 < max(away) < 6.2
    rolls = [abs(math.degrees(camera.roll)) for camera in cameras]
    level, upright = (sum(test(roll) for roll in rolls) / len(rolls) for test in (lambda r: r <= 8, lambda r: r > 60))
    assert 0.75 < level < 0.95
    assert 0.02 < upright < 0.15
    assert 0.3 < sum(any(camera.sway) for camera in cameras) / len(cameras) < 0.7


def test_impossible_rigs_are_refused():
    with pytest.raises(UsageError, match="0 views"):
        sample_rig(0, SceneFamily.ARC, 0)
    with pytest.raises(UsageError, match="2 views of the family single"):
        sample_rig(0, SceneFamily.SINGLE, 2)
    with pytest.raises(UsageError, match="3 views 130 to 130 degrees apart"):
        sample_rig(0, SceneFamily.ARC, 3, (130.0, 130.0))
    assert len(sample_rig(0, SceneFamily.RING, 8).cameras) == 8


def test_poses_are_rigid_and_only_what_moves_changes():
    for seed, outdoors in ((1, False), (2, True)):
        _, world = made(seed, SceneFamily.RING, outdoors)
        poses = world.object_to_world(TIMES)[0]
        assert float(rotation_defect(poses[..., :3, :3]).max()) < 1e-12
        change = (poses - poses[:1]).abs().amax(dim=(0, 2, 3))
        present = world.shape[0] != Shape.ABSENT
        assert torch.equal((change > 1e-9)[present], world.moving[0][present])
        assert 3 < int(world.moving[0][present].sum()) < int(present.sum())


@pytest.mark.parametrize("activity", list(Activity))
def test_people_hold_together_and_stand_on_the_floor(activity):
    person = sample_person(Rng(4, activity.name), activity, (0.4, -0.2), 0.6, 1.0)
    figures = figures_of(person)
    poses = figures.part_to_world(TIMES)[0, :, 0]
    half = figures.half_sizes[0, 0]

    def end(part: Part, side: float, reach: float) -> torch.Tensor:
        """A point on the axis of a part, `reach` of its length without caps from its middle."""
        spine = torch.zeros(3, dtype=torch.float64)
        spine[1] = side * reach
        return transform_points(poses[:, part], spine.expand(len(poses), 3))

    height = person.height
    for upper, lower, first, second in (
        (Part.LEFT_UPPER_ARM, Part.LEFT_FOREARM, 0.093, 0.1),
        (Part.RIGHT_UPPER_ARM, Part.RIGHT_FOREARM, 0.093, 0.1),
        (Part.LEFT_THIGH, Part.LEFT_SHIN, 0.1225, 0.123),
        (Part.RIGHT_THIGH, Part.RIGHT_SHIN, 0.1225, 0.123),
    ):
        gap = end(upper, 1, first * height) - end(lower, -1, second * height)
        assert float(gap.abs().max()) < 1e-12
        assert float(half[upper, 1]) > first * height
    soles = []
    for foot in (Part.LEFT_FOOT, Part.RIGHT_FOOT):
        spine = float(half[foot, 1] - half[foot, 0])
        soles += [end(foot, side, spine)[:, 1] + half[foot, 0] for side in (-1, 1)]
    lowest = torch.stack(soles).amax(0)
    assert float(lowest.abs().max()) < 1e-9
    assert float(poses[:, Part.HEAD, 1, 3].max()) < -0.6 * height
    moved = (poses - poses[:1]).abs().amax(dim=(0, 2, 3)) > 1e-9
    assert torch.equal(moved, figures.moving[0, 0])
    if activity is Activity.WALKING:
        assert float((poses[1:, Part.PELVIS] - poses[:-1, Part.PELVIS])[..., 3].norm(dim=-1).min()) > 1e-3
        assert (
            float((poses[:, Part.PELVIS, :3, 3] - torch.tensor([0.4, 0, -0.2]))[:, [0, 2]].norm(dim=-1).max()) < 0.61
        )
    if activity is Activity.STANDING:
        assert not bool(moved.any())


def figures_of(person: Person) -> Figures:
    rig, _ = made(0)
    return build_world([sample_world(0, rig)._replace(people=(person,))]).figures


def test_walking_figures_face_their_direction_of_motion():
    for sign in (1.0, -1.0):
        person = sample_person(Rng(1, "walker"), Activity.WALKING, (0.0, 0.0), 0.6, 0.0)
        figures = figures_of(person._replace(turn_rate=sign))
        poses = figures.part_to_world(torch.tensor([[0.0, 1e-4]], dtype=torch.float64))[0, :, 0, Part.PELVIS]
        step = (poses[1] - poses[0])[[0, 2], 3]
        ahead = poses[0][[0, 2], 2]
        assert float((step / step.norm()) @ ahead) > 0.999


def test_joints_move_only_the_parts_beyond_them():
    person = sample_person(Rng(0, "still"), Activity.STANDING, (0.0, 0.0), 0.0, 0.0)
    still = figures_of(person)
    for joint, moved in (
        (Joint.LEFT_ELBOW, {Part.LEFT_FOREARM}),
        (Joint.NOD, {Part.HEAD, Part.HAIR}),
        (Joint.RIGHT_RAISE, {Part.RIGHT_UPPER_ARM, Part.RIGHT_FOREARM}),
        (Joint.LEFT_KNEE, set(Part)),
    ):
        number = torch.zeros(len(Joint), dtype=torch.float64)
        number[joint] = 0.5
        swings = dataclasses.replace(still, joint_swing=number.expand(1, 1, -1), joint_hz=number.expand(1, 1, -1))
        assert set(swings.moving[0, 0].nonzero()[:, 0].tolist()) == {int(part) for part in moved}


@pytest.mark.parametrize("make", ["rolling", "circling", "flying", "spinning"])
def test_moving_objects_stay_within_reach_and_roll_without_slipping(make):
    rng = Rng(3, make)
    item = {
        "rolling": lambda: rolling_ball(rng, 0.2, 0.8),
        "circling": lambda: circling_box(rng, 0.2, 0.8),
        "flying": lambda: flying(rng, 0.15, 0.3, 1.2),
        "spinning": lambda: spinning(rng, circling_box(rng, 0.2, 0.2)),
    }[make]()
    rig, _ = made(0)
    world = build_world([sample_world(0, rig)._replace(objects=(item,), people=())])
    assert world.moving[0].tolist() == [False, True]
    poses = world.object_to_world(torch.linspace(0, 12, 400, dtype=torch.float64)[None])[0, :, 1]
    reach = poses[:, [0, 2], 3].norm(dim=-1).max()
    assert float(reach) < 0.81
    if make == "rolling":
        first, second = world.object_to_world(torch.tensor([[0.40, 0.41]], dtype=torch.float64))[0, :, 1]
        path = float((second - first)[:3, 3].norm())
        assert float(rotation_angle(first[:3, :3], second[:3, :3])) * 0.2 == pytest.approx(path, rel=1e-4)
        contact = first[:3, 3] + torch.tensor([0.0, 0.2, 0.0], dtype=torch.float64)
        assert float((transform_points(second @ invert_rigid(first), contact) - contact).norm()) < 0.15 * path
    elif make == "spinning":
        assert float(reach) < 1e-9


def test_both_subjects_are_drawn_unless_one_is_given():
    tables = [bool(sample_rig(seed, SceneFamily.ARC, 2).volume.table_height) for seed in range(40)]
    assert 8 < sum(tables) < 32
    for subject in Subject:
        rigs = [sample_rig(seed, SceneFamily.ARC, 2, subject=subject) for seed in range(5)]
        assert all(bool(rig.volume.table_height) == (subject is Subject.TABLE) for rig in rigs)
        assert all((rig.volume.radius < 0.5) == (subject is Subject.TABLE) for rig in rigs)


def test_noise_is_centred_periodic_and_continuous():
    random = torch.Generator().manual_seed(0)
    points = torch.rand(3, 20000, generator=random, dtype=torch.float64) * 6 - 3
    values = noise(points)
    assert float(values.abs().max()) <= 2.5
    assert float(values.mean()) == pytest.approx(0, abs=0.1)
    assert float(values.std()) == pytest.approx(0.95, abs=0.1)
    assert float((noise(points + 1) - values).abs().max()) < 1e-9
    assert float((noise(points + 1e-6) - values).abs().max()) < 1e-3
    # More than half of the variance is coarser than an eighth of the period, as in natural images.
    near = noise(points + torch.tensor([[1 / 16], [0.0], [0.0]]))
    assert float(((near - values) ** 2).mean()) < 1.0 * float(values.var())


def test_hashes_are_uniform_and_uncorrelated_between_seeds():
    x, y, z = torch.meshgrid(*[torch.arange(-15.0, 15.0)] * 3, indexing="ij")
    values = [lattice_hash(x, y, z, torch.full_like(x, seed)) for seed in (0, 1)]
    assert float(values[0].mean()) == pytest.approx(0.5, abs=0.01)
    assert float(values[0].std()) == pytest.approx(12**-0.5, abs=0.01)
    assert abs(float(torch.corrcoef(torch.stack([v.flatten() for v in values]))[0, 1])) < 0.03


def test_the_generator_draws_from_the_documented_distributions():
    rng = Rng(1, "test")
    normal = torch.tensor([rng.normal() for _ in range(4000)])
    assert float(normal.mean()) == pytest.approx(0, abs=0.06)
    assert float(normal.std()) == pytest.approx(1, abs=0.05)
    directions = torch.tensor([rng.direction() for _ in range(2000)])
    assert float((directions.norm(dim=-1) - 1).abs().max()) < 1e-5
    assert float(directions.mean(0).abs().max()) < 0.06
    assert {rng.choice("abc") for _ in range(50)} == set("abc")
    assert Rng(1, "test").uniform(0, 1) != Rng(1, "other").uniform(0, 1)
    assert 2 <= min(rng.log_uniform(2, 8) for _ in range(100)) < 2.5
