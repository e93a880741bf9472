"""Runs with `motion` and `tracks`: velocity maps, velocities of clouds, tracks, resumable."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from page4d.choices import ExistingOutput, SceneFamily, Subject
from page4d.conventions import Scale
from page4d.errors import UsageError
from page4d.geometry.camera import project, world_points
from page4d.geometry.transforms import invert_rigid, transform_points
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.options import PointOptions, ReconstructSettings
from page4d.output.reader import open_output
from page4d.output.record import InstantMotion, RunRecord
from page4d.run.plan import near_steps, plan_run
from page4d.run.reconstruct import reconstruct
from page4d.run.stage import Instant
from page4d.run.stages.motion import guides_at, motion_notices, motion_record
from page4d.run.stages.write import FileOptions
from tests.run.test_reconstruct import bytes_of, resumed
from tests.run.truth import TruthPredictor, exact_predictions
from tests.synthetic.scenes import flow_between

CAPTURE = SyntheticCapture(
    seed=96, num_views=3, num_times=7, image_size=(72, 96), fps=12, subject=Subject.PEOPLE, spacing_deg=20
)
SETTINGS = ReconstructSettings(
    chunk=4,
    overlap=1,
    preview=False,
    check_calibration=False,
    fuse=False,
    motion=True,
    tracks=200,
    points=PointOptions(edge_angle_deg=90),
)


def run(
    out: Path, existing: ExistingOutput = ExistingOutput.REFUSE, capture: SyntheticCapture = CAPTURE, **changes: Any
) -> RunRecord:
    predictor = TruthPredictor(capture)
    return reconstruct(capture.scene(), predictor, out=out, settings=SETTINGS, existing=existing, **changes)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("motion") / "out"
    run(out)
    return out


def true_velocity(index: int, view: int) -> np.ndarray:
    """Return the central difference [H, W, 3] of the motion of every pixel's object, one-sided at the ends."""
    steps = [step for step in (-1, 1) if 0 <= index + step < CAPTURE.num_times]
    moved = {step: flow_between(CAPTURE, (index, view), (index + step, view)).scene[0].numpy() for step in steps}
    return sum(step * motion for step, motion in moved.items()) * CAPTURE.fps / len(steps)


def test_velocities_are_those_of_the_objects(finished: Path):
    output = open_output(finished)
    errors, zeros, truths = [], [], []
    for index in range(CAPTURE.num_times):
        for view, name in enumerate(output.view_names):
            velocity, sigma = output.velocity(index, name)
            truth = true_velocity(index, view)
            speed = np.linalg.norm(truth, axis=-1)
            several = (sigma > 0) & (np.linalg.norm(velocity, axis=-1) > sigma)
            errors.append(np.linalg.norm(velocity - truth, axis=-1)[several & (speed > 0.1)])
            truths.append(speed[several & (speed > 0.1)])
            zeros.append((velocity == 0).all(-1)[(speed == 0) & (sigma > 0)])
    error, truth, zero = (np.concatenate(parts) for parts in (errors, truths, zeros))
    assert len(error) > 500
    assert np.median(error) < 0.5 * np.median(truth)
    assert zero.mean() > 0.85


def test_clouds_have_the_velocities_of_the_maps(finished: Path):
    output = open_output(finished)
    for index in (0, 3, 6):
        cloud = output.points(index)
        step = output.run.motion.motion_step
        for view, name in enumerate(output.view_names):
            velocity, sigma = output.velocity(index, name)
            known = output.depth(index, name) > 0
            of_view = cloud.view == view
            assert np.abs(cloud.velocity[of_view] - velocity[known]).max() <= step
            assert np.array_equal(cloud.velocity_sigma[of_view] > 0, sigma[known] > 0)


def test_the_record_counts_what_the_maps_show(finished: Path):
    output = open_output(finished)
    record = output.run.motion
    assert record.differences == ["forward", *["central"] * 5, "backward"]
    assert len(record.noise) == 3
    maps = [output.velocity(index, name) for index in range(7) for name in output.view_names]
    known = np.concatenate([(sigma > 0).ravel() for _, sigma in maps])
    still = np.concatenate([((velocity == 0).all(-1) & (sigma > 0)).ravel() for velocity, sigma in maps])
    with_depth = np.concatenate([(output.depth(i, name) > 0).ravel() for i in range(7) for name in output.view_names])
    assert record.known == pytest.approx(known.sum() / with_depth.sum(), abs=1e-4)
    assert record.still == pytest.approx(still.sum() / with_depth.sum(), abs=1e-4)
    assert output.run.timings["motion"] > 0


