"""A result as dataset for PyTorch: one item per instant and view."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from page4d.geometry.camera import resize_intrinsics
from page4d.output.map_arrays import choose_times, choose_views
from page4d.output.pictures import Pictures
from page4d.output.reader import Output, PictureSize, picture_size
from page4d.scene.images import resize

_SKIPPED = 8
"""Frames that are decoded to reach a later one; beyond, the video is opened again, which may seek."""


class OutputDataset(Dataset[dict[str, Tensor]]):
    """Items of T instants and V views, the views of an instant after each other; see `Output.dataset`.

    Pictures are decoded forward: reading items in order decodes a video once, reading them at random decodes it from
    a key frame for every item. The dataset can be pickled and read by the workers of a `DataLoader`.
    """

    def __init__(
        self,
        output: Output,
        scene: Path | str | None = None,
        views: Sequence[str] | None = None,
        times: Sequence[int] | None = None,
        size: PictureSize = "maps",
    ) -> None:
        self.output = output
        self.views = choose_views(output, views)
        self.times = choose_times(output, times)
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
        height, width = self._sizes[name]
        map_height, map_width = self.output.map_size(name)
        intrinsics = self.output.intrinsics_at_maps(name)[time]
        moving = self.output.dynamic(time, name)
        item = {
            "depth": torch.from_numpy(self.output.depth(time, name)),
            "confidence": torch.from_numpy(self.output.confidence(time, name)),
            "K": resize_intrinsics(intrinsics, width / map_width, height / map_height).float(),
            "world_to_camera": self.output.cameras.world_to_camera[time, view].float(),
            "time": torch.tensor(self.output.run.times[time], dtype=torch.float64),
            "view": torch.tensor(view),
        }
        if moving is not None:
            item["mask"] = torch.from_numpy(moving)
        if self.output.has_velocity:
            velocity, sigma = self.output.velocity(time, name)
            item |= {"velocity": torch.from_numpy(velocity), "velocity_sigma": torch.from_numpy(sigma)}
        if self._pictures is not None:
            pixels = resize(self._decoded(self._pictures, name, time), (height, width))
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
