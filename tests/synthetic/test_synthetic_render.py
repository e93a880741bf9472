"""The renderer: depth, objects and moving pixels are exact, colours belong to points, batches change nothing."""

import dataclasses

import pytest
import torch
from torch import Tensor

from page4d.errors import ShapeError
from page4d.geometry.camera import Cameras, project, unproject, world_points
from page4d.geometry.rigid import invert_rigid, transform_points
from page4d.synthetic.furnish import sample_world
from page4d.synthetic.render import Rendered, render
from page4d.synthetic.rig import sample_rig
from page4d.synthetic.world import Lights, Shape, World, stack_worlds

SIZE = (36, 48)
EXACT = 1e-9


def cameras_of(seed: int, views: int = 3, times: tuple[float, ...] = (0.0,), moving: bool = False) -> Cameras:
    return sample_rig(seed, views, SIZE, moving=moving).cameras(torch.tensor(times, dtype=torch.float64))


def surface_distance(world: World, local: Tensor, objects: Tensor) -> Tensor:
    """Measure how far points in their objects' frames are from the surface, by the shapes' implicit equations."""
    half = world.half_sizes[objects]
    box = ((local.abs() - half).amax(-1)).abs()
    ball = (local.norm(dim=-1) - half[..., 0]).abs()
    shape = torch.tensor([int(shape) for shape in world.shapes])[objects]
    return torch.where(shape == Shape.SPHERE, ball, box)


def in_objects(world: World, points: Tensor, objects: Tensor, time: float) -> Tensor:
    return transform_points(invert_rigid(world.object_to_world(time))[objects], points)


def evenly_lit(world: World) -> World:
    """Replace the lamp by darkness: what is left of the shading changes slowly over a surface."""
    lights = world.lights
    return dataclasses.replace(world, lights=Lights(**(vars(lights) | {"color": lights.color * 0})))


@pytest.mark.parametrize("seed", range(4))
def test_every_pixel_unprojects_onto_the_analytic_surface(seed):
    world, time = sample_world(seed), 0.9
    cameras = cameras_of(seed)[0]
    seen = render(world, cameras, time, dtype=torch.float64)
    assert bool((seen.depth > 0.1).all())
    points = world_points(seen.depth, cameras)
    local = in_objects(world, points, seen.objects, time)
    assert float(surface_distance(world, local, seen.objects).max()) < EXACT


@pytest.mark.parametrize("seed", range(4))
def test_no_surface_lies_before_the_one_that_is_seen(seed):
    """March along each ray and test each object's inside: the slow twin of the closed forms."""
    world, time = sample_world(seed), 0.4
    cameras = cameras_of(seed, views=1)[0, 0]
    seen = render(world, cameras, time, dtype=torch.float64)
    for fraction in torch.linspace(0.02, 0.995, 60).tolist():
        points = world_points(seen.depth * fraction, cameras).reshape(-1, 3)
        local = transform_points(invert_rigid(world.object_to_world(time)), points.expand(len(world.shapes), -1, 3))
        relative = local / world.half_sizes[:, None]
        ball = torch.tensor([shape is Shape.SPHERE for shape in world.shapes])
        inside = torch.where(ball[:, None], relative.norm(dim=-1), relative.abs().amax(-1)) < 1
        assert bool(inside[0].all())
        assert not bool(inside[1:].any())


def test_single_precision_depth_agrees_with_double():
    world, cameras = sample_world(1), cameras_of(1)[0]
    single, double = render(world, cameras, 0.3), render(world, cameras, 0.3, dtype=torch.float64)
    same = single.objects == double.objects
    assert float(same.double().mean()) > 0.999
    assert float((single.depth - double.depth).abs()[same].max()) < 1e-4
    assert single.images.dtype == torch.float32
    assert float((single.images - double.images).abs().mean()) < 1e-3


