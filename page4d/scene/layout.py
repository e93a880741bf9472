"""Layout of a scene folder: which files are the pictures of which camera, and which are copies, chapters or maps.

Names decide where they are plain. A recording with the name of a copy is one if it has the original's first picture.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import cv2

from page4d.errors import InputError, Level, Notice, Page4DError, listed
from page4d.io.input_files import (
    CAMERA_NAME,
    CAMERA_WORD,
    DEFAULT_MAX_MEGAPIXELS,
    VIDEO_SUFFIXES,
    camera_in_name,
    check_pixels,
    composed,
    natural_key,
)
from page4d.scene.image_file import Image, image_name, read_header, read_pixels
from page4d.scene.images import IMAGE_SUFFIXES, files_with
from page4d.scene.probe import first_picture
from page4d.scene.stamps import stamps_of_names

SYSTEM_FOLDERS = frozenset(("__macosx", "@eadir", "$recycle.bin", "system volume information", "lost+found"))
SMALL_FOLDERS = frozenset("proxy proxies thmbnl thumbnails thumbs".split())
"""Folders in which cameras and editors keep small copies."""

DEPTH_WORDS = frozenset("depth depths depthmap depthmaps".split())
MASK_WORDS = frozenset("mask masks matte mattes".split())
_MAPS = (
    DEPTH_WORDS
    | MASK_WORDS
    | frozenset("disparity label labels seg segmented segmentation semantic semantics normals confidence fg".split())
)
_FULL_GRID = 0.9
_FEWEST_FRAMES = 10
"""Fewest images next to a video that are a recording of their own, such as its frames."""

_COPY, _COLORED = "copies of {}", "the colour images are {}"
MAPS = "depth maps or masks, read with ⟨depth⟩ and ⟨masks⟩"
_BOARDS = frozenset(
    "calib calibration checkerboard chessboard charuco intri intrinsic intrinsics extri extrinsic extrinsics".split()
)
_PHOTOS = frozenset("photo photos figure figures docs screenshot screenshots".split())
SHOWN = "named as a preview, or as composed of several views"
_OF_ALL = "(all|cam(era)?s|views?|videos?|images?|frames)*"
_PREVIEW = "previews?|thumb(nail)?s?|grid|mosaic|montage|collage|combined|merged|tiled|multiview|quad|sidebyside"
_SHOWN = re.compile(rf"{_OF_ALL}(({_PREVIEW}){_OF_ALL})+(\d+x\d+)?")
"""Names, without what separates words, of pictures composed of those of cameras, or made to look at them."""

_COLORS = frozenset("color colors colour colours rgb".split())
_OTHER_LIGHT = frozenset("ir infra infrared nir swir lwir thermal uv mono gray grey event events".split())
"""Words in the names of what other sensors of a camera record."""

_REDUCED = frozenset(
    "proxy half quarter eighth lowres lores preview thumb thumbnail resized downsampled downscaled reduced".split()
)
"""Words in the names of recordings that are no cameras if there is a larger one with the rest of the name."""

_COPIES = _REDUCED | frozenset(
    "small low copy backup h264 h265 hevc prores converted transcoded compressed 2x 4x 8x 16x x2 x4 x8 x16 "
    "270p 360p 480p 540p 720p 1080p".split()
)
"""Words in the names of recordings that are no cameras if they show what another one shows."""

_DERIVED = frozenset(
    "undistorted undist rectified corrected stabilized stabilised synced synchronized trimmed trim cropped edited "
    "graded denoised annotated labeled alpha".split()
)
"""Words in the names of recordings that are made of the one with the rest of the name."""

_MARK = re.compile(r"(?<=\d{4})S\d\d$|(?<![A-Za-z])GL(?=\d{6})|^LRV(?=_\d{8}_)|(?<=^IMG_)E(?=\d{4})")
"""Marks of copies: C0001S03, GL010123 and LRV_20240501_123015_11_001 (proxies of Sony, GoPro and Insta360), and
IMG_E0001 (edited on an iPhone)."""

_MODE = re.compile(r"(?<![A-Za-z])G[HX](?=\d{6})|^VID(?=_\d{8}_)|(?<=_\d{6})_\d\d(?=_\d{3}$)")
"""Codecs (GoPro) and lenses (Insta360) in names, which differ between a recording and its proxy."""

_ONE_CAMERA = re.compile(
    r"(?:take|scene|session|trial|shot|seq|sequence)[ _.-]*\d{1,4}|train|test|val", re.IGNORECASE
)
"""Names of recordings at different times, or of parts of a data set."""

_ONE_TAKE, _OTHER_TAKE = 1.02, 1.1
"""Ratio of lengths up to which recordings may be of one take, and from which some are of another one."""

_DIVISORS = frozenset("2 4 8 16".split())
_FRAMES = frozenset("frames images image imgs extracted mp4 mov avi mkv video".split())
_NO_CAMERAS = (
    _COPIES | _DERIVED | _DIVISORS | _FRAMES | frozenset("1x x1 full orig original high 1440p 2160p 4k".split())
)
"""Words that distinguish no cameras where there are copies: nerfstudio's `images_2` has half the size of `images`."""

