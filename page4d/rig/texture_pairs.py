"""Relative pose of two views from texture, with the evidence for it and the gate that accepts it."""

from dataclasses import replace

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from page4d.rig.epipolar import (
    MIN_POINTS,
    RelativePose,
    estimate_pose,
    in_front,
    refine_pose,
    sampson_errors,
    unit_rays,
)
from page4d.rig.learned import tolerance
from page4d.rig.records import Array, Evidence, Pair, PairPose, PointMatches, direction_angle_deg
from page4d.rig.texture import ROOT_SIFT, TextureMatches, TextureMethod

MIN_SHARE = 0.45
"""Least share of the distinct matches that are inliers: 66 right pairs have more, the best wrong pair has 41 %."""

MIN_LOOP_DISTINCT = 40
"""Fewest distinct inliers of RootSIFT in a loop that confirms them: a right pair of `room3` has 45."""

MAX_JACKKNIFE_DEG = 4.0
"""Largest change of rotation between halves of the matches: right pairs have at most 3, wrong ones 11 and more."""

MAX_DIRECTION_DEG = 10.0
"""Largest change of direction between halves: beyond it the translation is undetermined."""

MIN_RIVAL_SHARE = 0.95
"""Share of the score from which the pose of a half is a rival: two poses explain the matches, as with a plane."""

MAX_RIVAL_DEG = (6.0, 20.0)
"""Largest change of rotation, and of direction, of a rival."""

MIN_CONTROL_RATIO = 1.5
"""Least ratio of distinct inliers to those of shuffled matches, whose agreement is chance."""

MAX_ROTATION_SHARE = 0.8
"""Largest share of inliers that a rotation alone explains: beyond it there is no parallax, and any direction fits."""

MIN_FRONT_SHARE = 0.75
"""Least share of matches on epipolar lines that meet in front of both cameras: it is one half for random matches."""

PLANE_SHARES, PLANE_SIGMAS = (0.75, 0.9), 2.5
"""Shares of the score from which the other pose of a plane is a rival: where matches off the plane do not prefer the
pose by standard deviations of their number, and anywhere. On a wall two poses explain all, and few matches choose."""

MIN_CELLS = 6
"""Fewest cells of an 8x8 grid with an inlier, in either view: fewer are one object, such as a poster."""

GUIDE_BAND = 0.025
"""Sampson error in focal lengths up to which matches of placed views are sought: 1.4 degrees."""

MIN_GUIDED = 40
"""Fewest distinct matches near the epipolar lines of a pose that the rest of the rig, or a calibration, gives."""

MIN_DENSITY = 3.0
"""Least ratio of these to those by chance: right poses of `caliscope_a` have 4 to 16, shifted bands 0.8 to 1.2."""

MAX_ITERATIONS = 3000
"""Hypotheses of RANSAC: 99 % probability of a sample of five inliers where their share is 27 %."""

_MAX_POINTS = 4000
_ROUNDS = 4
_NUM_SPLITS = 3
_GRID = 8

_NUM_STARTS = 4
_STARTS = (1.0, 0.25)
"""Starts of each RANSAC: seeds, and scales of the tolerance, the small one for views with little noise.

With two seeds, halves of the matches of a real pair miss its pose by 5 degrees; with four, by 0.3.
"""

_AGREED_DEG = 0.1
"""Angle between the poses of starts up to which they are the same."""

_SHARP, _REFINED = 0.25, 0.5
"""Scales, in tolerances, of the score that compares starts and of the loss of refinement."""

_SAME_INLIERS = 0.9
"""Share of the inliers of two rounds that both have, from which the controls of the first hold in the second."""