def test_tracks_are_in_the_world_and_agree_with_the_clouds(finished: Path):
    output = open_output(finished)
    tracks = output.tracks()
    assert output.run.motion.tracks == tracks.num_tracks > 10
    alive = np.isfinite(tracks.coords).all(-1)
    first = alive.argmax(0)
    assert np.array_equal(first, tracks.start)
    assert (alive.sum(0) >= 2).all()
    # Alive without gaps from the start to the end.
    for column, (start, count) in enumerate(zip(first, alive.sum(0), strict=True)):
        assert alive[start : start + count, column].all()
    assert not tracks.view_visibs[~alive].any()
    assert np.array_equal(tracks.visibs, tracks.view_visibs.any(-1))
    assert (alive.sum(1) <= SETTINGS.tracks).all()
    assert np.array_equal(tracks.times, output.run.times)
    for column in range(0, tracks.num_tracks, 5):
        cloud = output.points(int(first[column]))
        distance = np.linalg.norm(cloud.xyz - tracks.coords[first[column], column], axis=-1).min()
        assert distance < 1e-4


def test_a_resumed_run_writes_the_same_bytes(finished: Path, tmp_path: Path):
    assert resumed(run, out=tmp_path / "out", instants=4).motion == open_output(finished).run.motion
    assert bytes_of(tmp_path / "out") == bytes_of(finished)


def test_velocities_do_not_depend_on_the_chunks(finished: Path, tmp_path: Path):
    run(tmp_path / "out", chunk=None)
    whole, chunked = bytes_of(tmp_path / "out"), bytes_of(finished)
    names = [name for name in whole if name.startswith(("motion", "tracks"))]
    assert len(names) == 2 * 7 * 3 + 1
    assert all(whole[name] == chunked[name] for name in names)


def test_other_files_do_not_depend_on_motion(finished: Path, tmp_path: Path):
    run(tmp_path / "out", motion=False, tracks=0)
    plain, moving = bytes_of(tmp_path / "out"), bytes_of(finished)
    assert all(moving[name] == data for name, data in plain.items() if not name.startswith("points"))
    assert not open_output(tmp_path / "out").has_velocity
    with pytest.raises(UsageError, match="has no velocities"):
        open_output(tmp_path / "out").velocity(0, "cam01")


def test_a_scene_without_motion_to_measure_is_refused():
    def plan(capture: SyntheticCapture, **settings: object) -> None:
        predictor = TruthPredictor(capture).with_settings(replace(SETTINGS, **settings))
        plan_run(capture.scene(), predictor)

    with pytest.raises(UsageError, match="1 instant, which has no motion"):
        plan(replace(CAPTURE, num_times=1), chunk=None)
    with pytest.raises(UsageError, match="images of 16x12 px in view cam01"):
        plan(CAPTURE, motion_size=16)
    with pytest.raises(UsageError, match="tracks=200 without motion"):
        plan(CAPTURE, motion=False)


def test_motion_is_not_measured_over_long_gaps():
    times = np.array([0.0, 0.1, 0.2, 0.6, 0.7])
    assert near_steps(times) == [True, True, False, True]


def test_2d_tracks_end_at_the_last_instant():
    pixels, visible = np.arange(8.0).reshape(2, 2, 2), np.array([[True, True], [True, False]])
    own: Any = SimpleNamespace(pixels=pixels, visible=visible)
    unchanged: Any = SimpleNamespace(to_network=lambda pixels: pixels)
    first, last = (guides_at(index, [own, None], [unchanged, unchanged]) for index in range(2))
    assert first[1] is last[1] is None
    assert [guide.next_visible.tolist() for guide in (first[0], last[0])] == [[True, False], [False, False]]
    assert first[0].next_pixels.tolist() == last[0].pixels.tolist() == pixels[:, 1].tolist()


