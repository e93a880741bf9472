"""Features of texture in undistorted pixels, and relative poses that are accepted where matches determine them."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from scipy.spatial.transform import Rotation

from page4d.choices import MaskMeaning
from page4d.geometry.distortion import Distortion, LensModel
from page4d.options import RegisterSettings
from page4d.rig import texture_pairs
from page4d.rig.epipolar import RelativePose, undistorted_pixels
from page4d.rig.evidence import MAX_DENSE_VIEWS, MORE_INSTANTS, TextureSource
from page4d.rig.learned import MAX_AXES_DEG, MIN_DISTINCT, WEIGHT, cross_attention, tolerance
from page4d.rig.lens import lenses_of
from page4d.rig.records import Evidence, FocalSource, Lens, PairPose, direction_angle_deg, rotation_angle_deg
from page4d.rig.texture import (
    DESCRIPTOR_SCALE,
    MAX_INSTANTS,
    ROOT_SIFT,
    InstantTexture,
    TextureMethod,
    ViewTexture,
    common_texture,
    extract_texture,
    match_near,
    match_textures,
)
from page4d.rig.texture_pairs import GUIDE_BAND, guided_pair, register_texture_pair
from page4d.scene.images import probe_image_folder
from page4d.scene.open import open_scene
from page4d.scene.records import PairedFrames, Scene

SIZE = (720, 1280)
FOCAL = 1100.0
LENS = Lens(
    intrinsics=np.array([[FOCAL, 0, 640], [0, FOCAL, 360], [0, 0, 1.0]]),
    image_size=SIZE,
    focal_source=FocalSource.OPTION,
)
LENSES = (LENS, LENS)


def features_at(points: np.ndarray, descriptors: np.ndarray) -> InstantTexture:
    raw = np.clip(np.rint(descriptors), 0, 255).astype(np.uint8)
    return InstantTexture(points=points, pixels=points, descriptors=raw, ids=np.arange(len(points)))


@dataclass
class Pair:
    views: tuple[ViewTexture, ViewTexture]
    rotation: np.ndarray
    direction: np.ndarray
    translation: np.ndarray


def make_pair(
    *, angle_deg: float = 15, baseline: float = 1.0, right: int = 200, wrong: int = 150, instants: int = 1,
    flat: int = 0, spread: float = 1.0, seed: int = 0,
) -> Pair:  # fmt: skip
    """Two views of points at depths 3 to 6, `wrong` of whose matches join points at random; the last on a wall."""
    generator = np.random.default_rng(seed)
    count = right + wrong
    pixels = (generator.uniform(0.05, 0.95, (count, 2)) - 0.5) * spread * np.array([1280, 720])
    rays = np.concatenate([pixels / FOCAL, np.ones((count, 1))], axis=1)
    depth = generator.uniform(3, 6, (count, 1))
    depth[count - flat :, 0] = 1 / (rays[count - flat :] @ WALL)
    points = rays * depth
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
    middle = np.array([640.0, 360.0])
    views = []
    for places in (pixels, second):
        features = {
            instant: features_at(places + middle + generator.normal(scale=0.3, size=places.shape), descriptors)
            for instant in range(instants)
        }
        views.append(features)
    translation = -rotation @ centre
    length = np.linalg.norm(translation)
    direction = translation / length if length else np.array([1.0, 0, 0])
    return Pair((views[0], views[1]), rotation, direction, translation)


def registered(
    *views: ViewTexture, indices: tuple[int, int] = (0, 1), method: TextureMethod = ROOT_SIFT, **options: Any
) -> PairPose:
    return register_texture_pair(match_textures(*views, LENSES, method), indices, method=method, **options)


@pytest.mark.parametrize("angle_deg", [8, 25])
def test_a_pair_with_enough_right_matches_is_accepted(angle_deg: float) -> None:
    pair = make_pair(angle_deg=angle_deg)
    found = registered(*pair.views, indices=(2, 5))
    assert found.is_accepted, found.reason
    assert found.views == (2, 5)
    assert rotation_angle_deg(found.rotation, pair.rotation) < 0.5
    assert direction_angle_deg(found.direction, pair.direction) < 3
    assert 190 <= found.score <= 230
    assert found.control < found.score / 2


@pytest.mark.parametrize(("size", "factor"), [(SIZE, 1.0), ((1080, 1920), 1.5), ((800, 1400), 1.0)])
def test_graphics_in_the_pictures_are_no_texture(size: tuple[int, int], factor: float) -> None:
    """A logo in the lower right corner of both pictures has more matches than what the cameras see."""
    pair, generator = make_pair(wrong=0), np.random.default_rng(1)
    logo = np.array(SIZE[::-1]) - generator.uniform(20, 300, (400, 2))
    moved = logo * factor if factor != 1 else logo + np.array(size)[::-1] - SIZE[::-1]
    drawn = generator.exponential(size=(400, 128))
    drawn = np.sqrt(drawn / drawn.sum(1, keepdims=True)) * DESCRIPTOR_SCALE
    sides = (pair.views[0][0].points, logo), (pair.views[1][0].points * factor, moved)
    descriptors = np.concatenate([pair.views[0][0].descriptors, drawn])
    views = [{0: features_at(np.concatenate(points), descriptors)} for points in sides]
    lenses = LENS, replace(LENS, intrinsics=np.diag([factor, factor, 1]) @ LENS.intrinsics, image_size=size)
    found = register_texture_pair(match_textures(views[0], views[1], lenses, ROOT_SIFT), (0, 1))
    assert found.is_accepted, found.reason
    assert rotation_angle_deg(found.rotation, pair.rotation) < 0.5


@pytest.mark.parametrize(("turn_deg", "is_accepted"), [(0.0, True), (0.5, True), (6.0, False)])
def test_repeated_patterns_match_near_the_epipolar_lines_of_a_right_pose(turn_deg: float, is_accepted: bool) -> None:
    """Every feature has a copy elsewhere in the second view: without a pose the ratio test refuses both."""
    pair, generator = make_pair(angle_deg=20), np.random.default_rng(1)
    second = pair.views[1][0]
    copies = generator.uniform(0, 1, second.points.shape) * SIZE[::-1]
    noisy = np.tile(second.descriptors, (2, 1)) + generator.normal(scale=6, size=(2 * len(copies), 128))
    noisy *= DESCRIPTOR_SCALE / np.linalg.norm(noisy, axis=1, keepdims=True)
    doubled = features_at(np.concatenate([second.points, copies]), noisy)
    views = pair.views[0], {0: doubled}
    assert len(match_textures(*views, LENSES, ROOT_SIFT).first) < 20
    turn = Rotation.from_rotvec([np.radians(turn_deg), 0, 0]).as_matrix()
    pose = RelativePose(rotation=turn @ pair.rotation, direction=turn @ pair.direction)
    matches = match_near(*views, LENSES, pose, GUIDE_BAND)
    right = RelativePose(rotation=pair.rotation, direction=pair.direction) if is_accepted else pose
    found = guided_pair(matches, right, (0, 1), ROOT_SIFT, 0.004)
    assert found.is_accepted == is_accepted, found.reason
    assert (found.score > 100) == is_accepted
    assert found.matches is not None
    assert is_accepted or "by chance" in found.reason


@pytest.mark.parametrize(
    ("right", "wrong", "is_again", "most"),
    [(200, 50, False, 8 + 3 + 2 + 12), (200, 50, True, 8 + 3), (5, 250, False, 2)],
)
def test_few_poses_are_estimated_of_pairs_that_are_clear(right, wrong, is_again, most, monkeypatch) -> None:
    """Starts, parts, shuffled matches and halves; the last two not again, and starts not where few matches agree."""
    views = make_pair(right=right, wrong=wrong).views
    before = registered(*views) if is_again else None
    calls = []
    estimate = texture_pairs.estimate_pose
    monkeypatch.setattr(texture_pairs, "estimate_pose", lambda *a, **b: calls.append(1) or estimate(*a, **b))
    found = registered(*views, before=before)
    assert found.is_accepted == (right > wrong)
    assert len(calls) <= most
    assert before is None or (found.control, found.jackknife_deg) == (before.control, before.jackknife_deg)


def test_wrong_matches_that_repeat_at_every_instant_are_refused() -> None:
    found = registered(*make_pair(right=0, wrong=250, instants=4).views)
    assert not found.is_accepted
    assert found.reason


def test_repeated_matches_count_once() -> None:
    once, repeated = (registered(*make_pair(right=32, wrong=20, instants=instants).views) for instants in (1, 4))
    assert once.score <= 39
    assert repeated.score <= 39
    assert repeated.num_instants == 4
    assert "distinct inliers" in repeated.reason


def test_a_turn_in_place_has_no_direction() -> None:
    found = registered(*make_pair(baseline=0).views)
    assert not found.is_accepted
    assert "rotation alone" in found.reason


def test_matches_on_one_small_object_are_refused() -> None:
    assert not registered(*make_pair(spread=0.08, wrong=0).views).is_accepted


WALL = np.array([0.5, 0.1, 0.9]) / 4


def with_another_pose(pair: Pair, count: int) -> Pair:
    """Replace wrong matches by those of points that the other pose of the wall explains."""
    plane = pair.rotation + np.outer(pair.translation, WALL)
    _, rotations, shifts, normals = cv2.decomposeHomographyMat(plane, np.eye(3))
    apart = [float(rotation_angle_deg(rotation, pair.rotation)) if normal[2] > 0 else 0.0
             for rotation, normal in zip(rotations, normals, strict=True)]  # fmt: skip
    rotation, shift = rotations[int(np.argmax(apart))], shifts[int(np.argmax(apart))].ravel()
    first, second = (view[0] for view in pair.views)
    rays = np.pad((first.points[:count] - [640, 360]) / FOCAL, ((0, 0), (0, 1)), constant_values=1.0)
    moved = rays * np.linspace(3, 6, count)[:, None] @ rotation.T + shift
    points = second.points.copy()
    points[:count] = moved[:, :2] / moved[:, 2:] * FOCAL + [640, 360]
    return replace(pair, views=(pair.views[0], {0: replace(second, points=points)}))


@pytest.mark.parametrize(("others", "misleading", "is_accepted"), [(3, 0, False), (5, 15, False), (100, 15, True)])
def test_a_wall_needs_other_matches_that_choose_one_of_its_two_poses(others, misleading, is_accepted) -> None:
    pair = make_pair(angle_deg=20, right=160 + others, flat=160, wrong=100)
    views = with_another_pose(pair, misleading).views
    found, rough = (registered(*views, is_rough=is_rough) for is_rough in (False, True))
    assert found.is_accepted == is_accepted, found.reason
    assert "explains" not in rough.reason, "a wrong focal length bends the plane"
    if is_accepted:
        assert rotation_angle_deg(found.rotation, pair.rotation) < 0.5
    else:
        assert re.fullmatch(
            r"a pose that differs by [\d.]+ degrees, in direction by [\d.]+, explains .*", found.reason
        )


@pytest.mark.parametrize(("shifted", "is_accepted"), [(100, True), (165, False)])
def test_matches_of_which_many_agree_on_another_pose_are_refused(shifted: int, is_accepted: bool) -> None:
    """Matches of another period of a pattern agree, too."""
    pair, other = make_pair(right=200, wrong=shifted), make_pair(angle_deg=27, right=200 + shifted, wrong=0)
    second = pair.views[1][0]
    points = np.concatenate([other.views[1][0].points[:shifted], second.points[shifted:]])
    found = registered(pair.views[0], {0: replace(second, points=points)})
    assert found.is_accepted == is_accepted, found.reason
    assert rotation_angle_deg(found.rotation, pair.rotation) < 0.5
    assert is_accepted or re.search(r"differs by 1\d.\d degrees, .* explains most texture too", found.reason), (
        found.reason
    )


def test_the_same_arguments_give_the_same_result() -> None:
    pair = make_pair(right=80, wrong=20)
    first, second = (registered(*pair.views, seed=3) for _ in range(2))
    assert np.array_equal(first.rotation, second.rotation)
    assert first.jackknife_deg is not None
    assert first.jackknife_deg == second.jackknife_deg


def test_views_without_texture_are_refused() -> None:
    empty = features_at(np.zeros((0, 2)), np.zeros((0, 128)))
    for view in ({}, {0: empty}):
        assert len(match_textures(view, view, LENSES, ROOT_SIFT).keys) == 0
        assert registered(view, view).rotation is None


def without_networks() -> TextureMethod:
    """Return the method of learned texture with the matches of RootSIFT."""
    return replace(
        ROOT_SIFT,
        evidence=Evidence.LEARNED,
        tolerance=tolerance,
        min_distinct=MIN_DISTINCT,
        max_axes_deg=MAX_AXES_DEG,
        loops_confirm=False,
        weight=WEIGHT,
    )


@pytest.mark.parametrize(
    ("method", "changes", "reason"),
    [
        (
            ROOT_SIFT,
            {"right": 90, "wrong": 150},
            r"3\d.\d% of the distinct matches of texture agree, 45% .* without a loop",
        ),
        (ROOT_SIFT, {"right": 50, "wrong": 20}, r"5\d distinct inliers of texture, 60 are needed without a loop"),
        (ROOT_SIFT, {"right": 30, "wrong": 20}, r"3\d distinct inliers of texture, 60 are needed$"),
        (without_networks(), {"angle_deg": 85, "wrong": 0}, "85 degrees apart, 75 is the most"),
        (
            without_networks(),
            {"right": 90, "wrong": 150},
            "% of the distinct matches of texture agree, 45% are needed$",
        ),
        (without_networks(), {"right": 45, "wrong": 20}, r"4\d distinct inliers of texture, 50 are needed"),
        (without_networks(), {"angle_deg": 60, "right": 55, "wrong": 20}, ""),
    ],
)
def test_few_inliers_a_small_share_of_the_matches_and_wide_angles_are_refused(
    method: TextureMethod, changes: dict[str, int], reason: str
) -> None:
    pair = make_pair(**changes)
    found = registered(*pair.views, method=method)
    assert found.evidence is method.evidence
    assert found.is_accepted == (not reason)
    assert re.search(reason, found.reason), found.reason
    assert set(found.matches.weights) == {method.weight}
    assert found.needs_loop == found.reason.endswith("without a loop")
    if found.is_accepted:
        assert rotation_angle_deg(found.rotation, pair.rotation) < 1


def test_the_tolerance_of_learned_texture_is_in_pixels_of_the_matched_pictures() -> None:
    tele = replace(LENS, intrinsics=np.array([[3300, 0, 320], [0, 3300, 180], [0, 0, 1.0]]), image_size=(360, 640))
    assert tolerance(LENSES) == pytest.approx(0.75 * 2 / 1100)
    assert tolerance((LENS, tele)) == pytest.approx((0.75 * 2 / 1100 + 0.75 / 3300) / 2)


def source_of(*views: ViewTexture) -> TextureSource:
    source = TextureSource(
        cast(Any, SimpleNamespace(lenses=(LENS,) * len(views), settings=RegisterSettings(), of_views=tuple)),
        Evidence.LEARNED,
        is_quick=True,
    )
    vars(source).update(views=views, method=without_networks())
    return source


def test_common_texture_and_similar_learned_features_are_those_of_neighbours() -> None:
    one, other = make_pair(right=80, wrong=0), make_pair(right=80, wrong=0, seed=1)
    views = (*one.views, *other.views)
    for counts, most in ((common_texture(views, (LENS,) * 4), 4), (source_of(*views).affinity(), 0)):
        assert counts[0, 1] == counts[1, 0] == counts[2, 3] == 81
        assert counts[:2, 2:].max() <= most


@pytest.mark.parametrize(
    ("right", "are_alone", "others", "num_instants"),
    [
        (200, True, 0, MORE_INSTANTS),
        (300, False, 1, 2),
        (200, False, 1, MORE_INSTANTS),
        (5, False, 1, 2),
        (50, False, MAX_DENSE_VIEWS, 2),
    ],
)
def test_learned_features_of_more_instants_are_matched_near_lines_where_they_help(
    right: int, are_alone: bool, others: int, num_instants: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    extracted: list[object] = []

    def extract(_: object, views: Any, method: TextureMethod, *known: ViewTexture) -> tuple[ViewTexture]:
        extracted.append((*views, [len(view) for view in known]))
        return (make_pair(instants=method.max_instants).views[views[0]],)

    monkeypatch.setattr(TextureSource, "_extracted", extract)
    pair = make_pair(instants=2, right=right, wrong=0)
    source = source_of(*pair.views, *pair.views[:1] * others)
    for _ in range(2):
        pose = RelativePose(rotation=pair.rotation, direction=pair.direction)
        found = source.near((0, 1), LENSES, pose, are_alone=are_alone)
        assert len(np.unique(found.instants)) == num_instants
    assert extracted == ([] if num_instants == 2 else [(0, [2]), (1, [2])])


def test_a_best_pose_is_sought_in_more_matches_where_few_do_not_rule_it_out() -> None:
    many, few, fewer = (make_pair(right=number, wrong=0) for number in (200, 70, 45))
    for pair, best in ((few, 200), (fewer, None)):
        source = source_of(*pair.views)
        vars(source)["finer"] = source_of(*many.views)
        given = source.pair((0, 1), LENSES, RelativePose(rotation=pair.rotation, direction=pair.direction))
        assert given.score == pytest.approx(len(pair.views[0][0].points), abs=4)
        found = source.pair((0, 1), LENSES)
        assert (found and found.score) == (best and pytest.approx(best, abs=10))


def blobs(centres: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Return an image with bright blobs of 4 px at the given places, in pixels with centres at 0.5."""
    y, x = np.mgrid[: size[0], : size[1]] + 0.5
    image = np.full(size, 60.0)
    for cx, cy in centres:
        image += 150 * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / (2 * 4.0**2))
    return np.repeat(np.clip(image, 0, 255).astype(np.uint8)[..., None], 3, axis=2)


