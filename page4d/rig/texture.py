"""Texture of the views of a rig: features of a few instants, RootSIFT or learned, and their matches."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float16, Int, UInt8
from numpy.typing import NDArray

from page4d.choices import MaskMeaning
from page4d.errors import Progress
from page4d.geometry.time_axis import spread_places
from page4d.rig.epipolar import RelativePose, in_front, normalized_points, sampson_errors, undistorted_pixels
from page4d.rig.records import Array, Evidence, Lens, no_progress
from page4d.scene.content import Area, gray_of, scaled_area
from page4d.scene.image_file import Image
from page4d.scene.images import resize
from page4d.scene.records import Scene, View
from page4d.scene.sidecar_values import marked_pixels

MAX_INSTANTS = 8
"""Instants of which RootSIFT is extracted: a static background repeats, and further instants add little."""

MAX_SIDE_PX = 1600
"""Long side at which RootSIFT is extracted; time and memory grow with its square."""

MAX_FEATURES = 4000
"""Features of one instant of a view, the strongest: 0.5 MB of descriptors."""

DESCRIPTOR_SCALE = 512.0
"""Factor of RootSIFT in 8 bits. Source: COLMAP, `FeatureDescriptorsToUnsignedByte`."""

_CONTRAST = 0.02
"""Contrast threshold of SIFT, half of OpenCV's default: rooms have weakly textured walls."""

_SAME_PX = 1.5
_SAME_COSINE = 0.9
"""Distance, in pixels of extraction, and similarity of descriptors up to which features of two instants are one."""


Ids = NDArray[np.int64]
Descriptors = UInt8[NDArray[np.uint8], "N 128"] | Float16[NDArray[np.float16], "N 128"]


@dataclass(frozen=True, kw_only=True)
class InstantTexture:
    """N features of one instant.

    `points` are undistorted original pixels, `pixels` those of the picture. `descriptors` are unit vectors times
    `DESCRIPTOR_SCALE`. Features of a view that repeat over instants have equal `ids`.
    """

    points: Float[Array, "N 2"]
    pixels: Float[Array, "N 2"]
    descriptors: Descriptors
    ids: Int[NDArray[np.int64], " N"]

    def first(self, count: int) -> "InstantTexture":
        """Return the first features, which are the strongest, numbered."""
        points, descriptors = self.points[:count], self.descriptors[:count]
        ids = np.arange(len(points))
        return InstantTexture(points=points, pixels=self.pixels[:count], descriptors=descriptors, ids=ids)


@dataclass(frozen=True, kw_only=True)
class TextureMethod:
    """How features are found and matched, and what their matches are worth.

    `detect` takes an RGB picture of at most `max_side_px`, and where features may lie, and returns points in its
    pixels. `match` returns places [K, 2] of matching features. `tolerance` is the Sampson error of an inlier in focal
    lengths; pairs need `min_distinct` distinct ones, and optical axes at most `max_axes_deg` apart. With
    `loops_confirm` a loop of three views accepts pairs with a small share of inliers. `weight` is that of a match in
    the adjustment.
    """

    evidence: Evidence
    max_instants: int
    max_side_px: int
    detect: Callable[[Image, Area | None], tuple[Array, Descriptors]]
    match: Callable[[InstantTexture, InstantTexture, tuple[Lens, Lens]], Ids]
    tolerance: Callable[[tuple[Lens, Lens]], float]
    min_distinct: int
    max_axes_deg: float = 180.0
    loops_confirm: bool = False
    weight: float = 1.0


ViewTexture = dict[int, InstantTexture]
"""Features of one view by instant: keys are instants of the scene, the same for all views of a rig."""