_SAME_PICTURE = 0.9
"""Minimum correlation of a picture with its copy, at half the size of the smaller one. Measured on 8 captures:
copies (1/2 to 1/8 of the size without averaging, JPEG quality 10) at least 0.92, other cameras at most 0.84."""

HOLDERS = re.compile(
    r"images?|imgs|frames|videos?|pictures|photos|footage|clips|raw|data|colou?r|rgb"
    r"|(takes?|scenes?|sessions?|trials?|shots?|seq|sequences?)[ _.-]*\w{0,4}",
    re.IGNORECASE,
)
"""Names of folders that hold recordings of all cameras, or of one at different times."""

_INSTANT = re.compile(r"(frames?|time|timestep|step|instant|moment|tick)[ _.-]*[\d_.:-]*\d", re.IGNORECASE)
_NUMBER = re.compile(r"[abd-jl-uw-z]?[\d_.:-]*\d", re.IGNORECASE)
_SERIAL = re.compile(r"[1-9]\d{7,}")
_FRAME_NUMBER = re.compile(rf"({CAMERA_WORD}\d+)|\d+(?:[.,]\d+)*", re.IGNORECASE)
_WORD = re.compile(r"\d+[xpkK]?(?![A-Za-z])|[A-Z]?[a-z]+\d*|[A-Z]+\d*(?![a-z])|\d+")

