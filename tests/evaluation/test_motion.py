"""Evaluation of velocities and tracks: the truth itself, nothing moves, known errors and mismatches."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from page4d.choices import DepthAlignment, Subject
from page4d.errors import InputError
from page4d.evaluation import motion as motion_report
from page4d.evaluation.evaluate import evaluate
from page4d.evaluation.motion_scores import (
    PixelMotion,
    TrackPairs,
    score_flow,
    score_sigma,
    score_tapvid3d,
    score_tracks,
)
from page4d.evaluation.record import Evaluation
from page4d.formats.tracks import Tracks, read_tracks
from page4d.geometry.camera import project, world_points
from page4d.geometry.rotation import matrix_from_rotation_vector
from page4d.geometry.transforms import transform_points
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.lab.synthetic.truth import true_velocity
from page4d.lab.synthetic.write import write_capture
from page4d.output.reader import open_output
from page4d_cli.app import run
from tests.evaluation.outputs import add_motion, add_tracks, copy_of, edit_json, move_world, reconstruct_from_truth
from tests.evaluation.rigs import random_similarity

SETTINGS = {"points_per_instant": 50, "alignments": (DepthAlignment.METRIC,)}
CAPTURE = SyntheticCapture(seed=4, num_views=2, num_times=11, image_size=(96, 128), subject=Subject.PEOPLE)
STEP = 1 / CAPTURE.fps


@pytest.fixture(scope="module", autouse=True)
def _of_motion_alone() -> Iterator[None]:
    """Leave the comparison of clouds and depth out, which takes longer than that of motion."""
    with pytest.MonkeyPatch.context() as patched:
        for part in ("points", "depth", "confidence"):
            patched.setattr(f"page4d.evaluation.evaluate.report_{part}", lambda *_: None)
        yield


@cache
def velocity_of(time: int, view: int) -> torch.Tensor:
    return true_velocity(CAPTURE, CAPTURE.rendered(time, view), time, view)


@pytest.fixture(scope="module")
def capture(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("motion") / "capture"
    write_capture(CAPTURE, folder, truth_motion=True)
    return folder


@pytest.fixture(scope="module")
def still(capture: Path, tmp_path_factory) -> Path:
    """The truth as the output of a run, without motion; read-only."""
    return reconstruct_from_truth(capture, tmp_path_factory.mktemp("motion") / "still", "--size", 128)


@pytest.fixture(scope="module")
def perfect(still: Path, capture: Path, tmp_path_factory) -> Path:
    """The truth as the output of a run with velocities and tracks; read-only."""
    out = copy_of(still, tmp_path_factory.mktemp("motion") / "perfect")
    add_motion(out, velocity_of)
    add_tracks(out, read_tracks(capture / "truth" / "tracks.npz"))
    return out


def with_velocity(still: Path, out: Path, change, **options: float) -> Path:
    copy_of(still, out)
    add_motion(out, lambda time, view: change(velocity_of(time, view)), **options)
    return out


@pytest.fixture(scope="module")
def of_perfect(perfect: Path, capture: Path) -> Evaluation:
    return evaluate(perfect, capture, **SETTINGS)


def test_the_truth_has_no_error_and_nothing_moves_has(of_perfect: Evaluation):
    motion = of_perfect.motion
    assert motion.interval == pytest.approx(STEP)
    for own in (motion.moving, motion.slow, motion.static, *motion.moving_per_view.values()):
        assert own.known_pixels == own.pixels > 0
        assert own.cover == 1
        assert own.errors.epe < 1e-4
        assert own.errors.velocity_median < 1e-3
        assert own.errors.acc_strict == own.errors.acc_relaxed == 1
        assert own.sigma.within_two == 1
    assert motion.moving.errors.good == 1
    assert motion.moving.errors.outliers < 0.05  # 10 % of a slow pixel is less than a level
    assert motion.moving.errors.angle_deg < 0.5
    assert (motion.static.still, motion.static.mean_speed) == (1, 0)
    baseline = motion.moving.nothing_moves
    assert baseline.epe == pytest.approx(motion.moving.true_displacement)
    assert baseline.epe > 0.01
    assert (baseline.angle_deg, baseline.good, baseline.outliers) == (90, 0, 1)
    assert motion.static.nothing_moves.epe == 0
    pixels = sum(own.pixels for own in (motion.moving, motion.slow, motion.static))
    assert pixels == sum(int((CAPTURE.rendered(t, v).depth > 0).sum()) for t in range(11) for v in range(2))
    json.dumps(of_perfect.document(), allow_nan=False)


def test_the_true_tracks_have_no_error_and_those_that_stay_have(of_perfect: Evaluation):
    report = of_perfect.tracks
    assert report.matched == report.tracks > 50
    own, stay = report.overall.tracks, report.overall.nothing_moves
    assert report.start_error < 1e-3  # depth is in millimetres
    assert (own.mte, own.ate, own.final) == pytest.approx((0, 0, 0), abs=5e-4)
    assert (*own.apd.values(), own.survival, own.alive) == pytest.approx((1,) * 4)
    assert (*own.aj.values(), own.occlusion_accuracy) == pytest.approx((1,) * 3, abs=0.11)  # visibility by true depth
    assert own.drift == pytest.approx({"5": 0, "10": 0, "23": None}, abs=5e-4)
    assert stay.tracks == own.tracks
    assert stay.mte > 0.05
    assert stay.final > stay.mte
    assert stay.drift["10"] > stay.drift["5"] > 0.05
    assert stay.apd["dexycb"] < stay.apd["panoptic"] < 1
    assert stay.aj["dexycb"] < 0.5
    assert stay.alive == 1
    assert stay.survival < 0.8
    assert report.dynamic.tracks.tracks > 0
    assert report.dynamic.nothing_moves.mte >= stay.mte


def test_an_output_in_which_nothing_moves_equals_the_baseline(still: Path, capture: Path, tmp_path):
    out = with_velocity(still, tmp_path / "out", torch.zeros_like)
    motion = evaluate(out, capture, **SETTINGS).motion
    for own in (motion.moving, motion.slow, motion.static, *motion.moving_per_view.values()):
        assert own.errors == own.nothing_moves
        assert own.still == 1


def test_tracks_that_stay_equal_the_baseline(out: Path, capture: Path):
    tracks = read_tracks(out / "tracks" / "tracks.npz")
    begun = np.arange(11)[:, None] >= tracks.start
    first = tracks.coords[tracks.start, np.arange(tracks.num_tracks)]
    coords = np.where(begun[..., None], first, np.nan)
    add_tracks(out, replace(tracks, coords=coords, visibs=begun))
    report = evaluate(out, capture, **SETTINGS).tracks
    assert report.overall.tracks == report.overall.nothing_moves


@pytest.mark.parametrize("similar", [False, True], ids=["turned velocities", "another world"])
def test_velocities_are_compared_in_the_true_world(
    similar: bool, still: Path, perfect: Path, capture: Path, tmp_path
):
    transform = random_similarity(3)
    out = tmp_path / "out"
    if similar:  # everything moves with the world: no error
        with_velocity(still, out, lambda velocity: transform.apply_to_vectors(velocity.double()), step=1e-3)
        tracks = read_tracks(perfect / "tracks" / "tracks.npz")
        coords = transform.apply(torch.from_numpy(tracks.coords).double()).numpy()
        add_tracks(out, replace(tracks, coords=coords))
        move_world(out, transform)
        found = evaluate(out, capture, **SETTINGS)
        assert found.motion.moving.errors.epe < 2e-3
        assert found.motion.moving.errors.angle_deg < 3
        assert found.motion.static.still == 1
        assert found.tracks.overall.tracks.mte < 5e-4
        assert found.tracks.matched == found.tracks.tracks
    else:  # a velocity that is not in the world of the cameras is noticed
        turn = matrix_from_rotation_vector(torch.tensor([0.0, 0.0, np.radians(30.0)])).double()
        with_velocity(still, out, lambda velocity: velocity @ turn.T)
        errors = evaluate(out, capture, **SETTINGS).motion.moving.errors
        assert 15 < errors.angle_deg <= 30.5
        assert errors.good < 0.5
        assert errors.epe > 0.005


def test_known_errors_cover_and_sigma_are_measured(still: Path, capture: Path, tmp_path):
    def change(velocity: torch.Tensor) -> torch.Tensor:
        changed = velocity + torch.tensor([0.0, 0.0, 0.12])
        changed[:, :64] = torch.nan
        return changed

    motion = evaluate(with_velocity(still, tmp_path / "out", change, sigma=0.05), capture, **SETTINGS).motion
    for own in (motion.moving, motion.static):
        assert 0 < own.cover < 1
        assert own.errors.epe == pytest.approx(0.12 * STEP, rel=0.01)
        assert own.errors.velocity_median == pytest.approx(0.12, rel=0.01)
        assert own.sigma.within_two == 0
        assert own.sigma.epe_of_best == pytest.approx(dict.fromkeys(("25", "50", "75", "100"), 0.01), rel=0.01)
    assert motion.static.still == 0
    assert motion.static.mean_speed == pytest.approx(0.12, rel=0.01)
    assert motion.static.cover == pytest.approx(0.5, abs=0.1)


def test_maps_of_another_size_are_sampled_at_the_nearest_pixel(capture: Path, tmp_path):
    out = reconstruct_from_truth(capture, tmp_path / "out", "--size", 64)
    assert open_output(out).map_size("cam01") == (48, 64)
    add_motion(out, lambda time, view: velocity_of(time, view)[1::2, 1::2])
    motion = evaluate(out, capture, **SETTINGS).motion
    assert motion.moving.cover == 1
    assert motion.moving.errors.epe_median < 0.003
    assert motion.moving.errors.epe < motion.moving.nothing_moves.epe / 2
    assert motion.static.still > 0.95


def test_large_captures_use_a_subset(perfect: Path, capture: Path, of_perfect: Evaluation, monkeypatch):
    monkeypatch.setattr(motion_report, "MAX_MOTION_PIXELS", 28 * 40)
    found = evaluate(perfect, capture, **SETTINGS)
    assert found.motion.sampled_pixels <= 3 * 28 * 40
    assert found.motion.moving.known_pixels == of_perfect.motion.moving.known_pixels
    assert found.motion.moving.nothing_moves.epe == pytest.approx(of_perfect.motion.moving.nothing_moves.epe, rel=0.2)
    assert any("random subset" in note for note in found.notes)


def test_notes_explain_motion_that_is_not_evaluated(
    still: Path, perfect: Path, capture: Path, tmp_path, of_perfect: Evaluation
):
    assert not any("velocities" in note for note in of_perfect.notes)
    without = evaluate(still, capture, **SETTINGS)
    assert without.motion is None
    assert without.tracks is None
    assert any("the output has no velocities" in note for note in without.notes)
    truth = tmp_path / "truth"
    shutil.copytree(capture / "truth", truth, ignore=shutil.ignore_patterns("motion", "objects"))
    blind = evaluate(perfect, truth, **SETTINGS)
    assert blind.motion is None
    assert blind.tracks is None
    assert any("the truth has no velocities" in note for note in blind.notes)
    edit_json(truth / "capture.json", lambda document: document["options"].update(fps=6.0))
    shutil.copytree(capture / "truth" / "motion", truth / "motion")
    slow = evaluate(perfect, truth, **SETTINGS)
    assert any("instants are 0.0833 s apart" in note for note in slow.notes)


def test_tracks_that_no_view_sees_at_their_start_do_not_count(out: Path, capture: Path):
    tracks = read_tracks(out / "tracks" / "tracks.npz")
    seen = tracks.view_visibs.copy()
    seen[:, :10] = False
    add_tracks(out, replace(tracks, view_visibs=seen))
    found = evaluate(out, capture, **SETTINGS)
    assert found.tracks.matched == tracks.num_tracks - 10
    assert any("10 of" in note and "start at a pixel or an instant without truth" in note for note in found.notes)


def test_a_track_is_compared_with_the_point_of_its_pixel_at_any_depth(
    out: Path, capture: Path, of_perfect: Evaluation
):
    tracks = read_tracks(out / "tracks" / "tracks.npz")
    first = tracks.coords[tracks.start, np.arange(tracks.num_tracks)]
    cameras = [CAPTURE.cameras_of(view)[0] for view in range(2)]
    away = []
    for own in cameras:
        local = transform_points(own.world_to_camera, torch.from_numpy(first).double())
        away.append((project(local, own.intrinsics)[0] % 1 - 0.5).abs().amax(-1))
    centers = torch.stack([own.centers for own in cameras])[torch.stack(away).argmin(0)].numpy()
    add_tracks(out, replace(tracks, coords=tracks.coords + 0.3 * (centers - first)))  # 30 % nearer
    found = evaluate(out, capture, **SETTINGS).tracks
    assert found.matched == tracks.num_tracks
    assert found.start_error > 0.3
    assert found.overall.tracks.mte < 5e-4
    assert found.overall.nothing_moves.mte == pytest.approx(of_perfect.tracks.overall.nothing_moves.mte, rel=0.05)


def test_tracks_of_static_points_are_counted_apart(out: Path, capture: Path):
    frame, cameras = CAPTURE.rendered(0, 0), CAPTURE.cameras_of(0)[0]
    points = world_points(frame.depth.double(), cameras)[~frame.dynamic][::500].numpy()
    coords = np.repeat(points[None], 11, axis=0)
    coords[3:, :, 0] += 0.3
    number = len(points)
    tracks = Tracks(
        coords=coords,
        visibs=np.ones((11, number), bool),
        view_visibs=np.tile(np.array([True, False]), (11, number, 1)),
        sigma=np.zeros((11, number)),
        start=np.zeros(number, int),
        colors=np.zeros((number, 3), np.uint8),
        times=CAPTURE.times,
        ids=np.arange(number),
    )
    add_tracks(out, tracks)
    report = evaluate(out, capture, **SETTINGS).tracks
    assert report.matched == report.static.tracks.tracks == number
    assert report.dynamic is None
    assert report.static.tracks.mte == pytest.approx(0.3)
    assert report.static.tracks.survival == pytest.approx(2 / 10, abs=0.02)
    assert report.static.nothing_moves.mte < 1e-6


def test_damaged_motion_is_refused(out: Path, truth: Path, capture: Path):
    (truth / "motion" / "cam01" / "000003.png").write_bytes(b"no")
    with pytest.raises(InputError, match="is damaged"):
        evaluate(out, truth, **SETTINGS)
    shutil.copy(capture / "truth" / "motion" / "cam01" / "000002.png", truth / "motion" / "cam01" / "000003.png")
    poses = truth / "object_poses.npz"
    poses.write_bytes(b"PK")
    with pytest.raises(InputError, match="does not hold poses"):
        evaluate(out, truth, **SETTINGS)
    for wrong, message in ((np.zeros((11, 3, 3, 4)), "not poses"), (np.zeros((11, 1, 4, 4)), "has 1 objects")):
        np.savez(poses, poses=wrong)
        with pytest.raises(InputError, match=message):
            evaluate(out, truth, **SETTINGS)


def test_scene_flow_metrics_are_those_of_the_published_definition():
    true = np.array([[1.0, 0, 0], [1.0, 0, 0], [0.01, 0, 0], [0.0, 0, 0]])
    predicted = np.array([[1.04, 0, 0], [1.0, 0.2, 0], [0.05, 0, 0], [0.0, 0.4, 0]])
    found = score_flow(predicted, true, 1.0)
    assert found.epe == pytest.approx((0.04 + 0.2 + 0.04 + 0.4) / 4)
    assert found.epe_median == pytest.approx(0.12)
    assert (found.acc_strict, found.acc_relaxed) == (0.5, 0.5)
    assert found.outliers == 0.75  # 20 %, 400 %, and 40 cm
    assert found.good == 0.25
    assert found.angle_deg == pytest.approx(np.degrees(np.arctan(0.2)) / 2)
    assert score_flow(true[:0], true[:0], 1.0) is None


def test_sigma_orders_errors():
    random = np.random.default_rng(0)
    sigma = np.linspace(0.1, 1, 4000)
    error = random.normal(size=4000) * sigma
    zero = np.zeros((4000, 3))
    motion = PixelMotion(predicted=np.stack([error, error * 0, error * 0], -1), true=zero, sigma=sigma, view=sigma)
    found = score_sigma(motion, 0.5)
    assert found.within_two == pytest.approx(0.954, abs=0.01)
    best = list(found.epe_of_best.values())
    assert best == sorted(best)
    assert best[-1] == pytest.approx(0.5 * np.abs(error).mean())


def pairs(predicted: np.ndarray, **changes: np.ndarray) -> TrackPairs:
    """One track of 4 instants along x, 10 cm per instant, from instant 0."""
    true = np.zeros((4, 1, 3))
    true[:, 0, 0] = [np.nan, 0.1, 0.2, 0.3]
    true[0] = np.nan
    given = {
        "predicted": predicted,
        "true": true,
        "predicted_visible": np.ones((4, 1), bool),
        "true_visible": np.ones((4, 1), bool),
        "measured": np.isfinite(predicted[..., 0]),
        "start": np.zeros(1, int),
    }
    return TrackPairs(**(given | changes))


def along_x(*values: float) -> np.ndarray:
    points = np.zeros((4, 1, 3))
    points[:, 0, 0] = values
    return points


def test_track_metrics_are_those_of_the_published_definition():
    found = score_tracks(pairs(along_x(0, 0.1, 0.23, 0.45)))  # errors 0, 3 and 15 cm
    assert (found.mte, found.ate, found.final) == pytest.approx((0.03, 0.06, 0.15))
    assert found.apd == pytest.approx({"dexycb": (1 + 1 + 2 + 2 + 3) / 15, "panoptic": (2 + 2 + 3 + 3) / 12})
    # Of 3 visible instants, n are near: n true positives, 3 - n false positives.
    assert found.aj["panoptic"] == pytest.approx((2 / 4 + 2 / 4 + 1 + 1) / 4)
    assert found.survival == pytest.approx(2 / 3)
    assert found.occlusion_accuracy == found.alive == 1
    assert pairs(along_x(0, 0, 0, 0)).paths == pytest.approx([0.3])


def test_a_track_that_ends_is_lost_and_hidden_points_count_for_visibility_only():
    ended = score_tracks(pairs(along_x(0, 0.1, np.nan, np.nan)))
    assert (ended.mte, ended.final) == (pytest.approx(0), pytest.approx(0))
    assert ended.apd["dexycb"] == ended.aj["dexycb"] == ended.survival == pytest.approx(1 / 3)
    assert ended.alive == 0
    assert ended.occlusion_accuracy == pytest.approx(1 / 3)
    shown = np.array([[True], [True], [False], [True]])
    hidden = score_tracks(pairs(along_x(0, 0.1, 9, 0.3), true_visible=shown))
    assert hidden.apd["dexycb"] == hidden.survival == 1
    assert hidden.occlusion_accuracy == pytest.approx(2 / 3)
    assert hidden.aj["dexycb"] == pytest.approx(2 / 3)  # the wrongly visible instant is a false positive


def test_tracks_of_another_run_are_refused(out: Path, capture: Path):
    tracks = read_tracks(out / "tracks" / "tracks.npz")
    first = {
        name: value[:5] for name, value in vars(tracks).items() if name in ("coords", "visibs", "sigma", "times")
    }
    add_tracks(out, Tracks(**(vars(tracks) | first | {"view_visibs": tracks.view_visibs[:5]})))
    with pytest.raises(InputError, match="has 5 instants"):
        evaluate(out, capture, **SETTINGS)


def test_the_report_shows_the_baseline_below_every_row(perfect: Path, capture: Path, capsys):
    assert run(["evaluate", str(perfect), str(capture), "--align", "metric", "--points-per-instant", "50"]) == 0
    lines = capsys.readouterr().out.splitlines()
    tables = [number for number, line in enumerate(lines) if line.startswith(("scene flow", "trajectories"))]
    rows: list[list[str]] = []
    for begin in tables:
        dashes = next(number for number in range(begin, len(lines)) if lines[number].startswith("---"))
        table = lines[dashes + 1 : lines.index("", begin)]
        rows.append([re.split(r"\s+(?=[\d-])", line)[0] for line in table])
    groups = (
        ["moving, cam01", "moving, cam02", "moving", "moving, certain", "slow", "static"],
        ["all", "dynamic", "static"],
    )
    assert rows == [[name for group in own for name in (group, "nothing moves")] for own in groups]
    text = " ".join(" ".join(lines).split())  # lines are wrapped at the width of the terminal
    assert "static: 100.0 % exactly still, mean speed 0.0000 per s (nothing moves: 0)" in text
    assert re.search(r"truth of (\d+) of \1 tracks, median error of their starts 0\.0", text)
    assert "100.0 % of the errors within 2 sigma" in text
    assert max(len(line) for begin in tables for line in lines[begin : lines.index("", begin)]) <= 100


def test_metrics_of_tapvid3d():
    random = np.random.default_rng(0)
    true = random.normal(size=(6, 20, 3)) + np.array([0, 0, 5])
    visible = random.random((6, 20)) > 0.3
    pixel = true[..., 2] / 500
    exact = score_tapvid3d(true, true, visible, visible, pixel)
    assert (exact.apd, exact.aj, exact.occlusion_accuracy) == (1, 1, 1)
    # The scale of the prediction does not count.
    assert score_tapvid3d(true * 3, true, visible, visible, pixel) == replace(exact, scale=exact.scale / 3)
    # 6 px at the depth of the point are within 8 and 16 px of the five thresholds.
    off = score_tapvid3d(true + 6 * pixel[..., None] * [1, 0, 0], true, visible, visible, pixel)
    assert off.apd == pytest.approx(0.4, abs=0.02)
    assert off.aj == pytest.approx((0 + 0 + 0 + 1 + 1) / 5, abs=0.03)
    hidden = score_tapvid3d(true, true, np.zeros_like(visible), visible, pixel)
    assert hidden.aj == 0
    lost = np.where(np.arange(20)[:, None] < 10, np.nan, true)
    half = score_tapvid3d(lost, true, visible, visible, pixel)
    assert half.apd == pytest.approx(visible[:, 10:].sum() / visible.sum())
    assert score_tapvid3d(true, true, visible, np.zeros_like(visible), pixel) is None
