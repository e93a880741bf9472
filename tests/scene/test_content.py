"""Dead borders, frames that show nothing, and frames that repeat the previous one."""

from collections.abc import Callable

import cv2
import numpy as np
import pytest

from page4d.scene import content
from page4d.scene.content import Fault, SmallCopy, ViewContent, fault_of, fault_text, frame_faults, picture_area

SIZE = (120, 160)
RNG = np.random.default_rng(0)
ROWS = np.arange(SIZE[0])[:, None]


def textured(seed: int = 0, sigma: float = 1.2) -> np.ndarray:
    """Return a picture [H, W] with detail at all scales."""
    rng = np.random.default_rng(seed)
    layers = [cv2.GaussianBlur(rng.normal(0, 1, SIZE), (0, 0), sigma * 3**level) * 3**level for level in range(3)]
    picture = sum(layers, np.zeros(SIZE))
    return np.asarray(110 + 40 * picture / picture.std())


def encoded(picture: np.ndarray) -> np.ndarray:
    """Return gray pixels after lossy compression."""
    gray = np.clip(np.rint(picture), 0, 255).astype(np.uint8)
    return np.asarray(
        cv2.imdecode(cv2.imencode(".jpg", gray, [cv2.IMWRITE_JPEG_QUALITY, 80])[1], cv2.IMREAD_GRAYSCALE)
    )


def radius() -> np.ndarray:
    rows, columns = np.mgrid[: SIZE[0], : SIZE[1]] + 0.5
    return np.asarray(np.hypot(rows - SIZE[0] / 2, columns - SIZE[1] / 2))


def bars(top: int, bottom: int, left: int = 0, right: int = 0) -> np.ndarray:
    """Return where bars are."""
    dead = np.ones(SIZE, bool)
    dead[top : SIZE[0] - bottom, left : SIZE[1] - right] = False
    return dead


BORDERS = {
    "letterbox": (bars(20, 20), 0, 0),
    "letterbox of video black with noise": (bars(14, 14), 16, 1.5),
    "pillarbox": (bars(0, 0, 50, 50), 0, 0),
    "one bar": (bars(0, 18), 3, 0),
    "white frame": (bars(9, 9, 12, 12), 255, 0),
    "gray bars": (bars(20, 20), 128, 0.5),
    "image circle": (radius() > 58, 0, 1),
    "vignette mask": (radius() > 82, 2, 0),
}


@pytest.mark.parametrize("logo", [False, True])
@pytest.mark.parametrize("name", BORDERS)
def test_a_border_is_found_whatever_its_shape_level_and_noise(name: str, logo: bool) -> None:
    dead, level, noise = BORDERS[name]
    pictures = []
    for seed in range(3):
        picture = np.where(dead, level + RNG.normal(0, 1, SIZE) * noise, textured(seed))
        if logo and name.startswith("letterbox"):
            picture[3:7, 10:30] = 200
        pictures.append(encoded(picture))
    area = picture_area(pictures)
    assert (area & dead).sum() < 0.03 * area.sum()
    assert (area & ~dead).sum() > 0.9 * (~dead).sum()
    has_bars = ViewContent(area=area).between_bars is not None
    assert has_bars is name.startswith(("letterbox", "pillarbox", "one bar", "white", "gray"))


def test_dark_corners_are_a_border_without_bars() -> None:
    area = picture_area([encoded(np.where(radius() > 91, 2, textured(seed))) for seed in range(3)])
    assert area is not None
    assert ViewContent(area=area).between_bars is None