_CHAPTER = re.compile(
    r"(?P<of>.*(?<![a-z])g)(?:opr|(?P<letter>[a-z])(?P<gopro>\d\d))(?P<more>\d{4}(?:\D.*)?)"
    r"|(?P<dji>dji_\d{4})_(?P<segment>\d{3})"
    r"|(?P<name>.+?)[ _.-]*(?<![a-z])(?:part|pt)[ _.-]*(?P<part>\d{1,3})"
)
"""Names of chapters, which a camera begins when a file has 4 GB: GOPR0553, GP010553, GP020553; GX010123, GX020123.

Source: GoPro, "Camera File Naming Convention"; merge_gopro_videos (README, DJI_1234_001, DJI_1234_002).
"""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A video file, or the images `files` in natural order, that may be used as a view.

    The images lie in one folder, or in one folder per instant. `label` is the place in the scene, for messages.
    """

    name: str
    path: Path
    label: str
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LeftOut:
    """A candidate that is used only if it is selected by name: what it is, and of which views."""

    candidate: Candidate
    kind: str
    view: str = ""
    level: Level = Level.WARNING


def notices_of(left: Iterable[LeftOut]) -> list[Notice]:
    """Report what is left out, in one line per kind."""
    groups: dict[tuple[str, Level], list[LeftOut]] = defaultdict(list)
    for one in left:
        groups[one.kind, one.level].append(one)
    notices = []
    for (kind, level), group in groups.items():
        views = listed(dict.fromkeys(one.view for one in group if one.view))
        labels = listed([one.candidate.label for one in group])
        notices.append(Notice(f"left out {labels}: {kind.format(views)}", level))
    return notices


def are_takes(below: Sequence[Candidate]) -> bool:
    """Return whether recordings in folders of one each are those of one camera, by their common name such as cam1."""
    names = {candidate.path.stem for candidate in below}
    is_camera = all(CAMERA_NAME.fullmatch(name) for name in names)
    return len(names) == 1 and is_camera and not any(CAMERA_NAME.fullmatch(candidate.name) for candidate in below)


def takes_notice(chosen: Sequence[Candidate], lengths: Sequence[float]) -> tuple[Notice, ...]:
    """Warn of views named as takes, as parts of a data set, or, if their lengths agree, as several takes of a rig."""
    takes = [candidate.label for candidate in chosen if _ONE_CAMERA.fullmatch(candidate.name)]
    if len(takes) > 1:
        text = "named as takes or parts of a data set, used as cameras that record at the same time"
        return (Notice(f"{listed(takes)}: {text}"),)
    for parts in (r"(?P<take>.+)[ _.-](?P<camera>[^ _.-]+)", r"(?P<camera>[^ _.-]+)[ _.-](?P<take>.+)"):
        rig: dict[str, dict[str, float]] = defaultdict(dict)
        for candidate, length in zip(chosen, lengths, strict=True):
            if match := re.fullmatch(parts, candidate.name):
                rig[match["take"]][match["camera"]] = length
        cameras = [*rig.values()]
        is_grid = len(rig) > 1 and all({*take} == {*cameras[0]} for take in cameras) and len(cameras[0]) > 1
        if not is_grid or sum(map(len, cameras)) < len(chosen):
            continue
        if all(max(take.values()) <= _ONE_TAKE * min(take.values()) for take in cameras) and (
            max(lengths) > _OTHER_TAKE * min(lengths)
        ):
            text = f"by names and lengths takes of the cameras {listed(cameras[0])}, used as cameras of their own"
            return (Notice(f"{listed(rig)}: {text}; select those of one take with ⟨views⟩"),)
    return ()


def is_no_camera(name: str) -> bool:
    """Return whether a folder is named as one of maps or images of a calibration."""
    return bool(_words(name) & (_MAPS | _BOARDS))


def is_shown(name: str) -> bool:
    """Return whether a name is that of a preview, as `all_cameras_grid` and `preview 2x2`; `grid1` is a camera."""
    return _SHOWN.fullmatch(re.sub(r"[\W_]", "", name.lower())) is not None


def image_view(folder: Path, label: str, suffixes: frozenset[str] = IMAGE_SUFFIXES) -> Candidate | None:
    """Return the images of a folder; None if it has none, or few that are no maps next to a video."""
    images = images_in(folder, label, suffixes)
    frames = [file for file in images.files if not _words(file.stem) & _MAPS] if images else []
    return None if len(frames) < _FEWEST_FRAMES and files_with(folder, VIDEO_SUFFIXES) else images


def images_in(folder: Path, label: str, suffixes: frozenset[str]) -> Candidate | None:
    """Return the images of a folder, whatever is next to them; None if it has none."""
    files = tuple(files_with(folder, suffixes))
    return Candidate(name=composed(folder.name), path=folder, label=f"{label}/", files=files) if files else None


def left_beside(candidate: Candidate, scene: Path) -> list[LeftOut]:
    """Return the videos in the folder of images, or the photos in that of a video, if it is below the scene."""
    folder = candidate.path if candidate.files else candidate.path.parent
    if folder == scene or not folder.is_dir():
        return []
    suffixes = VIDEO_SUFFIXES if candidate.files else IMAGE_SUFFIXES
    kind = "videos next to images, which are used" if candidate.files else "photos next to a video"
    place = candidate.label.rpartition("/")[0]
    labels = {f"{place}/{file.name}": file for file in files_with(folder, suffixes)}
    beside = [Candidate(name=label, path=file, label=label) for label, file in labels.items()]
    return [
        LeftOut(candidate=each, kind=MAPS, level=Level.INFO)
        if _words(each.path.stem) & _MAPS
        else LeftOut(candidate=each, kind=kind)
        for each in beside
    ]


def recordings_below(folder: Path) -> tuple[list[Candidate], list[LeftOut]]:
    """Return the videos and image folders below a folder without images; if it is one, it has the folder's name."""
    kept, left = cameras_alone(list(_below(folder, folder.name)))
    colored = [candidate for candidate in kept if _words(candidate.label.removeprefix(folder.name)) & _COLORS]
    if len(kept) > 1 and len(colored) == 1:
        others = [candidate for candidate in kept if candidate not in colored]
        left += [LeftOut(candidate=other, kind=_COLORED, view=colored[0].label) for other in others]
        kept = colored
    return ([replace(kept[0], name=composed(folder.name))] if len(kept) == 1 else kept), left