def register_texture_pair(
    matches: TextureMatches,
    views: Pair,
    seed: int = 0,
    method: TextureMethod = ROOT_SIFT,
    before: PairPose | None = None,
    *,
    is_rough: bool = False,
) -> PairPose:
    """Estimate the pose of the second view relative to the first from texture at common instants.

    `score` is the number of distinct inliers, those that repeat over instants counted once. `reason` states why the
    pair is refused. Other poses of planes are no rivals while focal lengths are start values, with `is_rough`: the
    image of a plane depends on them. The controls of `before`, an accepted pair under other focal lengths, hold for
    nearly the same inliers. The result depends only on the arguments.
    """
    least = MIN_LOOP_DISTINCT if method.loops_confirm else method.min_distinct
    pose = _fitted(matches, seed, least)
    if pose is None:
        return PairPose(views=views, evidence=method.evidence, reason="too few matches of texture")
    inliers = matches.inliers(pose)
    found = _pair_of(pose, matches, views, method.evidence, inliers, method.weight)
    score, needed = int(found.score), method.min_distinct
    few = f"{score} distinct inliers of texture, {needed} are needed" if score < needed else ""
    if score < least:
        return replace(found, reason=few)
    angle = float(direction_angle_deg(pose.rotation[2], np.array([0.0, 0.0, 1.0])))
    if angle > method.max_axes_deg:
        reason = f"texture of views that are {angle:.0f} degrees apart, {method.max_axes_deg:.0f} is the most"
        return replace(found, reason=reason)
    share = score / matches.num_distinct()
    small = f"{share:.1%} of the distinct matches of texture agree, {MIN_SHARE:.0%} are needed"
    weak = few or (small if share < MIN_SHARE else "")
    reason = _doubt(pose, matches, inliers)
    if not is_rough:
        reason = reason or _rival_of_plane(pose, matches) or _rival_of_part(pose, matches, seed)
    if reason or (weak and not method.loops_confirm):
        return replace(found, reason=reason or weak)
    if before is not None and before.is_accepted and _same_inliers(before, found):
        found = replace(found, control=before.control, jackknife_deg=before.jackknife_deg)
    else:
        found = _with_controls(found, pose, matches, seed)
    if found.is_accepted and weak:
        return replace(found, reason=f"{weak} without a loop", needs_loop=True)
    return found


MIN_DETERMINED, MIN_DETERMINED_SHARE = 60, 0.5
"""Fewest distinct inliers, and least share of the distinct matches, of a pose that can contradict a calibration."""

MIN_WIDE, WIDE_DEG = 100, 75.0
"""Fewest distinct inliers of views whose optical axes are farther apart: opposite views agree on wrong poses."""


FIT_TOLERANCE = 4.0
"""Sampson error, in tolerances of an inlier, at which a match no longer supports given cameras: 3 px of a picture of
640 px. Right calibrations score 0.96, and at most 0.34 with a camera turned by 5 degrees; the tolerance of an inlier
would accuse good calibrations."""


def determined_pair(
    matches: TextureMatches, views: Pair, evidence: Evidence, seed: int = 0, pose: RelativePose | None = None
) -> PairPose | None:
    """Return the best pose of a pair, or a given one, with the matches that agree with it; None unless they suffice.

    The gates of a best pose are stricter than those of registration, where loops and people refuse wrong pairs.
    """
    matches = replace(matches, tolerance=tolerance(matches.lenses) * (1.0 if pose is None else FIT_TOLERANCE))
    total = matches.num_distinct()
    found = pose or (_fitted(matches, seed) if may_be_determined(matches, seed) else None)
    if found is None:
        return None
    least = MIN_GUIDED if pose else least_determined(found.rotation)
    inliers = matches.inliers(found)
    if matches.num_distinct(inliers) < max(least, MIN_DETERMINED_SHARE * total):
        return None
    doubt = _doubt(found, matches, inliers) or ("" if pose else _rival_of_plane(found, matches))
    return None if doubt else _pair_of(found, matches, views, evidence, inliers)


def may_be_determined(matches: TextureMatches, seed: int) -> bool:
    """Return whether one start finds half of the inliers that a best pose needs: others take eight times as long."""
    if matches.num_distinct() < MIN_DETERMINED:
        return False
    pose = _refined_start(matches, matches.tolerance, _NUM_STARTS * seed)
    return pose is not None and 2 * matches.num_distinct(matches.inliers(pose)) >= MIN_DETERMINED


def least_determined(rotation: Float[Array, "3 3"]) -> int:
    """Return the fewest distinct inliers that determine a pair with this relative rotation."""
    axis = np.array([0.0, 0.0, 1.0])
    return MIN_DETERMINED if direction_angle_deg(rotation[2], axis) <= WIDE_DEG else MIN_WIDE