def test_a_static_point_has_the_depth_that_other_views_say_unless_something_stands_before_it():
    world = sample_world(2)
    cameras = cameras_of(2)[0]
    seen = render(world, cameras, 0.0, dtype=torch.float64)
    points = world_points(seen.depth, cameras)[0]
    pixels, expected = project(transform_points(cameras.world_to_camera[1], points), cameras.intrinsics[1])
    height, width = SIZE
    column, row = pixels[..., 0].floor().long(), pixels[..., 1].floor().long()
    inside = (expected > 0) & (column >= 0) & (column < width) & (row >= 0) & (row < height)
    ray = Cameras(
        world_to_camera=cameras.world_to_camera[1].expand(*points.shape[:2], 4, 4)[inside],
        intrinsics=recentred(cameras.intrinsics[1], pixels[inside]),
        image_size=(1, 1),
    )
    found = render(world, ray, 0.0, dtype=torch.float64)
    depth, difference = found.depth[:, 0, 0], found.depth[:, 0, 0] - expected[inside]
    agree = difference.abs() < EXACT
    assert float(agree.double().mean()) > 0.5
    # What disagrees is occluded: the other view sees something nearer, never anything further away.
    assert bool((difference[~agree] < 0).all())
    assert bool((found.objects[:, 0, 0] == seen.objects[0][inside])[agree].double().mean() > 0.99)
    assert bool((depth > 0).all())


def recentred(intrinsics: Tensor, pixels: Tensor) -> Tensor:
    """Make cameras of one pixel whose centre is the given pixel coordinate."""
    matrix = intrinsics.expand(len(pixels), 3, 3).clone()
    matrix[:, :2, 2] = matrix[:, :2, 2] - pixels + 0.5
    return matrix


def test_the_moving_mask_is_where_objects_with_a_motion_are_seen():
    world = sample_world(0)
    cameras = cameras_of(0, times=(0.0, 0.8))
    seen = render(world, cameras, torch.tensor([[0.0], [0.8]]))
    moves = (world.object_to_world(0.0) - world.object_to_world(0.8)).abs().amax(dim=(-1, -2)) > 0
    assert torch.equal(seen.dynamic, moves[seen.objects])
    share = float(seen.dynamic.double().mean())
    assert 0.01 < share < 0.4
    still = ~seen.dynamic[0] & ~seen.dynamic[1]
    assert torch.equal(seen.depth[0][still], seen.depth[1][still])


def test_points_of_moving_objects_follow_the_pose_and_keep_their_colour():
    """A surface point found at one instant is where the pose says at another, with the texture it had."""
    world = evenly_lit(sample_world(3))
    camera = cameras_of(3, views=1)[0, 0]
    before, after = 0.5, 0.6
    seen = render(world, camera, before, dtype=torch.float64)
    chosen = seen.dynamic
    objects = seen.objects[chosen]
    local = in_objects(world, world_points(seen.depth, camera)[chosen], objects, before)
    moved = transform_points(world.object_to_world(after)[objects], local)
    pixels, depth = project(
        transform_points(camera.world_to_camera.expand(len(moved), 4, 4), moved),
        camera.intrinsics.expand(len(moved), 3, 3),
    )
    ray = Cameras(
        world_to_camera=camera.world_to_camera.expand(len(moved), 4, 4),
        intrinsics=recentred(camera.intrinsics, pixels),
        image_size=(1, 1),
    )
    found = render(world, ray, after, dtype=torch.float64)
    visible = (found.depth[:, 0, 0] - depth).abs() < EXACT
    assert float(visible.double().mean()) > 0.6
    assert torch.equal(found.objects[:, 0, 0][visible], objects[visible])
    first, second = seen.images.movedim(0, -1)[chosen][visible], found.images[:, :, 0, 0][visible]
    stayed = render(world, recentred_at(camera, chosen), after, dtype=torch.float64).images[:, :, 0, 0][visible]
    followed = float((second - first).abs().mean())
    assert followed < 0.02
    assert followed < 0.3 * float((stayed - first).abs().mean())


def recentred_at(camera: Cameras, chosen: Tensor) -> Cameras:
    row, column = chosen.nonzero().unbind(-1)
    pixels = torch.stack([column, row], dim=-1).double() + 0.5
    return Cameras(
        world_to_camera=camera.world_to_camera.expand(len(pixels), 4, 4),
        intrinsics=recentred(camera.intrinsics, pixels),
        image_size=(1, 1),
    )


def assert_same(first: Rendered, second: Rendered) -> None:
    assert torch.equal(first.objects, second.objects)
    assert torch.equal(first.dynamic, second.dynamic)
    assert float((first.depth - second.depth).abs().max()) < EXACT
    assert float((first.images - second.images).abs().max()) < 1e-6