def maps_below(folder: Path, name: str, words: frozenset[str], suffixes: frozenset[str]) -> list[Candidate]:
    """Return the series with one of `words` in their names in the folder of a camera, or below it."""
    if (images := images_in(folder, name, suffixes)) is None:
        return [each for each in _below(folder, name, suffixes) if _words(each.label.removeprefix(name)) & words]
    files = {key: of for key, of in _series(images).items() if _words(key) & words}
    return [replace(images, label=f"{images.label}{key}", files=tuple(of)) for key, of in files.items()]


def _below(
    folder: Path, label: str, suffixes: frozenset[str] = IMAGE_SUFFIXES, depth: int = 4
) -> Iterator[Candidate]:
    """Yield the recordings below a folder, such as those in DCIM/100GOPRO of a memory card."""
    for entry in sorted(folder.iterdir(), key=lambda path: natural_key(path.name)):
        place = f"{label}/{entry.name}"
        if entry.name.startswith(".") or entry.name.lower() in SYSTEM_FOLDERS | SMALL_FOLDERS:
            continue
        if not entry.is_dir():
            if entry.suffix.lower() in VIDEO_SUFFIXES:
                yield Candidate(name=composed(entry.stem), path=entry, label=place)
        elif images := image_view(entry, place, suffixes):
            yield images
        elif depth:
            yield from _below(entry, place, suffixes, depth - 1)


def _words(name: str) -> frozenset[str]:
    """Return the words of a name in lower case, with and without the numbers that follow them."""
    words = [word.lower() for word in _WORD.findall(name)]
    return frozenset((*words, *(re.sub(r"(?<=[a-z])\d+$", "", word) for word in words)))


def one_series(candidate: Candidate) -> tuple[Candidate, list[LeftOut]]:
    """Keep the pictures of a folder that holds series of several kinds, such as `*.color.png` and `*.depth.png`.

    Raises:
        InputError: if no series is plainly that of the pictures.
    """
    left = []
    of_stems = _originals([file.stem for file in candidate.files])
    if 2 * len(of_stems) < len(candidate.files):  # else numbers of frames: "a (1)", "a (2)"
        labels = {file: candidate.label + file.name for file in candidate.files if file.stem in of_stems}
        copies = [Candidate(name=label, path=file, label=label) for file, label in labels.items()]
        left = [LeftOut(candidate=copy, kind=_COPY, view=of_stems[copy.path.stem]) for copy in copies]
        candidate = replace(candidate, files=tuple(file for file in candidate.files if file not in labels))
    series = _series(candidate)
    for key, files in series.items():
        if grid := _grid(files):
            raise InputError(
                f"{candidate.label}{key}: names with {grid[0]} x {grid[1]} numbers, as of cameras and instants",
                "put every camera into a folder of its own, or give the images of one camera one number each",
            )
    if len(series) < 2:
        return candidate, left
    pictures = [key for key in series if not _words(key) & (_MAPS | _REDUCED)] or list(series)
    largest = max(pictures, key=lambda key: len(series[key]))
    single = [key for key in pictures if "*" not in key and len(series[largest]) > 1]
    pictures = [key for key in pictures if key not in single]
    rivals = [key for key in pictures if key == largest or _share_numbers(series[key], series[largest])]
    colored = [key for key in rivals if _words(key) & _COLORS]
    if len(rivals) > 1 and len(colored) != 1:
        found = listed([f"{key} ({len(series[key])})" for key in rivals], 4)
        raise InputError(
            f"{candidate.label} holds several series of images: {found}",
            (f"give '{candidate.path}' as the scene, or " if cameras_in_names(candidate)[0] else "")
            + "put every series into a folder of its own: all images of a folder are the frames of one view",
        )
    used = [key for key in pictures if key not in rivals or len(rivals) == 1 or key in colored]
    for key in [key for key in series if key not in used]:
        label = candidate.label + key
        other = Candidate(name=label, path=candidate.path, label=label, files=tuple(series[key]))
        if key in single:
            left.append(LeftOut(candidate=other, kind="no frame number, unlike the others"))
        elif _words(key) & _MAPS:
            left.append(LeftOut(candidate=other, kind=MAPS, level=Level.INFO))
        else:
            kind, of = (_COPY, largest) if _words(key) & _REDUCED else (_COLORED, colored[0])
            left.append(LeftOut(candidate=other, kind=kind, view=candidate.label + of))
    chosen = {file for key in used for file in series[key]}
    return replace(candidate, files=tuple(file for file in candidate.files if file in chosen)), left


