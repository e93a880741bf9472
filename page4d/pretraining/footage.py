"""Frames of recordings: drawn over time and views, and decoded in rounds of bounded memory."""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError, counted
from page4d.scene.files import DEFAULT_MAX_MEGAPIXELS
from page4d.scene.open import open_scene
from page4d.scene.records import FrameSource, Image

_MIN_FRAMES = 8
_MIN_SIDE = 16
"""Smallest side of frames in pixels: a patch of a small ViT covers 8."""

_NO_LIMIT = 10**9
_FRAME_STREAM, _ORDER_STREAM = 1, 2
"""Separate the random draws of frames from those of their order."""


@dataclass(frozen=True, kw_only=True)
class Track:
    """One view of a recording: indices of its frames, and the size (height, width) at which they are decoded."""

    source: FrameSource
    indices: NDArray[np.int64]
    size: tuple[int, int]


@dataclass(frozen=True)
class Footage:
    """All views of all recordings."""

    tracks: tuple[Track, ...]

    @property
    def num_frames(self) -> int:
        """Total number of frames."""
        return sum(len(track.indices) for track in self.tracks)

    def spread(self, count: int) -> list[Image]:
        """Decode a few frames of all views, evenly in time."""
        chosen = [number % len(self.tracks) for number in range(count)]
        images: list[Image] = []
        for number, track in enumerate(chosen):
            indices = self.tracks[track].indices
            images += _decode(self.tracks[track], [int(indices[(2 * number + 1) * len(indices) // (2 * count)])])
        return images


def open_footage(
    folders: Sequence[Path],
    short_side: int,
    *,
    allow_damaged: bool = False,
    max_megapixels: float = DEFAULT_MAX_MEGAPIXELS,
) -> Footage:
    """Open folders of videos, unsynchronized; frames will be downscaled to `short_side` pixels.

    Raises:
        UsageError: if a folder does not exist or is a file.
        InputError: if a folder holds no videos, or all of them too few or too small frames.
    """
    tracks = []
    for folder in folders:
        scene = open_scene(
            folder, sync="none", max_frames=_NO_LIMIT, allow_damaged=allow_damaged, max_megapixels=max_megapixels
        )
        for view in scene.views:
            if min(view.source.size) < _MIN_SIDE:
                height, width = view.source.size
                raise InputError(
                    f"'{folder}': {view.name} has frames of {width} x {height} px: too small to train on",
                    f"give recordings of {_MIN_SIDE} px or more, or leave this view out of the folder",
                )
            factor = min(1.0, short_side / min(view.source.size))
            height, width = (max(1, round(side * factor)) for side in view.source.size)
            indices = np.unique(np.asarray(view.indices, dtype=np.int64))
            tracks.append(Track(source=view.source, indices=indices, size=(height, width)))
    footage = Footage(tuple(tracks))
    if footage.num_frames < _MIN_FRAMES:
        raise InputError(
            f"{counted(footage.num_frames, 'frame')} in {counted(len(footage.tracks), 'view')}: too few to train on",
            f"give recordings with {_MIN_FRAMES} frames or more",
        )
    return footage


class FramePool:
    """Frames of samples, from `open_pool`; they follow from the seed and the sample number alone.

    A round of frames is decoded forward through every video and used several times, while the next one is decoded.
    """

    def __init__(
        self, footage: Footage, seed: int, frames: int, repeats: int, thread: ThreadPoolExecutor, closing: Event
    ) -> None:
        self._footage = footage
        self._seed = seed
        self._size = min(frames, footage.num_frames)
        self._all_fit = self._size == footage.num_frames
        self._repeats = repeats
        self._thread = thread
        self._closing = closing
        self._round = -1
        self._images: list[Image] = []
        self._ahead: tuple[int, Future[list[Image]]] | None = None

    def frame(self, sample: int) -> Image:
        """Return the frame of a sample; sample numbers should increase.

        Raises:
            InputError: if it cannot be decoded.
        """
        epoch, place = divmod(sample, self._size)
        number = epoch // self._repeats
        if number != self._round and not (self._all_fit and self._images):
            self._images = self._take(number)
        self._round = number
        order = np.random.default_rng((self._seed, _ORDER_STREAM, epoch)).permutation(len(self._images))
        return self._images[int(order[place])]

    def _take(self, number: int) -> list[Image]:
        if self._ahead is not None and self._ahead[0] == number:
            images = self._ahead[1].result()
        else:
            images = self._decode(number)
        if not self._all_fit:
            self._ahead = (number + 1, self._thread.submit(self._decode, number + 1))
        return images

    def _decode(self, number: int) -> list[Image]:
        """Decode the frames of a round."""
        images: list[Image] = []
        for track, indices in zip(self._footage.tracks, self._draw(number), strict=True):
            for image in _decode(track, indices):
                if self._closing.is_set():
                    return images
                images.append(image)
        return images

    def _draw(self, number: int) -> list[list[int]]:
        """Draw frames of all views, in order of time."""
        random = np.random.default_rng((self._seed, _FRAME_STREAM, number))
        lengths = [len(track.indices) for track in self._footage.tracks]
        counts = _divide(lengths, self._size, random)
        return [
            sorted(int(index) for index in random.choice(track.indices, count, replace=False))
            for track, count in zip(self._footage.tracks, counts, strict=True)
        ]


@contextmanager
def open_pool(footage: Footage, seed: int, *, frames: int, repeats: int) -> Iterator[FramePool]:
    """Open a pool with at most two rounds of `frames` frames in memory."""
    closing = Event()
    with ThreadPoolExecutor(1, thread_name_prefix="frames") as thread:
        try:
            yield FramePool(footage, seed, frames, repeats, thread, closing)
        finally:
            closing.set()
            thread.shutdown(wait=True, cancel_futures=True)


def _divide(lengths: Sequence[int], total: int, random: np.random.Generator) -> list[int]:
    """Divide a total evenly among views, with at most `lengths` frames each."""
    counts = [0] * len(lengths)
    while (left := total - sum(counts)) > 0:
        available = random.permutation([view for view, length in enumerate(lengths) if counts[view] < length])
        for view in available[:left]:
            more = max(1, left // len(available))
            counts[view] = min(lengths[view], counts[view] + more)
    return counts


def _decode(track: Track, indices: Sequence[int]) -> Iterator[Image]:
    """Decode frames in order of time, as 8-bit images."""
    if not indices:
        return
    with track.source.open(track.size) as reader:
        for image in reader.read(indices):
            yield image if image.dtype == np.uint8 else (image >> 8).astype(np.uint8)
