"""Descriptors find depth where windows do not, leave a certain depth alone, and are those of the fetched file."""

from dataclasses import replace

import pytest
import torch
from kornia.feature import XFeat
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

from page4d.errors import CapabilityError
from page4d.geometry.camera import Cameras, world_points
from page4d.lab.synthetic.capture import SceneRequest, sample_truth
from page4d.networks.conditioning import Conditioning
from page4d.networks.output import NetworkOutput
from page4d.records import GroundTruth
from page4d.stereo.descriptors import (
    DESCRIPTOR_MODEL,
    DenseDescriptors,
    DescribedImages,
    dense_descriptors,
    similarity,
)
from page4d.stereo.sweep import sweep_planes
from tests.stereo.synthetic_rigs import (
    filled_depth,
    refined,
    scaled_depth,
    true_cameras,
    true_matches,
    views_without_matches,
)

SIZE, CELLS = (64, 80), (32, 40)
FACTOR = 1.2
"""Error of the initial depth."""

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def truth() -> GroundTruth:
    return sample_truth([1], SceneRequest(num_times=1, num_views=3, image_size=SIZE, spacing_deg=(20, 21)))


@pytest.fixture(scope="module")
def cameras(truth: GroundTruth) -> Cameras:
    return true_cameras(truth)


def codes_of_places(truth: GroundTruth, cameras: Cameras) -> list[Tensor]:
    """Return descriptors that are the more similar the nearer the surfaces in their cells are to each other."""
    points = world_points(filled_depth(truth).double(), cameras)
    waves = 4 * torch.randn(3, 32, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    codes = torch.cat([(points @ waves).sin(), (points @ waves).cos()], dim=-1).movedim(-1, 3).float()
    return [functional.normalize(functional.interpolate(view[0], CELLS), dim=1)[None] for view in codes.unbind(2)]


def described(truth: GroundTruth, cameras: Cameras, view: int, sigma: float, factor: float = 1.0) -> DescribedImages:
    depth = filled_depth(truth)[:, :, view] * factor
    maps = codes_of_places(truth, cameras)[view], depth, torch.full_like(depth, sigma)
    return DescribedImages.of(slice(0, 1), cameras[:, :, view], *maps)


@pytest.mark.parametrize("factor", [FACTOR, 1 / FACTOR])
def test_depth_is_found_where_pictures_are_flat(truth: GroundTruth, cameras: Cameras, factor: float):
    flat = [torch.full_like(image, 0.5) for image in truth.images.unbind(2)]
    views, depth = views_without_matches(truth.depth.unbind(2)), scaled_depth(truth, (factor,) * 3)
    descriptors = codes_of_places(truth, cameras)
    found = torch.stack(sweep_planes(views, flat, cameras, depth, descriptors=descriptors), dim=2)
    error = (found + torch.tensor(factor).log()).abs()[truth.depth > 0]
    assert error.median() < 0.6 * torch.tensor(FACTOR).log()  # up to hypotheses that are as similar; 1 without them


def test_the_weight_follows_the_uncertainty_of_the_depth(truth: GroundTruth, cameras: Cameras):
    factors = torch.linspace(-0.4, 0.4, 33).exp()

    def strength(sigma: float, factor: float = 1.0) -> float:
        pair = described(truth, cameras, 0, sigma), described(truth, cameras, 1, sigma, factor)
        return float(similarity(*pair, factors).amax(dim=-2).mean())

    certain = strength(0.05)
    assert strength(0.5) > 3 * certain > 0  # predicted
    assert strength(0.05, FACTOR) > 3 * certain  # measured: the depth maps differ


def test_opposite_views_and_points_that_are_not_shown_give_no_evidence(
    truth: GroundTruth, cameras: Cameras, monkeypatch
):
    factors = torch.linspace(-0.4, 0.4, 9).exp()
    first, second = (described(truth, cameras, view, 0.5) for view in (0, 1))
    away = replace(
        second.cameras,
        world_to_camera=torch.diag(torch.tensor([-1.0, 1, -1, 1])).double() @ second.cameras.world_to_camera,
    )
    assert not similarity(first, second._replace(cameras=away), factors).any()
    hidden = second._replace(depth=second.depth / 4)
    assert not similarity(first, hidden, factors).any()
    monkeypatch.setattr("page4d.stereo.descriptors._MAX_ANGLE_DEG", 0.0)
    assert not similarity(first, second, factors).any()


def test_likelihoods_are_independent_of_the_chunk_size(truth: GroundTruth, cameras: Cameras, monkeypatch):
    pair = described(truth, cameras, 0, 0.5), described(truth, cameras, 1, 0.5)
    factors = torch.linspace(-0.4, 0.4, 9).exp()
    whole = similarity(*pair, factors)
    monkeypatch.setattr("page4d.stereo.descriptors._MAX_DESCRIPTORS", 1)
    torch.testing.assert_close(similarity(*pair, factors), whole)


def test_what_all_descriptors_share_is_subtracted():
    images = [torch.rand(1, 2, 3, *size, generator=torch.Generator().manual_seed(0)) for size in ((24, 32), (40, 30))]

    def described_by(offset: float) -> list[Tensor]:
        def network(pictures: Tensor) -> tuple[Tensor]:
            cells = functional.normalize(functional.avg_pool2d(pictures, 8) - 0.5, dim=1)
            return (torch.cat([cells, torch.full_like(cells[:, :1], offset)], dim=1),)

        return DenseDescriptors(network, "0" * 64).of(images)

    alone, shifted = described_by(0.0), described_by(2.0)
    assert [tuple(maps.shape) for maps in alone] == [(1, 2, 2, 16, 20), (1, 2, 2, 24, 20)]
    for one, other in zip(alone, shifted, strict=True):
        torch.testing.assert_close(other, one, atol=1e-3, rtol=0)
        torch.testing.assert_close(one.norm(dim=2), torch.ones_like(one[:, :, 0]))


def test_the_network_is_that_of_the_fetched_file(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert dense_descriptors(CPU) is None
    network, (path,) = XFeat().net, DESCRIPTOR_MODEL.paths
    path.parent.mkdir(parents=True)
    save_file(network.state_dict(), path)
    found = dense_descriptors(CPU)
    assert {found.sha256} == set(DESCRIPTOR_MODEL.sha256.values())
    image = torch.rand(1, 1, 3, 32, 64)
    large = functional.interpolate(image[0], (160, 320), mode="bilinear")
    with torch.no_grad():
        expected = functional.normalize(network.eval()(large)[0], dim=1)
        expected = functional.normalize(expected - expected.mean(dim=(0, 2, 3))[:, None, None], dim=1)
        torch.testing.assert_close(found.of([image])[0][0], expected, atol=1e-4, rtol=0)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    DESCRIPTOR_MODEL.folder.mkdir(parents=True)
    save_file({"other": torch.zeros(1)}, DESCRIPTOR_MODEL.paths[0])
    with pytest.raises(CapabilityError, match="another version"):
        dense_descriptors(CPU)


def test_refinement_compares_descriptors_under_known_cameras_only(truth: GroundTruth):
    output = NetworkOutput(
        world_to_camera=truth.cameras.world_to_camera.double(),
        intrinsics=truth.cameras.intrinsics.double(),
        depth=filled_depth(truth) * torch.linspace(0.8, 1.2, SIZE[1]),
        depth_confidence=torch.full_like(truth.depth, 1.5),
        matches=true_matches(truth),
    )
    colors = DenseDescriptors(lambda images: (functional.avg_pool2d(images, 8) - 0.5,), "0" * 64)
    known = Conditioning(world_to_camera=truth.cameras.world_to_camera, intrinsics=truth.cameras.intrinsics)
    for conditioning, differs in ((known, True), (Conditioning(), False)):
        options = {"conditioning": conditioning, "images": truth.images}
        with_colors, without = (refined(output, **options, descriptors=given) for given in (colors, None))
        assert torch.equal(with_colors.depth, without.depth) != differs