def _series(candidate: Candidate) -> dict[str, list[Path]]:
    """Return the images by their names with a * for the frame number: all numbers but those of cameras.

    Of two numbers, the last one is the frame number if it has three digits or more, as in `0_00012.png`.
    """
    series: dict[str, list[Path]] = defaultdict(list)
    for file in candidate.files:
        first = re.match(r"\D*\d+\D+(?=\d{3,}$)", file.stem)
        start = first.end() if first else 0
        key = file.stem[:start] + _FRAME_NUMBER.sub(lambda match: match[1] or "*", file.stem[start:])
        series[key + file.suffix.lower().replace("jpeg", "jpg")].append(file)
    return series


def _grid(files: Sequence[Path]) -> tuple[int, int] | None:
    """Return the counts of two numbers in names if almost all combinations exist: `00012_03.png`, `00012_04.png`."""
    found = [[match[0] for match in _FRAME_NUMBER.finditer(file.stem)] for file in files]
    columns = [len(set(column)) for column in zip(*found, strict=True)] if len({*map(len, found)}) == 1 else []
    sizes = [count for count in columns if count > 1]
    if len(sizes) != 2 or len(files) < _FULL_GRID * sizes[0] * sizes[1]:
        return None
    return None if stamps_of_names([[file.stem for file in files]]) != [None] else (sizes[0], sizes[1])


def _share_numbers(files: Sequence[Path], others: Sequence[Path]) -> bool:
    """Return whether half of the frame numbers of one of two series are those of the other."""
    numbers, taken = (
        {tuple(match[0] for match in _FRAME_NUMBER.finditer(file.stem) if not match[1])[-1:] for file in of} - {()}
        for of in (files, others)
    )
    return len(numbers) > 1 and 2 * len(numbers & taken) >= min(len(numbers), len(taken))


def cameras_in_names(images: Candidate) -> tuple[list[Candidate], list[LeftOut]]:
    """Return a view per camera that the names of a folder's images have, as in `cam0_0001.png`; none if unclear."""
    series = _series(images)
    pictures = [key for key in series if not _words(key) & _MAPS]
    pictures = [key for key in pictures if _words(key) & _COLORS] or pictures
    cameras = [camera_in_name(key) for key in pictures]
    if len({*cameras}) < max(2, len(pictures)) or None in cameras or any(_grid(series[key]) for key in pictures):
        return [], []

    def view(key: str, name: str) -> Candidate:
        label = images.label + key
        return Candidate(name=name, path=images.path / name, label=label, files=tuple(series[key]))

    views = [view(key, str(camera)) for key, camera in zip(pictures, cameras, strict=True)]
    kinds = {key: MAPS if _words(key) & _MAPS else "without colour" for key in series if key not in pictures}
    left = [LeftOut(candidate=view(key, key), kind=kind, level=Level.INFO) for key, kind in kinds.items()]
    return sorted(views, key=lambda each: natural_key(each.name)), left


def cameras_alone(candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[LeftOut]]:
    """Leave out maps, pictures of a calibration, copies of recordings, and all chapters of a recording but the first.

    They are kept where there is nothing else.
    """
    kept, left = list(candidates), []
    rules: tuple[tuple[Callable[[Candidate], object], str, Level], ...] = (
        (lambda each: _words(each.label) & _MAPS, MAPS, Level.INFO),
        (lambda each: _words(each.label) & _BOARDS, "images of a calibration", Level.WARNING),
        (lambda each: each.files and _words(each.label) & _PHOTOS, "named as photos or figures", Level.WARNING),
        (lambda each: is_shown(each.name), SHOWN, Level.WARNING),
    )
    for is_named, kind, level in rules:
        named = [candidate for candidate in kept if is_named(candidate)]
        if len(named) < len(kept):
            left += [LeftOut(candidate=candidate, kind=kind, level=level) for candidate in named]
            kept = [candidate for candidate in kept if candidate not in named]
    singles = [candidate for candidate in kept if len(candidate.files) == 1]
    if len(singles) < len(kept):
        left += [LeftOut(candidate=candidate, kind="a single image") for candidate in singles]
        kept = [candidate for candidate in kept if candidate not in singles]
    for find in (_other_light, _copies, _images_of_views, _later_chapters):
        found = find(kept)
        left += found
        kept = [candidate for candidate in kept if candidate not in [one.candidate for one in found]]
    return kept, left


