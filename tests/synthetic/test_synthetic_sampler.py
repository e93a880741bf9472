"""Sampler: ground truth is a pure function of seeds and request; images are well exposed and textured."""

import dataclasses

import pytest
import torch

from page4d.choices import SceneFamily
from page4d.errors import UsageError
from page4d.geometry.camera import project, world_points
from page4d.geometry.transforms import transform_points
from page4d.lab.synthetic.capture import SceneRequest, sample_truth, visible_points
from page4d.lab.synthetic.furnish import sample_world
from page4d.lab.synthetic.materials import Appearance, develop, plain_appearance, sample_appearance, tone_curve
from page4d.lab.synthetic.render import render
from page4d.lab.synthetic.rigs import build_rig, sample_rig
from page4d.lab.synthetic.world import Snapshots, build_world

SMALL = SceneRequest(num_times=2, num_views=2, image_size=(24, 32))


@pytest.mark.parametrize("family", list(SceneFamily))
def test_a_seed_gives_the_same_truth_in_any_batch(family):
    request = dataclasses.replace(SMALL, family=family, num_views=1 if family is SceneFamily.SINGLE else 2)
    together, alone = sample_truth([8, 3, 11], request), sample_truth([3], request)
    assert together.images.shape == (3, 2, request.num_views, 3, 24, 32)
    for name in ("depth", "images"):
        difference = (getattr(together, name)[1] - getattr(alone, name)[0]).abs()
        assert float((difference > 1e-6).double().mean()) < 1e-3
    assert float((together.dynamic[1] != alone.dynamic[0]).double().mean()) < 1e-3
    for name in ("world_to_camera", "intrinsics"):
        assert torch.equal(getattr(together.cameras, name)[1], getattr(alone.cameras, name)[0])
    assert torch.equal(together.times[1], alone.times[0])
    assert not torch.equal(together.depth[0], together.depth[1])


def test_truth_is_complete():
    request = dataclasses.replace(SMALL, family=SceneFamily.RING, num_times=3)
    truth = sample_truth(range(4), request)
    assert bool(truth.valid.all())
    assert truth.images.dtype == truth.depth.dtype == truth.cameras.intrinsics.dtype == torch.float32
    assert 0 <= float(truth.images.min()) <= float(truth.images.max()) <= 1
    steps = truth.times.diff(dim=1)
    assert bool(((steps > 0.0999) & (steps < 0.8001)).all())
    assert float((steps[:, 0] - steps[:, 1]).abs().max()) < 1e-5
    assert 0.005 < float(truth.dynamic.double().mean()) < 0.5
    assert truth.cameras.image_size == (24, 32)


def test_depth_of_one_view_agrees_with_that_of_another():
    """Of the points that project into the other image, most are at the depth there, and few in front of it."""
    request = dataclasses.replace(SMALL, image_size=(48, 64), spacing_deg=(8, 8), outdoor_probability=0)
    truth = sample_truth([4, 5], request)
    points = world_points(truth.depth, truth.cameras)[:, 0, 0]
    pixels, depth = project(
        transform_points(truth.cameras.world_to_camera[:, 0, 1], points), truth.cameras.intrinsics[:, 0, 1]
    )
    inside = (depth > 0) & (pixels >= 0).all(-1) & (pixels < torch.tensor([64, 48])).all(-1)
    batch = torch.arange(2)[:, None, None].expand_as(inside)[inside]
    x, y = pixels[inside].floor().long().unbind(-1)
    ratio = truth.depth[:, 0, 1][batch, y, x] / depth[inside]
    assert float(((ratio - 1).abs() < 0.03).double().mean()) > 0.8
    assert float((ratio > 1.03).double().mean()) < 0.05


def test_outdoor_images_have_sky_and_indoor_images_have_none():
    far = dataclasses.replace(SMALL, family=SceneFamily.RING, outdoor_probability=1.0)
    near = dataclasses.replace(far, outdoor_probability=0.0)
    outside, inside = sample_truth(range(4), far), sample_truth(range(4), near)
    assert 0.05 < float((outside.depth == 0).double().mean()) < 0.7
    assert bool((inside.depth > 0).all())
    assert float(inside.depth.max()) < 25


def test_images_are_well_exposed_textured_and_differ():
    images = torch.cat(
        [
            sample_truth(range(6), dataclasses.replace(SMALL, family=family, num_times=1)).images
            for family in (SceneFamily.ARC, SceneFamily.RING)
        ]
    )[:, 0]
    means = images.mean(dim=(2, 3, 4))
    assert float(means.min()) > 0.12
    assert float(means.max()) < 0.9
    assert 0.3 < float(images.mean()) < 0.65
    assert float((images > 0.99).double().mean()) < 0.05
    assert float(images.std(dim=(-1, -2)).median()) > 0.06
    spread = (images.amax(2) - images.amin(2)).mean()
    assert 0.03 < float(spread) < 0.25


def test_photometric_variation_changes_images_only():
    plain, varied = (sample_truth([2, 6], dataclasses.replace(SMALL, photometric=on)) for on in (False, True))
    assert torch.equal(plain.depth, varied.depth)
    assert torch.equal(plain.dynamic, varied.dynamic)
    assert torch.equal(plain.cameras.world_to_camera, varied.cameras.world_to_camera)
    assert float((plain.images - varied.images).abs().mean()) > 0.01


