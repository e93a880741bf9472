"""Evaluation of output folders: identities, known errors, degenerate rigs and mismatches."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from page4d.errors import InputError
from page4d.evaluation.evaluate import evaluate
from page4d.evaluation.record import DepthErrors, Evaluation
from page4d.evaluation.scores import DepthAlignment
from page4d.formats.maps import write_png
from page4d.options import DEFAULT_ALIGNMENTS
from tests.evaluation.outputs import change_cameras, change_maps, copy_of, edit_json, move_world
from tests.evaluation.rigs import disturbed, random_similarity

SETTINGS = {"points_per_instant": 300}


def flat(document: object, path: str = "") -> dict[str, object]:
    """Every number of a nested document by its path."""
    if isinstance(document, dict):
        items = document.items()
    elif isinstance(document, list | tuple):
        items = enumerate(document)
    else:
        return {path: document}
    return {key: value for name, item in items for key, value in flat(item, f"{path}/{name}").items()}


@pytest.fixture(scope="module")
def of_perfect(perfect: Path, capture: Path) -> Evaluation:
    return evaluate(perfect, capture, **SETTINGS)


def test_a_perfect_result_has_no_error_anywhere(of_perfect: Evaluation):
    numbers = flat(of_perfect.document())
    zero = "abs_rel sq_rel rmse log_rmse ate rpe_translation focal_error ause baseline_spread".split()
    one = "delta1 delta3 precision recall f_score jm jr pooled coverage baseline_ratio".split()
    for path, value in numbers.items():
        name = path.rsplit("/", 1)[-1]
        if name in zero:
            assert value == pytest.approx(0, abs=1e-9), path
        if name in one:
            assert value == pytest.approx(1, abs=1e-9), path
        if name.startswith(("accuracy", "completeness")):
            assert value == pytest.approx(0, abs=1e-5), path  # clouds are in single precision
        if "/rra/" in path or "/rta/" in path or "/auc/" in path:
            assert value == 1, path
    assert of_perfect.points.overall.normal_consistency == pytest.approx(1, abs=1e-3)
    assert of_perfect.confidence.ordering is None
    assert "all depth errors are equal: the normalized AUSE is undefined" in of_perfect.notes


def test_every_part_is_reported_by_view_by_time_and_by_motion(of_perfect: Evaluation):
    views, times = ("cam01", "cam02", "cam03"), 4
    pixels = times * 3 * 48 * 64
    for result in of_perfect.depth.results:
        assert tuple(result.per_view) == views
        assert len(result.per_time) == times
        assert result.overall.pixels == pixels
        assert result.static.pixels + result.dynamic.pixels == pixels
        assert sum(own.pixels for own in result.per_view.values()) == pixels
        assert sum(own.pixels for own in result.per_time) == pixels
        assert result.dynamic.pixels > 0
    assert tuple(of_perfect.cameras.per_view) == tuple(of_perfect.points.per_view) == views
    assert tuple(of_perfect.masks.per_view) == views
    assert of_perfect.points.static.points + of_perfect.points.dynamic.points == of_perfect.points.overall.points
    alignments = " ".join(result.alignment for result in of_perfect.depth.results)
    assert alignments == "metric scale scale-shift scale-shift-squares median median"
    assert [result.scope for result in of_perfect.depth.results][-2:] == ["capture", "frame"]


def test_lengths_in_metres_are_compared_as_they_are_and_others_after_a_scale(out: Path, perfect: Path, capture: Path):
    for name in ("run.json", "cameras.json"):
        edit_json(out / name, lambda document: document.update(scale="arbitrary", unit="arbitrary"))
    of_metres, of_units = (evaluate(folder, capture, **SETTINGS) for folder in (perfect, out))
    assert of_metres.confidence.alignment == of_metres.depth.results[0].alignment == "metric"
    assert of_units.confidence.alignment == of_units.depth.results[0].alignment == "scale"


def test_notes_explain_the_limits_of_the_metrics(of_perfect: Evaluation):
    notes = " | ".join(of_perfect.notes)
    assert "the run used given cameras" in notes
    assert "the run used given depth maps" in notes
    assert "the true cameras are static: RPE is the motion of the predicted ones" in notes
    assert "18 of 66 camera pairs have no baseline" in notes
    json.dumps(of_perfect.document(), allow_nan=False)


def test_images_of_an_assumed_rate_are_frames_by_their_numbers(perfect: Path, capture: Path, tmp_path):
    out = copy_of(perfect, tmp_path / "out")

    def as_images(document: dict[str, Any]) -> None:
        for view in document["views"]:
            view["file"] = f"{view['name']}/"
            view["source"]["seconds"] = [frame / 30 for frame in view["source"]["frames"]]

    edit_json(out / "run.json", as_images)
    found = evaluate(out, capture, **SETTINGS)
    assert len(found.match.times) == 4
    assert found.depth.results[0].overall.abs_rel == 0


@pytest.mark.parametrize(("factor", "doubt"), [(1.0, ""), (1.25, ", but its focal lengths differ by 25%: its ")])
def test_truth_of_other_lenses_than_the_undistorted_ones_is_reported(
    factor: float, doubt: str, perfect: Path, capture: Path, tmp_path
):
    out = copy_of(perfect, tmp_path / "out")

    def lens(view: dict[str, Any]) -> None:
        view["intrinsics"] = (np.array(view["intrinsics"]) * [[factor], [factor], [1]]).tolist()

    edit_json(out / "cameras.json", lambda document: [lens(view) for view in document["views"].values()])
    lenses = {"model": "brown-conrady", "coefficients": [0.1, 0.0, 0.0, 0.0], "intrinsics": np.eye(3).tolist()}
    edit_json(out / "run.json", lambda document: document["views"][0].update(undistorted=lenses))
    notes = " | ".join(evaluate(out, capture, **SETTINGS).notes)
    assert f"the run undistorted cam01: the truth is assumed to be of undistorted images{doubt}" in notes
    assert ("its focal lengths differ" in notes) is bool(doubt)


@pytest.mark.parametrize(
    ("x", "y", "views", "named"),
    [(0.5, 0.5, 4, "-0.5 px"), (-0.5, -0.5, 4, "+0.5 px"), (0.5, -0.5, 4, ""), (0.5, 0.5, 2, ""), (0.4, 0.4, 4, "")],
)
def test_truth_of_pixels_counted_from_their_centres_is_reported(x, y, views, named, perfect, capture, tmp_path):
    out = copy_of(perfect, tmp_path / "out")

    def shift(document: dict[str, Any]) -> None:
        for view in list(document["views"].values())[:views]:
            view["intrinsics"] = np.add(view["intrinsics"], [[0, 0, x], [0, 0, y], [0, 0, 0]]).tolist()

    edit_json(out / "cameras.json", shift)
    notes = " | ".join(evaluate(out, capture, **SETTINGS).notes)
    assert ("all true principal points are" in notes, bool(named) and named in notes) == (bool(named), bool(named))


@pytest.fixture(scope="module")
def wrong(perfect: Path, tmp_path_factory) -> Path:
    """A result with errors in depth, cameras and masks, and confidence that decreases with the depth error."""
    out = copy_of(perfect, tmp_path_factory.mktemp("wrong") / "out")
    ramp = np.linspace(-0.19, 0.19, 64)
    change_maps(out, "depth", lambda levels: np.rint(levels * (1 + ramp)))
    change_maps(out, "confidence", lambda _: np.broadcast_to(255 * (1 - 5 * np.abs(ramp)), (48, 64)))
    change_maps(out, "dynamic", lambda mask: np.roll(mask, 3, axis=1))
    change_cameras(out, lambda cameras: disturbed(cameras, 0, 0.05))
    return out


def test_known_errors_are_measured(wrong: Path, capture: Path):
    found = evaluate(wrong, capture, alignments=(DepthAlignment.METRIC,), points_per_instant=300)
    (result,) = found.depth.results
    assert result.overall.abs_rel == pytest.approx(np.abs(np.linspace(-0.19, 0.19, 64)).mean(), abs=2e-4)
    assert result.overall.delta1 == pytest.approx(1.0)
    assert found.confidence.ordering > 0.95
    assert 0 < found.masks.overall.jm < 1
    assert found.cameras.overall.ate > 0.01
    assert found.cameras.pairs.rotation_median_deg > 0.5


def test_aligned_metrics_are_invariant_to_similarities(wrong: Path, capture: Path, tmp_path):
    moved = copy_of(wrong, tmp_path / "moved")
    move_world(moved, random_similarity(1, scale=0.3))
    settings = SETTINGS | {"alignments": DEFAULT_ALIGNMENTS}
    before, after = (flat(evaluate(out, capture, **settings).document()) for out in (wrong, moved))
    assert before.keys() == after.keys()
    metric = next(path for path, value in before.items() if value == "metric").rsplit("/", 1)[0]
    scale = next(path for path, value in before.items() if value == "scale").rsplit("/", 1)[0]
    free = ("/scale", "/shift", "/out", "/baseline_ratio", "/confidence/ause")
    compared = 0
    for path, value in before.items():
        if path.startswith(metric) or path.endswith(free) or "/transform/" in path or not isinstance(value, float):
            continue
        # Weiszfeld's weights are large where a residual is nearly 0, which amplifies the rounding of depths.
        loose = path.startswith((f"{scale}/", "/confidence"))
        assert after[path] == pytest.approx(value, rel=2e-3 if loose else 1e-5, abs=1e-3 if loose else 1e-6), path
        compared += 1
    assert compared > 100
    assert after[f"{metric}/overall/abs_rel"] == pytest.approx(0.7, abs=0.05)
    assert after["/cameras/baseline_ratio"] == pytest.approx(0.3 * before["/cameras/baseline_ratio"])


def test_a_smaller_prediction_is_resized_to_the_truth(out: Path, capture: Path):
    import cv2

    def halve(document: dict) -> None:
        for view in document["views"]:
            view["map_size"] = [32, 24]

    for kind, way in (("depth", cv2.INTER_AREA), ("confidence", cv2.INTER_AREA), ("dynamic", cv2.INTER_NEAREST)):
        change_maps(out, kind, lambda image, way=way: cv2.resize(image, (32, 24), interpolation=way))
    edit_json(out / "run.json", halve)
    found = evaluate(out, capture, alignments=(DepthAlignment.METRIC,), points_per_instant=50)
    truth = cv2.imread(str(capture / "truth" / "depth" / "cam01" / "000000.png"), cv2.IMREAD_UNCHANGED) / 1000
    small = cv2.imread(str(out / "depth" / "cam01" / "frame_000000.png"), cv2.IMREAD_UNCHANGED) / 1000
    resized = cv2.resize(small.astype(np.float32), (64, 48), interpolation=cv2.INTER_CUBIC)
    expected = float((np.abs(resized - truth) / truth).mean())
    assert found.depth.results[0].abs_rel_per_frame["cam01"][0] == pytest.approx(expected, rel=1e-5)
    assert found.depth.resizing == "bicubic to the truth's pixels (cv2.INTER_CUBIC)"
    assert found.depth.coverage == 1


def test_pixels_without_a_prediction_do_not_count_and_are_noted(out: Path, capture: Path):
    change_maps(out, "depth", lambda levels: np.where(np.arange(64) < 16, 0, levels))
    found = evaluate(out, capture, **SETTINGS)
    assert found.depth.coverage == pytest.approx(0.75)
    assert found.depth.results[0].overall.abs_rel == pytest.approx(0)
    assert "25 % of the true pixels have no prediction and do not count" in found.notes


def test_a_depth_limit_excludes_far_pixels(perfect: Path, capture: Path):
    whole, near = (evaluate(perfect, capture, max_depth=limit, points_per_instant=50) for limit in (None, 3.0))
    assert 0 < near.depth.results[0].overall.pixels < whole.depth.results[0].overall.pixels
    assert near.depth.max_depth == 3.0
    assert near.points.uncounted_points > 0


class TestCameras:
    def test_one_camera_takes_its_scale_from_the_depth(self, truth: Path, out: Path):
        edit_json(truth / "cameras.json", lambda document: [document["cameras"].pop(n) for n in ("cam02", "cam03")])
        move_world(out, random_similarity(2, scale=0.5))
        found = evaluate(out, truth, **SETTINGS)
        assert found.match.views == ("cam01",)
        assert found.match.views_without_truth == ("cam02", "cam03")
        assert found.cameras.alignment == "orientations-without-scale"
        assert found.cameras.transform.scale == pytest.approx(2.0)
        assert found.points.overall.accuracy == pytest.approx(0, abs=1e-5)
        assert found.cameras.pairs.pairs_apart == 0
        assert found.cameras.pairs.rta["5"] is None
        notes = " | ".join(found.notes)
        assert "views without ground truth, not compared: cam02, cam03" in notes
        assert "all true camera centres coincide and determine no Sim(3)" in notes

    def test_two_cameras_are_aligned_by_their_orientations(self, truth: Path, out: Path):
        edit_json(truth / "cameras.json", lambda document: document["cameras"].pop("cam03"))
        move_world(out, random_similarity(3))
        found = evaluate(out, truth, **SETTINGS)
        assert (found.cameras.alignment, found.cameras.fallback) == (
            "orientations",
            "the true camera centres are collinear",
        )
        assert found.cameras.overall.ate == pytest.approx(0, abs=1e-9)

    def test_moving_cameras_are_compared_frame_by_frame(self, truth: Path, out: Path):

        def move(document: dict) -> None:
            for camera in document["cameras"].values():
                steps = torch.tensor(camera["world_to_camera"]).repeat(4, 1, 1)
                steps[:, 0, 3] += 0.1 * torch.arange(4)
                camera["world_to_camera"] = steps.tolist()

        edit_json(truth / "cameras.json", move)

        def follow(cameras: torch.Tensor) -> torch.Tensor:
            cameras[..., 0, 3] += 0.1 * torch.arange(4, dtype=torch.float64)[:, None]
            return cameras

        static = evaluate(out, truth, **SETTINGS)
        assert static.cameras.overall.rpe_translation == pytest.approx(0.1, rel=0.3)
        change_cameras(out, follow)
        moving = evaluate(out, truth, **SETTINGS)
        assert moving.cameras.overall.rpe_translation == pytest.approx(0, abs=1e-6)
        assert moving.cameras.pairs.pairs_apart == moving.cameras.pairs.pairs
        assert not moving.cameras.stands_still


class TestMatching:
    def test_instants_are_matched_by_time(self, truth: Path, perfect: Path):
        for path in truth.rglob("00000[13].png"):
            path.unlink()
        found = evaluate(perfect, truth, **SETTINGS)
        assert found.match.times == pytest.approx((0.0, 2 / 12))
        assert found.match.times_without_truth == pytest.approx((1 / 12, 3 / 12))
        assert "2 of 4 instants have no true map (first 0.083 s)" in found.notes
        assert found.depth.results[0].overall.abs_rel == pytest.approx(0)
        assert found.cameras.overall.cameras == 12, "static cameras are known at all times"

    def test_each_view_keeps_its_own_clock(self, out: Path, capture: Path):

        # The second view's frame 0 is recorded one period late: instant 1 is its frame 0.
        def delay(run: Any) -> None:
            view = run["views"][1]
            view["clock"]["offset_s"] = 1 / 12
            view["source"]["seconds"] = [seconds - 1 / 12 for seconds in view["source"]["seconds"]]

        edit_json(out / "run.json", delay)
        per_frame = evaluate(out, capture, **SETTINGS).depth.results[0].abs_rel_per_frame
        assert per_frame["cam02"][0] is None
        assert per_frame["cam01"][0] == pytest.approx(0, abs=1e-3)
        assert max(per_frame["cam02"][1:]) > 10 * max(per_frame["cam01"])

    def test_frames_are_those_that_were_used_whatever_the_clock(self, out: Path, capture: Path):
        """With a table of time stamps a clock is not linear where frames were lost."""
        edit_json(out / "run.json", lambda run: run["views"][1]["clock"].update(rate=1.5))
        assert evaluate(out, capture, **SETTINGS).depth.results[0].overall.abs_rel == pytest.approx(0)

    def test_a_truth_without_a_frame_rate_takes_that_of_the_run_with_a_note(self, truth: Path, perfect: Path):
        (truth / "capture.json").unlink()
        found = evaluate(perfect, truth, **SETTINGS)
        assert found.match.truth_fps == pytest.approx(12)
        assert "the truth records no frame rate; used 12 fps, from the instants of the run" in found.notes
        given = evaluate(perfect, truth, fps=24, points_per_instant=50)
        assert (given.match.truth_fps, given.match.times) == (24, pytest.approx((0.0, 1 / 12)))

    def test_a_frame_rate_that_contradicts_the_truth_has_a_note(self, capture: Path, perfect: Path):
        found = evaluate(perfect, capture, fps=24, points_per_instant=50)
        assert "the truth records 12 fps; used 24 fps, as given" in found.notes

    def test_maps_numbered_from_1_are_an_error(self, truth: Path, perfect: Path):
        for path in sorted(truth.rglob("00000?.png"), reverse=True):
            path.rename(path.with_stem(f"{int(path.stem) + 1:06d}"))
        with pytest.raises(InputError, match="the true maps of cam01 are numbered from 1, frames from 0"):
            evaluate(perfect, truth)
        for folder in (truth / "depth").iterdir():  # frame 0 alone is unknown
            write_png(folder / "000000.png", np.zeros((48, 64), np.uint16))
        assert len(evaluate(perfect, truth, **SETTINGS).match.times) == 4

    def test_no_common_view_is_an_error(self, truth: Path, perfect: Path):
        edit_json(
            truth / "cameras.json",
            lambda document: document.update(cameras={f"x{name}": own for name, own in document["cameras"].items()}),
        )
        with pytest.raises(InputError, match=r"no view of .* is in"):
            evaluate(perfect, truth)

    def test_no_common_instant_is_an_error(self, truth: Path, perfect: Path):
        for path in list(truth.rglob("00000?.png")):
            path.rename(path.with_name(f"0009{path.stem[-2:]}.png"))
        with pytest.raises(InputError, match=r"the output has 0.000-0.250 s, the truth 75.000-75.250 s at 12 fps"):
            evaluate(perfect, truth)

    def test_another_aspect_ratio_is_an_error(self, truth: Path, perfect: Path):
        edit_json(truth / "cameras.json", lambda document: document["cameras"]["cam02"].update(width=48))
        with pytest.raises(InputError, match="view 'cam02' is 64x48 in the output, 48x48 in the truth"):
            evaluate(perfect, truth)


def test_alignments_of_large_captures_use_a_seeded_random_subset(perfect: Path, capture: Path, monkeypatch):
    from page4d.evaluation import depth as depth_report

    monkeypatch.setattr(depth_report, "MAX_FITTED_PIXELS", 1200)
    first, second = (evaluate(perfect, capture, **SETTINGS) for _ in range(2))
    assert first == second
    assert first.depth.fitted_pixels == 1200
    assert "alignments are fitted to a random subset of 1,200 of 36,864 pixels" in first.notes
    assert isinstance(first.depth.results[0].overall, DepthErrors)