def _images_of_views(candidates: Sequence[Candidate]) -> list[LeftOut]:
    """Find folders with an image per view, such as `background/cam1.png`."""
    left = []
    for images in (candidate for candidate in candidates if candidate.files):
        others = [each.name for each in candidates if each is not images and not each.name.isdecimal()]
        stems = [file.stem for file in images.files]
        shown = [name for name in others if any(stem == name or _is_longer(stem, name) for stem in stems)]
        if len(shown) > 1 and len(stems) <= 2 * len(shown):
            left.append(LeftOut(candidate=images, kind="images of several views"))
    return left


def _other_light(candidates: Sequence[Candidate]) -> list[LeftOut]:
    """Find recordings of other sensors of cameras whose colour is recorded: `cam0_ir` next to `cam0_rgb`."""
    words = {each.label: {*_camera_words(each.name)} for each in candidates}
    dark = [each for each in candidates if _words(each.name) & _OTHER_LIGHT]
    left = []
    for candidate in dark:
        own = {word for word in words[candidate.label] if not _words(word) & _OTHER_LIGHT}
        colored = (each for each in candidates if each not in dark and set() < words[each.label] - _COLORS <= own)
        left += [LeftOut(candidate=candidate, kind=_COLORED, view=each.label) for each in islice(colored, 1)]
    return left


def _originals(names: Iterable[str]) -> dict[str, str]:
    """Return the names of copies that file managers made, and those of their originals."""
    own = set(names)
    return {name: match[1] for name in names if (match := _DUPLICATE.fullmatch(name)) and match[1] in own}


_DUPLICATE = re.compile(r"(.+?)(?: ?\(\d\)| - copy| copy)(?: \d+| \(\d+\))?", re.IGNORECASE)


def _copies(candidates: Sequence[Candidate]) -> list[LeftOut]:
    """Find images of a video with their name, and recordings with the name and the first picture of a larger one."""
    groups: dict[tuple[str, ...], list[Candidate]] = defaultdict(list)
    repeated = _originals([candidate.name for candidate in candidates]) | _longer(candidates)
    for candidate in candidates:
        groups[_camera_words(repeated.get(candidate.name, candidate.name))].append(candidate)
    left = []
    for group in groups.values():
        videos = [candidate for candidate in group if not candidate.files]
        images = [
            candidate
            for candidate in group
            if videos and candidate.files and not _words(candidate.name) & _NO_CAMERAS - _FRAMES
        ]
        left += [LeftOut(candidate=candidate, kind="images of {}", view=videos[0].label) for candidate in images]
        others = [candidate for candidate in group if candidate not in images]
        named = [
            candidate
            for candidate in others
            if candidate.name in repeated
            or _words(candidate.name) & (_COPIES | _DERIVED)
            or _MARK.search(candidate.name)
        ]
        # Without such a name, as in cam2, cam4 and cam8, the original has no divisor: images, images_2 and images_4.
        if len(others) > 1 and (named or not all(_words(candidate.name) & _DIVISORS for candidate in others)):
            left += _smaller(others, named)
    return left


def _longer(candidates: Sequence[Candidate]) -> dict[str, str]:
    """Return the names of videos that begin with that of another one and a word, and that name.

    Outputs of programs have such names: `cam1_pose`, `cam1DLC_resnet50_labeled`.
    """
    names = sorted((candidate.name for candidate in candidates if not candidate.files), key=len)
    bases = ((name, next((base for base in names if _is_longer(name, base)), None)) for name in names)
    return {name: base for name, base in bases if base is not None}


def _is_longer(name: str, base: str) -> bool:
    return name.startswith(base) and re.match(r"[ _.-]*[^\W\d_]{3}", name[len(base) :]) is not None


