"""Values of masks and measured depth, and the check that they leave something to reconstruct."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeGuard

import cv2
import numpy as np
from numpy.typing import NDArray

from page4d.choices import MaskMeaning
from page4d.conventions import Scale
from page4d.errors import InputError, Level, Notice, listed
from page4d.formats.maps import DEEPEST_LEVEL
from page4d.scene.image_file import Image, read_header
from page4d.scene.images import ImageFolderSource

if TYPE_CHECKING:
    from page4d.scene.records import FrameSource, PairedFrames, Scene, View

_LARGEST_HALF, _RENDERED_INFINITY = 65504.0, 1e9
"""Float depth that is none: the largest number of 16 bits, and the 1e10 of the background in Blender."""

_MAX_SAMPLES = 8
_SAMPLED_INSTANTS = 1000
"""Samples are spread over this many instants: decoding a whole video for its last frame would take too long."""

_NEARLY = 0.125
"""Share of the largest value up to which a pixel is nearly black, or nearly white."""

_MAX_GRAY_SHARE = 0.3
"""Maximum share of doubtful pixels: masks with soft edges have few."""

_LOSSY = ("jpg", "jpeg", "webp")
_MAX_LABELS, _MIN_SOLID = 100, 0.4
"""Maximum number of dark values of label maps, and minimum share of the pixels of a label within areas of it. Values
of soft edges are in no areas, and those of wide ones are more."""

_AROUND = np.ones((3, 3), dtype=np.uint8)

_IF_ALL_ARE_MARKED = {
    MaskMeaning.DYNAMIC: "everything moves",
    MaskMeaning.IGNORE: "everything is left out",
    MaskMeaning.KEEP: "nothing is left out",
}

_NEAREST_M, _FARTHEST_M, _FARTHEST_FLOAT_M = 0.01, 1000.0, 200.0
"""Range of the median depth of a view; float depth beyond is probably in millimetres."""

_MIN_FAR_SHARE = 0.02
"""Share of the readings at one distance, which is beyond twice all others, from which it is probably none."""


def marked_pixels(mask: Image) -> NDArray[np.bool_]:
    """Return the pixels [H, W] of a mask [H, W] or [H, W, 3] that exceed half of the maximum in any channel."""
    return _brightness(mask) > np.iinfo(mask.dtype).max // 2


def depth_levels(depth: Image) -> Image:
    """Return the levels [H, W] of a depth map [H, W], or [H, W, 3] with equal channels; 0 is unknown.

    Saturated levels, numbers that are not finite and negative ones are unknown, too.
    """
    flat = _one_channel(depth)
    return np.where(np.isfinite(flat) & (flat > 0) & ~_is_saturated(flat), flat, 0)


def _one_channel(depth: Image) -> Image:
    return depth if depth.ndim == 2 else depth[..., 0]


def _is_saturated(flat: Image) -> NDArray[np.bool_]:
    """Return where depth is the largest number of its file: beyond the range of the sensor, or missing."""
    if flat.dtype == np.uint16:
        return np.equal(flat, DEEPEST_LEVEL)
    is_largest: NDArray[np.bool_] = (flat == _LARGEST_HALF) | (flat >= _RENDERED_INFINITY)
    return is_largest & np.isfinite(flat)


def _brightness(mask: Image) -> Image:
    return mask if mask.ndim == 2 else np.asarray(mask.max(axis=2))


def check_masks(scene: "Scene") -> "Scene":
    """Sample the masks of all views, recognize label maps, and report masks without effect or without a pixel left.

    Raises:
        InputError: if the masks leave no pixel of any frame.
    """
    meaning = scene.mask_meaning
    samples = {view.name: _MaskSample.of(view.mask) for view in scene.views if view.mask is not None}
    label_notices = _label_notices(samples.values())
    if label_notices:
        scene = replace(scene, views=tuple(_with_labels(view) for view in scene.views))
        samples = {view.name: _MaskSample.of(view.mask) for view in scene.views if view.mask is not None}

    def leaves_none(mask: Image) -> bool:
        marked = marked_pixels(mask)
        return bool(marked.all()) if meaning is MaskMeaning.IGNORE else not marked.any()

    if meaning is not MaskMeaning.DYNAMIC and _is_true_everywhere([view.mask for view in scene.views], leaves_none):
        white = "ignores white" if meaning is MaskMeaning.IGNORE else "keeps only white"
        raise InputError(
            "the masks leave no pixel of any frame", f"⟨mask_meaning={meaning}⟩ {white} pixels: check the masks"
        )
    has_effect = any(sample.num_marked for sample in samples.values())
    found = [notice for name, sample in samples.items() for notice in sample.notices(name, meaning, has_effect)]
    return replace(scene, notices=(*scene.notices, *label_notices, *found))


def _label_notices(samples: "Iterable[_MaskSample]") -> list[Notice]:
    """Report label maps: few dark values fill areas, or a palette has colours."""
    dark = sum((sample.dark for sample in samples), Counter[int]())
    areas = sum((sample.areas for sample in samples), Counter[int]())
    solid = sorted(value for value, count in dark.items() if areas[value] >= _MIN_SOLID * count)
    if len(dark) <= _MAX_LABELS and 2 * len(solid) > len(dark):
        text = f"masks: label maps (values such as {listed(solid[:4])}): all pixels other than 0 are marked"
        return [Notice(text, Level.INFO if solid == [1] else Level.WARNING)]
    if any(sample.has_palette_colors for sample in samples):
        return [Notice("masks: label maps with a palette: all pixels other than black are marked", Level.INFO)]
    return []


def _is_exact(source: "FrameSource") -> TypeGuard[ImageFolderSource]:
    """Return whether masks are images whose values are not changed by compression."""
    return isinstance(source, ImageFolderSource) and source.codec not in _LOSSY


def _with_labels(view: "View") -> "View":
    if view.mask is None or not _is_exact(view.mask.frames):
        return view
    return replace(view, mask=replace(view.mask, frames=replace(view.mask.frames, labels=True)))


@dataclass(frozen=True)
class _MaskSample:
    """Some masks of a view: their number, how many have a marked pixel or only marked ones, and their brightness.

    `gray_share` is the share of pixels that are neither nearly black nor nearly white, `limit` the brightest value
    that is not marked. `dark` counts the pixels of lossless masks by brightness from 1 to the limit, `areas` those
    whose neighbours have the same value: evidence for label maps.
    """

    num_masks: int
    num_marked: int
    num_full: int
    brightest: int
    gray_share: float
    limit: int
    dark: Counter[int]
    areas: Counter[int]
    has_palette_colors: bool

    @staticmethod
    def of(paired: "PairedFrames") -> "_MaskSample":
        """Decode some masks of a view."""
        decoded = list(_decoded(paired, _places(paired)))
        masks = [_brightness(mask) for mask in decoded]
        white = int(np.iinfo(masks[0].dtype).max)
        gray = [((mask > white * _NEARLY) & (mask < white * (1 - _NEARLY))).mean() for mask in masks]
        marked = [marked_pixels(mask) for mask in masks]
        source, dark, areas = paired.frames, Counter[int](), Counter[int]()
        for mask, bright in zip(masks, marked, strict=True) if _is_exact(source) else ():
            is_dark = (mask > 0) & ~bright
            if is_dark.any():
                is_area = cv2.erode(mask, _AROUND) == cv2.dilate(mask, _AROUND)
                for counter, chosen in ((dark, is_dark), (areas, is_dark & is_area)):
                    counter.update(dict(enumerate(np.bincount(mask[chosen]).tolist())))
        has_colors = any(mask.ndim == 3 and (mask != mask[..., :1]).any() for mask in decoded)
        return _MaskSample(
            num_masks=len(masks),
            num_marked=sum(bool(one.any()) for one in marked),
            num_full=sum(bool(one.all()) for one in marked),
            brightest=max(int(mask.max()) for mask in masks),
            gray_share=float(np.mean(gray)),
            limit=white // 2,
            dark=dark,
            areas=areas,
            has_palette_colors=_is_exact(source) and has_colors and read_header(source.files[0]).has_palette,
        )

    def notices(self, view: str, meaning: MaskMeaning, has_effect: bool) -> Iterator[Notice]:
        """Report masks that mark nothing, everything or many doubtful pixels.

        `has_effect` is true if the masks of any view mark a pixel.
        """
        checked = f"masks of {view} ({self.num_masks} checked)"
        if not self.num_marked:
            text = f"{checked}: no pixel is marked; the brightest value is {self.brightest}, marked are those above"
            is_suspicious = self.brightest > 0 or not has_effect or meaning is MaskMeaning.KEEP
            yield Notice(f"{text} {self.limit}", Level.WARNING if is_suspicious else Level.INFO)
        elif self.num_full == self.num_masks:
            yield Notice(
                f"{checked}: every pixel is marked, {_IF_ALL_ARE_MARKED[meaning]} (⟨mask_meaning={meaning}⟩)"
            )
        elif self.gray_share > _MAX_GRAY_SHARE:
            yield Notice(
                f"{checked}: {self.gray_share:.0%} of the pixels are neither black nor white; are they masks?"
            )


def check_depth(scene: "Scene") -> tuple[Notice, ...]:
    """Sample the measured depth of all views and report maps without a reading, or with implausible ones.

    Raises:
        InputError: if no depth map has a reading.
    """
    if _is_true_everywhere([view.depth for view in scene.views], lambda depth: not depth_levels(depth).any()):
        raise InputError(
            f"no depth map has a reading: all values are 0 or {DEEPEST_LEVEL}",
            "write depth as 16-bit levels, 0 where unknown; ⟨depth_levels⟩ states the levels per unit",
        )
    notices: list[Notice] = []
    shares: dict[str, float] = {}
    for view in scene.views:
        if view.depth is not None:
            maps = [_one_channel(depth) for depth in _decoded(view.depth, _places(view.depth))]
            notices += _depth_notices(scene, view.name, maps)
            shares[view.name] = float(np.mean([_is_saturated(one).mean() for one in maps]))
    if saturated := [view for view, share in shares.items() if share]:
        share = 100 * np.mean([shares[view] for view in saturated])
        text = f"depth maps of {listed(saturated)}: {share:.2g} % of the pixels are saturated"
        notices.append(Notice(f"{text}: their value, the largest of the format, is read as missing"))
    if any(view.depth is not None and view.depth.is_float for view in scene.views):
        unit = "metre" if scene.scale is Scale.METRIC else "unit of the calibration"
        text = f"float depth maps: a value of {scene.depth_levels:g} is 1 {unit}; ⟨depth_levels⟩ states another scale"
        notices.append(Notice(text, Level.INFO))
    return tuple(notices)


def _depth_notices(scene: "Scene", view: str, maps: Sequence[Image]) -> Iterator[Notice]:
    levels = np.concatenate([known[known > 0] for known in map(depth_levels, maps)])
    if not levels.size:
        found = f"{DEEPEST_LEVEL} or 0" if any(_is_saturated(one).any() for one in maps) else "0"
        yield Notice(f"depth maps of {view} ({len(maps)} checked): all values are {found}")
        return
    largest = levels.max()
    below = levels[levels < largest].max(initial=0)
    share = float((levels == largest).mean())
    if share > _MIN_FAR_SHARE and 0 < below < largest / 2:
        found = f"{share:.0%} of the readings are {largest:g}, the others at most {below:g}"
        yield Notice(f"depth maps of {view}: {found}; write 0 if {largest:g} is no reading, such as the sky")
    is_levels = levels.dtype == np.uint16
    median = float(np.median(levels)) / scene.depth_levels
    farthest = _FARTHEST_M if is_levels else _FARTHEST_FLOAT_M
    if scene.scale is Scale.METRIC and not _NEAREST_M <= median <= farthest:
        yield Notice(f"the median depth of {view} is {median:.4g} m: check ⟨depth_levels⟩")


def _is_true_everywhere(paired: "Sequence[PairedFrames | None]", condition: Callable[[Image], bool]) -> bool:
    """Return whether a condition holds for every frame of every view; False if a view has no frames.

    Samples are tested first: all frames are decoded only if the condition holds for all samples.
    """
    known = [frames for frames in paired if frames is not None]
    if len(known) < len(paired):
        return False
    return all(
        condition(pixels)
        for places in (_places, lambda frames: range(len(frames.indices)))
        for frames in known
        for pixels in _decoded(frames, places(frames))
    )


def _places(paired: "PairedFrames") -> list[int]:
    count = min(len(paired.indices), _SAMPLED_INSTANTS)
    return [int(place) for place in np.unique(np.linspace(0, count - 1, min(count, _MAX_SAMPLES)).astype(int))]


def _decoded(paired: "PairedFrames", places: Sequence[int]) -> Iterator[Image]:
    with paired.frames.open() as reader:
        yield from reader.read([paired.indices[place] for place in places])
