"""Trajectories of points over the instants of a capture, and their file `tracks/tracks.npz`."""

import io
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int, UInt8

from page4d.errors import InputError, ShapeError
from page4d.formats.files import read_arrays
from page4d.io.atomic import WrittenFile, write_bytes_atomic
from page4d.io.documents import DocumentMissingError


@dataclass(frozen=True, kw_only=True)
class Tracks:
    """N trajectories of points over T instants of V views.

    `coords` are positions in the world in units of the scene, NaN where a track has not begun or has ended. `visibs`
    is whether any view sees the point, `view_visibs` which. `sigma` is the standard deviation of the motion since the
    track's `start` (index of an instant) in units of the scene, 0 where there is no position. `colors` are those at
    the start, `times` the seconds of the instants, `ids` distinct numbers.
    """

    coords: Float[np.ndarray, "T N 3"]
    visibs: Bool[np.ndarray, "T N"]
    view_visibs: Bool[np.ndarray, "T N V"]
    sigma: Float[np.ndarray, "T N"]
    start: Int[np.ndarray, " N"]
    colors: UInt8[np.ndarray, "N 3"]
    times: Float[np.ndarray, " T"]
    ids: Int[np.ndarray, " N"]

    def __post_init__(self) -> None:
        instants, number = self.coords.shape[:2]
        sides = {"T": instants, "N": number, "V": self.view_visibs.shape[-1], "3": 3}
        for field in fields(self):
            kind: Any = field.type
            shape = tuple(sides[axis] for axis in kind.dim_str.split())
            found = getattr(self, field.name).shape
            if found != shape:
                raise ShapeError(f"tracks: {field.name} has shape {found}", f"give {shape}")

    @property
    def exists(self) -> Bool[np.ndarray, "T N"]:
        """Whether a track has a position at an instant."""
        found: Bool[np.ndarray, "T N"] = np.isfinite(self.coords).all(axis=-1)
        return found

    def selected(self, instants: Sequence[int], views: Sequence[int]) -> "Tracks":
        """Select instants and views by their indices; tracks without a position there are left out.

        `start` counts the chosen instants, of which it is the first with a position.
        """
        chosen, seen_by = list(instants), list(views)
        exists = self.exists[chosen]
        kept = np.flatnonzero(exists.any(axis=0))
        seen = self.view_visibs[chosen][:, kept][..., seen_by]
        return Tracks(
            coords=self.coords[chosen][:, kept],
            visibs=np.asarray(seen.any(axis=-1)),
            view_visibs=seen,
            sigma=self.sigma[chosen][:, kept],
            start=exists[:, kept].argmax(axis=0),
            colors=self.colors[kept],
            times=self.times[chosen],
            ids=self.ids[kept],
        )

    def held_coords(self) -> Float[np.ndarray, "T N 3"]:
        """Return positions without NaN: before a track's first one that one, after its last one that one.

        Tracks without any position stay NaN.
        """
        exists = self.exists
        instants = np.arange(len(exists))[:, None]
        first, last = exists.argmax(axis=0), len(exists) - 1 - exists[::-1].argmax(axis=0)
        held: Float[np.ndarray, "T N 3"] = self.coords[instants.clip(first, last), np.arange(self.num_tracks)]
        return held

    @property
    def num_tracks(self) -> int:
        """Number of tracks N."""
        return len(self.ids)


def write_tracks(path: Path, tracks: Tracks) -> WrittenFile:
    """Write tracks atomically, the same bytes for the same tracks.

    Raises:
        OutputError: if the file cannot be written.
    """
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **vars(tracks))
    return write_bytes_atomic(path, buffer.getvalue())


def read_tracks(path: Path) -> Tracks:
    """Read tracks.

    Raises:
        InputError: if the file is missing, damaged, or of another kind.
    """
    try:
        return Tracks(**read_arrays(path, [field.name for field in fields(Tracks)]))
    except DocumentMissingError as error:
        raise InputError(f"'{path}' is missing", "run page4d again with ⟨existing=resume⟩") from error
    except (ValueError, ShapeError) as error:
        raise InputError(f"'{path}' does not hold tracks: {error}", "give a file that page4d wrote") from error
