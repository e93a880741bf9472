"""Tracks of points through a capture: chains of the scene flow of a rig, ended where the point is lost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from page4d.motion.flow import (
    CLEAR_MOTION_PX,
    FlowView,
    correspondence,
    flow_ends,
    focal_length,
    projected,
    sample_map,
    solve_rays,
    still_votes,
)

GRID_STEP_PX = 8
"""Distance in px of the depth map between the starts of tracks on moving surfaces."""

MAX_HIDDEN_STEPS = 3
"""Steps for which a track that no view sees goes on along a straight line."""

MAX_SIGMA = 0.2
"""Standard deviation of the motion since the start at which a track ends, relative to its depth."""

_HIDDEN_GROWTH = 0.5
"""Standard deviation of the motion of a hidden step, relative to the motion of the step before."""

_PULL = 0.5
"""Part of the way to the surface of a sensor's depth by which a track moves at each instant."""


class Guide(NamedTuple):
    """Two-dimensional tracks of a view at an instant and at the next one: pixels of its picture, and visibility."""

    pixels: Float[Tensor, "N 2"]
    visible: Bool[Tensor, " N"]
    next_pixels: Float[Tensor, "N 2"]
    next_visible: Bool[Tensor, " N"]


@dataclass
class ActiveTracks:
    """N tracks that have not ended: identity, position, last motion, variance since the start, and hidden steps.

    `view` and `row` are those of the two-dimensional track that a track follows, -1 without one.
    """

    ids: Int[Tensor, " N"]
    world: Float[Tensor, "N 3"]
    motion: Float[Tensor, "N 3"]
    variance: Float[Tensor, " N"]
    hidden: Int[Tensor, " N"]
    view: Int[Tensor, " N"]
    row: Int[Tensor, " N"]

    @staticmethod
    def none() -> "ActiveTracks":
        """Return no tracks."""
        index = torch.zeros(0, dtype=torch.int64)
        return ActiveTracks.begin(0, torch.zeros(0, 3, dtype=torch.float64), index, index)

    @staticmethod
    def begin(
        first_id: int, world: Float[Tensor, "N 3"], view: Int[Tensor, " N"], row: Int[Tensor, " N"]
    ) -> "ActiveTracks":
        """Begin tracks with consecutive identities at points."""
        ids = torch.arange(first_id, first_id + len(world))
        return ActiveTracks(
            ids=ids,
            world=world,
            motion=torch.zeros_like(world),
            variance=world.new_zeros(len(world)),
            hidden=torch.zeros_like(ids),
            view=view,
            row=row,
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, chosen: Tensor) -> "ActiveTracks":
        return ActiveTracks(**{name: values[chosen] for name, values in vars(self).items()})

    def joined(self, other: "ActiveTracks") -> "ActiveTracks":
        """Append other tracks."""
        parts = ((name, (values, getattr(other, name))) for name, values in vars(self).items())
        return ActiveTracks(**{name: torch.cat(both) for name, both in parts})


class TrackedInstant(NamedTuple):
    """Positions of the tracks that live at an instant, the views that see them, and the color of those that begin."""

    ids: Int[Tensor, " N"]
    world: Float[Tensor, "N 3"]
    sigma: Float[Tensor, " N"]
    seen: Bool[Tensor, "N V"]
    new_colors: UInt8[Tensor, "M 3"]