def skyline(level: float, share: float = 0.3) -> np.ndarray:
    """Return where a sky is, above roofs of several heights."""
    heights = (SIZE[0] * share * (0.6 + 0.8 * np.random.default_rng(1).random(8))).astype(int).repeat(SIZE[1] // 8)
    return np.where(np.arange(SIZE[0])[:, None] < heights, level, textured())


@pytest.mark.parametrize(
    "picture",
    [
        textured(),
        0.1 * textured(),
        180 + 0.1 * (textured() - 110),
        np.where(ROWS < 40, 12 + 0.12 * textured(), 9 + 2.5 * np.sin(np.arange(SIZE[1]) / 9)),  # a dark floor
        np.where(ROWS < 33, 25, 0.1 * textured()),  # the sky at dusk
        skyline(255),
        skyline(0),
        np.where(np.arange(SIZE[0])[:, None] < 40, 255, textured()),  # a white wall or table with a straight edge
        np.where(radius() < 25, textured(), 0),  # one lamp at night
        np.where((textured(5) > 130), textured(), 4),
        np.where(
            np.arange(SIZE[1]) < 120, 20 + 0.1 * textured(), np.linspace(15, 2, SIZE[0])[:, None]
        ),  # a dark door
        np.where(np.add.outer(np.arange(SIZE[0]) // 8, np.arange(SIZE[1])) < 140, textured(), 30),  # a slanted edge
    ],
)
def test_dark_bright_and_foggy_scenes_have_no_border(picture: np.ndarray) -> None:
    assert picture_area([encoded(picture + RNG.normal(0, 1, SIZE)) for _ in range(3)]) is None


@pytest.mark.parametrize("level", [2, 128, 245])
def test_people_who_walk_before_an_even_backdrop_have_no_border(level: int) -> None:
    pictures = []
    for start in np.linspace(26, 74, 12).astype(int):
        picture = level + RNG.normal(0, 0.7, SIZE)
        picture[8:112, start : start + 60] = textured()[8:112, :60]
        pictures.append(encoded(picture))
    assert picture_area(pictures) is None
    assert picture_area(pictures[:1]) is not None


USUAL = ViewContent(detail=0.2, saturated=0.0)
PICTURES: dict[str, tuple[np.ndarray, Fault | None]] = {
    "sharp": (textured(), None),
    "night": (0.08 * textured(), None),
    "fog": (180 + 0.1 * (textured() - 110), None),
    "slightly out of focus": (cv2.GaussianBlur(textured(), (0, 0), 0.8), None),
    "out of focus": (cv2.GaussianBlur(textured(), (0, 0), 6), Fault.BLURRED),
    "lens cap": (RNG.integers(0, 3, SIZE), Fault.BLACK),
    "video black": (np.full(SIZE, 16.0) + RNG.normal(0, 2, SIZE), Fault.BLACK),
    "gray": (127 + RNG.integers(0, 3, SIZE), Fault.FLAT),
    "white": (np.full(SIZE, 255.0), Fault.WHITE),
    "flash": (textured() + 170, Fault.WHITE),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_frame_without_content_is_named_and_a_dim_one_is_not(name: str) -> None:
    picture, fault = PICTURES[name]
    assert fault_of(encoded(picture), USUAL) is fault


def test_a_studio_that_is_always_white_is_not_overexposed() -> None:
    studio = np.where(radius() < 25, textured(), 255)
    assert fault_of(encoded(studio), USUAL) is Fault.WHITE
    assert fault_of(encoded(studio), ViewContent(detail=0.1, saturated=0.8)) is None


def copy_of(picture: np.ndarray) -> SmallCopy:
    gray = np.clip(np.rint(picture), 0, 255).astype(np.uint8)
    return SmallCopy(gray, gray)


def noisy(sigma: float) -> SmallCopy:
    return copy_of(textured() + np.random.default_rng().normal(0, sigma, SIZE))


def moving(place: int, sigma: float = 0.0) -> SmallCopy:
    picture = textured() + np.random.default_rng(place).normal(0, sigma, SIZE)
    picture[40:70, 10 + place : 40 + place] = textured(3)[:30, :30]
    return copy_of(picture)


def panned(place: int) -> SmallCopy:
    return copy_of(np.roll(textured(), 3 * place, axis=1))


STILL = copy_of(textured())
CHANGES = ViewContent(detail=0.2, changes=True)
SPECKS = RNG.random(SIZE) < 0.02
Pair = tuple[SmallCopy, SmallCopy]


@pytest.mark.parametrize(
    ("pairs", "usual", "repeated"),
    [
        ([(STILL, STILL)] * 3, USUAL, [False] * 3),  # a still scene, rendered without noise
        ([(STILL, STILL), (moving(0), moving(5)), (moving(1), moving(7))], USUAL, [True, False, False]),
        ([(STILL, copy_of(textured() + SPECKS)), (moving(0), moving(5))], USUAL, [True, False]),  # compressed again
        ([(noisy(2), noisy(2)), (moving(0, 2), moving(5, 2))], USUAL, [False, False]),  # sees nothing that moves
        ([(noisy(0.3), noisy(0.3)), (moving(0), moving(5))], USUAL, [False, False]),  # the same, averaged
        ([(STILL, STILL), (STILL, STILL), (moving(0), moving(5))], USUAL, [False] * 3),  # others see nothing either
        ([(STILL, STILL), (panned(0), panned(1))], USUAL, [False, False]),  # on a tripod next to a moving camera
        ([(STILL, STILL), (panned(0), panned(1))], CHANGES, [True, False]),  # frames of a moving camera, twice
    ],
)
def test_a_repeated_frame_is_told_from_a_still_scene_by_the_other_views(
    pairs: list[Pair], usual: ViewContent, repeated: list[bool]
) -> None:
    before, after = zip(*pairs, strict=True)
    assert frame_faults(after, None, [usual] * len(pairs)) == [None] * len(pairs)
    expected = [Fault.REPEATED if one else None for one in repeated]
    assert frame_faults(after, before, [usual] * len(pairs)) == expected


def test_the_work_per_frame_does_not_grow_with_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        return lambda picture, *rest: sizes.append(picture.size) or function(picture, *rest)

    monkeypatch.setattr(content, "fault_of", counted(content.fault_of))
    large = np.repeat(textured().astype(np.uint8)[..., None], 3, axis=2).repeat(9, axis=0).repeat(9, axis=1)
    copies = [content.small_copy(large)]
    assert frame_faults(copies, copies, [USUAL]) == [None]
    assert sizes == [128 * 96]


def test_instants_are_named_as_spans() -> None:
    text = fault_text(Fault.BLACK, {"a": [0, 1, 2], "b": [3], "c": [0, 1, 2, 7, 9]}, 10)
    assert text.endswith("a (instants 0 to 2), b (instant 3), c (instants 0 to 2, 7, 9)")
    assert fault_text(Fault.REPEATED, {"a": [0, 1]}, 2).endswith("a (all instants)")
