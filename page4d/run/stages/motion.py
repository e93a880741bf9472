"""Velocities and tracks of a run, from the flow of every view to the instants before and after.

Tracks of the whole capture are made from records of every chunk.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from numpy.typing import NDArray
from torch import Tensor

from page4d.errors import Notice, counted
from page4d.formats.maps import DYNAMIC_THRESHOLD
from page4d.formats.tracks import Tracks, write_tracks
from page4d.geometry.camera import Cameras
from page4d.geometry.pixels import PixelTransform
from page4d.io.atomic import WrittenFile
from page4d.io.json_records import FileModel
from page4d.motion import flow
from page4d.motion.flow import FlowView, PointMotion, ViewFlow
from page4d.motion.tracks import ActiveTracks, Guide, TrackedInstant, TrackFollower
from page4d.output.layout import OutputLayout
from page4d.output.record import Difference, InstantMotion, MotionRecord
from page4d.records import Predictions
from page4d.run.plan import RunPlan, near_steps
from page4d.run.predictor import MeasuredDepth
from page4d.run.stage import History, Instant, Stage, chunk_name
from page4d.run.state_records import FinishedChunk
from page4d.scene.batches import BatchReader, is_unknown, open_placed_batches
from page4d.scene.point_tracks import PointTracks

MAX_ENTRIES = 10_000_000
"""Largest number of tracks times instants: the file holds a position per track and instant, 200 MB at most."""

_MIN_VIEWS = 2
"""Views that must measure the motion of a pixel for a track to begin there."""


class ChunkedTracks:
    """Follows tracks through a run, and hands over what each chunk adds."""

    def __init__(
        self, follower: TrackFollower, max_alive: int, num_times: int, guides: Callable[[int], Sequence[Guide | None]]
    ) -> None:
        self._guides = guides
        self._follower = follower
        self._max_alive = max_alive
        self._num_times = num_times
        self._rows: list[tuple[int, TrackedInstant]] = []

    def continue_from(self, chunk: Mapping[str, Tensor]) -> None:
        """Restore the state after a finished chunk."""
        active = ActiveTracks(**{name: chunk[f"active.{name}"] for name in vars(ActiveTracks.none())})
        self._follower.active, self._follower.num_started = active, int(chunk["num_started"])

    def follow(
        self,
        index: int,
        views: Sequence[FlowView],
        found: Mapping[Difference, Sequence[PointMotion]],
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
        guides = self._guides(index)
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
            **{f"active.{name}": values for name, values in vars(active).items()},
        }


def guides_at(
    index: int, tracks: Sequence[PointTracks | None], transforms: Sequence[PixelTransform]
) -> list[Guide | None]:
    """Return two-dimensional tracks at an instant and at the next one, at the pixels of the pictures of the flow.

    At the last instant none goes on.
    """
    found: list[Guide | None] = []
    for own, transform in zip(tracks, transforms, strict=True):
        if own is None:
            found.append(None)
            continue
        visible, after = torch.from_numpy(own.visible), min(index + 1, own.visible.shape[1] - 1)
        pixels, next_pixels = (
            transform.to_network(torch.from_numpy(own.pixels[:, place])) for place in (index, after)
        )
        found.append(Guide(pixels, visible[:, index], next_pixels, visible[:, after] & (after > index)))
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


METHOD = (
    "optical flow (DIS) of every view, triangulated along the rays of two or more views; central differences; "
    "0 where the views show no motion; sigma at least the speed where one view alone shows it"
)

MAX_ONE_VIEW = 0.6
"""Share of moving pixels that one view alone measured above which a run warns."""

_TRACKS = "tracks"
"""Name of the tracks of a chunk in the state folder."""


class _Pictures(NamedTuple):
    """Pictures of an instant, one per view: RGB [3, H, W] in [0, 1], where they are valid, and their luma.

    Pictures without content have no valid pixel, also those that show an earlier instant.
    """

    images: Sequence[Float[Tensor, "3 H W"]]
    valid: Sequence[Bool[Tensor, "H W"]]
    gray: Sequence[UInt8[np.ndarray, "H W"]]


@dataclass(frozen=True)
class _Step:
    """Flow of the pictures of all views between an instant and the next one, forward and back, and their noise.

    `shows` is whether a view has content at both instants: else its flow is none.
    """

    forward: tuple[ViewFlow, ...]
    backward: tuple[ViewFlow, ...]
    noise: tuple[float, ...]
    shows: tuple[bool, ...]


class MotionState(FileModel):
    """The record of the velocities: the unit of their maps, and at the end of a run all of it."""

    motion: MotionRecord


class MotionEstimator(Stage[MotionState]):
    """Measures the velocities of instants and follows tracks, in the order in which instants are written.

    `readers` closes the videos at the end of the run.
    """

    name = seconds = "motion"
    decision = MotionState

    def __init__(self, plan: RunPlan, layout: OutputLayout, readers: ExitStack) -> None:
        # Pictures alone: masks and depth maps are those of the predictions.
        views = tuple(replace(view, mask=None, depth=None) for view in plan.scene.views)
        self._scene, self._layout, self._readers = replace(plan.scene, views=views), layout, readers
        self._transforms, is_measured = plan.motion_transforms, isinstance(plan.predictor, MeasuredDepth)
        self._tolerance = flow.EXACT_DEPTH_TOLERANCE if is_measured else flow.DEPTH_TOLERANCE
        self._near = near_steps(plan.scene.times)
        self._reader: BatchReader | None = None
        self._pictures: dict[int, _Pictures] = {}
        self._follower: ChunkedTracks | None = None
        tracks2d, transforms = plan.point_tracks, plan.motion_transforms
        if transforms is not None and (plan.settings.tracks or tracks2d):
            follower = TrackFollower(self._tolerance, pull=is_measured)
            guides = partial(guides_at, tracks=tracks2d, transforms=transforms if tracks2d else ())
            self._follower = ChunkedTracks(follower, plan.settings.tracks, plan.scene.num_times, guides)
        self._steps: dict[int, _Step] = {}

    def restore(self, history: History) -> None:
        """Continue the tracks of the last chunk."""
        super().restore(history)
        if history.finished and self._follower is not None:
            self._follower.continue_from(history.read_tensors(chunk_name(_TRACKS, len(history.finished) - 1)))

    def chunk_tensors(self) -> Mapping[str, Mapping[str, Tensor]]:
        """Return the tracks of a chunk."""
        return {} if self._follower is None else {_TRACKS: self._follower.take_chunk()}

    def finish(self, history: History) -> list[WrittenFile]:
        """Complete the record of the velocities, and write the tracks of all chunks."""
        num_tracks, files = None, []
        if self._follower is not None:
            chunks = (history.read_tensors(chunk_name(_TRACKS, index)) for index in range(len(history.finished)))
            tracks = join_tracks(chunks, self._scene.times, self._scene.num_views)
            num_tracks, files = tracks.num_tracks, [write_tracks(self._layout.tracks, tracks)]
        if self.decided is not None:
            step = self.decided.motion.motion_step
            self.decided = MotionState(motion=motion_record(history.finished, step, num_tracks))
        return files

    def __call__(self, instant: Instant) -> Instant:
        """Add velocities to an instant, and their record."""
        if self._transforms is None:
            return instant
        index, predictions = instant.index, instant.predictions
        if index == 0:
            assert instant.options is not None
            self.decided = MotionState(motion=motion_record((), instant.options.motion_step))
        own = original_cameras(predictions)
        found: dict[Difference, list[PointMotion]] = {}
        noise: tuple[float, ...] = ()
        views: list[FlowView] = []
        neighbors: tuple[tuple[Difference, int, Cameras | None], ...] = (
            ("backward", index - 1, instant.before),
            ("forward", index, instant.after),
        )
        for side, step, cameras in neighbors:
            if cameras is None or not 0 <= step < len(self._near) or not self._near[step]:
                continue
            flows = self._step(step)
            noise = flows.noise
            of_side = flows.forward if side == "forward" else flows.backward
            views = self._views(predictions, index, own, cameras, of_side, flows.shows)
            found[side] = flow.rig_flow(views, self._tolerance)
        if self._follower is not None:
            self._follower.follow(index, views, found, forward="forward" in found)
        self._steps = {step: flows for step, flows in self._steps.items() if step >= index}
        self._pictures = {at: pictures for at, pictures in self._pictures.items() if at >= index}
        velocities = [self._velocity(index, predictions, found, view) for view in range(len(predictions.view_names))]
        one_sided: Difference = next(iter(found), "unknown")
        difference: Difference = "central" if len(found) > 1 else one_sided
        moving = replace(
            predictions,
            velocity=torch.stack([one.motion for one in velocities])[None, None].float(),
            velocity_sigma=torch.stack([one.sigma for one in velocities])[None, None].float(),
        )
        measured = _record(predictions.known[0, 0].cpu(), velocities, difference, noise)
        return replace(instant, predictions=moving, motion=measured)

    def _velocity(
        self, index: int, instant: Predictions, found: Mapping[Difference, Sequence[PointMotion]], view: int
    ) -> PointMotion:
        if not found:
            still = instant.depth.new_zeros(instant.depth.shape[-2:])
            return PointMotion(still[..., None].expand(-1, -1, 3), still, still.to(torch.uint8))
        times = self._scene.times
        before, after = (found[side][view] if side in found else None for side in ("backward", "forward"))
        return flow.combine(
            before,
            after,
            float(times[index] - times[index - 1]) if before is not None else 0.0,
            float(times[index + 1] - times[index]) if after is not None else 0.0,
        )

    def _views(
        self,
        instant: Predictions,
        index: int,
        own: Cameras,
        other: Cameras,
        flows: Sequence[ViewFlow],
        shows: Sequence[bool],
    ) -> list[FlowView]:
        """Return what `rig_flow` needs to know of every view."""
        assert self._transforms is not None
        pictures, known, views = self._picture(index), instant.known[0, 0].cpu(), []
        for view, transform in enumerate(self._transforms):
            cameras = [
                replace(
                    camera[view],
                    intrinsics=transform.intrinsics_to_network(camera.intrinsics[view]),
                    image_size=transform.canvas_size,
                )
                for camera in (own, other)
            ]
            views.append(
                FlowView(
                    depth=instant.depth[0, 0, view].detach().cpu(),
                    known=known[view] & shows[view],
                    moving=_moving(instant, view),
                    image=pictures.images[view],
                    flow=flows[view],
                    depth_camera=instant.cameras[0, 0, view].to("cpu").to(torch.float64),
                    camera=cameras[0],
                    target=cameras[1],
                )
            )
        return views

    def _step(self, step: int) -> _Step:
        """Return the flow between an instant and the next one; computed once, views side by side."""
        if step not in self._steps:
            first, second = self._picture(step), self._picture(step + 1)
            with ThreadPoolExecutor(max(1, torch.get_num_threads()), "flow") as threads:
                found = list(threads.map(_flow_of_view, first.gray, second.gray, first.valid, second.valid))
            self._steps[step] = _Step(*zip(*found, strict=True))
        return self._steps[step]

    def _picture(self, index: int) -> _Pictures:
        """Return the pictures of an instant; decoded once."""
        if index not in self._pictures:
            assert self._transforms is not None
            if self._reader is None:
                self._reader = self._readers.enter_context(open_placed_batches(self._scene, self._transforms))
            batch = self._reader.read(index, index + 1)
            if index + 1 < self._scene.num_times:
                self._reader.read_ahead(index + 2)
            images, valid = [], []
            for view, transform in enumerate(self._transforms):
                images.append(batch.images[0, 0, view][:, transform.rows, transform.columns])
                own = batch.valid[0, 0, view][transform.rows, transform.columns]
                shows = batch.faults is None or not batch.faults[0, 0, view]
                valid.append(own if shows else torch.zeros_like(own))
            self._pictures[index] = _Pictures(images, valid, [flow.to_gray(image) for image in images])
        return self._pictures[index]


def cameras_around(
    before: FinishedChunk | None, predictions: Predictions, following: Predictions | None
) -> list[Cameras | None]:
    """Return the cameras [V] at the instants of a chunk, and at those before and after it, at original pixels.

    `before` is the chunk before, `following` the instant after; None where there is none.
    """
    first = None
    if before is not None:
        first = Cameras(
            world_to_camera=before.world_to_camera[-1], intrinsics=before.intrinsics[-1], image_size=(1, 1)
        )
    own = [original_cameras(predictions.at_times(place, place + 1)) for place in range(predictions.num_times)]
    return [first, *own, None if following is None else original_cameras(following)]


def original_cameras(instant: Predictions) -> Cameras:
    """Return the cameras [V] of one instant in double precision, at the pixels of the original images."""
    cameras = instant.cameras[0, 0].to("cpu").to(torch.float64)
    intrinsics = [
        transform.intrinsics_to_original(matrix)
        for transform, matrix in zip(instant.pixel_transforms, cameras.intrinsics, strict=True)
    ]
    return replace(cameras, intrinsics=torch.stack(intrinsics))


def _flow_of_view(
    first: NDArray[np.uint8], second: NDArray[np.uint8], first_valid: Tensor, second_valid: Tensor
) -> tuple[ViewFlow, ViewFlow, float, bool]:
    """Return the flow to the second picture and back, the noise, and whether both pictures have content."""
    forward, backward = flow.optical_flow(first, second)
    there, back = flow.view_flow(first, second, forward, backward), flow.view_flow(second, first, backward, forward)
    return (
        there._replace(consistent=there.consistent & first_valid),
        back._replace(consistent=back.consistent & second_valid),
        flow.difference_noise(first, second) / 2**0.5,
        bool(first_valid.any() and second_valid.any()),
    )


def _moving(instant: Predictions, view: int) -> Bool[Tensor, "h w"] | None:
    """Return the motion mask of a view; None where nothing is known of its motion."""
    if instant.dynamic is None:
        return None
    dynamic = instant.dynamic[0, 0, view].cpu()
    return None if bool(is_unknown(dynamic[None])) else dynamic > DYNAMIC_THRESHOLD


def _record(
    known: Bool[Tensor, "V h w"], velocities: Sequence[PointMotion], difference: Difference, noise: Sequence[float]
) -> InstantMotion:
    views = torch.stack([one.views for one in velocities])
    return InstantMotion(
        difference=difference,
        pixels=int(known.sum()),
        known=int((views > 0).sum()),
        still=int((views == flow.STILL).sum()),
        one_view=int((views == 1).sum()),
        noise=[round(one, 4) for one in noise],
    )


def motion_record(finished: Sequence[FinishedChunk], motion_step: float, tracks: int | None = None) -> MotionRecord:
    """Return the record of the velocities of a run; `motion_step` is that of a level of their maps."""
    instants = [instant for chunk in finished for instant in chunk.motion]
    noise = [instant.noise for instant in instants if instant.noise]
    pixels = max(sum(instant.pixels for instant in instants), 1)
    return MotionRecord(
        method=METHOD,
        motion_step=motion_step,
        still_limit_px=flow.STILL_LIMIT_PX,
        sigma_factor=flow.SIGMA_FACTOR,
        noise=np.median(noise, axis=0).round(4).tolist() if noise else [],
        differences=[instant.difference for instant in instants],
        known=round(sum(instant.known for instant in instants) / pixels, 6),
        still=round(sum(instant.still for instant in instants) / pixels, 6),
        one_view=round(sum(instant.one_view for instant in instants) / pixels, 6),
        clipped=sum(chunk.clipped_velocities for chunk in finished),
        tracks=tracks,
    )


def motion_notices(
    finished: Sequence[FinishedChunk], *, tracks: int | None, is_demonstration: bool
) -> tuple[Notice, ...]:
    """Report motion that single views measured, instants without velocities, no tracks, and depth not to trust.

    `tracks` is their number if they were asked for, `is_demonstration` whether depth is that of the bundled network.
    """
    instants = [instant for chunk in finished for instant in chunk.motion]
    moving = sum(instant.known - instant.still for instant in instants)
    alone = sum(instant.one_view for instant in instants)
    unknown = sum(instant.difference == "unknown" for instant in instants)
    notices = []
    if moving and alone > MAX_ONE_VIEW * moving:
        notices.append(
            f"⟨motion⟩: {alone / moving:.0%} of the moving pixels were measured by one view alone: motion along its "
            "rays is unknown there (motion_sigma is at least the speed); views overlap little, or depth is wrong"
        )
    if unknown:
        notices.append(f"⟨motion⟩: {counted(unknown, 'instant')} without velocities: both neighbours are too far")
    if tracks == 0:
        notices.append("⟨tracks⟩: no point was followed from an instant to the next; closer instants may help")
    if is_demonstration:
        notices.append("⟨motion⟩: an error of depth is one of motion, and depth is that of the demonstration network")
    return tuple(Notice(text) for text in notices)
