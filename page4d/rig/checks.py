"""Checks of an assembled rig: cameras that its evidence does not confirm are refused, with a reason."""

from collections.abc import Callable, Sequence

import numpy as np

from page4d.errors import listed
from page4d.options import in_options
from page4d.rig.adjust import RESIDUAL_LIMIT, Adjustment
from page4d.rig.assembly import FOCAL_LIMIT, UNFIT, Assembly
from page4d.rig.epipolar import pose_of
from page4d.rig.graph import main_parts, views_in_loops
from page4d.rig.people.pose import MIN_FIT
from page4d.rig.records import Evidence, Lens, rotation_angle_deg

_TURN_LIMITS_DEG = (2.0, 3.5)
"""Standard deviations of a rotation from evidence that are reported, and beyond which a camera is not placed. Whole
captures have up to 1.2. Of 176 cameras from people in parts of `treadmill`, 91 of them more than 3 degrees wrong, 153
are beyond 2.0 (83 wrong) and 83 beyond 3.5 (61 wrong)."""

_RESIDUAL_RATIO = 2.5
"""Ratio of the residual of a camera to the median over the cameras beyond which it is not placed."""

_PAIR_LIMIT_DEG = 6.0
"""Difference in rotation between the adjusted rig and the nearest pair of a camera beyond which it is not placed: on
`sports3` it is up to 3.4, and 9.5 for a camera of a rendered ring that is 6 degrees wrong."""

_CROP_LIMIT_DEG = 2.0
"""Difference in rotation between rigs with and without the principal points of cropped pictures from which on it
matters which one is right."""

_CROP_SPREAD = 0.05
"""Difference between principal points in long sides up to which videos were cropped by the same amount: with quarters
at one side of all views of `treadmill` it is up to 0.05, and 0.07 at the top."""

_OWN_FOCAL_LIMIT = 0.03
"""Relative standard deviation of a focal length from texture alone, and its change in the last round, beyond which
cameras are not placed."""


def confirmed_rig(make: Callable[[list[Lens]], Assembly], lenses: Sequence[Lens]) -> Assembly:
    """Run an assembly, and refuse what its evidence does not confirm.

    Principal points of views that may have been cropped, as their edges show, count if the directions of these edges
    then fit the other evidence, and otherwise do not, or fewer views are placed; or where otherwise none is. Views
    whose edges fit both are refused where the rigs differ, unless all views show the same principal point.
    """
    rig = _run(make([*lenses]))
    unknown = [view for view, lens in enumerate(lenses) if not lens.is_known and rig.edges]
    found = {view: rig.edges[view].crop(lenses[view]) for view in unknown}
    crops = {view: lens for view, lens in found.items() if lens is not None}
    if not crops:
        return rig
    names = listed([rig.names[view] for view in crops])
    cropped = _run(make([crops.get(view, lens) for view, lens in enumerate(lenses)]))
    before, after = len(rig.cameras()), len(cropped.cameras())
    fits, centred_fits = (one.directed >= crops.keys() for one in (cropped, rig))
    is_likely = not centred_fits or (len(crops) == len(unknown) and _are_same(list(crops.values())))
    if (after > before and (fits or not before)) or (fits and after == before and is_likely):
        cropped.notes.append(f"{names}: principal points are those of cropped pictures, as straight edges show")
        return cropped
    fitting = (crops.keys() & cropped.directed) - rig.reasons.keys()
    apart = {view for view in fitting if _turn_deg(rig, cropped, view) > _CROP_LIMIT_DEG}
    if apart and rig.adjustment is not None:
        reason = "its edges fit a video that was cropped off its centre, too (⟨intrinsics⟩, or the whole video)"
        rig.reasons |= dict.fromkeys(apart, in_options(reason))
        _check_focals(rig, rig.adjustment)
        _check_links(rig)
    elif rig.cameras().keys() & crops.keys():
        text = f"straight edges in {names} are not orthogonal, or the videos were cropped off their centres"
        rig.notes.append(f"{text}: then give ⟨intrinsics⟩, or the whole videos")
    return rig


def _are_same(lenses: Sequence[Lens]) -> bool:
    """Return whether at least three lenses have the same principal point: slanted walls show each view another."""
    points = np.array([lens.intrinsics[:2, 2] / max(lens.image_size) for lens in lenses])
    return len(points) > 2 and bool(np.ptp(points, axis=0).max() <= _CROP_SPREAD)