def extract_texture(
    scene: Scene,
    instants: Sequence[int],
    lenses: Sequence[Lens],
    method: TextureMethod,
    progress: Progress = no_progress,
    known: Sequence[ViewTexture] = (),
) -> tuple[ViewTexture, ...]:
    """Extract the features of all views at some of the given instants, spread over them, unless they are `known`.

    Pixels that masks exclude, or without content, have no features. One frame is in memory at a time. `progress` is
    called with the number of processed frames and their total.

    Raises:
        InputError: if a frame cannot be decoded.
    """
    chosen = sorted(set(instants))
    chosen = [chosen[place] for place in spread_places(len(chosen), method.max_instants)]
    total = len(chosen) * scene.num_views
    textures = []
    for number, (view, lens) in enumerate(zip(scene.views, lenses, strict=True)):
        step = partial(lambda done, count: progress(done + count, total), number * len(chosen))
        features = dict(known[number]) if known else {}
        textures.append(_view_texture(scene, view, lens, chosen, method, features, step))
    return tuple(textures)


def _view_texture(
    scene: Scene,
    view: View,
    lens: Lens,
    instants: list[int],
    method: TextureMethod,
    features: dict[int, InstantTexture],
    step: Callable[[int], None],
) -> ViewTexture:
    size = view.source.size
    scale = min(1.0, method.max_side_px / max(size))
    small = (max(1, round(size[0] * scale)), max(1, round(size[1] * scale)))
    excludes = view.mask is not None and scene.mask_meaning is not MaskMeaning.DYNAMIC
    area = None if view.content is None else view.content.area
    inside = None if area is None else scaled_area(area, small)
    with ExitStack() as stack:
        reader = stack.enter_context(view.source.open(small))
        masks = stack.enter_context(view.mask.frames.open()) if excludes and view.mask is not None else None
        for count, instant in enumerate(instants):
            if instant in features:
                continue
            (pixels,) = reader.read([view.indices[instant]])
            allowed = inside
            if masks is not None and view.mask is not None:
                (mask,) = masks.read([view.mask.indices[instant]])
                marked = resize(marked_pixels(mask).astype(np.uint8), small, nearest=True) > 0
                kept = marked == (scene.mask_meaning is MaskMeaning.KEEP)
                allowed = kept if inside is None else inside & kept
            found = _original(*method.detect(pixels, allowed), pixels.shape, lens)
            features[instant] = _with_ids(found, features, _SAME_PX / scale)
            step(count + 1)
    return features


def _root_sift(pixels: Image, allowed: Area | None) -> tuple[Array, Descriptors]:
    """Return RootSIFT features of RGB pixels, in the order of decreasing size.

    Source: Lowe (2004); Arandjelovic & Zisserman, "Three things everyone should know to improve object retrieval",
    CVPR 2012 (RootSIFT).
    """
    import cv2  # a local import keeps start-up short

    sift = cv2.SIFT.create(nfeatures=MAX_FEATURES, contrastThreshold=_CONTRAST, enable_precise_upscale=True)
    found, raw = sift.detectAndCompute(gray_of(pixels), None if allowed is None else allowed.astype(np.uint8))
    if raw is None or not len(found):
        return np.zeros((0, 2)), np.zeros((0, 128), np.uint8)
    largest = np.argsort([-keypoint.size for keypoint in found], kind="stable")[:MAX_FEATURES]
    found, raw = [found[place] for place in largest], raw[largest]
    share = raw / np.maximum(raw.sum(axis=1, keepdims=True), 1e-9)
    descriptors = np.clip(np.rint(DESCRIPTOR_SCALE * np.sqrt(share)), 0, 255).astype(np.uint8)
    # OpenCV's pixel centres are integers.
    return np.array([keypoint.pt for keypoint in found], dtype=np.float64) + 0.5, descriptors


