"""Comparison of a calibration with body keypoints, which are found without its poses.

Faults are named by hypotheses: another assignment of cameras to views, another pose of one camera, another image
size, focal length or convention of poses of all cameras. A hypothesis is reported only if it fits much better than
the calibration, and the pairs that it does not change fit.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations, permutations

import numpy as np

from page4d.conventions import OPENGL_AXES
from page4d.errors import counted, listed
from page4d.options import in_options
from page4d.output.record import CalibrationCheckRecord, Certainty, FindingRecord, PairFitRecord
from page4d.rig.camera_refit import mean_score, refit_pose, refit_rotation
from page4d.rig.clocks import check_clocks
from page4d.rig.epipolar import relative_pose_of
from page4d.rig.evidence import PixelEvidence
from page4d.rig.people.model import NO_POSE_MODEL, is_fetched, model_sha256
from page4d.rig.people.pairs import PersonPairs, camera_score, pair_people
from page4d.rig.people.pose import quick_people_pose
from page4d.rig.records import Array, RigCamera, ViewPeople, direction_angle_deg, of_stage, rotation_angle_deg

_SCALES = (1 / 4, 1 / 3, 1 / 2, 2 / 3, 3 / 4, 4 / 3, 3 / 2, 2.0, 3.0, 4.0)
"""Usual ratios of image sizes: 720p, 1080p, 1440p and 2160p, and halves and thirds."""

_OPENGL = np.diag(OPENGL_AXES)

_LENS_FIX = (
    "use the calibration of these videos; if its file states the calibrated image size, pass ⟨calibration_resize={}⟩"
)
_POSE_FIX = "convert the poses to world-to-camera with the axes of OpenCV (x right, y down, z forward)"


@dataclass(frozen=True)
class Hypothesis:
    """Corrected cameras, what is wrong with the given ones, and how to correct it."""

    cameras: tuple[RigCamera, ...]
    what: str
    fix: str
    focal_ratio: float = 1.0


def common_mistakes(cameras: Sequence[RigCamera]) -> list[Hypothesis]:
    """Return corrections of frequent mistakes that concern all cameras."""
    return [*_other_lenses(cameras), *_other_conventions(cameras)]


def _other_lenses(cameras: Sequence[RigCamera]) -> list[Hypothesis]:
    found = [
        Hypothesis(
            _with_lenses(cameras, _centered),
            "the principal points are those of a larger image, whose edges were cut off",
            _LENS_FIX.format("crop-center"),
        )
    ]
    for scale in _SCALES:
        ratio = f"{scale:.2g}" if scale > 1 else f"1/{1 / scale:.2g}"
        size = f"the calibration is for images of another size ({ratio} of it is the size of the videos)"
        sense = "short" if scale > 1 else "long"
        focal = f"the focal lengths are too {sense} by a factor of about {max(scale, 1 / scale):.2g}"
        for center, what in ((scale, size), (1.0, focal)):
            moved = _with_lenses(cameras, partial(_scaled, focal=scale, center=center))
            found.append(Hypothesis(moved, what, _LENS_FIX.format("scale"), scale))
    return found


def _with_lenses(
    cameras: Sequence[RigCamera], change: Callable[[Array, tuple[int, int]], Array]
) -> tuple[RigCamera, ...]:
    return tuple(
        replace(camera, lens=replace(camera.lens, intrinsics=change(camera.lens.intrinsics, camera.lens.image_size)))
        for camera in cameras
    )


def _scaled(intrinsics: Array, _: tuple[int, int], *, focal: float, center: float) -> Array:
    changed = intrinsics.copy()
    changed[:2, :2] *= focal
    changed[:2, 2] *= center
    return changed


def _centered(intrinsics: Array, image_size: tuple[int, int]) -> Array:
    changed = intrinsics.copy()
    changed[:2, 2] = image_size[1] / 2, image_size[0] / 2
    return changed


def _inverse(pose: Array) -> Array:
    return np.asarray(np.linalg.inv(pose), dtype=np.float64)


def _other_conventions(cameras: Sequence[RigCamera]) -> list[Hypothesis]:
    def posed(change: Callable[[Array], Array], what: str) -> Hypothesis:
        moved = tuple(replace(camera, world_to_camera=change(camera.world_to_camera)) for camera in cameras)
        return Hypothesis(moved, what, _POSE_FIX)

    return [
        posed(_inverse, "the poses are camera-to-world"),
        posed(lambda pose: _OPENGL @ pose, "the camera axes are those of OpenGL (y up, z backward)"),
        posed(lambda pose: _OPENGL @ np.linalg.inv(pose), "the poses are camera-to-world with the axes of OpenGL"),
    ]


MIN_FIT = 0.5
"""Score from which a pair fits."""

FIT_TOLERANCE = 0.02
"""Sampson error, in units of the focal length, at which a joint no longer supports a calibration. Right calibrations
score 0.62 to 0.83 on a rig of people, swapped cameras at most 0.39; at 0.009 bias of the keypoints hides this."""

MAX_MISFIT = 0.75
"""Largest score of the calibration, as a share of that of a hypothesis, at which the hypothesis replaces it."""

CERTAIN_SHARE = 0.5
"""The same share, below which a finding is certain."""

MIN_TURN_DEG = 5.0
"""Smallest turn that is reported: bias of the keypoints turns right cameras by up to 1.1 degrees, and good
calibrations differ by another degree."""

MIN_SHIFT = 0.15
"""Smallest displacement that is reported, as a share of the distance to the other cameras; bias reaches 0.05."""

SAME_PLACE = 0.003
SAME_TURN_DEG = 0.3
"""Cameras at one pose: distance as a share of the largest one in the rig, and angle. Lenses of a stereo camera are
farther apart, and rigs about one point have cameras that look elsewhere."""

MIN_COMMON = 12
"""Instants with people in both views below which a pair is not used."""

MAX_CYCLE_VIEWS = 5
"""Views up to which exchanges of three cameras are tried too."""

MAX_PARTNERS = 6
"""Pairs of a camera that its pose is fitted to: those with the most common instants."""

MAX_CONTRADICTED = 0.3
"""Score of the calibration below which a pair contradicts it, if people place its cameras elsewhere."""

MIN_STRICT, MIN_CONTROL_RATIO = 0.43, 1.4
"""Smallest score of an estimated pose, and its ratio to that of shuffled instants: those of the registration."""

MIN_CONTRADICTION_DEG = 10.0
"""Smallest angle between the calibrated and the estimated relative pose: bias of the keypoints alone gives up to 5
degrees, and that of hands and half bodies more."""

MAX_ESTIMATED = 50
"""Instants of an estimated pose."""


def calibrated_cameras(evidence: PixelEvidence) -> tuple[RigCamera, ...]:
    """Return the cameras of a rig of static calibrated views."""
    poses = [view.camera.world_to_camera.double().numpy() for view in evidence.scene.views if view.camera is not None]
    both = zip(evidence.lenses, poses, strict=True)
    return tuple(RigCamera(lens=lens, world_to_camera=np.asarray(pose)) for lens, pose in both)


def check_scene(evidence: PixelEvidence) -> CalibrationCheckRecord:
    """Compare the cameras of a rig of static calibrated views, and their clocks, with body keypoints.

    Without the pose model, or with too few instants, only the calibration itself is checked.

    Raises:
        CapabilityError: if the pose model cannot run on this platform.
        InputError: if a frame cannot be decoded.
    """
    scene, instants, cameras = evidence.scene, evidence.instants, calibrated_cameras(evidence)
    reason = "" if is_fetched() else NO_POSE_MODEL
    if len(instants) < MIN_COMMON:
        reason = f"too few instants to compare people: {len(instants)}, need {MIN_COMMON}"
    if reason:
        nobody = (ViewPeople(tracklets=()),) * scene.num_views
        return check_calibration(scene.view_names, cameras, nobody).model_copy(update={"reason": reason})
    begin = time.perf_counter()
    people = evidence.people
    detected = time.perf_counter()
    record = check_calibration(scene.view_names, cameras, people, of_stage(evidence.progress, "checking: cameras"))
    compared = time.perf_counter()
    clocks = check_clocks(scene.view_names, people, evidence.lenses, scene.times, instants)
    seconds = {
        "keypoints": detected - begin,
        "cameras": compared - detected,
        "clocks": time.perf_counter() - compared,
    }
    changes = {
        "clocks": clocks,
        "num_instants": len(instants),
        "pose_model": model_sha256(),
        "seconds": {stage: round(duration, 3) for stage, duration in seconds.items()},
    }
    return record.model_copy(update=changes)


Pair = tuple[int, int]


class _Check:
    """Keypoints of all pairs, and the scores of hypotheses."""

    def __init__(self, names: Sequence[str], cameras: Sequence[RigCamera], people: Sequence[ViewPeople]) -> None:
        self.names, self.cameras = tuple(names), tuple(cameras)
        both = {
            (i, j): pair_people(people[i], people[j], (cameras[i].lens, cameras[j].lens), front_by_person=True)
            for i, j in permutations(range(len(names)), 2)
        }
        self.people: Mapping[Pair, PersonPairs] = {k: v for k, v in both.items() if v.common_instants >= MIN_COMMON}
        self.pairs = [pair for pair in combinations(range(len(names)), 2) if pair in self.people]
        self.given = {pair: self.score(pair, self.cameras) for pair in self.pairs}

    def score(self, pair: Pair, cameras: Sequence[RigCamera], tolerance: float = FIT_TOLERANCE) -> float:
        return camera_score(self.people[pair], cameras[pair[0]], cameras[pair[1]], tolerance)

    def mean_given(self, pairs: Sequence[Pair]) -> float:
        return float(np.mean([self.given[pair] for pair in pairs])) if pairs else 0.0

    def mean(self, pairs: Sequence[Pair], cameras: Sequence[RigCamera], tolerance: float = FIT_TOLERANCE) -> float:
        return float(np.mean([self.score(pair, cameras, tolerance) for pair in pairs])) if pairs else 0.0

    def touched(self, views: Sequence[int]) -> tuple[list[Pair], list[Pair]]:
        """Return the pairs that involve some of the views, and the others."""
        inside = [pair for pair in self.pairs if set(pair) & set(views)]
        return inside, [pair for pair in self.pairs if pair not in inside]

    def partners(self, view: int) -> dict[int, PersonPairs]:
        others = [other for other in range(len(self.names)) if (view, other) in self.people]
        others.sort(key=lambda other: (-self.people[view, other].common_instants, other))
        return {other: self.people[view, other] for other in others[:MAX_PARTNERS]}


def check_calibration(
    names: Sequence[str],
    cameras: Sequence[RigCamera],
    people: Sequence[ViewPeople],
    progress: Callable[[int, int], None] | None = None,
) -> CalibrationCheckRecord:
    """Compare calibrated static cameras with body keypoints in undistorted original pixels of the same lenses.

    `progress` receives the number of views that are done, and of all.
    """
    check = _Check(names, cameras, people)
    findings = [_duplicate_finding(check, views) for views in find_duplicates(cameras)]
    if not findings and min(check.given.values(), default=1.0) < _GOOD_FIT:
        finding = (
            _exchanged(check) or _common_mistake(check) or _moved_camera(check, progress) or _contradicted(check)
        )
        findings = [] if finding is None else [finding]
    seen = {view for pair in check.pairs for view in pair}
    return CalibrationCheckRecord(
        pairs=tuple(
            PairFitRecord(
                views=(names[i], names[j]),
                score=check.given[i, j],
                num_instants=check.people[i, j].common_instants,
                fits=check.given[i, j] >= MIN_FIT,
            )
            for i, j in check.pairs
        ),
        findings=tuple(findings),
        unchecked=tuple(name for view, name in enumerate(names) if view not in seen),
        reason="" if check.pairs else f"no two views show people at {MIN_COMMON} or more common instants",
    )


_GOOD_FIT = 0.85
"""Score of all pairs from which no hypothesis is tried: a camera turned about its axis by 10 degrees leaves 0.6."""


def find_duplicates(cameras: Sequence[RigCamera]) -> list[tuple[int, ...]]:
    """Return groups of cameras at one pose."""
    centers = np.stack([camera.center for camera in cameras])
    size = float(np.linalg.norm(centers[:, None] - centers, axis=-1).max())
    groups: list[list[int]] = []
    for view, camera in enumerate(cameras):
        for group in groups:
            other = cameras[group[0]]
            near = np.linalg.norm(camera.center - other.center) <= SAME_PLACE * size
            if near and rotation_angle_deg(camera.rotation, other.rotation) <= SAME_TURN_DEG:
                group.append(view)
                break
        else:
            groups.append([view])
    return [tuple(group) for group in groups if len(group) > 1]


def _duplicate_finding(check: _Check, views: tuple[int, ...]) -> FindingRecord:
    """Name the cameras at one pose, and the one whose pairs with all other cameras do not fit."""
    names = tuple(check.names[view] for view in views)
    fits = {}
    for view in views:
        pairs = [pair for pair in check.touched([view])[0] if not set(pair) <= set(views)]
        if pairs:
            fits[view] = check.mean_given(pairs)
    right = [view for view, fit in fits.items() if fit >= MIN_FIT]
    wrong = [check.names[view] for view, fit in fits.items() if fit < MIN_FIT]
    what = f"{listed(names, separator=' and ')} have the same pose"
    if len(right) == 1 and wrong and len(fits) == len(views):
        what += f": that of {check.names[right[0]]}, which fits the people in the other views"
        fix = f"correct the pose of {listed(wrong, separator=' and ')} in the calibration"
    else:
        fix = in_options("correct the calibration, or leave one of the views out with ⟨views⟩")
    return FindingRecord(fault="duplicate", views=names, certainty="certain", what=what, fix=fix)


def _is_better(given: float, better: float) -> bool:
    return better >= MIN_FIT and given <= MAX_MISFIT * better


def _certainty(given: float, better: float) -> Certainty:
    return "certain" if given <= CERTAIN_SHARE * better else "likely"


def _exchanged(check: _Check) -> FindingRecord | None:
    """Find the exchange of two or three cameras that fits best."""
    number = len(check.names)
    orders = [dict(zip(pair, pair[::-1], strict=True)) for pair in combinations(range(number), 2)]
    if number <= MAX_CYCLE_VIEWS:
        for a, b, c in combinations(range(number), 3):
            orders += [{a: b, b: c, c: a}, {a: c, b: a, c: b}]
    results = []
    for order in orders:
        moved = [check.cameras[order.get(view, view)] for view in range(number)]
        touched, others = check.touched(list(order))
        if touched:
            results.append((check.mean(touched, moved), len(others), order, touched, others))
    totals = [
        better * len(touched) + check.mean_given(others) * len(others) for better, _, _, touched, others in results
    ]
    if not totals:
        return None
    best = int(np.argmax(totals))
    better, _, order, touched, others = results[best]
    given = check.mean_given(touched)
    settled = not others or check.mean_given(others) >= MIN_FIT
    if given > CERTAIN_SHARE * better or not _is_better(given, better) or not settled:
        return None
    names = tuple(check.names[view] for view in sorted(order))
    figures = f"the people fit with a score of {better:.2f} instead of {given:.2f}"
    if len(names) == 2:
        what = f"{names[0]} and {names[1]} are swapped: {figures} if they are exchanged"
    else:
        renames = listed([f"{check.names[a]} has the camera of {check.names[b]}" for b, a in sorted(order.items())])
        what = f"{listed(names, separator=' and ')} are exchanged: {renames}; {figures} if this is undone"
    return FindingRecord(
        fault="swapped",
        views=names,
        certainty=_certainty(given, better) if len(touched) > 1 else "likely",
        what=what,
        fix="rename the cameras in the calibration, or the videos",
        score=given,
        better_score=better,
    )


@dataclass(frozen=True)
class _Refit:
    """A camera at another pose, with the mean score of all pairs."""

    view: int
    camera: RigCamera
    given: float
    better: float
    others: float
    total: float
    is_turn: bool


def _moved_camera(check: _Check, progress: Callable[[int, int], None] | None) -> FindingRecord | None:
    """Find the camera that fits the others at another pose."""
    refits = []
    for view in range(len(check.names)):
        refit = _refit(check, view)
        if refit is not None:
            refits.append(refit)
        if progress is not None:
            progress(view + 1, len(check.names))
    if not refits:
        return None
    best = max(refits, key=lambda refit: refit.total)
    if not _is_better(best.given, best.better) or best.others < MIN_FIT:
        return None
    return _moved_finding(check, best)


def _refit(check: _Check, view: int) -> _Refit | None:
    """Refit one camera to the others; a turn about its centre is preferred to another position."""
    partners = check.partners(view)
    touched, others = check.touched([view])
    if len(partners) < 2 or not others:
        return None
    camera, is_turn = refit_rotation(view, check.cameras, partners), True
    better = mean_score(camera, check.cameras, partners, FIT_TOLERANCE)
    if better < MIN_FIT:
        free = refit_pose(view, check.cameras, partners)
        if free is not None:
            camera, is_turn = free, False
    cameras = [*check.cameras[:view], camera, *check.cameras[view + 1 :]]
    better, rest = check.mean(touched, cameras), check.mean_given(others)
    return _Refit(
        view=view,
        camera=camera,
        given=check.mean_given(touched),
        better=better,
        others=rest,
        total=better * len(touched) + rest * len(others),
        is_turn=is_turn,
    )


def _moved_finding(check: _Check, refit: _Refit) -> FindingRecord | None:
    given, name = check.cameras[refit.view], check.names[refit.view]
    angle = float(rotation_angle_deg(given.rotation, refit.camera.rotation))
    shift = float(np.linalg.norm(given.center - refit.camera.center))
    reach = float(np.mean([np.linalg.norm(camera.center - given.center) for camera in check.cameras]))
    figures = f"the people fit with a score of {refit.better:.2f} instead of {refit.given:.2f}"
    displaced = not refit.is_turn and shift >= MIN_SHIFT * reach
    if angle < MIN_TURN_DEG and not displaced:
        return None
    if displaced:
        where = f"{shift:.3g} units from its place" + (f" and turned by {angle:.0f} degrees" if angle >= 5 else "")
        what = f"{name} is {where}: {figures} at the corrected pose"
    else:
        what = f"{name} is turned by {angle:.0f} degrees: {figures} once it is turned back"
    return FindingRecord(
        fault="displaced" if displaced else "turned",
        views=(name,),
        certainty=_certainty(refit.given, refit.better),
        what=what,
        fix=in_options(f"calibrate {name} again, or leave its pose out (⟨poses=predicted⟩)"),
        score=refit.given,
        better_score=refit.better,
        angle_deg=angle,
    )


def _common_mistake(check: _Check) -> FindingRecord | None:
    """Find another image size, focal length or convention that fits far better for all cameras."""
    given = check.mean_given(check.pairs)
    if len(check.pairs) < 2:
        return None
    results = []
    for mistake in common_mistakes(check.cameras):  # errors shrink with longer focal lengths, so does the tolerance
        tolerance = FIT_TOLERANCE / max(1.0, mistake.focal_ratio)
        results.append((check.mean(check.pairs, mistake.cameras, tolerance), mistake))
    better, best = max(results, key=lambda result: result[0])
    if given > CERTAIN_SHARE * better or not _is_better(given, better):
        return None
    return FindingRecord(
        fault="convention",
        views=check.names,
        certainty="likely" if len(check.pairs) < 3 else "certain",
        what=f"{best.what}: the people fit with a score of {better:.2f} instead of {given:.2f} after correction",
        fix=in_options(best.fix),
        score=given,
        better_score=better,
    )


def _contradicted(check: _Check) -> FindingRecord | None:
    """Report pairs that do not fit although the people determine another relative pose of them well."""
    wrong = []
    for pair in check.pairs:
        if check.given[pair] < MAX_CONTRADICTED:
            better = _best_pose_score(check, pair)
            if better is not None:
                wrong.append((pair, better))
    if not wrong or 2 * len(wrong) < len(check.pairs):
        return None
    views = sorted({view for pair, _ in wrong for view in pair})
    given = check.mean_given([pair for pair, _ in wrong])
    better = float(np.mean([score for _, score in wrong]))
    pairs = listed([f"{check.names[i]}-{check.names[j]}" for (i, j), _ in wrong], 6)
    return FindingRecord(
        fault="contradicted",
        views=tuple(check.names[view] for view in views),
        certainty="likely",
        what=f"{len(wrong)} of {counted(len(check.pairs), 'pair')} of cameras do not fit the people: {pairs} "
        f"(score {given:.2f}, {better:.2f} at other poses)",
        fix="check that the calibration belongs to these videos and that the clocks are right; "
        "or leave it out and let the tool register the cameras",
        score=given,
        better_score=better,
    )


def _best_pose_score(check: _Check, pair: Pair) -> float | None:
    """Return the score of the best relative pose of a pair; None if it is near, or could be one by chance."""
    first, second = (check.cameras[view] for view in pair)
    people = check.people[pair].thinned(MAX_ESTIMATED)
    found = quick_people_pose(people)
    if found is None or found.score < MIN_STRICT:
        return None
    given = relative_pose_of(first.world_to_camera, second.world_to_camera)
    if given is not None:
        turn = rotation_angle_deg(found.pose.rotation, given.rotation)
        bend = direction_angle_deg(found.pose.direction, given.direction)
        if max(turn, bend) < MIN_CONTRADICTION_DEG:
            return None
    control = quick_people_pose(people.shuffled())
    return found.score if control is None or found.score >= MIN_CONTROL_RATIO * control.score else None