def _turn_deg(rig: Assembly, other: Assembly, view: int) -> float:
    """Return the largest difference in rotation from another view between two rigs; infinite where one has none."""
    cameras, others = rig.cameras(), other.cameras()
    if not cameras.keys() & others.keys() > {view}:
        return np.inf
    turns = [
        rotation_angle_deg(*(one[view][:3, :3] @ one[base][:3, :3].T for one in (cameras, others)))
        for base in cameras.keys() & others.keys() - {view}
    ]
    return float(max(turns))


def _run(rig: Assembly) -> Assembly:
    rig.run()
    refuse_unconfirmed(rig)
    return rig


def refuse_unconfirmed(rig: Assembly) -> None:
    """Give cameras that the evidence does not confirm a reason, and note known ones that it contradicts."""
    _note_contradictions(rig)
    if rig.adjustment is not None:
        _check_residuals(rig, rig.adjustment)
        _check_pairs(rig, rig.adjustment)
        _check_people(rig)
        _check_links(rig)
        _check_focals(rig, rig.adjustment)
        _check_turns(rig, rig.adjustment)
        _check_focals(rig, rig.adjustment)  # two views may be left
        _check_links(rig)  # they may have refused the link of others
        _note_turns(rig, rig.adjustment)


def _note_contradictions(rig: Assembly) -> None:
    """Report pairs of known cameras whose evidence shows another relative pose."""
    for pair in rig.pairs.values():
        if pair.contradicts_known:
            names = " and ".join(rig.names[view] for view in pair.views)
            rig.notes.append(f"the calibration does not fit {names}: {pair.evidence} shows them {pair.reason}")


def _turns(rig: Assembly, found: Adjustment) -> list[tuple[int, str, float]]:
    """Return the views that are left and new, the one from which rotations count, and their deviations in degrees.

    Rotations count from a known view if there is one, else from the one that evidence determines best.
    """
    views = [view for view in rig.placement.views if view not in rig.reasons]
    if not views:
        return []
    rows = [rig.placement.views.index(view) for view in views]
    std = found.rotation_std_deg(of_evidence=True)[np.ix_(rows, rows)]
    starts = [row for row, view in enumerate(views) if view in rig.known] or [*range(len(views))]
    best = min(starts, key=lambda row: float(np.median(std[row])))
    name = rig.names[views[best]]
    return [(view, name, float(std[best, row])) for row, view in enumerate(views) if view not in rig.known]


def _check_turns(rig: Assembly, found: Adjustment) -> None:
    """Refuse cameras whose rotation evidence does not determine."""
    for view, name, turn in _turns(rig, found):
        if not turn <= _TURN_LIMITS_DEG[1]:
            rig.reasons[view] = f"its rotation relative to {name} is uncertain by {turn:.0f} degrees"


def _note_turns(rig: Assembly, found: Adjustment) -> None:
    """Report placed cameras whose rotation is uncertain."""
    for view, name, turn in _turns(rig, found):
        if turn > _TURN_LIMITS_DEG[0]:
            text = f"{rig.names[view]} may be turned by {turn:.0f} degrees from {name}"
            rig.notes.append(f"{text}: more instants, or straight edges, would place it better")


def _check_residuals(rig: Assembly, found: Adjustment) -> None:
    """Refuse cameras that fit far worse than the others, and report known ones and an uncertain focal length."""
    uncertain = float(found.focal_std.max())
    if uncertain > FOCAL_LIMIT:
        rig.notes.append(f"the focal length is uncertain by {uncertain:.0%}: give ⟨focal⟩ or ⟨intrinsics⟩")
    residuals = {view: rig.residual(view, found) for view in rig.placement.views}
    relative = {
        view: residual / rig.lenses[view].focal for view, residual in residuals.items() if residual is not None
    }
    middle = float(np.median(list(relative.values())))
    for view in rig.placement.views:
        is_far = view in relative and relative[view] > max(RESIDUAL_LIMIT, _RESIDUAL_RATIO * middle)
        text = f"the residual of {residuals[view]:.0f} px is far above that of the others" if is_far else ""
        if view in rig.known:
            name = rig.names[view]
            rig.notes += [f"the calibration does not fit {name}: {text} (⟨again={name}⟩)"] if is_far else []
        elif is_far or view not in relative:
            rig.reasons[view] = text or "no point in common with the other cameras"


