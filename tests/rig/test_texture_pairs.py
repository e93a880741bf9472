"""Relative poses from texture are accepted where matches determine them, and refused where they do not."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from page4d.rig.records import FocalSource, Lens, direction_angle_deg, rotation_angle_deg
from page4d.rig.texture import DESCRIPTOR_SCALE, InstantTexture, ViewTexture, match_textures
from page4d.rig.texture_pairs import register_texture_pair, support

SIZE = (720, 1280)
FOCAL = 1100.0
LENS = Lens(
    intrinsics=np.array([[FOCAL, 0, 640], [0, FOCAL, 360], [0, 0, 1.0]]),
    image_size=SIZE,
    focal_source=FocalSource.OPTION,
)
LENSES = (LENS, LENS)


@dataclass
class Pair:
    views: tuple[ViewTexture, ViewTexture]
    rotation: np.ndarray
    direction: np.ndarray


def make_pair(
    *, angle_deg: float = 15, baseline: float = 1.0, right: int = 200, wrong: int = 150, instants: int = 1,
    spread: float = 1.0, seed: int = 0,
) -> Pair:  # fmt: skip
    """Two views of points at depths 3 to 6, `wrong` of whose matches join points at random."""
    generator = np.random.default_rng(seed)
    count = right + wrong
    pixels = (generator.uniform(0.05, 0.95, (count, 2)) - 0.5) * spread * np.array([1280, 720])
    points = np.concatenate([pixels / FOCAL, np.ones((count, 1))], axis=1) * generator.uniform(3, 6, (count, 1))
    rotation = Rotation.from_rotvec([0, -np.radians(angle_deg), 0.05]).as_matrix()
    target = np.array([0, 0, 4.5])
    centre = target + baseline * (rotation.T @ -target - target + 1e-9)
    if baseline == 0:
        centre = np.zeros(3)
    moved = (points - centre) @ rotation.T
    second = moved[:, :2] / moved[:, 2:] * FOCAL
    second[:wrong] = generator.uniform(-0.5, 0.5, (wrong, 2)) * np.array([1280, 720])
    descriptors = generator.exponential(size=(count, 128))
    descriptors = np.sqrt(descriptors / descriptors.sum(1, keepdims=True)) * DESCRIPTOR_SCALE
    ids = np.arange(count)
    middle = np.array([640.0, 360.0])
    views = []
    for places in (pixels, second):
        features = {
            instant: InstantTexture(
                points=places + middle + generator.normal(scale=0.3, size=places.shape),
                descriptors=np.clip(np.rint(descriptors), 0, 255).astype(np.uint8),
                ids=ids,
            )
            for instant in range(instants)
        }
        views.append(ViewTexture(features=features))
    translation = -rotation @ centre
    length = np.linalg.norm(translation)
    return Pair((views[0], views[1]), rotation, translation / length if length else np.array([1.0, 0, 0]))


@pytest.mark.parametrize("angle_deg", [8, 25])
def test_a_pair_with_enough_right_matches_is_accepted(angle_deg: float) -> None:
    pair = make_pair(angle_deg=angle_deg)
    found = register_texture_pair(*pair.views, LENSES, (2, 5))
    assert found.is_accepted, found.reason
    assert (found.first, found.second) == (2, 5)
    assert found.rotation is not None
    assert found.direction is not None
    assert rotation_angle_deg(found.rotation, pair.rotation) < 0.5
    assert direction_angle_deg(found.direction, pair.direction) < 3
    assert 190 <= found.score <= 230
    assert found.control is not None
    assert found.control < found.score / 2


def test_wrong_matches_that_repeat_at_every_instant_are_refused() -> None:
    pair = make_pair(right=0, wrong=250, instants=4)
    found = register_texture_pair(*pair.views, LENSES, (0, 1))
    assert not found.is_accepted
    assert found.reason


def test_repeated_matches_count_once() -> None:
    once, repeated = (
        register_texture_pair(*make_pair(right=32, wrong=20, instants=instants).views, LENSES, (0, 1))
        for instants in (1, 4)
    )
    assert once.score <= 39
    assert repeated.score <= 39
    assert repeated.num_instants == 4
    assert "distinct inliers" in repeated.reason


def test_a_turn_in_place_has_no_direction() -> None:
    found = register_texture_pair(*make_pair(baseline=0).views, LENSES, (0, 1))
    assert not found.is_accepted
    assert "rotation alone" in found.reason


def test_matches_on_one_small_object_are_refused() -> None:
    found = register_texture_pair(*make_pair(spread=0.08, wrong=0).views, LENSES, (0, 1))
    assert not found.is_accepted


def test_the_same_arguments_give_the_same_result() -> None:
    pair = make_pair(right=80, wrong=20)
    first, second = (register_texture_pair(*pair.views, LENSES, (0, 1), seed=3) for _ in range(2))
    assert np.array_equal(first.rotation, second.rotation)
    assert first.jackknife_deg is not None
    assert first.jackknife_deg == second.jackknife_deg


def test_the_right_pose_has_more_support_than_another() -> None:
    pair = make_pair()
    fitting, total = support(*pair.views, LENSES, pair.rotation, pair.direction)
    turned = Rotation.from_rotvec([0, 0.3, 0]).as_matrix() @ pair.rotation
    assert fitting > 190
    assert total > 340
    assert support(*pair.views, LENSES, turned, pair.direction)[0] < fitting / 4


def test_views_without_texture_are_refused() -> None:
    empty = InstantTexture(points=np.zeros((0, 2)), descriptors=np.zeros((0, 128), np.uint8), ids=np.zeros(0, int))
    for features in ({}, {0: empty}):
        view = ViewTexture(features=features)
        assert len(match_textures(view, view).keys) == 0
        assert register_texture_pair(view, view, LENSES, (0, 1)).rotation is None
        assert support(view, view, LENSES, np.eye(3), np.array([1.0, 0, 0])) == (0, 0)