def guided_pair(
    matches: TextureMatches, pose: RelativePose, views: Pair, method: TextureMethod, limit: float
) -> PairPose:
    """Return a pair with the matches near the epipolar lines of its pose in the rig.

    `limit` is the largest Sampson error of the matches that are kept, in focal lengths, at least that of an inlier.
    The pair is accepted if there are enough inliers, and `MIN_DENSITY` times those that chance puts there: wrong
    matches are spread evenly over `GUIDE_BAND`, and a wrong pose has no more matches near its lines than farther off.
    """
    errors = np.abs(sampson_errors(pose.essential, *matches.normalized))
    front = in_front(pose, *matches.normalized)
    outer = front & (errors > GUIDE_BAND / 2) & (errors < GUIDE_BAND)
    tight = front & (errors < matches.tolerance)
    found = _pair_of(pose, matches, views, method.evidence, tight)
    chance = matches.num_distinct(outer) * matches.tolerance / (GUIDE_BAND / 2)
    reason = ""
    if found.score < max(MIN_GUIDED, MIN_DENSITY * chance):
        reason = f"{found.score:.0f} distinct matches of texture near the epipolar lines, {chance:.0f} by chance"
    kept = _distinct(matches, front & (errors < max(limit, matches.tolerance)), method.weight)
    return replace(found, control=float(chance), matches=kept, reason=reason)


def _pair_of(
    pose: RelativePose,
    matches: TextureMatches,
    views: Pair,
    evidence: Evidence,
    inliers: NDArray[np.bool_],
    weight: float = 1.0,
) -> PairPose:
    """Return a pair with a pose and the matches that agree with it."""
    errors = np.abs(sampson_errors(pose.essential, *matches.normalized))[inliers]
    focal = np.sqrt(np.prod([lens.focal for lens in matches.lenses]))
    return PairPose(
        views=views,
        evidence=evidence,
        rotation=pose.rotation,
        direction=pose.direction,
        score=float(matches.num_distinct(inliers)),
        residual_px=float(np.median(errors) * focal) if len(errors) else None,
        num_instants=len(np.unique(matches.instants[inliers])),
        matches=_distinct(matches, inliers, weight),
    )


def _with_controls(found: PairPose, pose: RelativePose, matches: TextureMatches, seed: int) -> PairPose:
    """Add the shuffled control and the jackknife, and refuse what they refute."""
    control = _shuffled_score(matches, seed, found.score / MIN_CONTROL_RATIO)
    halves = _half_poses(matches, seed)
    apart = [(180.0, 180.0) if one is None else pose.apart_deg(one) for one in halves]
    turn, shift = np.median(apart, axis=0).tolist()
    least = MIN_RIVAL_SHARE * _sharp_score(pose, matches)
    rivals = (
        f"a pose that differs by {angle:.1f} degrees, in direction by {bend:.1f}, explains the texture too"
        for half, (angle, bend) in zip(halves, apart, strict=True)
        if half is not None
        and (angle > MAX_RIVAL_DEG[0] or bend > MAX_RIVAL_DEG[1])
        and _sharp_score(half, matches) >= least
    )
    if found.score < MIN_CONTROL_RATIO * control:
        reason = f"{found.score:.0f} distinct inliers of texture, shuffled matches have {control}"
    elif turn > MAX_JACKKNIFE_DEG or shift > MAX_DIRECTION_DEG:
        reason = f"halves of the texture differ by {turn:.1f} degrees, in direction by {shift:.1f}"
    else:
        reason = next(rivals, "")
    return replace(found, control=float(control), jackknife_deg=turn, reason=reason)


def _fitted(
    matches: TextureMatches, seed: int, least: float = 0.0, *, until_agreed: bool = False
) -> RelativePose | None:
    """Return the best pose of several starts of RANSAC over all matches with repetitions, refined on its inliers.

    Starts with the same number of inliers may be several degrees apart: their sharper scores separate them. No more
    are made where the first have less than half of the `least` distinct inliers or, with `until_agreed`, where both
    scales of one have the same pose, which most of the matches fit.
    """
    best, highest = None, 0.0
    for start in range(_NUM_STARTS):
        poses = [_refined_start(matches, scale * matches.tolerance, _NUM_STARTS * seed + start) for scale in _STARTS]
        found = [pose for pose in poses if pose is not None]
        for pose in found:
            score = _sharp_score(pose, matches)
            best, highest = (pose, score) if score > highest else (best, highest)
        count = 0 if best is None else matches.num_distinct(matches.inliers(best))
        agree = until_agreed and len(found) == len(poses) and count >= MIN_SHARE * matches.num_distinct()
        if 2 * count < least or (agree and found[0].apart_deg(found[1])[0] < _AGREED_DEG):
            break
    return best