def _check_pairs(rig: Assembly, found: Adjustment) -> None:
    """Refuse cameras that the adjustment turned away from all of their pairs."""
    turns = dict(zip(rig.placement.views, found.world_to_camera[:, :3, :3], strict=True))
    least: dict[int, float] = {}
    for pair in rig.placement.pairs:
        first, second = (turns[view] for view in pair.views)
        turn = float(rotation_angle_deg(pose_of(pair).rotation, second @ first.T))
        least |= {view: min(turn, least.get(view, turn)) for view in pair.views}
    for view in least.keys() - rig.known.keys():
        if least[view] > _PAIR_LIMIT_DEG:
            rig.reasons[view] = f"{least[view]:.0f} degrees from the nearest of its pairs"


def _check_people(rig: Assembly) -> None:
    """Refuse cameras from texture alone if people contradict the texture of any two views.

    Where a room has equal parts, these match in many views, and agree in loops: on `sports3` 1200 matches do.
    """
    placed = rig.cameras().keys()
    fits = [(pair.views, rig.share_of_people(pair.views, pose_of(pair))) for pair in rig.placement.pairs]
    linked = {
        view for views, share in fits if share is not None and share >= MIN_FIT for view in views
    } | rig.known.keys()
    apart = [views for views, _ in rig.pairs if placed >= {*views} and not linked >= {*views}]
    shares = [(views, rig.share_of_people(views, rig.relative_pose(views))) for views in apart]
    unfit = [pair.views for pair in rig.pairs.values() if pair.reason == UNFIT]
    unfit += [views for views, share in shares if share is not None and share < MIN_FIT]
    if unfit:
        reason = (
            f"people in {' and '.join(rig.names[view] for view in unfit[0])} contradict texture, which may repeat"
        )
        rig.reasons |= dict.fromkeys(placed - linked, reason)


def _check_links(rig: Assembly) -> None:
    """Refuse cameras whose pairs with placed ones are all with refused ones: these gave their distances."""
    left = set(rig.placement.views) - rig.reasons.keys()
    links = [pair for pair in rig.placement.pairs if left >= {*pair.views}]
    alone = left - {*main_parts(len(rig.names), links, [*rig.known])[0]} - rig.known.keys()
    rig.reasons |= dict.fromkeys(alone, "only refused cameras link it to the others")


def _check_focals(rig: Assembly, found: Adjustment) -> None:
    """Refuse views of unknown focal length where two are left, or texture alone leaves it open, but for edges.

    Without a loop, a focal length and the poses of its pairs change together: chains of rendered rigs are 8 to 31
    degrees wrong at small standard deviations.
    """
    error = max(float(found.evidence_std.max()), rig.lens_change(found))
    left, reason = set(rig.placement.views) - rig.reasons.keys(), ""
    row = rig.placement.views.index
    directed = {view for view in rig.directed if found.evidence_std[row(view)] <= _OWN_FOCAL_LIMIT}
    has_people = any(pair.evidence is Evidence.PEOPLE for pair in rig.placement.pairs)
    if not has_people and error > _OWN_FOCAL_LIMIT:
        reason = f"texture determines its focal length to {error:.0%} alone (⟨focal⟩, ⟨intrinsics⟩)"
    elif not has_people and not all(rig.lenses[view].is_known for view in left):
        alone = left - views_in_loops([pair.views for pair in rig.placement.pairs if {*pair.views} <= left])
        why = "texture determines focal lengths in loops of views alone (⟨focal⟩, ⟨intrinsics⟩)"
        rig.reasons |= dict.fromkeys(alone - rig.known.keys() - directed, in_options(why))
        left -= alone - directed
    unknown = {view for view in left if not rig.lenses[view].is_known}
    if len(left) == 2 and not unknown <= directed:
        reason = "two views do not determine an unknown focal length (⟨focal⟩, ⟨intrinsics⟩)"
    if reason and unknown:
        rig.reasons |= dict.fromkeys(left - rig.known.keys(), in_options(reason))
