"""Tracks of a run by chunks: what is recorded with every chunk, and the tracks of the capture from these records."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from page4d.formats.tracks import Tracks
from page4d.geometry.pixels import PixelTransform
from page4d.motion.flow import Displacement, FlowView
from page4d.motion.tracks import ActiveTracks, Guide, TrackedInstant, TrackFollower
from page4d.output.record import Difference
from page4d.scene.point_tracks import PointTracks

MAX_ENTRIES = 10_000_000
"""Largest number of tracks times instants: the file holds a position per track and instant, 200 MB at most."""

_MIN_VIEWS = 2
"""Views that must measure the motion of a pixel for a track to begin there."""


class ChunkedTracks:
    """Follows tracks through a run, and hands over what each chunk adds."""

    def __init__(
        self, follower: TrackFollower, max_alive: int, num_times: int, placed: "PlacedTracks | None" = None
    ) -> None:
        self._placed = placed
        self._follower = follower
        self._max_alive = max_alive
        self._num_times = num_times
        self._rows: list[tuple[int, TrackedInstant]] = []

    def continue_from(self, chunk: Mapping[str, Tensor]) -> None:
        """Restore the state after a finished chunk."""
        active = ActiveTracks(**{name: chunk[f"active.{name}"] for name in vars(ActiveTracks.none())})
        self._follower.continue_from(active, int(chunk["num_started"]))

    def follow(
        self,
        index: int,
        views: Sequence[FlowView],
        found: Mapping[Difference, Sequence[Displacement]],
        *,
        forward: bool,
    ) -> None:
        """See the tracks at an instant and, if there is flow to the next one, move them there; else they end.

        `views` and `found` are empty where no motion was measured.
        """
        if not views:
            self._follower.step(None)
            return
        displacements = found["forward" if forward else "backward"]
        moving = [(one.motion != 0).any(-1) & (one.views >= _MIN_VIEWS) for one in displacements]
        # Tracks end after a fraction of the capture: all instants have their share of the total.
        total = max(MAX_ENTRIES // self._num_times, 1)
        budget = max(min(self._max_alive, total), total * (index + 1) // self._num_times)
        room = budget - self._follower.num_started if forward else 0
        guides = () if self._placed is None else self._placed.guides(index)
        self._rows.append((index, self._follower.observe(views, moving, self._max_alive, max(room, 0), guides)))
        self._follower.step(views if forward else None, guides)

    def take_chunk(self) -> dict[str, Tensor]:
        """Return the tracks at the instants since the last call, and the state from which a run is resumed."""
        rows, self._rows = self._rows, []
        none = torch.zeros(0)

        def joined(parts: Sequence[Tensor], empty: Tensor) -> Tensor:
            return torch.cat(list(parts)) if parts else empty

        active = self._follower.active
        return {
            "index": joined([torch.full_like(row.ids, index) for index, row in rows], none.long()),
            "ids": joined([row.ids for _, row in rows], none.long()),
            "world": joined([row.world.float() for _, row in rows], none.new_zeros(0, 3)),
            "sigma": joined([row.sigma.float() for _, row in rows], none),
            "seen": joined([row.seen for _, row in rows], none.new_zeros(0, 0).bool()),
            "new_colors": joined([row.new_colors for _, row in rows], none.new_zeros(0, 3).to(torch.uint8)),
            "num_started": torch.tensor(self._follower.num_started),
            **{f"active.{name}": values.contiguous() for name, values in vars(active).items()},
        }


class PlacedTracks:
    """Two-dimensional tracks of the views at the pixels of the pictures whose flow is measured."""

    def __init__(self, tracks: Sequence[PointTracks | None], transforms: Sequence[PixelTransform]) -> None:
        self._views: list[tuple[Tensor, Tensor] | None] = []
        for own, transform in zip(tracks, transforms, strict=True):
            pixels = None if own is None else transform.to_network(torch.from_numpy(own.pixels))
            self._views.append(None if own is None or pixels is None else (pixels, torch.from_numpy(own.visible)))

    def guides(self, index: int) -> list[Guide | None]:
        """Return the tracks at an instant and at the next one, view by view; at the last instant none goes on."""
        found: list[Guide | None] = []
        for view in self._views:
            if view is None:
                found.append(None)
                continue
            pixels, visible = view
            after = min(index + 1, visible.shape[1] - 1)
            goes_on = visible[:, after] & (after > index)
            found.append(Guide(pixels[:, index], visible[:, index], pixels[:, after], goes_on))
        return found


def join_tracks(chunks: Iterable[Mapping[str, Tensor]], times: NDArray[np.float64], num_views: int) -> Tracks:
    """Return the tracks of a capture from those of its chunks, in order; tracks of a single instant are left out."""
    parts = list(chunks)
    index, ids, world, sigma = (
        torch.cat([part[name] for part in parts]) for name in ("index", "ids", "world", "sigma")
    )
    seen = torch.cat([part["seen"].reshape(-1, num_views) for part in parts])
    colors = torch.cat([part["new_colors"] for part in parts])
    number, instants = len(colors), len(times)
    kept = torch.bincount(ids, minlength=number) > 1
    column = torch.cumsum(kept, 0) - 1
    chosen = kept[ids]
    index, ids, world, sigma, seen = index[chosen], ids[chosen], world[chosen], sigma[chosen], seen[chosen]
    place, count = (index, column[ids]), int(kept.sum())
    coords = torch.full((instants, count, 3), torch.nan)
    coords[place] = world
    spread = torch.zeros(instants, count)
    spread[place] = sigma
    visible = torch.zeros(instants, count, num_views, dtype=torch.bool)
    visible[place] = seen
    start = torch.full((count,), instants, dtype=torch.int64)
    start.scatter_reduce_(0, column[ids], index, "amin")
    return Tracks(
        coords=coords.numpy(),
        visibs=visible.any(-1).numpy(),
        view_visibs=visible.numpy(),
        sigma=spread.numpy(),
        start=start.int().numpy(),
        colors=colors[kept].numpy(),
        times=np.asarray(times, dtype=np.float64),
        ids=torch.nonzero(kept)[:, 0].numpy(),
    )
