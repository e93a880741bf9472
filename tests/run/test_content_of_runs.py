"""Runs of pictures without content: no depth and no verdicts from them, and their names in `run.json`."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from page4d.choices import Subject
from page4d.errors import UsageError
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.options import ReconstructSettings
from page4d.output.reader import open_output
from page4d.output.record import RunRecord
from page4d.rig import evidence
from page4d.rig.evidence import PixelEvidence
from page4d.rig.records import no_progress
from page4d.rig.samples import sample_views, with_notices_on_content
from page4d.run.reconstruct import reconstruct
from page4d.run.scene_evidence import evidence_in_pictures
from page4d.scene.image_file import Image
from page4d.scene.records import Scene
from tests.run.test_reconstruct import resumed, uncalibrated
from tests.run.truth import TruthPredictor, exact_predictions

CAPTURE = SyntheticCapture(
    seed=96, num_views=3, num_times=5, image_size=(72, 96), fps=12, subject=Subject.PEOPLE, spacing_deg=20
)
SETTINGS = ReconstructSettings(chunk=3, overlap=1, preview=False, fuse=False, motion=True)
SECOND = CAPTURE.view_names[1]


def changed(change: Callable[[Callable[[int], Image], int], Image], views: tuple[str, ...] = (SECOND,)) -> Scene:
    """Return the capture with the frames of some views changed: `change` takes the true frames and an index."""
    scene = CAPTURE.scene()
    of_views = []
    for view in scene.views:
        render = view.source.render
        source = replace(view.source, render=lambda index, render=render: change(render, index))
        of_views.append(replace(view, source=source) if view.name in views else view)
    return replace(scene, views=tuple(of_views))


def run(scene: Scene, out: Path, **options: Any) -> RunRecord:
    return reconstruct(scene, TruthPredictor(CAPTURE), out=out, settings=SETTINGS, **options)


def barred(render: Callable[[int], Image], index: int) -> Image:
    frame = render(index).copy()
    frame[:12] = frame[-12:] = 0
    return frame


def test_bars_have_neither_depth_nor_points_and_do_not_reach_the_network(tmp_path):
    record = run(changed(barred, CAPTURE.view_names), tmp_path / "out")
    output, plain = open_output(tmp_path / "out"), exact_predictions(CAPTURE)
    assert all(view.map_size == (96, 72) for view in record.views)
    boxes = {view.pixel_transform.window for view in record.views}
    (box,) = boxes
    assert box is not None
    left, top, width, height = box
    assert (left, width) == (0, 96)
    assert 12 <= top <= 14
    assert 58 <= top + height <= 60
    assert f"; the picture is 96x{height} px at 0, {top})" in record.warnings[0]
    for view, name in enumerate(output.view_names):
        inside = slice(top, top + height)
        found, true = output.depth(2, name)[inside], plain.depth[0, 2, view, inside].numpy()
        np.testing.assert_allclose(found / output.depth(2, name)[inside].max(), true / true.max(), atol=0.01)
    torch.testing.assert_close(output.cameras.intrinsics, plain.cameras.intrinsics[0], rtol=0, atol=1e-6)
    for name in output.view_names:
        depth = output.depth(2, name)
        assert not depth[:12].any()
        assert not depth[-12:].any()
        assert (depth[16:-16] > 0).mean() > 0.9
        assert not output.confidence(2, name)[:12].any()
    black = (output.points(2).rgb.max(axis=1) < 8).mean()
    assert black < 0.01
    assert [view.content_share for view in record.views] == pytest.approx([48 / 72] * 3, abs=0.06)
    (warning,) = (text for text in record.warnings if "borders" in text)
    assert all(name in warning for name in output.view_names)


def covered(views: tuple[str, ...] = (SECOND,), level: int = 0, seen: tuple[int, ...] = ()) -> Scene:
    """Return the capture with views that show nothing but noise, but at the instants `seen`."""
    rng = np.random.default_rng(0)

    def change(render: Callable[[int], Image], index: int) -> Image:
        noise = rng.integers(level, level + 3, render(index).shape, dtype=np.uint8)
        return render(index) if index in seen else noise

    return changed(change, views)


@pytest.mark.parametrize(("level", "fault"), [(0, "black"), (120, "without contrast"), (250, "overexposed")])
def test_a_view_that_shows_nothing_is_left_out(level, fault, tmp_path):
    record = resumed(run, covered(level=level), out=tmp_path / "out", instants=4)
    others = [name for name in CAPTURE.view_names if name != SECOND]
    assert [view.name for view in record.views] == others
    text = f"views are left out that show nothing in 5 sampled pictures: {SECOND} ({fault})"
    assert record.warnings.count(text) == 1
    alone = replace(CAPTURE.scene(), views=tuple(view for view in CAPTURE.scene().views if view.name != SECOND))
    run(alone, tmp_path / "alone")
    left, whole = (open_output(tmp_path / name) for name in ("out", "alone"))
    assert all((left.depth(2, name) == whole.depth(2, name)).all() for name in others)


@pytest.mark.parametrize("seen", [(1,), (4,)])
def test_a_view_that_is_covered_for_a_part_of_the_capture_stays(seen, tmp_path):
    record = run(covered(seen=seen), tmp_path / "out")
    output = open_output(tmp_path / "out")
    assert [bool(output.depth(index, SECOND).any()) for index in range(5)] == [index in seen for index in range(5)]
    assert not (output.points(0).view == 1).any()
    found = [index for chunk in record.chunks for fault in chunk.faults for index in fault.instants]
    assert found == [index for index in range(5) if index not in seen]
    assert [text for text in record.warnings if SECOND in text] == list(record.content)
    assert sum(sum(chunk.empty_frames) for chunk in record.chunks) == 0


def test_views_stay_where_all_or_too_few_instants_are_black(monkeypatch):
    texts = []

    def num_views(scene: Scene, settings: ReconstructSettings = SETTINGS) -> int:
        found = evidence_in_pictures(scene, settings, no_progress, lambda notice: texts.append(notice.text))
        return found.scene.num_views

    assert num_views(covered(CAPTURE.view_names)) == 3
    monkeypatch.setattr(evidence, "sample_views", lambda scene, *_: sample_views(scene, count=2, max_decoded=3))
    assert num_views(covered()) == 2
    with pytest.raises(UsageError, match="the views are cam01, cam03"):
        num_views(uncalibrated(covered()), replace(SETTINGS, scale_from=f"cam01-{SECOND}=1m"))
    assert texts == [f"views are left out that show nothing in 2 sampled pictures: {SECOND} (black)"] * 2
    few = [replace(one, instants=one.instants[:1], faults=one.faults[:1]) for one in sample_views(covered())]
    monkeypatch.setattr(evidence, "sample_views", lambda *_: few)  # of a video that cannot be sought
    assert num_views(covered()) == 3


def test_one_black_frame_loses_its_depth_alone(tmp_path):
    record = run(changed(lambda render, index: render(index) * np.uint8(index != 3)), tmp_path / "out")
    output = open_output(tmp_path / "out")
    assert [bool(output.depth(index, SECOND).any()) for index in range(5)] == [True, True, True, False, True]
    assert [text for text in record.warnings if "black" in text] == list(record.content)
    assert f"{SECOND} (instant 3)" in record.content[0]


def test_velocities_of_a_frozen_view_are_unknown(tmp_path):
    record = run(changed(lambda render, index: render(min(index, 2))), tmp_path / "out")
    output = open_output(tmp_path / "out")
    known = [bool(output.velocity(index, SECOND)[1].any()) for index in range(5)]
    assert known == [True, True, True, False, False]
    assert all(output.velocity(index, "cam01")[1].any() for index in range(5))
    assert all(output.depth(index, SECOND).any() for index in range(5))
    assert f"{SECOND} (instants 3 to 4)" in record.content[0]


def test_a_resumed_run_finds_the_same_faults(tmp_path):
    scene = changed(lambda render, index: render(min(index, 2)))
    assert f"{SECOND} (instants 3 to 4)" in resumed(run, scene, out=tmp_path / "out", instants=4).content[0]


def test_still_and_ordinary_runs_have_no_faults(tmp_path):
    still = changed(lambda render, index: render(0 * index), CAPTURE.view_names)
    assert not run(still, tmp_path / "still").content
    assert not run(CAPTURE.scene(), tmp_path / "out").content


def test_an_inspection_names_pictures_without_content(monkeypatch):
    frozen = with_notices_on_content(changed(lambda render, index: render(min(index, 2))))
    (notice,) = frozen.notices
    assert f"{SECOND} (instants 3 to 4)" in notice.text
    (notice,) = with_notices_on_content(changed(barred)).notices
    assert "borders" in notice.text
    assert not with_notices_on_content(CAPTURE.scene()).notices
    blank = with_notices_on_content(covered())
    (notice,) = blank.notices
    assert notice.text == f"views are left out that show nothing in 5 sampled pictures: {SECOND} (black)"
    assert blank.view_names == CAPTURE.view_names
    monkeypatch.setattr("page4d.rig.samples.FEW_PICTURES", 1)  # as for more views than pictures
    (notice,) = with_notices_on_content(changed(barred)).notices
    assert notice.text.endswith("1 picture per view was decoded")


@pytest.mark.parametrize("change", [lambda frame, _: 0 * frame, lambda _, first: first])
def test_people_of_black_and_frozen_views_are_no_evidence(change: Callable[[Image, Image], Image], monkeypatch):
    found = ((Mock(),),) * 3
    monkeypatch.setattr(evidence, "detect_people", lambda *_: found)
    pixels = PixelEvidence(changed(lambda render, index: change(render(index), render(0))))
    assert [len(people) for people in pixels.people] == [1, 0, 1]
    assert [len(people) for people in PixelEvidence(CAPTURE.scene()).people] == [1, 1, 1]
