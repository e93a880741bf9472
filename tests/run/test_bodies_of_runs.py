"""Runs whose people are known from body keypoints: depth, records, resuming, and where they are not sought."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from page4d.choices import ExistingOutput, Poses
from page4d.errors import InterruptedRunError, UsageError
from page4d.output.reader import open_output
from page4d.rig.people import placed
from page4d.rig.records import Array, Lens, Tracklet, ViewPeople
from page4d.run import plan
from page4d.run.reconstruct import reconstruct
from page4d.scene.records import Scene, with_instants
from page4d.stereo import bodies
from tests.rig.people_rig import Filming, film_people
from tests.run.test_detail_of_runs import CAPTURE, SETTINGS, predictor
from tests.run.test_reconstruct import StopAt, bytes_of

DIGEST = "0" * 64
DISTANCE = 1.2


def body() -> Array:
    """Return a person [33, 3] in front of the first camera, nearer than the scene."""
    joints = film_people(Filming(num_instants=1)).joints[0, 0]
    inside = joints - joints[23:25].mean(0) + [0, 0, DISTANCE]
    pose = CAPTURE.cameras.world_to_camera[0, 0].double().numpy()
    return np.asarray((inside - pose[:3, 3]) @ pose[:3, :3])


def filmed(
    scene: Scene, instants: Sequence[int], lenses: Sequence[Lens], *_: object, **__: object
) -> list[ViewPeople]:
    """Return what keypoints of the body would be."""
    found = []
    for view, lens in zip(scene.views, lenses, strict=True):
        assert view.camera is not None
        pose = view.camera.world_to_camera.double().numpy()
        inside = (body() @ pose[:3, :3].T + pose[:3, 3]) @ lens.intrinsics.T
        pixels = np.repeat((inside[:, :2] / inside[:, 2:])[None], len(instants), axis=0)
        found.append(
            (Tracklet(instants=np.arange(len(instants)), joints=pixels, visibility=np.ones(pixels.shape[:2])),)
        )
    return found


@pytest.fixture(autouse=True)
def _keypoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "is_fetched", lambda: True)
    monkeypatch.setattr(plan, "is_runnable", lambda: True)
    monkeypatch.setattr(plan, "model_sha256", lambda: DIGEST)
    monkeypatch.setattr(placed, "detect_people", filmed)
    monkeypatch.setattr(bodies, "_MOVING", 0.0)  # the body is not in the pictures, and masks do not show it
    monkeypatch.setattr(placed, "_MIN_LENGTH", 2)
    monkeypatch.setattr(placed, "BLOCK", 2)


def run(out: Path, existing: ExistingOutput = ExistingOutput.REFUSE, observer: Any = None, **changes: Any):
    settings = replace(SETTINGS, depth_size="network", **changes)
    return reconstruct(CAPTURE.scene(), predictor(settings), out=out, existing=existing, observer=observer)


def near(out: Path, instant: int) -> float:
    """Return the share of the pixels around the trunk, in the first view, that have the depth of the body."""
    depth = open_output(out).depth(instant, "cam01")
    height, width = depth.shape
    middle = depth[height // 2 - 4 : height // 2 - 1, width // 2 - 1 : width // 2 + 2]
    return float((np.abs(middle / DISTANCE - 1) < 0.1).mean())


def test_depth_and_masks_follow_the_bodies_of_every_instant(tmp_path: Path) -> None:
    record = run(tmp_path / "with")
    assert record.pose_model == DIGEST
    assert record.timings["people"] > 0
    assert min(near(tmp_path / "with", instant) for instant in range(5)) > 0.5
    assert open_output(tmp_path / "with").dynamic(2, "cam01").max() == 1
    without = run(tmp_path / "without", bodies=False)
    assert without.pose_model is None
    assert max(near(tmp_path / "without", instant) for instant in range(5)) == 0


def test_a_resumed_run_has_the_same_bytes_and_the_same_model(tmp_path: Path) -> None:
    run(tmp_path / "whole")
    with pytest.raises(InterruptedRunError):
        run(tmp_path / "parts", observer=StopAt(3))
    with pytest.raises(UsageError, match=r"differs: bodies\)"):
        run(tmp_path / "parts", ExistingOutput.RESUME, bodies=False)
    run(tmp_path / "parts", ExistingOutput.RESUME)
    assert bytes_of(tmp_path / "parts") == bytes_of(tmp_path / "whole")


@pytest.mark.parametrize(
    "changes", [{"fuse": False}, {"poses": Poses.PREDICTED}], ids=["no fusion", "no known cameras"]
)
def test_people_are_not_sought_where_they_cannot_be_used(changes: dict[str, Any], tmp_path: Path) -> None:
    assert run(tmp_path / "out", **changes).pose_model is None


def test_people_are_not_sought_without_motion_or_a_second_view() -> None:
    scene = CAPTURE.scene()
    assert plan.plan_run(scene, predictor(SETTINGS)).pose_model == DIGEST
    assert plan.plan_run(with_instants(scene, [0]), predictor(SETTINGS)).pose_model is None
    assert plan.plan_run(replace(scene, views=scene.views[:1]), predictor(SETTINGS)).pose_model is None