CENTRES = np.array([[40.25, 30.5], [120.5, 44.0], [70.0, 90.75], [150.0, 100.0]])


def write_scene(folder: Path, size: tuple[int, int] = (130, 190), frames: int = 2, factor: float = 1.0) -> Scene:
    for view in ("a", "b"):
        (folder / view).mkdir(parents=True)
        for frame in range(frames):
            Image.fromarray(blobs(CENTRES * factor, size)).save(folder / view / f"{frame}.png")
    return open_scene(folder)


def test_features_lie_on_pixel_centres_of_one_half(tmp_path: Path) -> None:
    scene = write_scene(tmp_path)
    for view in extract_texture(scene, [0], lenses_of(scene), ROOT_SIFT):
        distances = np.linalg.norm(view[0].points[None] - CENTRES[:, None], axis=-1)
        assert distances.min(axis=1).max() < 0.2


def test_features_that_repeat_over_instants_have_the_same_ids(tmp_path: Path) -> None:
    scene = write_scene(tmp_path)
    seen: list[tuple[int, int]] = []
    view = extract_texture(
        scene, [0, 1], lenses_of(scene), ROOT_SIFT, lambda done, total: seen.append((done, total))
    )[0]
    assert view[0].ids.tolist() == view[1].ids.tolist()
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_few_instants_are_used_however_long_the_capture_is(tmp_path: Path) -> None:
    scene = write_scene(tmp_path, frames=20)
    instants = sorted(extract_texture(scene, range(20), lenses_of(scene), ROOT_SIFT)[0])
    assert len(instants) == MAX_INSTANTS
    assert (instants[0], instants[-1]) == (0, 19)