def _camera_words(name: str) -> tuple[str, ...]:
    """Return the words of a name without those of copies."""
    words = [word.lower() for word in _WORD.findall(_MODE.sub("", _MARK.sub("", name)))]
    return tuple(word for word in words if word not in _NO_CAMERAS)


def _smaller(group: Sequence[Candidate], named: Sequence[Candidate]) -> list[LeftOut]:
    """Return those with fewer pixels than the largest one, or names of copies, that show what it shows."""
    try:
        pictures = {candidate.label: _first_picture(candidate) for candidate in group}
    except Page4DError:  # reported when it is opened as a view
        return []
    sizes = {label: picture.shape[0] * picture.shape[1] for label, picture in pictures.items()}

    def rank(candidate: Candidate) -> tuple[bool, int, bool]:
        is_output = candidate in named and not (_words(candidate.name) & _NO_CAMERAS or _MARK.search(candidate.name))
        return not is_output, sizes[candidate.label], candidate not in named

    original = max(group, key=rank)

    def is_copy(candidate: Candidate) -> bool:
        is_smaller = sizes[candidate.label] < sizes[original.label]
        words = _words(candidate.name)
        if (is_smaller and (words & _REDUCED or _MARK.search(candidate.name))) or (
            candidate in named and words & _DERIVED
        ):
            return True
        may_be = is_smaller or candidate in named or candidate.name == original.name
        return may_be and _show_the_same(pictures[candidate.label], pictures[original.label])

    copies = [candidate for candidate in group if candidate is not original and is_copy(candidate)]
    return [LeftOut(candidate=candidate, kind=_COPY, view=original.label) for candidate in copies]


def _first_picture(candidate: Candidate) -> Image:
    if not candidate.files:
        return first_picture(candidate.path)
    file = candidate.files[0]
    size = read_header(file).size
    check_pixels(image_name(file), size[1], size[0], DEFAULT_MAX_MEGAPIXELS)
    return read_pixels(file, size)


