"""The pictures of a run, found again in its scene, and a result as dataset for PyTorch.

Pictures are checked to be of the same capture, undistorted, at original size. The dataset has one item per instant
and view.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from page4d.choices import Preprocess
from page4d.errors import InputError, UsageError, counted, listed, unknown_name
from page4d.geometry.distortion import Distortion
from page4d.geometry.time_axis import is_flag
from page4d.io.json_records import RESTORE_RECORD, readable
from page4d.options import ReconstructSettings, SceneOptions
from page4d.output.record import ViewRecord
from page4d.scene.batches import with_background
from page4d.scene.discover import discover, select_views
from page4d.scene.identity import identify
from page4d.scene.image_file import in_8_bits
from page4d.scene.images import resize, undistortion_map
from page4d.scene.layout import Candidate
from page4d.scene.open import open_sources
from page4d.scene.records import FrameSource, Scene, View, ViewCamera

if TYPE_CHECKING:
    from page4d.output.reader import Output

PictureSize = Literal["original", "maps"]
"""Size of a picture: that of the video, or that of the run's maps of the view."""

_SAME_TIME_S = 1e-6
_HINT = "give the videos of the run"
_SETTINGS = ("image_fps", "allow_damaged", "max_megapixels")
"""Settings of the run that determine the frames of its videos and their times."""


def instant_index(output: "Output", time_index: int) -> int:
    """Return the index of an instant, from any type of number, as int; entries of a mask are none.

    Raises:
        UsageError: if there is no such instant.
    """
    try:
        index = -1 if is_flag(time_index) else int(time_index)
    except (TypeError, ValueError, OverflowError):  # not a number, such as the name of a view
        index = -1
    if not (0 <= index < output.num_times and index == time_index):
        raise UsageError(f"no instant {time_index}", f"the run has instants 0 to {output.num_times - 1}")
    return index


def _several(values: Any) -> tuple[Any, ...]:
    return (values,) if isinstance(values, str) or not np.iterable(values) else tuple(values)


def choose_views(output: "Output", views: Iterable[str] | None) -> tuple[str, ...]:
    """Return the names of views, all of the run for None, after a check that they exist.

    Raises:
        UsageError: if there is no such view, or none is chosen.
    """
    chosen = output.view_names if views is None else _several(views)
    if not chosen:
        raise UsageError("no views", "give at least one, or None for all")
    for view in chosen:
        output.layout.file_name(view)
    return chosen


def choose_times(output: "Output", times: Iterable[int] | None) -> tuple[int, ...]:
    """Return the indices of instants, all of the run for None, after a check that they exist.

    Raises:
        UsageError: if there is no such instant, or none is chosen.
    """
    chosen = tuple(range(output.num_times)) if times is None else _several(times)
    if not chosen:
        raise UsageError("no instants", "give at least one, or None for all")
    return tuple(instant_index(output, index) for index in chosen)