class TrackFollower:
    """Follows tracks from instant to instant; `tolerance` is that of `rig_flow`, with `pull` depth is a sensor's."""

    def __init__(self, tolerance: float, *, pull: bool) -> None:
        self.active = ActiveTracks.none()
        self.num_started = 0
        self._tolerance = tolerance
        self._pull = pull

    def observe(
        self,
        views: Sequence[FlowView],
        moving: Sequence[Bool[Tensor, "h w"]],
        max_alive: int,
        max_new: int,
        guides: Sequence[Guide | None] = (),
    ) -> TrackedInstant:
        """See the tracks at an instant: end those that are lost, and begin tracks on moving surfaces without one.

        `moving` are pixels with a measured motion. At most `max_alive` tracks live, and at most `max_new` begin;
        tracks of `guides` begin in any case, where they are visible.
        """
        tracks = self.active
        found = [correspondence(tracks.world, None, view, self._tolerance) for view in views]
        seen, occluded, passed = (
            torch.stack([getattr(one, name) for one in found], 1) for name in ("sees", "occludes", "passes")
        )
        if self._pull:
            tracks.world = self._pulled(views, tracks.world, seen)
        tracks.hidden = torch.where(seen.any(1), 0, tracks.hidden + 1)
        depth = torch.stack([projected(tracks.world, view.camera).depth for view in views]).amin(0)
        in_front = passed.any(1) & ~seen.any(1) & ~occluded.any(1)  # all views that look there see through it
        lives = ~in_front & (tracks.hidden <= MAX_HIDDEN_STEPS) & (tracks.variance.sqrt() < MAX_SIGMA * depth)
        tracks, seen = tracks[lives], seen[lives]
        room = max(0, min(max_alive - len(tracks), max_new))
        lifted, guided_colors = self._begin_guided(views, guides, tracks)
        self.num_started += len(lifted)
        occupied = torch.cat([tracks.world, lifted.world])
        free, colors = self._begin(views, moving, occupied, max(0, room - len(lifted)))
        self.num_started += len(free)
        begun, colors = lifted.joined(free), torch.cat([guided_colors, colors])
        self.active = tracks.joined(begun)
        seen = torch.cat([seen, self._visibility(views, begun.world)])
        return TrackedInstant(self.active.ids, self.active.world, self.active.variance.sqrt(), seen, colors)

    def step(self, views: Sequence[FlowView] | None, guides: Sequence[Guide | None] = ()) -> None:
        """Move the tracks to the next instant by the flow of all views; without any, they end.

        Tracks with a guide that is visible at both instants follow it in its view.
        """
        if views is None:
            self.active = ActiveTracks.none()
            return
        tracks = self.active
        if not len(tracks):
            return
        world, variance = tracks.world + tracks.motion, tracks.variance.clone()
        variance += (_HIDDEN_GROWTH * tracks.motion.norm(dim=-1)) ** 2
        seen = self._visibility(views, tracks.world)
        flows = [flow_ends(view, tracks.world) for view in views]
        usable = seen & torch.stack([flow.consistent for flow in flows], dim=1)
        reference = _finest_view(views, tracks.world, usable)
        guided = torch.zeros(len(tracks), dtype=torch.bool)
        for own, guide in enumerate(guides):
            if guide is None:
                continue
            mine = torch.nonzero(tracks.view == own)[:, 0]
            rows = tracks.row[mine]
            follows = guide.visible[rows] & guide.next_visible[rows]
            mine, rows = mine[follows], rows[follows]
            flows[own].ends[mine] = guide.next_pixels[rows]
            usable[mine, own], reference[mine], guided[mine] = True, own, True
        for own, view in enumerate(views):
            chosen = torch.nonzero(usable[:, own] & (reference == own))[:, 0]
            if not len(chosen):
                continue
            others = [other for other in range(len(views)) if other != own]
            start = tracks.world[chosen]
            color = sample_map(view.image, flows[own].pixels[chosen])
            alike = [
                correspondence(start, color, views[other], self._tolerance).sees & usable[chosen, other]
                for other in others
            ]
            ends = solve_rays(
                view.target,
                start,
                flows[own].ends[chosen],
                [views[other].target for other in others],
                [flows[other].ends[chosen] for other in others],
                alike,
            )
            # The flow of a view does not outvote the clear motion of its guide.
            moves = guided[chosen] & (view.own_motion_px(start, flows[own].ends[chosen]) > CLEAR_MOTION_PX)
            votes = [still_votes(one, start, sees) for one, sees in zip(views, usable[chosen].unbind(1), strict=True)]
            still = (torch.stack(votes).sum(0) > 0) & ~moves
            moved = torch.where(still[:, None], start, ends.world)
            alone = torch.where((ends.views == 1) & ~still, (moved - start).norm(dim=-1), 0.0)
            world[chosen] = moved
            variance[chosen] = tracks.variance[chosen] + ends.sigma.square() + alone.square()
        self.active = replace(tracks, world=world, motion=world - tracks.world, variance=variance)

    def _visibility(self, views: Sequence[FlowView], world: Float[Tensor, "N 3"]) -> Bool[Tensor, "N V"]:
        return torch.stack([correspondence(world, None, view, self._tolerance).sees for view in views], 1)

    def _pulled(
        self, views: Sequence[FlowView], world: Float[Tensor, "N 3"], seen: Bool[Tensor, "N V"]
    ) -> Float[Tensor, "N 3"]:
        """Move points toward the surface that the view with the finest pixels sees."""
        moved = world.clone()
        reference = _finest_view(views, world, seen)
        for own, view in enumerate(views):
            chosen = torch.nonzero(seen[:, own] & (reference == own))[:, 0]
            center = view.camera.centers
            rays = world[chosen] - center
            depth = projected(world[chosen], view.camera).depth
            ratio = correspondence(world[chosen], None, view, self._tolerance).depth / depth
            moved[chosen] = center + rays * (1 + _PULL * (ratio - 1))[:, None]
        return moved

    def _begin(
        self, views: Sequence[FlowView], moving: Sequence[Bool[Tensor, "h w"]], world: Float[Tensor, "N 3"], room: int
    ) -> tuple[ActiveTracks, UInt8[Tensor, "M 3"]]:
        """Begin tracks at the centers of cells of a grid over moving pixels, where no track is."""
        starts, colors = [], []
        occupied = world
        for view, pixels in zip(views, moving, strict=True):
            height, width = view.depth.shape
            rows = torch.arange(GRID_STEP_PX // 2, height, GRID_STEP_PX)
            columns = torch.arange(GRID_STEP_PX // 2, width, GRID_STEP_PX)
            cells = torch.zeros(len(rows) + 1, len(columns) + 1, dtype=torch.bool)
            places = projected(occupied, view.depth_camera).pixels
            found = correspondence(occupied, None, view, self._tolerance).sees
            taken = (places[found] / GRID_STEP_PX).floor().long()
            cells[taken[:, 1].clamp(0, len(rows)), taken[:, 0].clamp(0, len(columns))] = True
            free = pixels[rows][:, columns] & ~cells[: len(rows), : len(columns)]
            chosen = torch.nonzero(free)
            centers = torch.stack([columns[chosen[:, 1]], rows[chosen[:, 0]]], -1)
            points = view.lift(centers)
            starts.append(points)
            colors.append(_colors(view, points))
            occupied = torch.cat([occupied, points])
        begun, tints = torch.cat(starts), torch.cat(colors)
        if len(begun) > room:  # spread over the surfaces
            kept = torch.from_numpy(np.unique(np.linspace(0, len(begun) - 1, room).round().astype(np.int64)))
            begun, tints = begun[kept], tints[kept]
        unguided = torch.full((len(begun),), -1)
        return ActiveTracks.begin(self.num_started, begun, unguided, unguided), tints

    def _begin_guided(
        self, views: Sequence[FlowView], guides: Sequence[Guide | None], tracks: ActiveTracks
    ) -> tuple[ActiveTracks, UInt8[Tensor, "M 3"]]:
        """Begin the tracks of guides that are visible and not followed, at the depth of their view."""
        begun, colors = ActiveTracks.none(), [torch.zeros(0, 3, dtype=torch.uint8)]
        for own, guide in enumerate(guides):
            if guide is None:
                continue
            free = guide.visible.clone()
            free[tracks.row[tracks.view == own]] = False
            rows = torch.nonzero(free)[:, 0]
            points, known = views[own].lift_at(guide.pixels[rows])
            rows, points = rows[known], points[known]
            first = self.num_started + len(begun)
            begun = begun.joined(ActiveTracks.begin(first, points, torch.full_like(rows, own), rows))
            colors.append(_colors(views[own], points))
        return begun, torch.cat(colors)


def _finest_view(
    views: Sequence[FlowView], world: Float[Tensor, "N 3"], usable: Bool[Tensor, "N V"]
) -> Int[Tensor, " N"]:
    """Return the usable view whose pixels are the finest at each point; any view if none is usable."""
    scale = [focal_length(view.camera) / projected(world, view.camera).depth for view in views]
    return torch.where(usable, torch.stack(scale, 1), -1.0).argmax(1)


def _colors(view: FlowView, points: Float[Tensor, "N 3"]) -> UInt8[Tensor, "N 3"]:
    return (sample_map(view.image, projected(points, view.camera).pixels).T * 255).round().to(torch.uint8)
