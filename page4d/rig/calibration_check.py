"""Comparison of a calibration with people and texture, which are found without its poses.

Faults are named by hypotheses: another assignment of cameras to views, another pose of one camera, another image
size, focal length or convention of poses of all cameras. A hypothesis is reported only if it fits much better than
the calibration, and the pairs that it does not change fit. Without a fault, cameras are confirmed only as far as the
evidence would show that they are elsewhere.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import NamedTuple

import numpy as np
from scipy.spatial.transform import Rotation

from page4d.conventions import Scale
from page4d.errors import Progress, counted, listed
from page4d.options import in_options
from page4d.output.rig_record import CalibrationCheckRecord, Certainty, FindingRecord, PairFitRecord
from page4d.rig import mistakes, texture_pairs
from page4d.rig.camera_refit import SharedPoints, mean_score, refit_pose, refit_rotation
from page4d.rig.epipolar import normalized_points, relative_pose_of, tangents
from page4d.rig.evidence import PixelEvidence, TextureSource
from page4d.rig.graph import choose_pairs
from page4d.rig.learned import TEXTURE_MODEL, texture_kinds, tolerance
from page4d.rig.people.model import NO_POSE_MODEL, is_fetched, model_sha256
from page4d.rig.people.pairs import PersonPairs, pair_people
from page4d.rig.people.pose import MIN_INSTANTS, MIN_RATIO, MIN_SCORE, quick_people_pose
from page4d.rig.people_clocks import check_clocks
from page4d.rig.records import (
    Evidence,
    Pair,
    PairPose,
    RigCamera,
    ViewPeople,
    direction_angle_deg,
    no_progress,
    of_stage,
    rotation_angle_deg,
)

MIN_FIT = 0.5
"""Score from which a pair fits."""

FIT_TOLERANCE = 0.02
"""Sampson error, in units of the focal length, at which a joint no longer supports a calibration. Right calibrations
score 0.62 to 0.83 on a rig of people, swapped cameras at most 0.39; at 0.009 bias of the keypoints hides this."""

MAX_MISFIT = 0.75
"""Largest score of the calibration, as a share of that of a hypothesis, at which the hypothesis replaces it."""

NO_FIT, MIN_LOOSE_FIT, MIN_LOOSE_PAIRS = 0.05, 0.3, 3
"""Mean score of this many pairs at which nobody fits the calibration, and score from which a hypothesis then replaces
it: a man who sits, seen by four webcams of which one is 0.1 s early, scores 0.07 to 0.66 with a right calibration."""

CERTAIN_SHARE = 0.5
"""The same share, below which a finding is certain."""

MIN_TURN_DEG, MIN_TEXTURE_TURN_DEG = 5.0, 3.0
"""Smallest turn that people, and texture, report: bias of the keypoints turns right cameras by up to 1.1 degrees, and
good calibrations differ by another degree."""

MIN_SHIFT = 0.15
"""Smallest displacement that is reported, as a share of the distance to the other cameras; bias reaches 0.05."""

SAME_PLACE = 0.003
SAME_TURN_DEG = 0.3
"""Cameras at one pose: distance as a share of the largest one in the rig, and angle. Lenses of a stereo camera are
farther apart, and rigs about one point have cameras that look elsewhere."""

TRIED_TURN_DEG, TRIED_SHIFT = 10.0, 0.3
"""Turn of a camera, and displacement across the baseline to another as a share of it, that the evidence must notice
to confirm it: the smallest turns of which people notice all."""

MIN_BASELINE_SINE = 0.1
"""Sine of the angle between two baselines from which both determine the place of a camera."""

MIN_COMMON = 12
"""Instants with people in both views below which a pair is not used."""

MAX_PARTNERS = 6
"""Pairs of a camera that its pose is fitted to: those with the most common instants."""

MAX_CONTRADICTED = 0.3
"""Score of the calibration below which a pair contradicts it, if people place its cameras elsewhere."""

MIN_CONTRADICTION_DEG = 10.0
"""Smallest angle between the calibrated and the estimated relative pose: bias of the keypoints alone gives up to 5
degrees, and that of hands and half bodies more."""

MAX_ESTIMATED = 50
"""Instants of an estimated pose."""

_NO_LEARNED_TEXTURE = f"learned texture was not fetched ('{TEXTURE_MODEL.command}')"


def calibrated_cameras(evidence: PixelEvidence) -> tuple[RigCamera, ...]:
    """Return the cameras of a rig of static calibrated views."""
    poses = [view.camera.world_to_camera.double().numpy() for view in evidence.scene.views if view.camera is not None]
    both = zip(evidence.lenses, poses, strict=True)
    return tuple(RigCamera(lens=lens, world_to_camera=np.asarray(pose)) for lens, pose in both)


def check_scene(evidence: PixelEvidence) -> CalibrationCheckRecord:
    """Compare the cameras of the static calibrated views with people and texture, and their clocks with people.

    Texture is sought where people do not confirm all cameras. All instants of the range of a scene serve, whatever
    its stride, but no others: a calibration need not hold outside of it.

    Raises:
        CapabilityError: if the pose model cannot run on this platform.
        InputError: if a frame cannot be decoded.
    """
    known = [place for place, view in enumerate(evidence.scene.views) if view.camera is not None]
    evidence = (evidence if len(known) == evidence.scene.num_views else evidence.of_views(known)).whole(min_span=0)
    scene, instants, cameras = evidence.scene, evidence.instants, calibrated_cameras(evidence)
    begin = time.perf_counter()
    has_people = is_fetched() and len(instants) >= MIN_COMMON
    people: tuple[ViewPeople, ...] = evidence.people if has_people else ((),) * scene.num_views
    detected = time.perf_counter()
    textures = [TextureSource(evidence, kind, is_quick=True) for kind in texture_kinds()]
    progress = of_stage(evidence.progress, "checking: cameras")
    record = check_calibration(scene.view_names, cameras, people, textures, progress, scene.scale)
    compared = time.perf_counter()
    are_stamped = all(view.clock.frame_times for view in scene.views)
    clocks = check_clocks(scene.view_names, people, evidence.lenses, scene.times, instants, are_stamped=are_stamped)
    seconds = {
        "keypoints": detected - begin,
        "cameras": compared - detected,
        "clocks": time.perf_counter() - compared,
    }
    missing = [] if is_fetched() else [NO_POSE_MODEL]
    missing += [] if TEXTURE_MODEL.are_present else [_NO_LEARNED_TEXTURE]
    changes = {
        "clocks": clocks,
        "num_instants": len(instants),
        "pose_model": model_sha256() if has_people else None,
        "reason": "; ".join(missing) if record.unconfirmed else "",
        "seconds": {stage: round(duration, 3) for stage, duration in seconds.items()},
    }
    return record.model_copy(update=changes)


class _Fit(NamedTuple):
    """Scores of other cameras of some views: the sum over all pairs, and means over the `touched` pairs of the views.

    `given` is the mean of the calibration over these, `others` over all other pairs, None without any.
    """

    total: float
    given: float
    better: float
    touched: int
    others: float | None


class _Check:
    """Evidence of all pairs, and the scores of hypotheses."""

    def __init__(
        self, names: Sequence[str], cameras: Sequence[RigCamera], people: Sequence[ViewPeople], scale: Scale
    ) -> None:
        self.names, self.cameras, self.scale = tuple(names), tuple(cameras), scale
        self.shared: dict[Pair, SharedPoints] = {}
        for i, j in permutations(range(len(names)), 2):
            lenses = (cameras[i].lens, cameras[j].lens)
            found = pair_people(people[i], people[j], lenses, front_by_person=True)
            if found.common_instants >= MIN_COMMON:
                self.shared[i, j] = SharedPoints(
                    evidence=Evidence.PEOPLE,
                    people=found,
                    num_instants=found.common_instants,
                    tolerance=FIT_TOLERANCE,
                )
        self._compare()

    def _compare(self) -> None:
        self.pairs = [pair for pair in combinations(range(len(self.names)), 2) if pair in self.shared]
        self.given = {pair: self.score(pair, self.cameras) for pair in self.pairs}

    def add_texture(self, source: TextureSource) -> bool:
        """Use texture, in place of people, for the pairs that it determines, and return whether there are any.

        Not for pairs of confirmed cameras, unless some pair does not fit.
        """
        is_used, open_views = False, self.unconfirmed()
        tried = mistakes.other_lenses(self.cameras)
        tried += mistakes.exchanges(self.names, self.cameras) if len(self.names) <= mistakes.MAX_CYCLE_VIEWS else []
        pairs = [
            pair for pair in choose_pairs(source.affinity()) if pair not in self.shared or not self.is_texture(pair)
        ]
        for pair in sorted(pairs, key=lambda pair: not open_views & {*pair}):
            if not open_views & {*pair} and min(self.given.values(), default=1.0) >= MIN_FIT:
                continue
            found = _as_given(source, pair, self.cameras) or _determined(source, pair, self.cameras)
            others = (_as_given(source, pair, one.cameras) for one in tried if {*pair} & {*one.views})
            found = found or next(filter(None, others), None)
            if found is not None:
                self._use(found, self.cameras, self.cameras)
                is_used, open_views = True, self.unconfirmed()
        fitting = {view for pair in self.pairs if self.given[pair] >= MIN_FIT for view in pair}
        lonely = sorted(open_views - fitting)
        for view in lonely if len(lonely) <= mistakes.MAX_CYCLE_VIEWS else []:
            is_used |= self._add_mirrored(source, view)
        return is_used

    def _add_mirrored(self, source: TextureSource, view: int) -> bool:
        """Use texture that flipped pictures of a view share with others, where nothing else explains it."""
        texture, is_used = source.mirrored(view), False
        for pair in [pair for pair in choose_pairs(texture.affinity()) if view in pair]:
            for one in mistakes.mirrored(self.names, self.cameras, view):
                seen = mistakes.flipped(one.cameras, view)
                found = _as_given(texture, pair, seen)
                rivals = [one.cameras for one in mistakes.mirrored(self.names, self.cameras, sum(pair) - view)]
                if found is not None:
                    shared = _of_texture(found, pair, seen, one.cameras)
                    if all(shared.score(of[pair[0]], of[pair[1]]) < MIN_FIT for of in (self.cameras, *rivals)):
                        self._use(found, seen, one.cameras)
                        is_used = True
        return is_used

    def _use(self, found: PairPose, seen: Sequence[RigCamera], cameras: Sequence[RigCamera]) -> None:
        """Compare a pair by texture that is `seen` by cameras, and by others in the pictures as they are."""
        for views in (found.views, found.views[::-1]):
            self.shared[views] = _of_texture(found, views, seen, cameras)
        self._compare()

    def score(self, pair: Pair, cameras: Sequence[RigCamera], scale: float = 1.0) -> float:
        return self.shared[pair].score(cameras[pair[0]], cameras[pair[1]], scale)

    def mean_given(self, pairs: Sequence[Pair]) -> float:
        return float(np.mean([self.given[pair] for pair in pairs])) if pairs else 0.0

    def touched(self, views: Iterable[int]) -> list[Pair]:
        """Return the pairs that involve some of the views."""
        return [pair for pair in self.pairs if {*pair} & {*views}]

    def fit(self, views: Iterable[int], cameras: Sequence[RigCamera], scale: float = 1.0) -> "_Fit":
        """Score cameras that differ from those of the calibration in some views."""
        touched = self.touched(views)
        others = [pair for pair in self.pairs if pair not in touched]
        better = float(np.mean([self.score(pair, cameras, scale) for pair in touched])) if touched else 0.0
        rest = self.mean_given(others)
        total = better * len(touched) + rest * len(others)
        return _Fit(total, self.mean_given(touched), better, len(touched), rest if others else None)

    def partners(self, view: int) -> dict[int, SharedPoints]:
        others = [other for other in range(len(self.names)) if (view, other) in self.shared]
        others.sort(key=lambda other: (-self.shared[view, other].num_instants, other))
        return {other: self.shared[view, other] for other in others[:MAX_PARTNERS]}

    def unconfirmed(self) -> set[int]:
        """Return the views whose cameras could be elsewhere, relative to most others, with the same scores."""
        fitting = [pair for pair in self.pairs if self.given[pair] >= MIN_FIT]
        wrong = {view for pair in self.pairs if pair not in fitting and self.is_texture(pair) for view in pair}
        sure = {view for view in range(len(self.names)) if view not in wrong and self._is_noticed(view, fitting)}
        links = [pair for pair in fitting if set(pair) <= sure]
        placed: set[int] = set()
        for pair in links:
            if not set(pair) <= placed:
                placed = max(placed, self._grown(pair, links), key=len)
        return set(range(len(self.names))) - placed

    def is_texture(self, pair: Pair) -> bool:
        """Return whether a pair is compared by texture."""
        return self.shared[pair].evidence is not Evidence.PEOPLE

    def is_wide(self, pair: Pair) -> bool:
        """Return whether a pair is compared by texture that calibrated views from so far apart can hardly share."""
        first, second = (self.cameras[view].rotation[2] for view in pair)
        return self.is_texture(pair) and float(direction_angle_deg(first, second)) > texture_pairs.WIDE_DEG

    def _is_noticed(self, view: int, fitting: Sequence[Pair]) -> bool:
        """Return whether the score of a pair falls wherever the camera is turned, or displaced across a baseline."""
        own = sorted((pair for pair in fitting if view in pair), key=lambda pair: -self.given[pair])[:MAX_PARTNERS]
        if not own:
            return False
        camera, cameras = self.cameras[view], list(self.cameras)
        baseline = self.cameras[sum(own[0]) - view].center - camera.center
        reach = float(np.linalg.norm(baseline))
        moved = []
        for sign in (1, -1):
            for axis in np.eye(3):
                turn = Rotation.from_rotvec(sign * np.radians(TRIED_TURN_DEG) * axis).as_matrix()
                moved.append(camera.placed(turn @ camera.rotation, camera.center))
            centers = camera.center + sign * TRIED_SHIFT * reach * tangents(baseline / reach)
            moved += [camera.placed(camera.rotation, center) for center in centers]
        for other in moved:
            cameras[view] = other
            if not any(self.score(pair, cameras) <= MAX_MISFIT * self.given[pair] for pair in own):
                return False
        return True

    def _grown(self, start: Pair, links: Sequence[Pair]) -> set[int]:
        """Return the views whose places follow from two placed ones each, in different directions."""
        placed, grows = set(start), True
        while grows:
            grows = False
            for view in set(range(len(self.names))) - placed:
                others = [
                    self.cameras[sum(pair) - view].center for pair in links if view in pair and placed & set(pair)
                ]
                rays = [center - self.cameras[view].center for center in others]
                rays = [ray / max(float(np.linalg.norm(ray)), 1e-12) for ray in rays]
                if any(np.linalg.norm(np.cross(a, b)) > MIN_BASELINE_SINE for a, b in combinations(rays, 2)):
                    placed, grows = placed | {view}, True
        return placed


def _as_given(source: TextureSource, pair: Pair, cameras: Sequence[RigCamera]) -> PairPose | None:
    """Return a pair with the pose of cameras, None unless it explains enough texture."""
    first, second = (cameras[view] for view in pair)
    pose = relative_pose_of(first.world_to_camera, second.world_to_camera)
    return None if pose is None else source.pair(pair, (first.lens, second.lens), pose)


def _determined(source: TextureSource, pair: Pair, cameras: Sequence[RigCamera]) -> PairPose | None:
    """Return the best pose of a pair through the lenses of cameras, None unless texture determines it."""
    first, second = (cameras[view] for view in pair)
    found = source.pair(pair, (first.lens, second.lens))
    least = texture_pairs.least_determined(second.rotation @ first.rotation.T)
    return found if found is not None and found.score >= least else None


def _of_texture(
    found: PairPose, views: Pair, seen: Sequence[RigCamera], cameras: Sequence[RigCamera]
) -> SharedPoints:
    """Return the matches of a pair, `seen` by cameras, through the lenses of others, in an order of its views."""
    matches, (through, lenses) = found.matches, ([of[view].lens for view in views] for of in (seen, cameras))
    assert matches is not None
    pixels = (matches.first, matches.second) if views == found.views else (matches.second, matches.first)
    first, second = (normalized_points(points, lens)[None] for points, lens in zip(pixels, through, strict=True))
    one = np.zeros(1, dtype=np.int64)
    people = PersonPairs(
        lenses=(lenses[0], lenses[1]),
        instants=one,
        first_tracklets=one,
        second_tracklets=one,
        first=first,
        second=second,
        weights=np.ones(first.shape[:2]),
        exchanged=one > 0,
        possible=1,
    )
    return SharedPoints(
        evidence=found.evidence,
        people=people,
        num_instants=found.num_instants,
        tolerance=texture_pairs.FIT_TOLERANCE * tolerance((through[0], through[1])),
    )


def check_calibration(
    names: Sequence[str],
    cameras: Sequence[RigCamera],
    people: Sequence[ViewPeople],
    textures: Sequence[TextureSource] = (),
    progress: Progress = no_progress,
    scale: Scale = Scale.ARBITRARY,
) -> CalibrationCheckRecord:
    """Compare calibrated static cameras with body keypoints in undistorted original pixels of the same lenses.

    Texture, by one method after the other, is used while no fault is certain and cameras are unconfirmed. `progress`
    receives the number of views that are done, and of all. `scale` is that of the cameras' positions.
    """
    check = _Check(names, cameras, people, scale)
    findings = [_duplicate_finding(check, views) for views in find_duplicates(cameras)]
    if not findings:
        finding = _fault(check, progress)
        for source in textures:
            if (finding is None or finding.certainty == "likely") and check.unconfirmed():
                finding = _fault(check, progress) if check.add_texture(source) else finding
        finding = finding or _contradicted(check) or _unlike_others(check)
        findings = [] if finding is None else [finding]
    return CalibrationCheckRecord(
        pairs=tuple(
            PairFitRecord(
                views=(names[i], names[j]),
                evidence=check.shared[i, j].evidence,
                score=check.given[i, j],
                num_instants=check.shared[i, j].num_instants,
                fits=check.given[i, j] >= MIN_FIT,
            )
            for i, j in check.pairs
        ),
        findings=tuple(findings),
        unconfirmed=tuple(names[view] for view in sorted(check.unconfirmed())),
    )


def _fault(check: _Check, progress: Progress) -> FindingRecord | None:
    """Return the hypothesis that fits far better than the calibration."""
    if min(check.given.values(), default=1.0) >= _GOOD_FIT:
        return None
    flips = [one for view in range(len(check.names)) for one in mistakes.mirrored(check.names, check.cameras, view)]
    swapped = _replaced(check, mistakes.exchanges(check.names, check.cameras))
    certain = swapped or _replaced(check, [*mistakes.common_mistakes(check.cameras), *flips])
    if certain is not None:
        return certain
    found = [_replaced(check, flips, MAX_MISFIT), _moved_camera(check, progress)]
    return max(filter(None, found), key=lambda one: one.better_score or 0.0, default=None)


_GOOD_FIT = 0.85
"""Score of all pairs from which no hypothesis is tried: a camera turned about its axis by 10 degrees leaves 0.6."""


def find_duplicates(cameras: Sequence[RigCamera]) -> list[tuple[int, ...]]:
    """Return groups of cameras at one pose."""
    centers = np.stack([camera.center for camera in cameras])
    size = float(np.linalg.norm(centers[:, None] - centers, axis=-1).max())
    groups: dict[int, list[int]] = {}
    for view, camera in enumerate(cameras):
        alike = (
            first
            for first in groups
            if np.linalg.norm(camera.center - cameras[first].center) <= SAME_PLACE * size
            and rotation_angle_deg(camera.rotation, cameras[first].rotation) <= SAME_TURN_DEG
        )
        groups.setdefault(next(alike, view), []).append(view)
    return [tuple(group) for group in groups.values() if len(group) > 1]


def _duplicate_finding(check: _Check, views: tuple[int, ...]) -> FindingRecord:
    """Name the cameras at one pose, and the one whose pairs with all other cameras do not fit."""
    names = tuple(check.names[view] for view in views)
    fits = {}
    for view in views:
        pairs = [pair for pair in check.touched([view]) if not {*pair} <= {*views}]
        if pairs:
            fits[view] = check.mean_given(pairs)
    right = [view for view, fit in fits.items() if fit >= MIN_FIT]
    wrong = [check.names[view] for view, fit in fits.items() if fit < MIN_FIT]
    what = f"{listed(names, separator=' and ')} have the same pose"
    if len(right) == 1 and wrong and len(fits) == len(views):
        what += f": that of {check.names[right[0]]}, which fits the other views"
        fix = f"correct the pose of {listed(wrong, separator=' and ')} in the calibration"
    else:
        fix = in_options("correct the calibration, or leave one of the views out with ⟨views⟩")
    return FindingRecord(fault="duplicate", views=names, certainty="certain", what=what, fix=fix)


def _replaced(
    check: _Check, hypotheses: Sequence[mistakes.Hypothesis], max_share: float = CERTAIN_SHARE
) -> FindingRecord | None:
    """Return the hypothesis that fits best, if the calibration has at most a share of its score."""
    # Errors shrink with longer focal lengths, and so does the tolerance.
    fits = [(check.fit(one.views, one.cameras, 1 / max(1.0, one.focal_ratio)), one) for one in hypotheses]
    (_, given, better, touched, others), best = max(fits, key=lambda fit: fit[0].total)
    least = MIN_LOOSE_FIT if given <= NO_FIT and touched >= MIN_LOOSE_PAIRS else MIN_FIT
    settled = (others is None or others >= least) and touched >= best.certain_pairs - 1
    is_clear = touched >= best.certain_pairs and better >= MIN_FIT and given <= CERTAIN_SHARE * better
    if better < least or given > max_share * better or not settled:
        return None
    is_loose = not is_clear and not all(map(check.is_texture, check.touched(best.views)))
    return FindingRecord(
        fault=best.fault,
        views=tuple(check.names[view] for view in best.views),
        certainty="certain" if is_clear else "likely",
        what=f"{best.what}: {_figures(given, better)} after correction",
        fix=in_options(f"{'check the clocks, or ' * is_loose}{best.fix}"),
        score=given,
        better_score=better,
    )


def _figures(given: float, better: float) -> str:
    return f"the pictures fit with a score of {better:.2f} instead of {given:.2f}"


def _moved_camera(check: _Check, progress: Progress) -> FindingRecord | None:
    """Find the camera that fits the others at another pose."""
    refits = []
    for view in range(len(check.names)):
        refits += _refit(check, view)
        progress(view + 1, len(check.names))
    if not refits:
        return None
    (_, score, better, _, others), camera, view, is_turn = max(refits, key=lambda refit: refit[0].total)
    if better < MIN_FIT or score > MAX_MISFIT * better or others is None or others < MIN_FIT:
        return None
    given = check.cameras[view]
    angle = float(rotation_angle_deg(given.rotation, camera.rotation))
    shift = float(np.linalg.norm(given.center - camera.center))
    reach = float(np.mean([np.linalg.norm(other.center - given.center) for other in check.cameras]))
    displaced = not is_turn and shift >= MIN_SHIFT * reach
    by_people = not all(map(check.is_texture, check.touched([view])))
    least = MIN_TURN_DEG if by_people else MIN_TEXTURE_TURN_DEG
    if angle < least and not displaced:
        return None
    where = ""
    if displaced:
        turned = f" and turned by {angle:.0f} degrees" if angle >= 5 else ""
        where = f"{shift:.3g} {check.scale.symbol} from its place{turned}"
    # Of 12 to 21 instants people have certainly displaced cameras of right calibrations.
    lengths = [check.shared[pair].num_instants for pair in check.touched([view]) if not check.is_texture(pair)]
    is_clear = score <= CERTAIN_SHARE * better and min(lengths, default=MIN_INSTANTS) >= MIN_INSTANTS
    certainty: Certainty = "certain" if is_clear else "likely"
    return _pose_finding(
        [check.names[view]], angle, (score, better), certainty, where, is_loose=by_people and better < _GOOD_FIT
    )


def _refit(check: _Check, view: int) -> list[tuple[_Fit, RigCamera, int, bool]]:
    """Refit a camera to the others, if they are enough; a turn about its centre is preferred to another position.

    Not one that fits so well that no other pose is reported.
    """
    partners, touched = check.partners(view), check.touched([view])
    if len(partners) < 2 or len(touched) == len(check.pairs) or check.mean_given(touched) > MAX_MISFIT:
        return []
    camera, is_turn = refit_rotation(view, check.cameras, partners), True
    if mean_score(camera, check.cameras, partners) < MIN_FIT:
        is_wide = any(check.is_wide(pair) for pair in touched)  # repeated structures agree on wrong poses
        free = None if is_wide else refit_pose(view, check.cameras, partners)
        if free is not None:
            camera, is_turn = free, False
    fit = check.fit([view], [*check.cameras[:view], camera, *check.cameras[view + 1 :]])
    return [(fit, camera, view, is_turn)]


def _pose_finding(
    names: Sequence[str],
    angle_deg: float,
    scores: tuple[float, float],
    certainty: Certainty,
    where: str = "",
    *,
    is_loose: bool = False,
) -> FindingRecord:
    """Report a camera, or one of two, that is turned, or elsewhere; scores are those given, and of the correction.

    People fit another pose loosely also where a clock is wrong.
    """
    named = listed(names, separator=" or ")
    what = where or f"turned by {angle_deg:.0f} degrees"
    return FindingRecord(
        fault="displaced" if where else "turned",
        views=tuple(names),
        certainty=certainty,
        what=f"{named} is {what}: {_figures(*scores)} after correction",
        fix=in_options(f"{'check the clocks, ' * is_loose}calibrate {named} again, or name it by ⟨again⟩"),
        score=scores[0],
        better_score=scores[1],
        angle_deg=angle_deg,
    )


def _contradicted(check: _Check) -> FindingRecord | None:
    """Report pairs that do not fit although the evidence determines another relative pose of them well.

    A turn of one camera that explains texture accuses a pair by itself; other poses do where half of the pairs do not
    fit: repeated structures, such as equal panels of walls, agree on wrong poses.
    """
    turned, wrong = {}, {}
    for pair in check.pairs:
        if check.given[pair] < (MIN_FIT if check.is_texture(pair) else MAX_CONTRADICTED):
            turn = _turned_fit(check, pair) if check.is_texture(pair) else None
            if turn is not None and turn.score >= MIN_FIT:
                if turn.angle_deg >= MIN_TEXTURE_TURN_DEG:
                    turned[pair] = turn
            elif not check.is_wide(pair):
                better = _best_pose_score(check, pair)
                if better is not None:
                    wrong[pair] = better
    scores = {pair: turn.score for pair, turn in turned.items()}
    if 2 * (len(wrong) + len(turned)) >= len(check.pairs):
        scores |= wrong
    if not scores:
        return None
    views = _suspects(check, list(scores))
    given, better = check.mean_given(list(scores)), float(np.mean(list(scores.values())))
    if len(scores) == len(turned) == 1 and better >= _GOOD_FIT:
        (turn,) = turned.values()
        names = [check.names[view] for view in views if len(views) == 1 or view in turn.views]
        return _pose_finding(names, turn.angle_deg, (given, better), "likely")
    pairs = listed([f"{check.names[i]}-{check.names[j]}" for i, j in sorted(scores)], 6)
    return FindingRecord(
        fault="contradicted",
        views=tuple(check.names[view] for view in views),
        certainty="likely",
        what=f"{len(scores)} of {counted(len(check.pairs), 'pair')} of cameras do not fit the pictures: {pairs} "
        f"(score {given:.2f}, {better:.2f} at other poses)",
        fix="check that the calibration belongs to these videos and that the clocks are right; "
        "or leave it out and let the tool register the cameras",
        score=given,
        better_score=better,
    )


def _unlike_others(check: _Check) -> FindingRecord | None:
    """Report a view whose people are far from those of all other views, of which three and more fit each other."""
    for view, name in enumerate(check.names):
        own, partners = check.touched([view]), check.partners(view)
        others = [pair for pair in combinations(sorted(partners), 2) if check.given.get(pair, 0.0) >= MIN_FIT]
        are_right = MIN_LOOSE_PAIRS <= len(others) == len(partners) * (len(partners) - 1) // 2
        fewest = min((shared.num_instants for shared in partners.values()), default=0)  # 1 of texture
        if (
            are_right
            and fewest >= MIN_INSTANTS
            and max(check.given[pair] for pair in own) <= NO_FIT
            and max(check.score(pair, check.cameras, _FAR) for pair in own) < MIN_FIT
        ):
            given, rest = check.mean_given(own), check.mean_given(others)
            return FindingRecord(
                fault="contradicted",
                views=(name,),
                certainty="likely",
                what=f"{name} fits no other view (score {given:.2f}), while these fit each other ({rest:.2f})",
                fix=in_options(f"check its clock, the capture of its video, and its camera (⟨again={name}⟩)"),
                score=given,
            )
    return None


_FAR = 5.0
"""Tolerances of people who are elsewhere: 6 degrees. With right cameras, and keypoints that are wrong by a tenth of
the body, they score 0.7 and more, at one tolerance 0."""


def _suspects(check: _Check, wrong: Sequence[Pair]) -> list[int]:
    """Return the views of pairs that do not fit: the one that they share, or that fits no other, if there is one."""
    views = {view for pair in wrong for view in pair}
    fitting = {view for pair in check.pairs if check.given[pair] >= MIN_FIT for view in pair}
    for narrower in (views.intersection(*wrong) if len(wrong) > 1 else set(), views - fitting):
        if len(narrower) == 1:
            return list(narrower)
    return sorted(views)


@dataclass(frozen=True)
class _Turn:
    """The best score of a pair with one camera turned about its centre, the angle, and which camera it may be."""

    score: float
    angle_deg: float
    views: tuple[int, ...]


def _turned_fit(check: _Check, pair: Pair) -> _Turn:
    fits = {}
    for view, other in (pair, pair[::-1]):
        camera = refit_rotation(view, check.cameras, {other: check.shared[view, other]})
        angle_deg = float(rotation_angle_deg(camera.rotation, check.cameras[view].rotation))
        fits[view] = (check.shared[view, other].score(camera, check.cameras[other]), angle_deg)
    best, angle_deg = max(fits.values())
    return _Turn(best, angle_deg, tuple(view for view, (score, _) in fits.items() if score > MAX_MISFIT * best))


def _best_pose_score(check: _Check, pair: Pair) -> float | None:
    """Return the score of the best relative pose of a pair; None if it is near, or could be one by chance."""
    shared, (first, second) = check.shared[pair], (check.cameras[view] for view in pair)
    people = shared.people.thinned(MAX_ESTIMATED)
    found = quick_people_pose(people)
    if found is None or found.score < MIN_SCORE:
        return None
    given = relative_pose_of(first.world_to_camera, second.world_to_camera)
    least = MIN_TURN_DEG if check.is_texture(pair) else MIN_CONTRADICTION_DEG
    if given is not None and max(found.pose.apart_deg(given)) < least:
        return None
    if check.is_texture(pair):
        return found.score
    control = quick_people_pose(people.shuffled())
    return found.score if control is None or found.score >= MIN_RATIO * control.score else None