def _refined_start(matches: TextureMatches, tolerance: float, seed: int) -> RelativePose | None:
    first, second = matches.normalized
    pose = estimate_pose(first, second, tolerance, seed, max_points=_MAX_POINTS, max_iterations=MAX_ITERATIONS)
    return _refined(pose, matches)


def _refined(pose: RelativePose | None, matches: TextureMatches) -> RelativePose | None:
    """Return a pose refined on its inliers, in rounds; None if there is none, or too few matches agree with it."""
    first, second = matches.normalized
    for _ in range(_ROUNDS):
        if pose is None:
            return None
        inliers = matches.inliers(pose, 2.0)
        if matches.num_distinct(inliers) < MIN_POINTS:
            return None
        kept = matches.once(inliers)
        pose = refine_pose(pose, first[kept], second[kept], np.ones(len(kept)), _REFINED * matches.tolerance)
    return pose


def _sharp_score(pose: RelativePose, matches: TextureMatches) -> float:
    """Return the weight of the distinct inliers, which falls from 1 where an error exceeds `_SHARP` tolerances."""
    errors = sampson_errors(pose.essential, *matches.normalized)
    kept = matches.once(matches.inliers(pose))
    return float((1 / (1 + np.square(errors[kept] / (_SHARP * matches.tolerance)))).sum())


def _same_inliers(one: PairPose, other: PairPose) -> bool:
    """Return whether nearly all inliers of two poses of a pair are the same matches."""
    matches = [pair.matches for pair in (one, other) if pair.matches is not None]
    first, second = ({*zip(of.first_ids.tolist(), of.second_ids.tolist(), strict=True)} for of in matches)
    return len(first & second) >= _SAME_INLIERS * len(first | second)


def _distinct(matches: TextureMatches, inliers: NDArray[np.bool_], weight: float) -> PointMatches:
    kept = matches.once(inliers)
    return PointMatches(
        first=matches.first[kept],
        second=matches.second[kept],
        weights=np.full(len(kept), weight),
        first_ids=matches.first_ids[kept],
        second_ids=matches.second_ids[kept],
    )


def _doubt(pose: RelativePose, matches: TextureMatches, inliers: NDArray[np.bool_]) -> str:
    """Return why inliers do not determine a pose, from their geometry; empty if they do."""
    first, second = matches.normalized
    near = np.abs(sampson_errors(pose.essential, first, second)) < matches.tolerance
    front = matches.num_distinct(inliers) / max(matches.num_distinct(near), 1)
    if front < MIN_FRONT_SHARE:
        return f"{front:.0%} of the matches of texture are in front of both cameras"
    share = _rotation_share(first[inliers], second[inliers], matches.tolerance)
    if share > MAX_ROTATION_SHARE:
        return f"a rotation alone explains {share:.0%} of the texture: the direction is undetermined"
    for points, lens in zip((matches.first, matches.second), matches.lenses, strict=True):
        cells = np.unique(np.floor(points[inliers] * _GRID / max(lens.image_size)), axis=0)
        if len(cells) < MIN_CELLS:
            return f"the matches of texture cover {len(cells)} of {_GRID * _GRID} cells of the image"
    return ""


def _rival_of_plane(pose: RelativePose, matches: TextureMatches) -> str:
    """Return which other pose explains the inliers on a plane as well, if no others decide; empty if there is none.

    Source: Malis and Vargas, "Deeper understanding of the homography decomposition for vision-based control", 2007:
    a plane in two calibrated views has two poses in front of both.
    """
    import cv2  # a local import keeps start-up short

    first, second = matches.normalized
    inliers = matches.inliers(pose)
    plane, flat = _plane_of(matches, inliers)
    if plane is None:
        return ""
    on_plane, score = inliers & flat, _sharp_score(pose, matches)
    _, rotations, shifts, _ = cv2.decomposeHomographyMat(plane, np.eye(3))
    for rotation, shift in zip(rotations, shifts, strict=True):
        direction = np.ravel(shift) / max(float(np.linalg.norm(shift)), np.finfo(np.float64).tiny)
        start = RelativePose(rotation=np.asarray(rotation, np.float64), direction=np.asarray(direction, np.float64))
        if in_front(start, first[on_plane], second[on_plane]).mean() < MIN_FRONT_SHARE:
            continue
        rival = _refined(start, matches)
        if rival is None or (share := _sharp_score(rival, matches) / score) < PLANE_SHARES[0]:
            continue
        turn, bend = pose.apart_deg(rival)
        own, other = (matches.num_distinct(matches.inliers(one) & ~flat) for one in (pose, rival))
        is_close = share >= PLANE_SHARES[1] or own - other < PLANE_SIGMAS * (own + other) ** 0.5
        if is_close and (turn > MAX_RIVAL_DEG[0] or bend > MAX_RIVAL_DEG[1]):
            return f"a pose that differs by {turn:.1f} degrees, in direction by {bend:.1f}, explains the plane too"
    return ""


