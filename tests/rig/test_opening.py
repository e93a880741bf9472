"""`sync='people'`: clocks from people, from the sign of the offset to the instants of the scene."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import page4d
from page4d.errors import InputError, UsageError, WeightsError
from page4d.rig import opening as people_clocks
from page4d.rig.records import Lens, RigCamera, ViewPeople
from page4d.scene.open import open_scene as open_folder
from page4d.scene.records import Scene
from page4d_cli.app import run
from tests.cli.clips import write_video
from tests.rig.walkers import Walk, observe, ring

FPS = 30
STARTS = (0.0, 7 / FPS)
"""Seconds of a common clock at which the recordings begin."""


def walkers(scene: Scene, instants: Sequence[int], lenses: Sequence[Lens], *_: object) -> tuple[ViewPeople, ...]:
    """Return a person who walks on the common clock, as cameras see him that begin at `STARTS`."""
    rng = np.random.default_rng(2)
    poses = [camera.world_to_camera for camera in ring(2, rng)]
    cameras = tuple(RigCamera(lens=lens, world_to_camera=pose) for lens, pose in zip(lenses, poses, strict=True))
    assert list(instants) == list(range(len(instants)))
    assert [view.indices[:3] for view in scene.views] == [(0, 1, 2)] * 2
    return observe(cameras, [Walk.random(rng)], rng, num_instants=len(instants), step_s=1 / FPS, delays=STARTS)


@pytest.fixture
def videos(monkeypatch, tmp_path) -> Path:
    for number in (1, 2):
        write_video(tmp_path / "videos" / f"cam0{number}.mp4", frames=56, fps=FPS)
    monkeypatch.setattr(people_clocks, "is_fetched", lambda: True)
    monkeypatch.setattr(people_clocks, "detect_people", walkers)
    return tmp_path / "videos"


def test_frames_of_one_moment_are_paired(videos: Path):
    scene = page4d.open_scene(videos, sync="people", frames=(0, 5))
    assert scene.synchronisation == "people"
    assert [view.clock.offset_s for view in scene.views] == pytest.approx(STARTS, abs=0.5 / FPS)
    assert [view.clock.std_seconds for view in scene.views] == pytest.approx([0, 0.5 / FPS], abs=1e-4)
    assert [view.indices for view in scene.views] == [(7, 8, 9, 10, 11), (0, 1, 2, 3, 4)]
    (text,) = [notice.text for notice in scene.notices if "by people" in notice.text]
    assert text.startswith("cam02 starts +0.23")
    assert text.endswith("s after cam01 by people (+-0.017 s)")


def test_offsets_of_longer_captures_are_searched_coarsely_and_refined_in_windows(monkeypatch, tmp_path):
    for number in (1, 2):
        write_video(tmp_path / f"cam0{number}.mp4", frames=240, fps=FPS)
    monkeypatch.setattr(people_clocks, "NUM_SAMPLES", 90)
    monkeypatch.setattr(people_clocks, "_WINDOW", 50)
    rng = np.random.default_rng(2)
    cameras, walk, starts = ring(2, rng), Walk.random(rng), (0.0, -0.75)

    def sampled(scene: Scene, instants: Sequence[int], *_: object) -> tuple[ViewPeople, ...]:
        views = []
        for camera, view, start in zip(cameras, scene.views, starts, strict=True):
            frames = np.array([view.indices[instant] for instant in instants])
            step = float(np.diff(frames).min()) / FPS
            whole, *_ = observe(
                (camera,), [walk], rng, num_instants=240, step_s=step, delays=(start + (frames[0] / FPS),)
            )
            rows = np.round((frames - frames[0]) / FPS / step).astype(int)
            (one,) = whole
            numbers = {int(row): place for place, row in enumerate(rows)}
            kept = np.array([int(row) in numbers for row in one.instants])
            fields = {name: getattr(one, name)[kept] for name in ("joints", "visibility")}
            places = np.array([numbers[int(row)] for row in one.instants[kept]])
            views.append((replace(one, instants=places, **fields),))
        return tuple(views)

    monkeypatch.setattr(people_clocks, "is_fetched", lambda: True)
    monkeypatch.setattr(people_clocks, "detect_people", sampled)
    monkeypatch.setattr(people_clocks, "lenses_of", lambda *_, **__: [camera.lens for camera in cameras])
    scene = page4d.open_scene(tmp_path, sync="people")
    assert [view.clock.offset_s for view in scene.views] == pytest.approx(starts, abs=0.5 / FPS)
    assert all(view.clock.rate == 1 for view in scene.views)


def test_without_people_or_model_there_is_one_error(videos: Path, monkeypatch, capsys):
    monkeypatch.setattr(people_clocks, "detect_people", lambda *_: ((),) * 2)
    with pytest.raises(InputError, match="do not determine the clock of cam02"):
        page4d.open_scene(videos, sync="people")
    monkeypatch.setattr(people_clocks, "is_fetched", lambda: False)
    with pytest.raises(WeightsError) as error:
        page4d.open_scene(videos, sync="people")
    assert "page4d weights get people" in error.value.hint
    assert run(["inspect-scene", str(videos), "--sync", "people"]) == 4
    assert len(capsys.readouterr().err.strip().splitlines()) == 2
    with pytest.raises(UsageError, match="sync='people'"):
        open_folder(videos, sync="people")


def test_a_single_view_needs_no_people(videos: Path):
    assert page4d.open_scene(videos, sync="people", views=1).views[0].clock.offset_s == 0.0


def test_of_a_long_capture_the_instants_with_people_are_searched(monkeypatch, videos: Path):
    monkeypatch.setattr(people_clocks, "_LOOK", 2)
    monkeypatch.setattr(people_clocks, "_NUM_LOOKS", 4)
    scene = open_folder(videos, sync="none")

    def late(scene: Scene, instants: Sequence[int], lenses: Sequence[Lens], *_: object) -> tuple[ViewPeople, ...]:
        (view, other) = walkers(scene, range(len(instants)), lenses)
        seen = np.flatnonzero(np.asarray(instants) > 30)
        kept = [
            type(one)(instants=one.instants[rows], joints=one.joints[rows], visibility=one.visibility[rows])
            for one in view
            for rows in [np.isin(one.instants, seen[:4])]
        ]
        return tuple(kept), other

    monkeypatch.setattr(people_clocks, "detect_people", late)
    lenses = people_clocks.lenses_of(scene)
    (window,) = people_clocks._windows(scene, range(scene.num_times), 6, 1, lenses, lambda *_: None)
    assert len(window) == 6
    assert window[-1] - window[0] == 5
    assert window[0] >= 30
