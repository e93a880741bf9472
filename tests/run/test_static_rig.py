"""Static cameras: detection of motion, averaging, and alignment of every chunk to them."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from page4d.choices import CameraMotion, Poses
from page4d.geometry.camera import project
from page4d.geometry.rotation import matrix_from_rotation_vector, rotation_angle
from page4d.geometry.time_axis import join_times
from page4d.geometry.transforms import rigid, transform_points
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.options import ReconstructSettings
from page4d.output.reader import open_output
from page4d.output.record import ChunkRecord, RigFitRecord, RigRecord, ViewMotionRecord
from page4d.records import Predictions
from page4d.run.chunks import Chunk, plan_chunks
from page4d.run.reconstruct import reconstruct
from page4d.run.stages.static_rig import STATIC_SHARE, StaticRigAligner
from page4d.run.stages.stitch import StitchedChunk, stitch
from page4d.run.stages.world import World
from page4d.run.summary import rig_fit_notice
from tests.quality.test_quality_grade import run_record
from tests.run.test_reconstruct import bytes_of, resumed, uncalibrated
from tests.run.truth import TruthPredictor, exact_predictions, random_similarity

CAPTURE = SyntheticCapture(seed=3, num_views=3, num_times=32, image_size=(24, 32))
MOVING = SyntheticCapture(seed=3, num_views=2, num_times=8, image_size=(24, 32), moving_cameras=True)
MAPS = ("images", "valid", "depth", "depth_confidence", "dynamic")
SETTINGS = ReconstructSettings(chunk=8, overlap=2, preview=False)


def with_poses(part: Predictions, poses: Tensor, intrinsics: Tensor | None = None) -> Predictions:
    lens = part.cameras.intrinsics if intrinsics is None else intrinsics
    return replace(part, cameras=replace(part.cameras, world_to_camera=poses, intrinsics=lens))


def shaken(part: Predictions, seed: int, size: float = 0.003) -> Predictions:
    """Add normal noise to rotations (radians), positions (share of the depth) and focal lengths (share)."""
    generator = torch.Generator().manual_seed(seed)
    poses = part.cameras.world_to_camera
    noise = size * torch.randn(*poses.shape[:-2], 7, generator=generator, dtype=poses.dtype)
    depth = float(part.depth[part.valid].median())
    shake = rigid(matrix_from_rotation_vector(noise[..., :3]), depth * noise[..., 3:6])
    lens = part.cameras.intrinsics.clone()
    lens[..., :2, :2] *= (1 + noise[..., 6])[..., None, None]
    return with_poses(part, shake @ poses, lens)


def drifting(part: Predictions, per_instant: float) -> Predictions:
    """Turn all cameras by an angle per instant in radians."""
    still = torch.zeros(part.num_times, 3, dtype=torch.float64)
    angles = per_instant * torch.arange(part.num_times, dtype=torch.float64)
    turns = matrix_from_rotation_vector(angles[:, None] * still.new_tensor([0.0, 1.0, 0.0]))
    return with_poses(part, rigid(turns, still)[None, :, None] @ part.cameras.world_to_camera)


def new_aligner(requested: CameraMotion = CameraMotion.AUTO, capture: SyntheticCapture = CAPTURE) -> StaticRigAligner:
    world = World(uncalibrated(capture.scene()), Poses.INPUT, predictor_uses_rig=False)
    return StaticRigAligner(requested, lambda first: world.place_first(first, None))


def shaken_chunks(truth: Predictions, plan: tuple[Chunk, ...]) -> list[tuple[Chunk, Predictions]]:
    """Divide the ground truth into chunks with noisy cameras, each in a random world and at a random scale."""
    cut = [(chunk, shaken(truth.at_times(chunk.start, chunk.stop), chunk.start)) for chunk in plan]
    return [(chunk, part.transformed(random_similarity(chunk.start))) for chunk, part in cut]


def stitched(chunks: list[tuple[Chunk, Predictions]], aligner: StaticRigAligner) -> list[StitchedChunk]:
    return list(
        stitch(
            chunks,
            num_times=chunks[-1][0].stop,
            overlap=2,
            place_first=Mock(side_effect=AssertionError("the rig places every chunk")),
            anchor=aligner.anchor,
        )
    )


@cache
def noisy_run() -> tuple[list[StitchedChunk], StaticRigAligner]:
    truth, aligner = exact_predictions(CAPTURE), new_aligner()
    return stitched(shaken_chunks(truth, plan_chunks(truth.num_times, 8, 2)), aligner), aligner


def test_noisy_chunks_in_random_worlds_are_stitched_with_one_camera_per_view():
    parts, aligner = noisy_run()
    assert aligner.record.cameras == "static"
    whole, truth = join_times([part.predictions for part in parts]), exact_predictions(CAPTURE)
    poses, lenses = whole.cameras.world_to_camera, whole.cameras.intrinsics
    assert torch.equal(poses, poses[:, :1].expand_as(poses))
    assert torch.equal(lenses, lenses[:, :1].expand_as(lenses))
    true = truth.cameras.world_to_camera[0, 0] @ torch.linalg.inv(truth.cameras.world_to_camera[0, 0, 0])
    turned = rotation_angle(poses[0, 0, :, :3, :3], true[:, :3, :3])
    assert float(turned.max()) < 0.006, "the cameras of a chunk have errors of 0.005, including the first"
    size = (poses[0, 0, 1:, :3, 3].norm() / true[1:, :3, 3].norm()).log()
    ratio = (whole.depth / truth.depth)[truth.valid & (truth.depth > 0)].log()
    assert float((ratio - ratio.median()).abs().max()) < 0.01, "the scale is steady over time"
    assert float((ratio.median() - size).abs()) < 0.01, "depth and cameras have one scale"
    assert all(part.seam is not None and part.seam.residual_share < 0.01 for part in parts[1:])


def test_averaged_cameras_reduce_the_reprojection_error_in_other_views():
    whole, truth = join_times([part.predictions for part in noisy_run()[0]]), exact_predictions(CAPTURE)

    def in_next_view(part: Predictions) -> Tensor:
        cameras = part.cameras[:, :, [1, 2, 0]]
        return project(transform_points(cameras.world_to_camera, part.world_points()), cameras.intrinsics)[0]

    shift = (in_next_view(whole) - in_next_view(truth)).norm(dim=-1)[truth.valid & (truth.depth > 0)]
    assert float(shift.median()) < 0.3, "pixels; single cameras have errors of 0.25 px in every view"
    shaking = shaken(truth, 0)
    alone = (in_next_view(shaking) - in_next_view(truth)).norm(dim=-1)[truth.valid & (truth.depth > 0)]
    assert float(shift.median()) < float(alone.median())


def test_exact_static_cameras_are_recovered():
    truth, move = exact_predictions(CAPTURE).at_times(0, 8), random_similarity(1)
    placed = new_aligner().anchor(truth.transformed(move), None)
    expected = truth.cameras.world_to_camera @ torch.linalg.inv(truth.cameras.world_to_camera[0, 0, 0])
    found = placed.predictions.cameras.world_to_camera
    torch.testing.assert_close(found[..., :3, :3], expected[..., :3, :3], rtol=0, atol=1e-9)
    torch.testing.assert_close(found[..., :3, 3], move.scale * expected[..., :3, 3], rtol=0, atol=1e-8)
    torch.testing.assert_close(placed.predictions.depth, move.scale * truth.depth)


@pytest.mark.parametrize("num_views", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_jitter_is_static_and_slow_drift_is_motion(num_views: int, seed: int):
    whole = exact_predictions(CAPTURE).at_times(0, 16)
    truth = replace(
        whole,
        view_names=whole.view_names[:num_views],
        pixel_transforms=whole.pixel_transforms[:num_views],
        cameras=whole.cameras[:, :, :num_views],
        **{name: getattr(whole, name)[:, :, :num_views] for name in MAPS},
    )
    for part, expected in (
        (shaken(truth, seed, 0.01), "static"),  # a third of a pixel: five times the limit
        (drifting(shaken(truth, seed, 0.002), 0.002), "moving"),  # a step is as large as the jitter
        (drifting(truth, 0.0002), "static"),  # 0.003 rad in total: below the limit
        (drifting(truth, 0.01), "moving"),
    ):
        aligner = new_aligner()
        aligner.anchor(part, None)
        assert aligner.record.cameras == expected


def test_moving_cameras_are_kept_unless_static_ones_are_requested():
    truth, aligner = exact_predictions(MOVING), new_aligner(capture=MOVING)
    assert aligner.anchor(truth, None) is None
    assert not any(view.still for view in aligner.record.views)
    assert aligner.anchor(truth, None) is None
    placed = new_aligner(CameraMotion.STATIC, MOVING).anchor(truth, None)
    assert max(placed.fit.motion_px) > 2 * STATIC_SHARE * 32


def test_the_scale_of_a_single_camera_is_that_of_the_depth_in_the_overlap():
    capture = SyntheticCapture(seed=3, num_views=1, num_times=14, image_size=(24, 32))
    truth = exact_predictions(capture)
    parts = stitched(shaken_chunks(truth, plan_chunks(14, 6, 2)), new_aligner(capture=capture))
    ratio = join_times([part.predictions for part in parts]).depth / truth.depth
    ratio = ratio[ratio.isfinite()]
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-6, atol=0)
    assert all(part.seam is not None and part.seam.num_points > 500 for part in parts[1:])


def test_a_narrow_baseline_adds_no_noise_to_the_scale():
    """The baseline is 0.01 of the depth, its noise 0.003: the scale from depth has the larger weight."""
    truth = exact_predictions(CAPTURE).at_times(0, 20)
    poses = truth.cameras.world_to_camera.clone()
    poses[:, :, 1:] = poses[:, :, :1]
    poses[:, :, [1, 2], [0, 1], 3] += 0.01 * float(truth.depth[truth.valid].median())
    parts = stitched(shaken_chunks(with_poses(truth, poses), plan_chunks(20, 8, 2)), new_aligner())
    scales = [float(part.transform.scale * random_similarity(part.chunk.start).scale) for part in parts]
    assert max(scales) / min(scales) < 1.01


def test_a_resumed_run_of_static_cameras_writes_the_same_bytes(tmp_path: Path):
    capture = SyntheticCapture(seed=5, num_views=2, num_times=9, image_size=(24, 32))
    scene, settings = uncalibrated(capture.scene()), replace(SETTINGS, chunk=5)

    def disturb(start: int, part: Predictions) -> Predictions:
        return shaken(part, start).transformed(random_similarity(start))

    predictor = TruthPredictor(capture, disturb)
    record = reconstruct(scene, predictor, out=tmp_path / "whole", settings=settings)
    assert (record.rig.asked, record.rig.cameras) == ("auto", "static")
    assert all(view.still and view.jitter_px > 0 for view in record.rig.views)
    poses = open_output(tmp_path / "whole").cameras.world_to_camera
    assert torch.equal(poses, poses[:1].expand_as(poses))
    rows = [line.split()[1:] for line in (tmp_path / "whole/cameras/cam02.tum").read_text().splitlines()[1:]]
    assert all(row == rows[0] for row in rows)
    again = resumed(reconstruct, scene, predictor, out=tmp_path / "stopped", instants=6, settings=settings)
    assert again.rig == record.rig
    assert bytes_of(tmp_path / "stopped") == bytes_of(tmp_path / "whole")


def test_requesting_static_cameras_for_moving_ones_is_a_warning(tmp_path: Path):
    scene = uncalibrated(MOVING.scene())
    settings = replace(SETTINGS, camera_motion=CameraMotion.STATIC)
    record = reconstruct(scene, TruthPredictor(MOVING), out=tmp_path / "static", settings=settings)
    assert any("--cameras static, but " in text and " px (jitter " in text for text in record.warnings)
    record = reconstruct(scene, TruthPredictor(MOVING), out=tmp_path / "auto", settings=SETTINGS)
    assert record.rig.cameras == "moving"
    assert not [text for text in record.warnings if "are not placed" not in text]
    found = open_output(tmp_path / "auto").cameras.world_to_camera
    assert not torch.equal(found[0, 1], found[-1, 1])


@pytest.mark.parametrize(
    ("evidence", "advice"),
    [("pixels", "its pixels stand still: the network is wrong"), ("predictions", "try camera_motion='moving'")],
)
def test_moving_cameras_are_suggested_unless_pixels_stand_still(evidence: str, advice: str) -> None:
    decided = ViewMotionRecord(view="cam1", jitter_px=0, motion_px=0, still=True, evidence=evidence)
    record = run_record(
        chunks=[
            ChunkRecord(start=0, stop=2, overlap=0, seconds=0, rig=RigFitRecord(motion_px=[0, 9, 0], scale_std=0))
        ],
        rig=RigRecord(asked="auto", cameras="static", num_times=2, limit_px=1, views=[decided]),
    )
    assert rig_fit_notice(record, 100).text.endswith(f"cam1 is off by 9.0 px; {advice}")
    assert rig_fit_notice(record, 1000) is None
