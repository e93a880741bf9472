"""Frequent mistakes of calibrations, as hypotheses with corrected cameras."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from page4d.conventions import OPENGL_AXES
from page4d.errors import listed
from page4d.output.rig_record import Fault
from page4d.rig.records import RigCamera

_SCALES = (1 / 4, 1 / 3, 1 / 2, 2 / 3, 3 / 4, 4 / 3, 3 / 2, 2.0, 3.0, 4.0)
"""Usual ratios of image sizes: 720p, 1080p, 1440p and 2160p, and halves and thirds."""

_OPENGL = np.diag(OPENGL_AXES)
_LEFT_HANDED = np.diag([1.0, -1.0, 1.0, 1.0])
"""Camera and world of game engines, such as Unity's: x right, y up, z forward."""

MAX_CYCLE_VIEWS = 5
"""Views up to which exchanges of three cameras are tried too, and flipped pictures of those without texture."""

_LENS_FIX = (
    "use the calibration of these videos; if its file states the calibrated image size, pass ⟨calibration_resize={}⟩"
)
_POSE_FIX = "convert the poses to world-to-camera with the axes of OpenCV (x right, y down, z forward)"


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """Corrected cameras, what is wrong with those given for some views, and how to correct it.

    It is certain if it fits `certain_pairs` of these views or more, and not reported below one less.
    """

    fault: Fault = "convention"
    views: tuple[int, ...]
    cameras: tuple[RigCamera, ...]
    what: str
    fix: str
    focal_ratio: float = 1.0
    certain_pairs: int = 3


def common_mistakes(cameras: Sequence[RigCamera]) -> list[Hypothesis]:
    """Return corrections of frequent mistakes that concern all cameras."""
    return [*other_lenses(cameras), *_other_conventions(cameras)]


def other_lenses(cameras: Sequence[RigCamera]) -> list[Hypothesis]:
    """Return lenses of another image size, of a larger image, and with focal lengths that are wrong by a factor."""

    def seen(what: str, option: str, focal: float, center: float | None) -> Hypothesis:
        """Scale focal lengths and principal points, or move these to the centres."""
        moved = []
        for camera in cameras:
            matrix, size = camera.lens.intrinsics.copy(), np.array(camera.lens.image_size[::-1])
            matrix[:2, :2] *= focal
            matrix[:2, 2] = size / 2 if center is None else center * matrix[:2, 2]
            moved.append(replace(camera, lens=replace(camera.lens, intrinsics=matrix)))
        fix, views = _LENS_FIX.format(option), tuple(range(len(cameras)))
        return Hypothesis(views=views, cameras=tuple(moved), what=what, fix=fix, focal_ratio=focal)

    cut = "the principal points are those of a larger image, whose edges were cut off"
    found = [seen(cut, "crop-center", 1.0, None)]
    for scale in _SCALES:
        ratio = f"{scale:.2g}" if scale > 1 else f"1/{1 / scale:.2g}"
        sense, factor = "short" if scale > 1 else "long", f"{max(scale, 1 / scale):.2g}"
        size = f"the calibration is for images of another size ({ratio} of it is the size of the videos)"
        found.append(seen(size, "scale", scale, scale))
        found.append(seen(f"the focal lengths are too {sense} by a factor of about {factor}", "scale", scale, 1.0))
    return found


def _other_conventions(cameras: Sequence[RigCamera]) -> list[Hypothesis]:
    poses = np.stack([camera.world_to_camera for camera in cameras])
    inverse, views = np.linalg.inv(poses), tuple(range(len(cameras)))
    others = {
        "the poses are camera-to-world": inverse,
        "the camera axes are those of OpenGL (y up, z backward)": _OPENGL @ poses,
        "the poses are camera-to-world with the axes of OpenGL": _OPENGL @ inverse,
        "the poses are those of a left-handed system (y up)": _LEFT_HANDED @ poses @ _LEFT_HANDED,
        "the poses are camera-to-world in a left-handed system (y up)": _LEFT_HANDED @ inverse @ _LEFT_HANDED,
    }
    return [
        Hypothesis(
            views=views,
            cameras=tuple(replace(one, world_to_camera=pose) for one, pose in zip(cameras, moved, strict=True)),
            what=what,
            fix=_POSE_FIX,
        )
        for what, moved in others.items()
    ]


def mirrored(names: Sequence[str], cameras: Sequence[RigCamera], view: int) -> list[Hypothesis]:
    """Return mirrored pictures of a view, from left to right and upside down, as lenses of negative focal lengths."""
    found = []
    for axis, how, option in ((0, "mirrored", "hflip"), (1, "mirrored upside down", "vflip")):
        what = f"the pictures of {names[view]} are {how}"
        fix = f"mirror the video of {names[view]} back, for example: ffmpeg -i IN -vf {option} OUT.mp4"
        moved = flipped(cameras, view, axis)
        found.append(Hypothesis(fault="mirrored", views=(view,), cameras=moved, what=what, fix=fix, certain_pairs=2))
    return found


def flipped(cameras: Sequence[RigCamera], view: int, axis: int = 0) -> tuple[RigCamera, ...]:
    """Return cameras with the lens of the flipped pictures of a view, along x or y."""
    lens, flip = cameras[view].lens, np.eye(3)
    flip[axis, [axis, 2]] = -1, lens.image_size[1 - axis]
    other = replace(cameras[view], lens=replace(lens, intrinsics=flip @ lens.intrinsics))
    return (*cameras[:view], other, *cameras[view + 1 :])


def exchanges(names: Sequence[str], cameras: Sequence[RigCamera]) -> list[Hypothesis]:
    """Return the exchanges of two cameras, and of three in small rigs."""
    number = len(names)
    orders = [{a: b, b: a} for a, b in combinations(range(number), 2)]
    if number <= MAX_CYCLE_VIEWS:
        for a, b, c in combinations(range(number), 3):
            orders += [{a: b, b: c, c: a}, {a: c, b: a, c: b}]
    found = []
    for order in orders:
        named = listed([names[view] for view in sorted(order)], separator=" and ")
        renames = listed([f"{names[a]} has the camera of {names[b]}" for b, a in sorted(order.items())])
        found.append(
            Hypothesis(
                fault="swapped",
                views=tuple(sorted(order)),
                cameras=tuple(cameras[order.get(view, view)] for view in range(number)),
                what=f"{named} are swapped" if len(order) == 2 else f"{named} are exchanged ({renames})",
                fix="rename the cameras in the calibration, or the videos",
                certain_pairs=2,
            )
        )
    return found
