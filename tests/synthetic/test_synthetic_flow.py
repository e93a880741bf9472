"""Flow maps points of one image exactly to another, with correct visibility."""

import pytest
import torch

from page4d.geometry.camera import pixel_grid, project, world_points
from page4d.geometry.transforms import transform_points
from page4d.lab.synthetic.render import render
from tests.synthetic.scenes import EXACT, SETTINGS, SIZE, TIMES, Flow, exact_flow, filmed, single_rays

PAIRS = [((0, 0), (1, 0)), ((0, 0), (0, 1)), ((0, 0), (1, 2))]


def followed(seen, source, target) -> Flow:
    world, cameras, rendered = seen
    ends = (cameras[:, *source], cameras[:, *target])
    times = TIMES[:, [source[0], target[0]]]
    return exact_flow(world, rendered.depth[:, *source], rendered.objects[:, *source], ends, times)


@pytest.fixture(scope="module", params=SETTINGS[:3], ids=lambda setting: f"{setting.family}-{setting.seed}")
def seen(request):
    return filmed(request.param)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_visible_point_is_the_closest_hit_at_its_target_pixel(seen, source, target):
    world, cameras, rendered = seen
    flow = followed(seen, source, target)
    height, width = SIZE
    pixels = pixel_grid(height, width, dtype=torch.float64)[None] + flow.optical
    inside = (pixels > 0).all(-1) & (pixels[..., 0] < width) & (pixels[..., 1] < height)
    moved = world_points(rendered.depth, cameras)[:, *source] + flow.scene
    at_target = cameras[:, *target]
    expected, depth = project(transform_points(at_target.world_to_camera, moved), at_target.intrinsics)
    candidates = (rendered.depth[:, *source] > 0) & inside & (depth > 0.05)
    assert float((expected - pixels)[candidates].abs().max()) < 1e-8
    assert bool((candidates | ~flow.visible).all())
    count = int(candidates.sum())
    rays = single_rays(at_target[torch.zeros(count, dtype=torch.int64)], pixels[candidates])
    found = render(world, rays, TIMES[:, target[0], None], dtype=torch.float64)
    nearer = depth[candidates] - found.depth[0, 0, :, 0, 0]
    visible = flow.visible[candidates]
    assert float(visible.double().mean()) > 0.2
    assert float(nearer[visible].abs().max()) < 0.01
    assert float((nearer[visible].abs() < EXACT).double().mean()) > 0.98
    same = found.objects[0, 0, :, 0, 0] == rendered.objects[:, *source][candidates]
    assert float(same[visible].double().mean()) > 0.98
    # A point that is not visible is occluded by a nearer surface.
    assert float(nearer[~visible].min()) > -EXACT if bool((~visible).any()) else True


def test_scene_flow_is_zero_on_static_objects_only(seen):
    flow, (_, _, rendered) = followed(seen, (0, 0), (1, 1)), seen
    way = flow.scene.norm(dim=-1)
    assert float(way[~rendered.dynamic[:, 0, 0]].max()) < EXACT
    moving = rendered.dynamic[:, 0, 0]
    if bool(moving.any()):
        assert float(way[moving].median()) > 1e-4


def test_the_flow_of_an_image_to_itself_is_zero(seen):
    flow, (_, _, rendered) = followed(seen, (1, 0), (1, 0)), seen
    assert float(flow.optical.abs().max()) < 1e-8
    assert torch.equal(flow.visible, rendered.depth[:, 1, 0] > 0)
    assert float(flow.scene.abs().max()) < EXACT