@dataclass(frozen=True)
class Pictures:
    """Original pictures of a run's views: upright, with square pixels, without lens distortion.

    `scene` has the views of the run, without masks and depth.
    """

    output: "Output"
    scene: Scene

    def read(self, view: str, instants: Iterable[int]) -> Iterator[NDArray[np.uint8]]:
        """Yield the RGB pictures [H, W, 3] of a view at instants of the run, which must increase.

        Raises:
            UsageError: if there is no such view or instant.
            InputError: if a frame cannot be decoded.
        """
        self.output.layout.file_name(view)
        chosen = choose_times(self.output, instants)
        if any(after <= before for before, after in pairwise(chosen)):
            raise UsageError("the instants of pictures do not increase", "sort them; each may occur once")
        return self._decoded(self.scene.views[self.output.view_names.index(view)], chosen)

    def _decoded(self, view: View, instants: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        undistortion = undistortion_map(view.camera, view.source.size)
        with view.source.open() as reader:
            for pixels in reader.read([view.indices[place] for place in instants]):
                yield in_8_bits(pixels if undistortion is None else undistortion.remap(pixels))


def open_pictures(output: "Output", folder: Path | str) -> Pictures:
    """Open the scene of a run and check that it is the same capture.

    Files are compared by size and hash, frames by their times.

    Raises:
        InputError: if views, sizes, files or times differ from those of the run, or it did not record its files.
    """
    folder, records = Path(folder), output.run.views
    options, preprocess = _recorded_settings(output)
    sources, _, _ = open_sources(_candidates(folder, records), options)
    indices = [_indices(record, source) for record, source in zip(records, sources, strict=True)]
    views = tuple(
        View(
            name=name,
            source=with_background(source, preprocess),
            clock=record.clock,
            indices=of_view,
            camera=_distorted_camera(output, name),
        )
        for name, source, record, of_view in zip(output.view_names, sources, records, indices, strict=True)
    )
    scene = Scene(name=output.run.scene.name, views=views, times=np.array(output.run.times), options=options)
    return Pictures(output=output, scene=scene)


def picture_size(output: "Output", view: str, size: PictureSize) -> tuple[int, int]:
    """Return the (height, width) of a view's pictures.

    Raises:
        UsageError: if there is no such view or size.
    """
    output.layout.file_name(view)
    sizes = {"original": output.cameras.image_sizes[output.view_names.index(view)], "maps": output.map_size(view)}
    if size not in sizes:
        raise unknown_name("picture size", size, sizes)
    return sizes[size]


def _recorded_settings(output: "Output") -> tuple[SceneOptions, Preprocess]:
    recorded: dict[str, Any] = output.run.settings
    found = {name: recorded[name] for name in _SETTINGS if name in recorded}
    try:
        preprocess = ReconstructSettings(preprocess=recorded.get("preprocess", Preprocess.NATIVE)).preprocess
        return SceneOptions(**found), preprocess
    except UsageError as error:
        raise InputError(f"run.json: {error.marked_message}", RESTORE_RECORD) from error


def _candidates(folder: Path, records: Sequence[ViewRecord]) -> tuple[Candidate, ...]:
    scene = discover(folder)
    found = {readable(name): candidate for name, candidate in scene.named().items()}
    missing = [record.file for record in records if record.name not in found]
    if missing:
        there = listed([candidate.path.name for candidate in found.values()])
        raise InputError(f"'{folder}' has no {listed(missing)} of the run; it has {there}", _HINT)
    return select_views(scene, tuple(found[record.name].name for record in records), folder)[0]


def _indices(record: ViewRecord, source: FrameSource) -> tuple[int, ...]:
    """Return the recorded frames, after a check that size, files and times are those of the run."""
    height, width = source.size
    if (width, height) != record.original_size:
        size = "{}x{}".format(*record.original_size)
        raise InputError(f"{source.label} is {width}x{height}, the run has {size}", _HINT)
    known = record.source
    if known is None:
        raise InputError(f"the run did not record the files of {record.name}", "run page4d again")
    text = f"{source.label} is not the {'folder' if source.label.endswith('/') else 'file'} of the run"
    identity = identify(source)
    if identity is None or identity.num_bytes != known.bytes:
        found = "no file" if identity is None else f"{identity.num_bytes:,} bytes"
        raise InputError(f"{text}: {found}, the run has {known.bytes:,}", _HINT)
    if identity.sha256_ends != known.sha256_ends:
        raise InputError(f"{text}: its content differs", _HINT)
    times = source.frame_times
    for place, (frame, seconds) in enumerate(zip(known.frames, known.seconds, strict=True)):
        if frame >= len(times):
            raise InputError(f"{source.label} has {counted(len(times), 'frame')}, the run used frame {frame}", _HINT)
        if abs(times[frame] - seconds) > _SAME_TIME_S:
            found = f"frame {frame} is at {times[frame]:.6f} s, in the run at {seconds:.6f} s (instant {place})"
            raise InputError(f"{source.label}: {found}", _HINT)
    return tuple(known.frames)


def _distorted_camera(output: "Output", view: str) -> ViewCamera | None:
    """Return the camera whose lens distortion the run removed from a view's pictures, None if it removed none."""
    index = output.view_names.index(view)
    record = output.run.views[index].undistorted
    if record is None:
        return None
    matrix = torch.tensor(record.intrinsics, dtype=torch.float64)
    distortion = Distortion(model=record.model, coefficients=record.coefficients)
    poses = output.cameras.world_to_camera[:, index]
    return ViewCamera(world_to_camera=poses, intrinsics=matrix, distortion=distortion)


_SKIPPED = 8
"""Frames that are decoded to reach a later one; beyond, the video is opened again, which may seek."""


class OutputDataset(Dataset[dict[str, Tensor]]):
    """Items of T instants and V views, the views of an instant after each other; see `Output.dataset`.

    Pictures are decoded forward: reading items in order decodes a video once, reading them at random decodes it from
    a key frame for every item. The dataset can be pickled and read by the workers of a `DataLoader`.
    """

    def __init__(
        self,
        output: "Output",
        scene: Path | str | None,
        views: tuple[str, ...],
        times: tuple[int, ...],
        size: PictureSize,
    ) -> None:
        self.output, self.views, self.times = output, views, times
        self._sizes = {name: picture_size(output, name, size) for name in self.views}
        self._pictures: Pictures | None = None if scene is None else output.pictures(scene)
        # By process: a decoder cannot be used, or closed, by a worker that was forked after it was opened.
        self._open: dict[int, dict[str, tuple[int, Iterator[NDArray[np.uint8]]]]] = {}

    def __len__(self) -> int:
        return len(self.times) * len(self.views)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"item {index} of {len(self)}")
        instant, place = divmod(index % len(self), len(self.views))
        time, name = self.times[instant], self.views[place]
        view = self.output.view_names.index(name)
        maps = self.output.maps(time, name)
        item = {
            **{"mask" if key == "dynamic" else key: torch.from_numpy(values) for key, values in maps.items()},
            "K": self.output.cameras.intrinsics_at(view, self._sizes[name])[time].float(),
            "world_to_camera": self.output.cameras.world_to_camera[time, view].float(),
            "time": torch.tensor(self.output.run.times[time], dtype=torch.float64),
            "view": torch.tensor(view),
        }
        if self._pictures is not None:
            pixels = resize(self._decoded(self._pictures, name, time), self._sizes[name])
            item["image"] = torch.from_numpy(pixels.astype(np.float32) / 255).permute(2, 0, 1).contiguous()
        return item

    def _decoded(self, pictures: Pictures, view: str, time: int) -> NDArray[np.uint8]:
        """Decode a picture, by the open decoder of the view if it is shortly before it."""
        opened = self._open.setdefault(os.getpid(), {})
        following, frames = opened.get(view, (self.output.num_times, iter(())))
        if not 0 <= time - following <= _SKIPPED:
            following, frames = time, pictures.read(view, range(time, self.output.num_times))
        for _ in range(time - following):
            next(frames)
        picture = next(frames)
        opened[view] = (time + 1, frames)
        return picture

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_open": {}}