def test_2d_tracks_are_lifted_along_their_objects(tmp_path: Path):
    frame, camera = CAPTURE.rendered(0, 0), CAPTURE.cameras_of(0)
    speed = flow_between(CAPTURE, (0, 0), (1, 0)).scene[0].norm(dim=-1)
    rows, columns = (index[::7] for index in torch.nonzero((speed > 0.03) & (frame.depth > 0)).unbind(1))
    points = world_points(frame.depth, camera[0])[rows, columns].double()
    poses = CAPTURE.world.object_to_world(torch.from_numpy(CAPTURE.times)[None])[0].double()
    motion = (poses @ invert_rigid(poses[:1]))[:, frame.objects[rows, columns]]
    truth = (motion[..., :3, :3] @ points[None, ..., None])[..., 0] + motion[..., :3, 3]
    pixels = torch.stack(
        [project(transform_points(camera[t].world_to_camera, truth[t]), camera[t].intrinsics)[0] for t in range(7)], 1
    )
    (tmp_path / "tracks").mkdir()
    np.savez(tmp_path / "tracks" / "cam01.npz", tracks=pixels.numpy(), visibles=np.ones(pixels.shape[:2], bool))
    run(tmp_path / "out", tracks=0, tracks2d=tmp_path / "tracks")
    tracks = open_output(tmp_path / "out").tracks()
    assert tracks.num_tracks >= len(points) / 2
    lateral = []
    for column in range(tracks.num_tracks):
        start = int(tracks.start[column])
        own = int((truth[start] - torch.from_numpy(tracks.coords[start, column])).norm(dim=-1).argmin())
        for t in np.flatnonzero(np.isfinite(tracks.coords[:, column, 0])):
            found = torch.from_numpy(tracks.coords[t, column : column + 1].astype(np.float64))
            place = project(transform_points(camera[t].world_to_camera, found), camera[t].intrinsics)[0][0]
            lateral.append(float((place - pixels[own, t]).norm()))
    assert np.median(lateral) < 0.3  # on the ray of its 2D track
    with pytest.raises(UsageError, match="tracks2d without motion"):
        replace(SETTINGS, motion=False, tracks=0, tracks2d=tmp_path)


def test_motion_that_one_view_measured_is_reported(finished: Path, tmp_path: Path):
    assert not [text for text in open_output(finished).run.warnings if text.startswith("--motion")]
    alone = replace(CAPTURE, num_views=1, family=SceneFamily.SINGLE, subject=None, spacing_deg=None)
    record = run(tmp_path / "out", capture=alone, tracks=0)
    assert record.motion.one_view > 0
    assert any("100% of the moving pixels were measured by one view alone" in text for text in record.warnings)


@pytest.mark.parametrize(
    ("factor", "fps", "step"), [(1.0, 30, 1e-3), (1.0, 240, 5e-3), (40.0, 30, 2e-2), (0.01, 30, 5e-6)]
)
def test_levels_of_velocities_reach_what_crosses_a_picture_in_16_instants(factor: float, fps: float, step: float):
    truth = exact_predictions(CAPTURE)
    chunk = replace(truth, depth=truth.depth * factor, scale=Scale.METRIC)
    scene = SimpleNamespace(times=np.arange(3) / fps, world_offset=None)
    decide = FileOptions(SimpleNamespace(settings=ReconstructSettings(motion=True), scene=scene))
    decided = decide(Instant(index=0, predictions=chunk, chunk=chunk, before=None, after=None)).options
    assert decided.motion_step == pytest.approx(step)


def test_notices_of_motion():
    known = {"pixels": 100, "known": 80, "still": 60, "noise": [0.5]}
    instants = [
        InstantMotion(difference="central", one_view=15, **known),
        InstantMotion(difference="unknown", pixels=100, known=0, still=0, one_view=0, noise=[]),
    ]
    chunk = SimpleNamespace(motion=instants, clipped_velocities=7)
    texts = [notice.text for notice in motion_notices([chunk], tracks=0, is_demonstration=True)]
    (unmapped,) = motion_record([chunk], 0.001).unmapped
    assert len(texts) == 4
    assert "75% of the moving pixels were measured by one view alone" in texts[0]
    assert "1 instant without velocities" in texts[1]
    assert texts[2].startswith("tracks: no point was followed")
    assert "demonstration network" in texts[3]
    assert unmapped.startswith("7 velocities above 32.77 per second are unknown")