def _plane_of(
    matches: TextureMatches, among: NDArray[np.bool_]
) -> tuple[Float[Array, "3 3"] | None, NDArray[np.bool_]]:
    """Return the homography that most of some matches fit, if there is one, and which of all matches fit it."""
    import cv2  # a local import keeps start-up short

    first, second = matches.normalized
    kept, plane = matches.once(among), None
    if len(kept) >= MIN_POINTS:
        plane, _ = cv2.findHomography(first[kept], second[kept], cv2.RANSAC, 2 * matches.tolerance)
    if plane is None:
        return None, np.zeros(len(first), bool)
    moved = cv2.perspectiveTransform(first[None], plane)[0]
    return np.asarray(plane, np.float64), np.linalg.norm(moved - second, axis=1) < 3 * matches.tolerance


def _rival_of_part(pose: RelativePose, matches: TextureMatches, seed: int) -> str:
    """Return which other pose a part of the matches gives that explains most of all; empty if there is none.

    The parts are all without one of two planes of inliers, and those that are no inliers. Where a pattern repeats,
    wrong matches of one period are on a plane; right poses turn by at most 2 degrees without any of theirs.
    """
    inliers, score = matches.inliers(pose), _sharp_score(pose, matches)
    _, flat = _plane_of(matches, inliers)
    _, other = _plane_of(matches, inliers & ~flat)
    parts = ((~(inliers & flat), 1.0), (~(inliers & other & ~flat), 1.0), (~inliers, _STARTS[-1]))
    for part, scale in parts:
        rival = _refined_start(matches.select(part), scale * matches.tolerance, _NUM_STARTS * seed)
        if rival is None or _sharp_score(rival, matches) < PLANE_SHARES[0] * score:
            continue
        turn, bend = pose.apart_deg(rival)
        if turn > MAX_JACKKNIFE_DEG or bend > MAX_RIVAL_DEG[1]:
            return f"a pose that differs by {turn:.1f} degrees, in direction by {bend:.1f}, explains most texture too"
    return ""


def _rotation_share(first: Array, second: Array, tolerance: float) -> float:
    """Return the share of points that the best rotation alone maps onto their matches, within the tolerance."""
    rays_first, rays_second = (unit_rays(points) for points in (first, second))
    weights = np.ones(len(first))
    for _ in range(10):
        rotation, _ = Rotation.align_vectors(rays_second, rays_first, weights=weights)
        errors = np.linalg.norm(rotation.apply(rays_first) - rays_second, axis=1)
        weights = 1 / (1 + np.square(errors / tolerance))
    return float((errors < 2 * tolerance).mean())


def _shuffled_score(matches: TextureMatches, seed: int, least: float) -> int:
    """Return the distinct inliers of the same estimation after the second features are permuted among matches.

    The estimation is shorter where they are far fewer than `least`.
    """
    _, once = np.unique(matches.keys, return_index=True)
    order = once[np.random.default_rng(seed).permutation(len(once))]
    shuffled = replace(matches.select(once), second=matches.second[order], second_ids=matches.second_ids[order])
    pose = _fitted(shuffled, seed, least)
    return 0 if pose is None else shuffled.num_distinct(shuffled.inliers(pose))


def _half_poses(matches: TextureMatches, seed: int) -> list[RelativePose | None]:
    """Return the poses of halves of the distinct matches, by several random splits."""
    generator = np.random.default_rng(seed)
    keys = np.unique(matches.keys)
    poses = []
    for split in range(_NUM_SPLITS):
        side = np.zeros(int(keys.max()) + 1, dtype=bool)
        side[generator.permutation(keys)[: len(keys) // 2]] = True
        halves = (matches.select(kept) for kept in (side[matches.keys], ~side[matches.keys]))
        poses += [_fitted(half, seed + split + 1, until_agreed=True) for half in halves]
    return poses