def test_everything_is_computed_on_the_device_of_the_worlds():
    """With a different default device, a tensor created there fails to mix with the others."""
    rigs = [sample_rig(seed, SceneFamily.RING, 2) for seed in (2, 6)]
    world = build_world([sample_world(seed, rig, float(seed == 6)) for seed, rig in zip((2, 6), rigs, strict=True)])
    times = torch.tensor([[0.3, 1.1]] * 2, dtype=torch.float64)
    cameras, look = build_rig(rigs).cameras(times, (24, 32)), sample_appearance([2, 6], 2)
    with torch.device("meta"):
        rendered = render(world, cameras, times, supersample=2)
        images = develop(rendered.light, look, [2, 6])
        ends = (cameras[:, 0, 0], cameras[:, 1, 1])
        points = world_points(rendered.depth[:, 0, 0], ends[0].to(torch.float32))
        visible = visible_points(Snapshots.of(world, times[:, 1:], points.dtype), ends[1].to(points.dtype), points)
    assert rendered.light.device == images.device == visible.device == torch.device("cpu")


@pytest.mark.parametrize(
    "wrong", [{"num_times": 0}, {"num_views": 0}, {"image_size": (0, 8)}, {"outdoor_probability": 2.0}]
)
def test_requests_out_of_range_are_refused(wrong):
    with pytest.raises(UsageError, match="scene request: "):
        SceneRequest(**wrong)


LIGHT = torch.rand(1, 2, 2, 3, 20, 28, generator=torch.Generator().manual_seed(0))


def changed(**fields: float) -> Appearance:
    plain = plain_appearance(1, 2)
    return dataclasses.replace(plain, **{name: torch.full((1, 2), value) for name, value in fields.items()})


def test_plain_cameras_only_apply_the_tone_curve():
    assert float((develop(LIGHT, plain_appearance(1, 2), [0]) - tone_curve(LIGHT)).abs().max()) < 1e-6
    curve = tone_curve(torch.linspace(0, 50, 200))
    assert bool((curve.diff() > -1e-7).all())
    assert float(tone_curve(torch.tensor(0.18))) == pytest.approx(0.46, abs=0.03)


def test_each_photometric_parameter_has_its_effect():
    flat = torch.full_like(LIGHT, 0.3)
    level = float(tone_curve(torch.tensor(0.3)))
    assert float(develop(flat, changed(exposure=2.0), [0]).mean()) > level + 0.1
    dark = develop(flat, changed(vignette=0.5), [0])
    assert float(dark[..., 0, 0].max()) < level - 0.05
    assert float(dark[..., 9:11, 13:15].min()) == pytest.approx(level, abs=0.01)
    warm = dataclasses.replace(plain_appearance(1, 2), balance=torch.tensor([1.2, 1.0, 0.8]).expand(1, 2, 3))
    red, green, blue = develop(flat, warm, [0]).mean(dim=(0, 1, 2, 4, 5)).tolist()
    assert red > green > blue
    sharp = develop(LIGHT, plain_appearance(1, 2), [0])
    soft = develop(LIGHT, changed(blur=0.2), [0])
    assert float(soft.std()) < 0.6 * float(sharp.std())
    assert float(develop(flat, changed(blur=0.2), [0]).std()) < 1e-6
    gray = develop(LIGHT, changed(saturation=0.0), [0])
    assert float((gray.amax(3) - gray.amin(3)).max()) < 1e-6
    assert float(develop(LIGHT, changed(contrast=0.5), [0]).std()) == pytest.approx(
        0.5 * float(sharp.std()), rel=0.05
    )
    coded = develop(LIGHT, changed(blocks=0.05), [0])
    assert 0.01 < float((coded - sharp).abs().mean()) < 0.15
    assert float((develop(LIGHT, changed(blocks=1e-5), [0]) - sharp).abs().max()) < 1e-3


def test_noise_depends_on_the_frame_and_not_on_its_batch():
    noisy = changed(read_noise=0.02, shot_noise=0.01)
    flat = torch.full_like(LIGHT, 0.3)
    images = develop(flat, noisy, [7])
    assert float(images.std()) == pytest.approx(0.02, rel=0.5)
    assert float((images[0, 0] - images[0, 1]).abs().mean()) > 0.01
    one = Appearance(**{name: value[:, 1:] for name, value in vars(noisy).items()})
    again = develop(flat[:, 1:, 1:], one, [7], first_frame=1, first_view=1)
    assert float((again[0, 0, 0] - images[0, 1, 1]).abs().max()) < 1e-6
    assert float((develop(flat, noisy, [8]) - images).abs().mean()) > 0.01


def test_photometric_parameters_depend_on_the_seed_only_and_vary():
    first, second = sample_appearance([1, 2], 3), sample_appearance([2], 3)
    assert torch.equal(first.exposure[1], second.exposure[0])
    many = sample_appearance(range(60), 2)
    assert 0.4 < float(many.exposure.min()) < 0.8 < 1.3 < float(many.exposure.max()) < 1.9
    apart = (many.exposure[:, 0] - many.exposure[:, 1]).abs()
    assert float(apart.median()) > 0.02
    assert 0 < float((many.read_noise > 0).double().mean()) < 1
    assert 0 < float((many.blocks > 0).double().mean()) < 1