def _original(points: Array, descriptors: Descriptors, shape: tuple[int, ...], lens: Lens) -> InstantTexture:
    """Return features of a picture of some shape in undistorted original pixels."""
    height, width = lens.image_size
    pixels = points * np.array([width / shape[1], height / shape[0]])
    points = undistorted_pixels(pixels, lens)
    exists = np.isfinite(points).all(axis=1)
    points, pixels, descriptors = points[exists], pixels[exists], descriptors[exists]
    # SIFT repeats a point for each of its orientations, which is one feature with several descriptors.
    ids = np.unique(points, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return InstantTexture(points=points, pixels=pixels, descriptors=descriptors, ids=ids)


def _with_ids(new: InstantTexture, known: dict[int, InstantTexture], radius_px: float) -> InstantTexture:
    """Give features that repeat one of an earlier instant its id, and all others ids of their own."""
    earlier = [texture for texture in known.values() if len(texture.points)]
    if not earlier or not len(new.points):
        return new
    from scipy.spatial import KDTree

    points = np.concatenate([texture.points for texture in earlier])
    ids = np.concatenate([texture.ids for texture in earlier])
    descriptors = np.concatenate([texture.descriptors for texture in earlier])
    _, nearest = KDTree(points).query(new.points, k=min(4, len(points)), distance_upper_bound=radius_px)
    nearest = nearest.reshape(len(new.points), -1)
    own = new.ids + int(ids.max()) + 1
    result = own.copy()
    for column in reversed(range(nearest.shape[1])):
        rows = np.flatnonzero(nearest[:, column] < len(points))
        pairs = new.descriptors[rows].astype(np.float32), descriptors[nearest[rows, column]].astype(np.float32)
        cosine = (pairs[0] * pairs[1]).sum(axis=1) / DESCRIPTOR_SCALE**2
        same = rows[cosine > _SAME_COSINE]
        result[same] = ids[nearest[same, column]]
    return replace(new, ids=result)


MAX_RATIO = 0.8
"""Largest ratio of the distances to the nearest and second-nearest descriptor. Source: Lowe (2004), section 7.1."""

WIDE_RATIO = 0.9
"""The same where their number shows how many are wrong: near epipolar lines, or of learned features."""

_FEW = 300
"""Features of a view that are compared with those of all other views, to choose pairs."""


def common_texture(
    views: Sequence[ViewTexture], lenses: Sequence[Lens], features: int = _FEW, ratio: float = MAX_RATIO
) -> Float[Array, "V V"]:
    """Return one more than the matches of some features of the first instant, per pair of views."""
    few = [next(iter(view.values())).first(features) for view in views]
    counts = np.ones((len(views),) * 2)
    for one, other in combinations(range(len(views)), 2):
        matches = _mutual(few[one], few[other], (lenses[one], lenses[other]), ratio=ratio)
        counts[one, other] = counts[other, one] = 1 + len(matches)
    return counts


_GRAPHICS_SHARE = 0.002
"""Distance, as a share of the long side, up to which matches are at one place: a logo and the time in the pictures of
`caliscope_a` give 350 inliers of poses that are 99 degrees wrong. Parallel cameras see what is far away there."""

_UNLIKE = np.float32(0.5)
"""Similarity of descriptors that do not compete, that of different features: a feature without another one near its
epipolar line has to pass the ratio test against it."""


_ROWS = 1024
"""Descriptors compared at once: bounds the table of similarities to 16 MB."""


@dataclass(frozen=True, kw_only=True)
class TextureMatches:
    """K matches of two views in undistorted original pixels of their lenses, over all common instants.

    `keys` number the distinct pairs of features: a static background repeats its matches at every instant.
    `tolerance` is the Sampson error of an inlier in focal lengths.
    """

    lenses: tuple[Lens, Lens]
    tolerance: float
    first: Float[Array, "K 2"]
    second: Float[Array, "K 2"]
    first_ids: Int[Ids, " K"]
    second_ids: Int[Ids, " K"]
    instants: Int[Ids, " K"]
    keys: Int[Ids, " K"]

    @cached_property
    def normalized(self) -> tuple[Float[Array, "K 2"], Float[Array, "K 2"]]:
        """Normalised image coordinates in both views."""
        return normalized_points(self.first, self.lenses[0]), normalized_points(self.second, self.lenses[1])

    def inliers(self, pose: RelativePose, scale: float = 1.0) -> Bool[NDArray[np.bool_], " K"]:
        """Return which matches agree with a pose within some tolerances, in front of both cameras."""
        near = np.abs(sampson_errors(pose.essential, *self.normalized)) < scale * self.tolerance
        return near & in_front(pose, *self.normalized)

    def select(self, kept: Bool[NDArray[np.bool_], " K"] | Ids) -> "TextureMatches":
        """Keep some matches."""
        return replace(self, **{column: getattr(self, column)[kept] for column in (*_COLUMNS, "keys")})

    def once(self, kept: Bool[NDArray[np.bool_], " K"]) -> Ids:
        """Return the places of some matches, each distinct one once."""
        _, places = np.unique(self.keys[kept], return_index=True)
        return np.flatnonzero(kept)[places].astype(np.int64)

    def num_distinct(self, kept: Bool[NDArray[np.bool_], " K"] | None = None) -> int:
        """Count matches once: one feature that matches several, or at several instants, is one."""
        sides = (self.first_ids, self.second_ids)
        return min(len(np.unique(ids if kept is None else ids[kept])) for ids in sides)

    def through(self, lenses: tuple[Lens, Lens], tolerance: float) -> "TextureMatches":
        """Return matches of features that were found before the distortion of unknown lenses was."""
        sides = []
        for pixels, lens in zip((self.first, self.second), lenses, strict=True):
            ideal = undistorted_pixels(pixels, lens) if lens.estimated_k1 else pixels
            sides.append(np.where(np.isfinite(ideal), ideal, pixels))
        return replace(self, lenses=lenses, tolerance=tolerance, first=sides[0], second=sides[1])


_COLUMNS = ("first", "second", "first_ids", "second_ids", "instants")


def match_textures(
    first: ViewTexture, second: ViewTexture, lenses: tuple[Lens, Lens], method: TextureMethod
) -> TextureMatches:
    """Return the matches at each instant that both views have, without those of graphics in the pictures."""
    none = np.zeros(0, dtype=np.int64)
    parts = [(np.zeros((0, 2)), np.zeros((0, 2)), none, none, none)]
    for instant in sorted(first.keys() & second.keys()):
        one, two = first[instant], second[instant]
        places = method.match(one, two, lenses)
        left, right = places[~_are_graphics(one.pixels[places[:, 0]], two.pixels[places[:, 1]], lenses)].T
        here = np.full(len(left), instant, dtype=np.int64)
        parts.append((one.points[left], two.points[right], one.ids[left], two.ids[right], here))
    columns: dict[str, Any] = dict(zip(_COLUMNS, map(np.concatenate, zip(*parts, strict=True)), strict=True))
    ids = np.stack([columns["first_ids"], columns["second_ids"]], axis=1)
    keys = np.unique(ids, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)
    return TextureMatches(lenses=lenses, tolerance=method.tolerance(lenses), keys=keys, **columns)


def _are_graphics(
    first: Float[Array, "K 2"], second: Float[Array, "K 2"], lenses: tuple[Lens, Lens]
) -> Bool[NDArray[np.bool_], " K"]:
    """Return which matches, in pixels of the pictures, are at one place in both: of a logo or a burned-in time.

    One place is at the same shares of width and height, or distances from a corner.
    """
    sizes = [np.array(lens.image_size[::-1]) for lens in lenses]
    scaled, apart = second * sizes[0] / sizes[1] - first, second - first
    limit = _GRAPHICS_SHARE * max(sizes[0])
    same, left, right = (np.abs(gap) < limit for gap in (scaled, apart, apart - (sizes[1] - sizes[0])))
    return np.asarray(same.all(1) | (left | right).all(1))


def match_near(
    first: ViewTexture, second: ViewTexture, lenses: tuple[Lens, Lens], pose: RelativePose, band: float
) -> TextureMatches:
    """Return matches of RootSIFT near the epipolar lines of a pose, at each instant that both views have.

    `band` is the largest Sampson error in focal lengths. A feature competes with those of its band alone, so that
    more match than in the whole picture.
    """

    def match(one: InstantTexture, two: InstantTexture, lenses: tuple[Lens, Lens]) -> Ids:
        plane = (normalized_points(side.points, lens) for side, lens in zip((one, two), lenses, strict=True))
        points, others = (np.insert(side, 2, 1, axis=1).astype(np.float32) for side in plane)
        essential = pose.essential.astype(np.float32)

        def near(rows: slice) -> Bool[NDArray[np.bool_], "n M"]:
            """Return where Sampson errors are below the band."""
            lines, other_lines = points[rows] @ essential.T, others @ essential
            squared = np.square(lines[:, :2]).sum(-1)[:, None] + np.square(other_lines[:, :2]).sum(-1)
            return np.asarray(np.square(lines @ others.T) < band**2 * squared)

        return _mutual(one, two, lenses, near, WIDE_RATIO)

    return match_textures(first, second, lenses, replace(ROOT_SIFT, match=match))


def _mutual(
    one: InstantTexture,
    two: InstantTexture,
    _lenses: tuple[Lens, Lens],
    near: Callable[[slice], Bool[NDArray[np.bool_], "n M"]] | None = None,
    ratio: float = MAX_RATIO,
) -> Ids:
    """Return the places [K, 2] of mutual nearest descriptors that pass the ratio test in the first view.

    `near` limits the features of the second view with which some of the first are compared.
    """
    first, second = one.descriptors, two.descriptors
    if len(first) < 2 or len(second) < 2:
        return np.zeros((0, 2), dtype=np.int64)
    target = second.astype(np.float32).T / np.float32(DESCRIPTOR_SCALE)
    nearest = np.empty(len(first), dtype=np.int64)
    passes = np.empty(len(first), dtype=bool)
    best_row = np.zeros(len(second), dtype=np.int64)
    best = np.full(len(second), -np.inf, dtype=np.float32)
    for start in range(0, len(first), _ROWS):
        similar = (first[start : start + _ROWS].astype(np.float32) / np.float32(DESCRIPTOR_SCALE)) @ target
        if near is not None:
            similar[~near(slice(start, start + _ROWS))] = _UNLIKE
        rows = np.arange(len(similar))
        nearest[start : start + _ROWS] = found = similar.argmax(axis=1)
        top, column = similar[rows, found], similar.max(axis=0)
        better = column > best
        best_row[better] = similar.argmax(axis=0)[better] + start
        best = np.maximum(best, column)
        similar[rows, found] = -np.inf
        # Squared distances of unit vectors are 2 - 2 cosine.
        passes[start : start + _ROWS] = 1 - top < ratio**2 * (1 - similar.max(axis=1))
    left = np.flatnonzero(passes & (best_row[nearest] == np.arange(len(first))))
    return np.stack([left, nearest[left]], axis=1)


TOLERANCE = 0.002
"""Sampson error of an inlier of RootSIFT: 3 px at 1450 px, the error of features and of a real calibration."""

MIN_DISTINCT = 60
"""Fewest distinct inliers: wrong poses of 96 synthetic and 15 measured pairs have up to 58.

A wrong pose with 58 was the same for all halves: its matches lie on one plane, which two poses explain.
"""

ROOT_SIFT = TextureMethod(
    evidence=Evidence.TEXTURE,
    max_instants=MAX_INSTANTS,
    max_side_px=MAX_SIDE_PX,
    detect=_root_sift,
    match=_mutual,
    tolerance=lambda _: TOLERANCE,
    min_distinct=MIN_DISTINCT,
    loops_confirm=True,
)
