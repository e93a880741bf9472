"""Division of a capture into chunks, and their alignment and blending."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.geometry.alignment import align_points
from page4d.geometry.time_axis import join_times
from page4d.geometry.transforms import Sim3
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.records import Predictions
from page4d.run.chunks import Chunk, plan_chunks
from page4d.run.stages.stitch import StitchedChunk, align_chunk, blend, measure_seam, stitch
from page4d.run.summary import seam_fits
from tests.run.truth import exact_predictions, random_similarity


@pytest.fixture(scope="module")
def truth() -> Predictions:
    return exact_predictions(SyntheticCapture(seed=3, num_views=3, num_times=10, image_size=(36, 48)))


def stitched(truth: Predictions, chunks: list[tuple[Chunk, Predictions]], overlap: int) -> list[StitchedChunk]:
    first = chunks[0][1]

    def undo(predictions: Predictions) -> Sim3:
        assert predictions is first
        return random_similarity(chunks[0][0].start).inverse()

    return list(stitch(chunks, num_times=truth.num_times, overlap=overlap, place_first=undo))


def in_random_worlds(truth: Predictions, plan: tuple[Chunk, ...]) -> list[tuple[Chunk, Predictions]]:
    """Divide the ground truth into chunks, each in a random world and at a random scale."""
    return [
        (chunk, truth.at_times(chunk.start, chunk.stop).transformed(random_similarity(chunk.start))) for chunk in plan
    ]


def test_exact_chunks_in_random_worlds_are_stitched_exactly(truth: Predictions):
    parts = stitched(truth, in_random_worlds(truth, plan_chunks(10, 4, 2)), overlap=2)
    whole = join_times([part.predictions for part in parts])
    assert torch.equal(whole.times, truth.times)
    torch.testing.assert_close(whole.cameras.centers, truth.cameras.centers, rtol=0, atol=1e-7)
    torch.testing.assert_close(whole.cameras.world_to_camera, truth.cameras.world_to_camera, rtol=0, atol=1e-7)
    torch.testing.assert_close(whole.depth, truth.depth, rtol=1e-7, atol=1e-7)
    assert [part.chunk.start for part in parts] == [0, 2, 4, 6]
    assert parts[0].seam is None
    assert all(part.seam is not None and part.seam.residual < 1e-6 for part in parts[1:])
    assert all(part.seam is not None and part.seam.num_points > 1000 for part in parts[1:])


def test_moving_pixels_are_left_out_of_alignments(truth: Predictions):
    chunks = in_random_worlds(truth, plan_chunks(10, 4, 2))
    wrong = [
        (chunk, replace(part, depth=torch.where(part.dynamic > 0, part.depth * 3, part.depth)))
        for chunk, part in chunks
    ]
    whole = join_times([part.predictions for part in stitched(truth, wrong, overlap=2)])
    torch.testing.assert_close(whole.cameras.centers, truth.cameras.centers, rtol=0, atol=1e-7)


def test_a_third_of_wrong_static_depths_are_outliers(truth: Predictions):
    generator = torch.Generator().manual_seed(0)
    chunks = in_random_worlds(truth, plan_chunks(10, 4, 2))
    disturbed = []
    for chunk, part in chunks:
        wrong = torch.rand(part.depth.shape, generator=generator) < 0.18
        factor = 1 + torch.rand(part.depth.shape, generator=generator, dtype=torch.float64)
        disturbed.append((chunk, replace(part, depth=torch.where(wrong, part.depth * factor, part.depth))))
    whole = join_times([part.predictions for part in stitched(truth, disturbed, overlap=2)])
    size = (truth.cameras.centers.amax((0, 1, 2)) - truth.cameras.centers.amin((0, 1, 2))).norm()
    error = (whole.cameras.centers - truth.cameras.centers).norm(dim=-1).max()
    assert float(error / size) < 1e-3


def test_without_valid_pixels_the_cameras_determine_the_alignment(truth: Predictions):
    source = truth.at_times(0, 2)
    invalid = replace(source, valid=torch.zeros_like(source.valid))
    transform = random_similarity(7)
    found, num_points = align_chunk(invalid.transformed(transform.inverse()), invalid)
    assert num_points == 0
    torch.testing.assert_close(found.matrix(), transform.matrix(), rtol=1e-9, atol=1e-9)


def test_a_metric_scale_is_kept(truth: Predictions):
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


def test_blending_is_linear_and_keeps_depth_of_either_chunk(truth: Predictions):
    part = truth.at_times(0, 3)
    farther = replace(part, depth=part.depth * 2)
    mixed = blend(part, farther)
    for place, weight in enumerate((0.25, 0.5, 0.75)):
        torch.testing.assert_close(mixed.depth[:, place], part.depth[:, place] * (1 + weight))
    holes = replace(farther, depth=torch.where(part.depth > part.depth.median(), 0.0, farther.depth))
    mixed = blend(part, holes)
    only_one = holes.depth == 0
    assert torch.equal(mixed.depth[only_one], part.depth[only_one])


def test_chunks_in_a_fixed_world_are_only_blended(truth: Predictions):
    plan = plan_chunks(10, 4, 2)
    chunks = [(chunk, truth.at_times(chunk.start, chunk.stop)) for chunk in plan]
    parts = list(
        stitch(chunks, num_times=10, overlap=2, place_first=lambda _: random_similarity(0), fixed_world=True)
    )
    whole = join_times([part.predictions for part in parts])
    torch.testing.assert_close(whole.cameras.world_to_camera, truth.cameras.world_to_camera, rtol=0, atol=1e-13)
    torch.testing.assert_close(whole.depth, truth.depth)


def test_chunks_shorter_than_two_overlaps_are_refused(truth: Predictions):
    plan = (Chunk(0, 4, 0), Chunk(2, 5, 2), Chunk(3, 10, 2))
    chunks = [(chunk, truth.at_times(chunk.start, chunk.stop)) for chunk in plan]
    with pytest.raises(UsageError, match="overlap of 2"):
        list(stitch(chunks, num_times=10, overlap=2, place_first=lambda _: Sim3.identity()))


def test_twenty_noisy_chunks_are_stitched_without_the_drift_of_chained_alignments():
    """Every chunk has a random world, scale and noise; moving pixels have wrong depth."""
    true = exact_predictions(SyntheticCapture(seed=3, num_views=2, num_times=42, image_size=(24, 32)))
    plan = plan_chunks(42, 4, 2)
    assert len(plan) == 20
    generator = torch.Generator().manual_seed(1)

    def noisy(part: Predictions) -> Predictions:
        noise = 1 + 0.005 * torch.randn(part.depth.shape, generator=generator, dtype=torch.float64)
        factor = 1 + torch.rand((), generator=generator, dtype=torch.float64)
        return replace(part, depth=part.depth * noise * torch.where(part.dynamic > 0.5, factor, 1.0))

    chunks = [
        (chunk, noisy(true.at_times(chunk.start, chunk.stop)).transformed(random_similarity(chunk.start)))
        for chunk in plan
    ]
    whole = join_times([part.predictions for part in stitched(true, chunks, overlap=2)])
    corners = true.world_points()[true.valid]
    size = (corners.amax(0) - corners.amin(0)).norm()
    error = float((whole.cameras.centers - true.cameras.centers).norm(dim=-1).max() / size)

    naive = [chunks[0][1].transformed(random_similarity(0).inverse())]
    for (chunk, part), (before, _) in zip(chunks[1:], chunks, strict=False):
        known = naive[-1].at_times(chunk.start - before.start, chunk.start - before.start + 1)
        shared = [both.world_points().reshape(-1, 3) for both in (part.at_times(0, 1), known)]
        naive.append(part.transformed(align_points(shared[0], shared[1])))
    naive_error = max(
        float((part.cameras.centers - true.cameras.centers[:, chunk.start : chunk.stop]).norm(dim=-1).max() / size)
        for part, (chunk, _) in zip(naive, chunks, strict=True)
    )
    assert error < 1e-3
    assert naive_error > 10 * error


def test_seam_residuals_grow_with_errors_of_depth(truth: Predictions):
    part = truth.at_times(0, 2)
    same = measure_seam(part, part, Sim3.identity(), 5)
    assert same.residual == same.residual_share == same.residual_px == 0.0
    assert seam_fits(same, 48)
    farther = measure_seam(part, replace(part, depth=part.depth * 1.2), Sim3.identity(), 5)
    assert farther.residual_share > 0.2  # of the z-depth; along the ray it is farther
    assert farther.residual_px > 0.48
    assert not seam_fits(farther, 48)
    invalid = measure_seam(part, replace(part, valid=torch.zeros_like(part.valid)), Sim3.identity(), 0)
    assert invalid.residual is invalid.residual_share is invalid.residual_px is None


@given(st.integers(1, 500), st.integers(1, 40), st.data())
def test_chunks_cover_every_instant_and_share_exactly_the_overlap(num_times: int, length: int, data: st.DataObject):
    overlap = data.draw(st.integers(0, length // 2))
    chunks = plan_chunks(num_times, length, overlap)
    assert (chunks[0].start, chunks[0].overlap) == (0, 0)
    assert chunks[-1].stop == num_times
    for before, after in zip(chunks, chunks[1:], strict=False):
        assert before.stop - after.start == after.overlap == overlap
        assert after.stop > before.stop
    assert all(chunk.length <= length for chunk in chunks)
    assert all(chunk.length >= 2 * overlap for chunk in chunks[:-1])


@given(st.integers(3, 500), st.integers(3, 40))
def test_chunk_lengths_differ_by_at_most_one(num_times: int, length: int):
    lengths = [chunk.length for chunk in plan_chunks(num_times, length, 1)]
    assert max(lengths) - min(lengths) <= 1


def test_even_chunks_of_two_overlaps_are_planned_and_a_start_in_the_middle_keeps_its_overlap():
    assert [chunk.length for chunk in plan_chunks(9, 5, 2)] == [4, 4, 5]
    assert plan_chunks(20, 6, 2, start=8) == (Chunk(8, 13, 2), Chunk(11, 16, 2), Chunk(14, 20, 2))
    assert plan_chunks(20, 12, 2, start=8) == (Chunk(8, 20, 2),)


@pytest.mark.parametrize(("length", "overlap"), [(0, 0), (4, 4), (3, -1), (2, 5)])
def test_chunks_without_new_instants_are_refused(length: int, overlap: int):
    with pytest.raises(UsageError):
        plan_chunks(20, length, overlap)