def _show_the_same(picture: Image, original: Image) -> bool:
    """Compare pictures by the correlation of their gray levels; those without contrast are equal."""
    height, width = picture.shape[:2]
    if abs(width / height / (original.shape[1] / original.shape[0]) - 1) > 0.02:
        return False
    size = (max(width // 2, 1), max(height // 2, 1))
    gray = [cv2.resize(image, size, interpolation=cv2.INTER_AREA).mean(axis=2) for image in (picture, original)]
    first, second = (values - values.mean() for values in gray)
    energy = float((first**2).sum() * (second**2).sum()) ** 0.5
    return bool(energy == 0 or (first * second).sum() > _SAME_PICTURE * energy)


class _Chapter(NamedTuple):
    """The recording of a chapter, the number in it from 0, and whether its name is one that a user gave to parts."""

    folder: str
    recording: tuple[str | None, ...]
    number: int
    is_named: bool


def _chapter(candidate: Candidate) -> _Chapter | None:
    """Return the chapter of a recording that a name denotes; None for other names."""
    match = _CHAPTER.fullmatch((candidate.name if candidate.files else candidate.path.stem).lower())
    if match is None:
        return None
    folder = candidate.label.rstrip("/").rpartition("/")[0]
    recording = (*match.group("of", "more", "dji", "name"), match["letter"] or "p")
    number = int(match["gopro"] or match["segment"] or match["part"] or 0)
    number -= match["letter"] != "p" and number > 0
    return _Chapter(folder, recording, number, is_named=match["name"] is not None)


def _later_chapters(candidates: Sequence[Candidate]) -> list[LeftOut]:
    recordings: dict[tuple[object, ...], list[tuple[int, Candidate]]] = defaultdict(list)
    for candidate in candidates:
        if chapter := _chapter(candidate):
            recordings[chapter.folder, chapter.recording].append((chapter.number, candidate))
    left = []
    for chapters in recordings.values():
        (_, first), *later = sorted(chapters, key=lambda chapter: chapter[0])
        kind = "later chapters of {}; join them to use them"
        left += [LeftOut(candidate=candidate, kind=kind, view=first.label) for _, candidate in later]
    return left


def missing_chapters(candidates: Sequence[Candidate]) -> list[Notice]:
    """Warn of views that begin with a later chapter where others begin with the first."""
    chapters = {candidate.label: chapter for candidate in candidates if (chapter := _chapter(candidate))}
    parts: dict[tuple[str | None, ...], list[int]] = defaultdict(list)
    for chapter in chapters.values():
        parts[chapter.recording].append(chapter.number)

    def is_part_of_one(chapter: _Chapter) -> bool:
        """Return whether parts of one name in several folders are numbered as one recording, none of them twice."""
        numbers = parts[chapter.recording]
        return chapter.is_named and len({*numbers}) == len(numbers) > 1

    late = [label for label, chapter in chapters.items() if chapter.number > 0 and not is_part_of_one(chapter)]
    if not 0 < len(late) < len(chapters):
        return []
    return [Notice(f"{listed(late)}: the first chapter of the recording is missing, so it begins later than others")]


def views_of_instants(folder: Path, candidates: Sequence[Candidate]) -> tuple[list[Candidate], list[Notice]]:
    """Return one view per camera if the folders are instants, each with one image per camera; else the candidates.

    Raises:
        InputError: if it is not plain which of the two levels are the cameras.
    """
    unchanged: tuple[list[Candidate], list[Notice]] = (list(candidates), [])
    if not candidates or not all(candidate.files for candidate in candidates):
        return unchanged
    by_folder = [_by_camera(candidate) for candidate in candidates]
    counts = Counter(name for images in by_folder for name in images)
    names, folders = sorted(counts, key=natural_key), [candidate.name for candidate in candidates]
    common = [name for name in names if 2 * counts[name] >= len(candidates)]
    if 2 * len(common) < len(names) or any(CAMERA_NAME.fullmatch(name) for name in folders):
        return unchanged
    pictures = [name for name in names if not _words(name) & _MAPS] or names
    cameras = len(names) > 1 and all(CAMERA_NAME.fullmatch(name) for name in pictures)
    instants = all(_INSTANT.fullmatch(name) for name in folders)
    if len(folders) == 1 and not (instants and cameras):
        return unchanged
    # Folders of instants are numbered with more digits than cameras, unless these have serial numbers.
    digits, camera_digits = ([len(re.sub(r".*\D", "", name)) for name in of] for of in (folders, names))
    padded = len(set(digits)) == 1 and digits[0] >= 3 and any(re.search(r"(?<!\d)0", name) for name in folders)
    numbers = padded and all(_NUMBER.fullmatch(name) for name in folders)
    is_shorter = max(camera_digits) < max(digits) and not all(_INSTANT.fullmatch(name) for name in names)
    is_shorter |= all(_SERIAL.fullmatch(name) for name in names) and stamps_of_names([names]) == [None]
    if (cameras and all(digits)) or (instants and is_shorter):
        for candidate, images in zip(candidates, by_folder, strict=True):
            if len(images) < len(candidate.files):
                found = listed([file.name for file in candidate.files], 4)
                raise InputError(
                    f"{candidate.label} holds several images of a camera: {found}",
                    "keep one image per camera in the folder of an instant, and give depth maps by ⟨depth⟩",
                )
        files = {name: tuple(images[name] for images in by_folder if name in images) for name in names}
        views = [Candidate(name=name, path=folder / name, label=f"{name}/", files=files[name]) for name in names]
        text = f"{folders[0]} to {folders[-1]} are instants, each with one image per view"
        return views, [Notice(text, Level.INFO)]
    if instants or cameras or (numbers and is_shorter):
        raise InputError(
            f"are the folders of '{folder}' cameras or instants? {listed(folders, 3)} hold images of the same names: "
            f"{listed(names, 3)}",
            "name the images after cameras (cam01.jpg) if every folder is an instant, else the folders (cam01)",
        )
    return unchanged


def _by_camera(candidate: Candidate) -> dict[str, Path]:
    """Return images by the names that they share with those of other instants: without the number of the folder."""
    names = [file.stem for file in candidate.files]
    if number := re.search(r"\d+$", candidate.name):
        without = [re.sub(rf"(^|[ _.-]+)0*{int(number[0])}([ _.-]+|$)", "", name, count=1) for name in names]
        if len(set(without)) > 1 and not set(without) & {*names, ""}:
            names = without
    return {composed(name): file for name, file in zip(names, candidate.files, strict=True)}
