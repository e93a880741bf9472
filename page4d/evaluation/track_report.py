"""Trajectories of a capture: predicted tracks against the true tracks nearest to their starts."""

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.spatial import cKDTree

from page4d.errors import InputError
from page4d.evaluation.comparison import Comparison
from page4d.evaluation.record import TrackComparison, TrackReport
from page4d.evaluation.track_scores import DYNAMIC_PATH, STATIC_PATH, TrackPairs, score_tracks
from page4d.geometry.similarity import Sim3
from page4d.output.tracks import Tracks, read_tracks

MATCH_RADIUS = 0.05
"""Largest distance in metres of a track's start from a visible true track at the same instant."""

_DEFINITION = (
    "world coordinates; a track's truth is the true track nearest to its start among those visible then; "
    "displacements since the start are compared; instants after the start count"
)


def report_tracks(comparison: Comparison, transform: Sim3) -> TrackReport | None:
    """Compare all predicted tracks with true ones; None if either has none.

    `transform` maps the predicted to the true world.

    Raises:
        InputError: if a file of tracks is damaged or of another run.
    """
    if not has_tracks(comparison):
        return None
    assert comparison.truth.tracks_file is not None
    predicted, true = comparison.output.tracks(), read_tracks(comparison.truth.tracks_file)
    if len(predicted.times) != comparison.output.num_times:
        raise InputError(
            f"'{comparison.output.layout.tracks}' has {len(predicted.times)} instants, the run "
            f"{comparison.output.num_times}",
            "run page4d again",
        )
    matched, pairs = match_tracks(comparison, predicted, true, transform)
    paths = pairs.paths
    return TrackReport(
        definition=_DEFINITION,
        radius=MATCH_RADIUS,
        tracks=predicted.num_tracks,
        matched=matched,
        overall=_compared(pairs),
        dynamic=_compared(pairs.select(paths > DYNAMIC_PATH)),
        static=_compared(pairs.select(paths < STATIC_PATH)),
    )


def has_tracks(comparison: Comparison) -> bool:
    """Return True if both the output and the truth have tracks."""
    motion = comparison.output.run.motion
    return motion is not None and motion.tracks is not None and comparison.truth.tracks_file is not None


def match_tracks(comparison: Comparison, predicted: Tracks, true: Tracks, transform: Sim3) -> tuple[int, TrackPairs]:
    """Return the number of predicted tracks that have a truth, and these with their truth."""
    coords = transform.apply(torch.from_numpy(predicted.coords).double()).numpy()
    frames = _true_frames(comparison, len(true.times))
    known = np.flatnonzero(frames >= 0)
    positions = np.full((len(frames), true.num_tracks, 3), np.nan)
    visible = np.zeros(positions.shape[:2], dtype=bool)
    positions[known] = true.coords[frames[known]]
    visible[known] = _visible(comparison, true)[frames[known]]
    partner = _partners(coords, predicted.start, positions, visible)
    chosen = np.flatnonzero(partner >= 0)
    start, partner = predicted.start[chosen].astype(int), partner[chosen]
    here, there = coords[:, chosen], positions[:, partner]
    row = np.arange(len(chosen))
    after = np.arange(len(frames))[:, None] > start
    moved = here - here[start, row]
    pairs = TrackPairs(
        predicted=moved,
        true=np.where(after[..., None], there - there[start, row], np.nan),
        predicted_visible=predicted.visibs[:, chosen],
        true_visible=visible[:, partner],
        measured=np.isfinite(moved[..., 0]),
        start=start,
    )
    return len(chosen), pairs


def _true_frames(comparison: Comparison, number: int) -> Int[np.ndarray, " T"]:
    """Return the true frame of every instant of the output, -1 without one."""
    frames = []
    for own in zip(*(view.frames for view in comparison.views), strict=True):
        found = [frame for frame in own if frame is not None and 0 <= frame < number]
        frames.append(found[0] if found else -1)
    return np.array(frames)


def _visible(comparison: Comparison, true: Tracks) -> np.ndarray:
    """Return whether a compared view sees each true track [T, N]."""
    names = [view.name for view in comparison.truth.views]
    if true.view_visibs.shape[-1] != len(names):
        return true.visibs
    return np.asarray(true.view_visibs[..., [names.index(view.name) for view in comparison.views]].any(-1))


def _partners(
    coords: Float[np.ndarray, "T N 3"],
    start: Int[np.ndarray, " N"],
    positions: Float[np.ndarray, "T M 3"],
    visible: np.ndarray,
) -> Int[np.ndarray, " N"]:
    """Return the true track nearest to the start of every track, -1 beyond `MATCH_RADIUS`."""
    partner = np.full(len(start), -1)
    for instant in np.unique(start):
        own = np.flatnonzero((start == instant) & np.isfinite(coords[instant, :, 0]))
        others = np.flatnonzero(visible[instant] & np.isfinite(positions[instant, :, 0]))
        if len(own) and len(others):
            distance, nearest = cKDTree(positions[instant, others]).query(coords[instant, own])
            partner[own] = np.where(distance <= MATCH_RADIUS, others[nearest], -1)
    return partner


def _compared(pairs: TrackPairs) -> TrackComparison | None:
    """Score tracks and the baseline; None without tracks."""
    if not len(pairs.start):
        return None
    return TrackComparison(tracks=score_tracks(pairs), nothing_moves=score_tracks(pairs.staying()))