def test_known_features_are_kept_and_those_of_other_instants_added(tmp_path: Path) -> None:
    scene = write_scene(tmp_path, frames=3)
    known = extract_texture(scene, [0, 2], lenses_of(scene), ROOT_SIFT)
    found = extract_texture(scene, range(3), lenses_of(scene), ROOT_SIFT, known=known)
    for before, after in zip(known, found, strict=True):
        assert sorted(after) == [0, 1, 2]
        assert all(after[instant] is before[instant] for instant in (0, 2))
        assert after[1].ids.tolist() == before[0].ids.tolist()


def test_excluded_pixels_have_no_features(tmp_path: Path) -> None:
    scene = write_scene(tmp_path / "rig")
    (tmp_path / "mask" / "a").mkdir(parents=True)
    mask = np.zeros((130, 190), np.uint8)
    mask[:, :95] = 255
    for name in ("0", "1"):
        Image.fromarray(mask).save(tmp_path / "mask" / "a" / f"{name}.png")
    source = probe_image_folder(tmp_path / "mask" / "a", fps=30, max_megapixels=1, grayscale=True)
    views = tuple(replace(view, mask=PairedFrames(frames=source, indices=(0, 1))) for view in scene.views)
    for meaning, left, right in ((MaskMeaning.IGNORE, False, True), (MaskMeaning.KEEP, True, False)):
        masked = replace(scene, views=views, mask_meaning=meaning)
        points = extract_texture(masked, [0], lenses_of(scene), ROOT_SIFT)[0][0].points
        assert bool((points[:, 0] < 90).any()) is left
        assert bool((points[:, 0] > 100).any()) is right