def test_batched_is_one_by_one():
    """Two worlds, two instants and two views in one call are the eight images one after the other."""
    worlds = [sample_world(0), sample_world(1)]
    times = torch.tensor([0.2, 0.7], dtype=torch.float64)
    rigs = [sample_rig(seed, 2, (12, 16), moving=True).cameras(times) for seed in (0, 1)]
    together = Cameras(
        world_to_camera=torch.stack([rig.world_to_camera for rig in rigs]),
        intrinsics=torch.stack([rig.intrinsics for rig in rigs]),
        image_size=(12, 16),
    )
    options = {"dtype": torch.float64, "supersample": 2}
    batched = render(stack_worlds(worlds), together, times[:, None], **options)
    assert batched.images.shape == (2, 2, 2, 3, 12, 16)
    for b, t, v in torch.cartesian_prod(*[torch.arange(2)] * 3).tolist():
        alone = render(worlds[b], rigs[b][t, v], float(times[t]), **options)
        pick = {name: getattr(batched, name)[b, t, v] for name in vars(batched)}
        assert_same(alone, Rendered(**pick))


def test_chunks_of_pixels_change_nothing():
    world, cameras = sample_world(4), cameras_of(4)[0]
    whole = render(world, cameras, 0.1, dtype=torch.float64)
    pieces = render(world, cameras, 0.1, dtype=torch.float64, max_samples=len(world.shapes) * 3 * 101)
    assert_same(whole, pieces)


def test_supersampling_changes_colours_only():
    world, cameras = sample_world(5), cameras_of(5)[0]
    coarse, fine = render(world, cameras, 0.1), render(world, cameras, 0.1, supersample=3)
    assert torch.equal(coarse.depth, fine.depth)
    assert torch.equal(coarse.objects, fine.objects)
    difference = (coarse.images - fine.images).abs()
    assert 0.001 < float(difference.mean()) < 0.08


@pytest.mark.parametrize("seed", range(6))
def test_images_are_neither_saturated_nor_flat(seed):
    images = render(sample_world(seed), cameras_of(seed, views=2)[0], 0.0).images
    assert float(images.min()) >= 0
    assert float((images > 0.98).float().mean()) < 0.005
    assert float((images < 0.05).float().mean()) < 0.1
    assert 0.25 < float(images.mean()) < 0.75
    assert float(images.std()) > 0.08
    # Colours are natural: the channels of a pixel are rarely far apart.
    assert float((images.amax(-3) - images.amin(-3)).mean()) < 0.3


@pytest.mark.parametrize("seed", [0, 4, 11, 16])
def test_a_shadow_falls_where_something_stands_before_the_lamp(seed):
    world = sample_world(seed)
    cameras = cameras_of(seed, views=1)[0, 0]
    lit = render(world, cameras, 0.0, dtype=torch.float64)
    floor = lit.objects == 0
    points = world_points(lit.depth, cameras)
    floor = floor & (points[..., 1].abs() < 1e-6)
    lamp = world.lights.position
    toward = invert_rigid(world.object_to_world(0.0))[1:]
    steps = torch.linspace(0.01, 0.99, 200, dtype=torch.float64)[:, None, None]
    path = points[floor] + steps * (lamp - points[floor])
    local = transform_points(toward, path.reshape(1, -1, 3).expand(len(toward), -1, 3)) / world.half_sizes[1:, None]
    ball = torch.tensor([shape is Shape.SPHERE for shape in world.shapes[1:]])
    inside = torch.where(ball[:, None], local.norm(dim=-1), local.abs().amax(-1)) < 0.98
    shadowed = inside.reshape(len(toward), len(steps), -1).any(0).any(0)
    dark = render(evenly_lit(world), cameras, 0.0, dtype=torch.float64)
    gain = (lit.images - dark.images).movedim(0, -1)[floor].amax(-1)
    assert 0 < int(shadowed.sum()) < len(shadowed)
    assert float(gain[shadowed].max()) < 1e-9
    assert float(gain[~shadowed].median()) > 0.05


def test_z_depth_times_the_pixel_ray_is_the_point():
    world, cameras = sample_world(6), cameras_of(6)[0]
    depth = render(world, cameras, 0.0, dtype=torch.float64).depth
    camera_points = unproject(depth, cameras.intrinsics)
    assert float((camera_points[..., 2] - depth).abs().max()) == 0.0
    inside = world_points(depth, cameras).abs() <= world.half_sizes[0] * torch.tensor([1.0, 2.0, 1.0]) + EXACT
    assert bool(inside.all())


def test_worlds_must_lead_the_cameras():
    with pytest.raises(ShapeError, match=r"worlds \(2,\) for cameras \(3,\)"):
        render(stack_worlds([sample_world(0), sample_world(1)]), cameras_of(0)[0])
