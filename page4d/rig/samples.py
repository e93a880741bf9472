"""A few pictures of every view of a scene, spread over the capture, and what they show."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_high

import numpy as np

from page4d.errors import InputError, Notice, Notify, Progress, counted, listed
from page4d.options import in_options
from page4d.scene.content import (
    Fault,
    Picture,
    ViewContent,
    content_texts,
    frame_faults,
    gray_of,
    small_copy,
    usual_content,
)
from page4d.scene.records import FrameSource, Scene, View
from page4d.scene.video import VideoSource

LONG_SIDE = 256
"""Long side of sampled pictures: noise of cameras and of compression is averaged."""

NUM_PICTURES = 12
"""Sampled pictures of a view."""

MAX_DECODED = 1500
"""Frames decoded for a view: 20 s of a 4K video on two cores. Videos that can be sought need far fewer; of others,
the beginning is measured."""

FEW_PICTURES, FEW_DECODED = 48, 200
"""Pictures of all views together that are sampled where a scene is only inspected, at least one of each, and frames
that are decoded for them: the inspection of 64 videos takes a tenth longer."""

_MOST = 0.8
"""Share of the pictures of a view that decides on all."""

_SEEKABLE = (".mp4", ".mov", ".m4v", ".3gp", ".mkv", ".webm")
"""Suffixes of containers in which page4d seeks."""


@dataclass(frozen=True, kw_only=True)
class ViewSample:
    """Gray pictures of a view with a long side of 256 px at some of a scene's instants, their content and faults.

    `reason` states why frames could not be decoded.
    """

    view: str
    instants: tuple[int, ...] = ()
    pictures: tuple[Picture, ...] = ()
    content: ViewContent = ViewContent()  # noqa: RUF009  immutable
    faults: tuple[Fault | None, ...] = ()
    reason: str = ""

    @property
    def obstacle(self) -> str:
        """Why the view is no evidence: four fifths of its pictures show nothing; else empty."""
        found = [fault for fault in self.faults if fault not in (None, Fault.REPEATED)]
        if not found or len(found) < _MOST * len(self.faults):
            return ""
        return f"its pictures are {max(found, key=found.count)}"

    @property
    def is_frozen(self) -> bool:
        """Whether the view is no evidence of motion or clocks: most pictures repeat the one before."""
        return self.faults.count(Fault.REPEATED) >= max(_MOST * (len(self.faults) - 1), 1)


def sample_views(
    scene: Scene,
    progress: Progress | None = None,
    count: int = NUM_PICTURES,
    max_decoded: int = MAX_DECODED,
) -> tuple[ViewSample, ...]:
    """Decode a few pictures of every view; `progress` receives the number of views that are done, and of all.

    A view whose frames cannot be decoded has none; the run that needs them reports it.
    """
    samples = []
    for view in scene.views:
        try:
            instants = choose_pictures(view, count, max_decoded)
            pictures = tuple(read_pictures(view.source, [view.indices[instant] for instant in instants]))
            samples.append(ViewSample(view=view.name, instants=instants, pictures=pictures))
        except InputError as error:
            samples.append(ViewSample(view=view.name, reason=in_options(error.marked_message)))
        if progress is not None:
            progress(len(samples), scene.num_views)
    return judged(samples)


def judged(samples: Sequence[ViewSample]) -> tuple[ViewSample, ...]:
    """Add content and faults to the pictures of the views of a scene."""
    copies = [[small_copy(picture) for picture in sample.pictures] for sample in samples]
    contents = [usual_content(sample.pictures, own) for sample, own in zip(samples, copies, strict=True)]
    details = [content.detail for content in contents if content.detail > 0]
    others = median_high(details) if details else 0.0
    contents = [replace(content, detail=max(content.detail, others)) for content in contents]
    faults: list[list[Fault | None]] = [[] for _ in samples]
    for place in range(max((len(own) for own in copies), default=0)):
        present = [view for view, own in enumerate(copies) if place < len(own)]
        before = [copies[view][place - 1] for view in present] if place else None
        found = frame_faults([copies[view][place] for view in present], before, [contents[view] for view in present])
        for view, fault in zip(present, found, strict=True):
            faults[view].append(fault)
    parts = zip(samples, contents, faults, strict=True)
    return tuple(replace(sample, content=content, faults=tuple(own)) for sample, content, own in parts)


def with_notices_on_content(scene: Scene) -> Scene:
    """Return the scene with warnings of dead borders, blank views and pictures without content, from a few frames."""
    count = min(max(FEW_PICTURES // scene.num_views, 1), NUM_PICTURES)
    samples = sample_views(scene, count=count, max_decoded=FEW_DECODED // scene.num_views)
    shares = {sample.view: sample.content.share for sample in samples}
    boxes = {view.name: view.window and view.window.box for view in with_content(scene, samples).views}
    notices: list[Notice] = []
    shown = without_blank_views(scene, samples, notices.append).view_names
    faults = [
        (sample.view, fault, [instant])
        for sample in samples
        if sample.view in shown
        for instant, fault in zip(sample.instants, sample.faults, strict=True)
        if fault is not None
    ]
    most = max((len(sample.instants) for sample in samples), default=0)
    texts = content_texts(shares, boxes, faults, scene.num_times)
    decoded = "1 picture per view was" if most == 1 else f"{most} pictures per view were"
    scope = "" if most == scene.num_times else f"; {decoded} decoded"
    return replace(scene, notices=(*scene.notices, *notices, *(Notice(text + scope) for text in texts)))


_BLANK = (Fault.BLACK, Fault.WHITE, Fault.FLAT)


def without_blank_views(scene: Scene, samples: Sequence[ViewSample], notify: Notify) -> Scene:
    """Return the scene without views that show nothing from its first to its last instants, unless all do so.

    A black view among the four of `treadmill`, as input of a network, changes the depth of the others by 16 %.
    """
    blank = {
        sample.view: f"{sample.view} ({max(sample.faults, key=sample.faults.count)})"
        for sample in samples
        if sample.instants and sample.instants[-1] >= _MOST * (scene.num_times - 1) and {*sample.faults} <= {*_BLANK}
    }
    if len(blank) in (0, scene.num_views):
        return scene
    count = counted(max(len(sample.instants) for sample in samples), "sampled picture")
    notify(Notice(f"views are left out that show nothing in {count}: {listed(blank.values())}"))
    return replace(scene, views=tuple(view for view in scene.views if view.name not in blank))


def with_content(scene: Scene, samples: Sequence[ViewSample]) -> Scene:
    """Return the scene with the usual content of its views."""
    views = zip(scene.views, samples, strict=True)
    return replace(scene, views=tuple(replace(view, content=sample.content) for view, sample in views))


def choose_pictures(view: View, count: int = NUM_PICTURES, max_decoded: int = MAX_DECODED) -> tuple[int, ...]:
    """Return instants spread over the capture, the first included, at key frames where a video has them.

    Where seeking does not bound the number of decoded frames, the instants are of the beginning.
    """
    span = len(view.indices)
    while True:
        chosen = tuple(dict.fromkeys(int(instant) for instant in np.linspace(0, span - 1, count).round()))
        if len(chosen) == count > 1:
            chosen = _at_key_frames(view, chosen)
        if span <= count or _num_decoded(view.source, [view.indices[instant] for instant in chosen]) <= max_decoded:
            return chosen
        span = max(span // 2, count)


def _at_key_frames(view: View, instants: Sequence[int]) -> tuple[int, ...]:
    """Move instants to the next key frame, at most half of their spacing ahead."""
    source = view.source
    if not isinstance(source, VideoSource) or source.pts is None:
        return tuple(instants)
    pts = source.pts[list(view.indices)]
    at_key = np.flatnonzero(np.isin(pts, source.key_pts))
    moved = []
    for instant in instants:
        after = at_key[np.searchsorted(at_key, instant) :][:1]
        ahead = int(after[0]) - instant if len(after) else 0
        moved.append(instant + ahead if ahead <= (instants[1] - instants[0]) // 2 else instant)
    return tuple(moved)


def _num_decoded(source: FrameSource, indices: Sequence[int]) -> int:
    """Return how many frames are decoded to read these indices: all from the last one or its key frame on."""
    if not isinstance(source, VideoSource):
        return len(indices)
    keys = np.zeros(1, np.int64) if source.pts is None else np.searchsorted(source.pts, source.key_pts)
    seeks = source.path.suffix.lower() in _SEEKABLE
    total, last = 0, 0
    for index in indices:
        start = int(keys[max(int(np.searchsorted(keys, index, side="right")) - 1, 0)])
        total += index - (max(last, start) if seeks else last)
        last = index
    return total


def read_pictures(source: FrameSource, indices: Sequence[int]) -> list[Picture]:
    """Decode frames as grey pictures with a long side of at most 256 px.

    Raises:
        InputError: if a frame cannot be decoded.
    """
    scale = min(LONG_SIDE / max(source.size), 1.0)
    size = (max(round(source.size[0] * scale), 1), max(round(source.size[1] * scale), 1))
    with source.open(size) as reader:
        return [gray_of(pixels) for pixels in reader.read(indices)]
