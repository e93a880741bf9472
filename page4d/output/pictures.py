"""The pictures of a run, found again in its scene: checked to be the same capture, undistorted, at original size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from page4d.output.reader import Output
from page4d.scene.records import Scene


@dataclass(frozen=True)
class Pictures:
    """Original pictures of a run's views: upright, with square pixels, without lens distortion.

    `remarks` state what could not be checked.
    """

    output: Output
    scene: Scene
    remarks: tuple[str, ...] = ()

    def read(self, view: str, instants: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
        """Yield the RGB pictures [H, W, 3] of a view at instants of the run, which must increase.

        Raises:
            UsageError: if there is no such view or instant.
            InputError: if a frame cannot be decoded.
        """
        raise NotImplementedError


def open_pictures(output: Output, folder: Path) -> Pictures:
    """Open the scene of a run and check that it is the same capture.

    Raises:
        InputError: if views, sizes, times or files differ from those of the run.
    """
    raise NotImplementedError