def test_black_frames_have_no_features(tmp_path: Path) -> None:
    for view in ("a", "b"):
        (tmp_path / view).mkdir()
        Image.new("RGB", (64, 48)).save(tmp_path / view / "0.png")
    scene = open_scene(tmp_path)
    for texture in extract_texture(scene, [0], lenses_of(scene), ROOT_SIFT):
        assert texture[0].points.shape == (0, 2)
    assert extract_texture(scene, [], lenses_of(scene), ROOT_SIFT)[0] == {}


def test_undistortion_inverts_the_lens(tmp_path: Path) -> None:
    scene = write_scene(tmp_path)
    distortion = Distortion(model=LensModel.BROWN_CONRADY, coefficients=(0.1, 0.02, 0.001, -0.002))
    lens = replace(lenses_of(scene)[0], distortion=distortion)
    ideal = undistorted_pixels(CENTRES, lens)
    focal, centre = lens.focal, lens.intrinsics[:2, 2]
    again = distortion.distort(torch.from_numpy((ideal - centre) / focal)).numpy() * focal + centre
    assert np.abs(ideal - CENTRES).max() > 0.05
    np.testing.assert_allclose(again, CENTRES, atol=1e-6)


def test_cross_attention_is_that_of_the_public_matcher() -> None:
    lightglue = pytest.importorskip("kornia.feature.lightglue", reason="kornia is not installed")
    torch.manual_seed(0)
    block = lightglue.CrossBlock(64, 4).eval()
    first, second = torch.randn(2, 50, 64), torch.randn(2, 70, 64)
    with torch.inference_mode():
        for found, expected in zip(cross_attention(block, first, second), block(first, second), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
