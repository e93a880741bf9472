from dataclasses import replace

import pytest
import torch

from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.geometry.similarity import Sim3
from page4d.inference.chunks import Chunk, plan_chunks
from page4d.inference.stitch import Stitched, align_chunk, blend, stitch
from page4d.predictions import Predictions, join_times
from page4d.synthetic.capture import SyntheticCapture
from tests.inference.truth import exact_predictions, random_similarity


@pytest.fixture(scope="module")
def truth() -> Predictions:
    return exact_predictions(SyntheticCapture(seed=3, num_views=3, num_times=10, image_size=(36, 48)))


def stitched(truth: Predictions, chunks: list[tuple[Chunk, Predictions]], overlap: int) -> list[Stitched]:
    first = chunks[0][1]

    def back(predictions: Predictions) -> Sim3:
        assert predictions is first
        return random_similarity(chunks[0][0].start).inverse()

    return list(stitch(chunks, num_times=truth.num_times, overlap=overlap, place_first=back))


def disturbed(truth: Predictions, plan: tuple[Chunk, ...]) -> list[tuple[Chunk, Predictions]]:
    """Cut the truth into chunks, each in a world and at a scale of its own."""
    return [
        (chunk, truth.at_times(chunk.start, chunk.stop).transformed(random_similarity(chunk.start))) for chunk in plan
    ]


def test_exact_chunks_in_worlds_of_their_own_come_back_exactly(truth: Predictions):
    parts = stitched(truth, disturbed(truth, plan_chunks(10, 4, 2)), overlap=2)
    whole = join_times([part.predictions for part in parts])
    assert torch.equal(whole.times, truth.times)
    torch.testing.assert_close(whole.cameras.centers, truth.cameras.centers, rtol=0, atol=1e-7)
    torch.testing.assert_close(whole.cameras.world_to_camera, truth.cameras.world_to_camera, rtol=0, atol=1e-7)
    torch.testing.assert_close(whole.depth, truth.depth, rtol=1e-7, atol=1e-7)
    assert [part.chunk.start for part in parts] == [0, 2, 4, 6]
    assert parts[0].seam is None
    assert all(part.seam is not None and part.seam.residual < 1e-6 for part in parts[1:])
    assert all(part.seam is not None and part.seam.num_points > 1000 for part in parts[1:])


def test_moving_pixels_do_not_take_part(truth: Predictions):
    assert truth.dynamic is not None
    chunks = disturbed(truth, plan_chunks(10, 4, 2))
    lies = [
        (chunk, replace(part, depth=torch.where(part.dynamic > 0, part.depth * 3, part.depth)))  # type: ignore[operator]
        for chunk, part in chunks
    ]
    whole = join_times([part.predictions for part in stitched(truth, lies, overlap=2)])
    torch.testing.assert_close(whole.cameras.centers, truth.cameras.centers, rtol=0, atol=1e-7)


def test_a_third_of_wrong_static_depths_is_outvoted(truth: Predictions):
    generator = torch.Generator().manual_seed(0)
    chunks = disturbed(truth, plan_chunks(10, 4, 2))
    lies = []
    for chunk, part in chunks:
        wrong = torch.rand(part.depth.shape, generator=generator) < 0.18
        factor = 1 + torch.rand(part.depth.shape, generator=generator, dtype=torch.float64)
        lies.append((chunk, replace(part, depth=torch.where(wrong, part.depth * factor, part.depth))))
    whole = join_times([part.predictions for part in stitched(truth, lies, overlap=2)])
    size = (truth.cameras.centers.amax((0, 1, 2)) - truth.cameras.centers.amin((0, 1, 2))).norm()
    error = (whole.cameras.centers - truth.cameras.centers).norm(dim=-1).max()
    assert float(error / size) < 1e-3


def test_without_usable_pixels_the_cameras_decide(truth: Predictions):
    source = truth.at_times(0, 2)
    blind = replace(source, valid=torch.zeros_like(source.valid))
    transform = random_similarity(7)
    found, num_points = align_chunk(blind.transformed(transform.inverse()), blind)
    assert num_points == 0
    torch.testing.assert_close(found.matrix(), transform.matrix(), rtol=1e-9, atol=1e-9)


def test_a_metric_scale_is_not_touched(truth: Predictions):
    metric = replace(truth.at_times(0, 2), scale=Scale.METRIC)
    transform = random_similarity(5, scale=False)
    found, _ = align_chunk(metric.transformed(transform.inverse()), metric)
    assert float(found.scale) == 1.0
    torch.testing.assert_close(found.matrix(), transform.matrix(), rtol=1e-7, atol=1e-7)


def test_blending_equal_predictions_changes_nothing(truth: Predictions):
    part = truth.at_times(0, 3)
    mixed = blend(part, part)
    torch.testing.assert_close(mixed.depth, part.depth, rtol=1e-14, atol=0)
    torch.testing.assert_close(mixed.cameras.world_to_camera, part.cameras.world_to_camera, rtol=0, atol=1e-13)


def test_blending_fades_linearly_and_keeps_what_only_one_knows(truth: Predictions):
    part = truth.at_times(0, 3)
    farther = replace(part, depth=part.depth * 2)
    mixed = blend(part, farther)
    for place, weight in enumerate((0.25, 0.5, 0.75)):
        torch.testing.assert_close(mixed.depth[:, place], part.depth[:, place] * (1 + weight))
    holes = replace(farther, depth=torch.where(part.depth > part.depth.median(), 0.0, farther.depth))
    mixed = blend(part, holes)
    only_one = holes.depth == 0
    assert torch.equal(mixed.depth[only_one], part.depth[only_one])


def test_a_fixed_world_is_only_blended(truth: Predictions):
    plan = plan_chunks(10, 4, 2)
    chunks = [(chunk, truth.at_times(chunk.start, chunk.stop)) for chunk in plan]
    parts = list(
        stitch(chunks, num_times=10, overlap=2, place_first=lambda _: random_similarity(0), fixed_world=True)
    )
    whole = join_times([part.predictions for part in parts])
    torch.testing.assert_close(whole.cameras.world_to_camera, truth.cameras.world_to_camera, rtol=0, atol=1e-13)
    torch.testing.assert_close(whole.depth, truth.depth)


def test_blended_instants_are_never_blended_again(truth: Predictions):
    plan = (Chunk(0, 4, 0), Chunk(2, 5, 2), Chunk(3, 10, 2))
    chunks = [(chunk, truth.at_times(chunk.start, chunk.stop)) for chunk in plan]
    with pytest.raises(UsageError, match="overlap of 2"):
        list(stitch(chunks, num_times=10, overlap=2, place_first=lambda _: Sim3.identity()))
