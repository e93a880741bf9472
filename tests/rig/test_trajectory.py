"""The trajectory of a calibrated rig that moves as one, from features that are projections of points."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from page4d.choices import Registration
from page4d.errors import InputError
from page4d.rig import trajectory
from page4d.rig.records import exp_rotation, rotation_angle_deg
from page4d.rig.texture import DESCRIPTOR_SCALE, InstantTexture, ViewTexture
from page4d.rig.trajectory import moving_rig
from tests.rig.people_rig import IMAGE_SIZE, lens

NUM_TIMES = 5
NUM_POINTS = 300


def pose(turn_deg: tuple[float, float, float], center: tuple[float, float, float]) -> np.ndarray:
    matrix = np.eye(4)
    matrix[:3, :3] = exp_rotation(np.radians(turn_deg))
    matrix[:3, 3] = -matrix[:3, :3] @ center
    return matrix


RIG = np.stack([pose((8 * y, -8 * x, 3 * x), (2 + 0.2 * x, 0.2 * y, -1.0)) for x in (-1, 1) for y in (-1, 1)])
"""Four cameras at the corners of a square of 40 cm, in a world whose origin is elsewhere, in metres."""


def moves(step_deg: float = 3.0) -> np.ndarray:
    """Return the true `world_to_rig`: a turn and a path about the middle of the rig."""
    middle, back = pose((0, 0, 0), (2, 0, -1)), pose((0, 0, 0), (-2, 0, 1))
    path = [pose((0.5 * t, step_deg * t, 0), (0.08 * t, 0.02 * t, 0.04 * t)) for t in range(NUM_TIMES)]
    return np.stack([back @ one @ middle for one in path])


def film(
    monkeypatch,
    *,
    unit: float = 1.0,
    moving: float = 0.2,
    apart: int | None = None,
    overlap: bool = True,
    step_deg: float = 3.0,
) -> np.ndarray:
    """Return `world_to_rig` of a rig that films points, some of which move; the view `apart` moves on its own."""
    noise = np.random.default_rng(0)
    points = noise.uniform([-5, -2, 2], [7, 2, 7], (NUM_POINTS, 3))
    speed = noise.normal(scale=0.05, size=(NUM_POINTS, 3)) * (noise.random((NUM_POINTS, 1)) < moving)
    descriptors = noise.random((NUM_POINTS, 128)) ** 3
    descriptors = np.rint(DESCRIPTOR_SCALE * descriptors / np.linalg.norm(descriptors, axis=1, keepdims=True))
    lenses, path = (lens(),) * 4, moves(step_deg)

    def extract(_: object, instants: range, *__: object) -> tuple[ViewTexture, ...]:
        views = []
        for view, camera in enumerate(RIG):
            features = {}
            for t in instants:
                own = pose((0, -2.0 * t, 0), (0, 0, 0)) if view == apart else np.eye(4)
                local = (points + t * speed) @ (own @ camera @ path[t])[:3, :3].T + (own @ camera @ path[t])[:3, 3]
                pixels = (local @ lenses[view].intrinsics.T)[:, :2] / local[:, 2:]
                shown = (local[:, 2] > 0.1) & ((pixels > 0) & (pixels < IMAGE_SIZE[::-1])).all(1)
                shown &= overlap | (np.arange(NUM_POINTS) % 4 == view)
                pixels = pixels + noise.normal(scale=0.4, size=pixels.shape)
                order = noise.permutation(np.flatnonzero(shown))
                shown_at = pixels[order]
                features[t] = InstantTexture(
                    points=shown_at, pixels=shown_at, descriptors=descriptors[order].astype(np.uint8), ids=order
                )
            views.append(features)
        return tuple(views)

    monkeypatch.setattr(trajectory, "extract_texture", extract)
    names = ("a", "b", "c", "d")
    rig = RIG.copy()
    rig[:, :3, 3] *= unit
    views = [SimpleNamespace(name=name, camera=lens().camera(one)) for name, one in zip(names, rig, strict=True)]
    scene = SimpleNamespace(num_times=NUM_TIMES, times=np.arange(NUM_TIMES) / 10, view_names=names, views=views)
    settings = SimpleNamespace(register=Registration.AUTO)
    pixels: Any = SimpleNamespace(scene=scene, lenses=lenses, settings=settings, progress=lambda *_: None)
    notices = []
    found = moving_rig(pixels, notices.append)
    assert [notice.text for notice in notices] == [f"the rig moves as one, from texture of {NUM_TIMES} instants"]
    assert all(0.1 < camera.residual_px < 1 for camera in found.record.cameras)
    return np.linalg.inv(rig[3]) @ found.cameras[3].world_to_camera.numpy()


@pytest.mark.parametrize("unit", [1.0, 1000.0])
def test_a_rig_is_followed_in_its_unit_among_points_that_move(unit: float, monkeypatch):
    found, true = film(monkeypatch, unit=unit), moves()
    np.testing.assert_allclose(found[0], np.eye(4), atol=1e-12 * unit)
    assert float(rotation_angle_deg(found[:, :3, :3], true[:, :3, :3]).max()) < 0.05
    assert np.abs(found[:, :3, 3] - unit * true[:, :3, 3]).max() < 0.01 * unit


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"apart": 2}, "c does not move with the rig"),
        ({"overlap": False}, "show the distance of 0 points of texture at 0.000 s"),
        ({"moving": 1.0}, "the motion of the rig is lost at 0."),
        ({"step_deg": 50.0}, "the motion of the rig is lost at 0."),
    ],
)
def test_a_motion_that_texture_does_not_show_is_an_error(changes: dict[str, Any], message: str, monkeypatch):
    with pytest.raises(InputError) as raised:
        film(monkeypatch, **changes)
    assert message in raised.value.message
