"""The grade of a result: the expected error of its points, the reasons, and the one thing to change first.

It follows from means over views and pairs, and from what the run recorded about itself.
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import exp, inf, log10
from typing import Literal

from page4d.choices import SyncMode
from page4d.errors import listed
from page4d.options import CALIBRATED, OPENING, as_words, in_options
from page4d.output.record import RunRecord
from page4d.output.rig_record import Evidence
from page4d.quality.measure import Measurements, mean_of
from page4d.quality.record import Grade, Overall, PairQuality, Reason

LETTERS = {"A": 0.05, "B": 0.1, "C": 0.17, "D": 0.3, "E": inf}
"""Largest expected relative error of points for each letter."""

_WORTH_NAMING = 1.15
"""Smallest factor of a measurement that is a reason."""

_FLICKER = 0.01
_MAX_SEAM = 0.05
_SEAM_FACTOR = 1.5
_OUTLIER_GAIN = 0.05
_USUAL_GAIN = 0.15
"""Gains in correlation up to which the pictures of two views do not fit, and from which they do."""


_WEIGHTS = {
    "base": (-3.69, -2.95),
    "photo": (1.71, 0.0),
    "contradicted": (0.28, 0.47),
    "residual": (0.15, 0.56),
    "confidence": (1.0, 1.0),
    "camera_gap": (0.54, 0.86),
    "predicted_cameras": (0.42, 0.56),
}
"""Logarithms of the error of a perfect result, and of the factor of each measurement at the end of its range: with
pictures and without. Fits of the true error of synthetic captures; tools/measure_report.py --fit prints them."""


def measured_ranges(overall: Overall) -> dict[str, float]:
    """Return each measurement on a range from 0, as in the best results, to 1, as in useless ones."""
    gap, gain = overall.camera_gap_deg, overall.photo_gain
    return {
        "photo": 0.0 if gain is None else _clamped((0.5 - gain) / 0.7),
        "contradicted": 1.0 if overall.contradicted is None else _clamped(overall.contradicted / 0.4),
        "residual": 1.0 if overall.residual is None else _clamped(log10(max(overall.residual, 1e-9) / 0.002) / 2),
        "confidence": _clamped((0.7 - overall.confidence) / 0.7),
        "camera_gap": 0.0 if gap is None else _clamped(log10(max(gap, 1e-9)) / 1.8),
        "predicted_cameras": float(not overall.are_cameras_given),
    }


def _clamped(value: float) -> float:
    return min(max(value, 0.0), 1.0)


_SCENE = "⟪scene⟫"
"""Stands for the folder of the scene in commands."""

_CONTENT_CHANGE = "look at these pictures; leave views without content out with ⟨views⟩, or film again"


def grade(overall: Overall, pairs: Sequence[PairQuality], run: RunRecord, scene: str | None = None) -> Grade:
    """Grade a result by its measurements and by what the run recorded; commands name the folder of its `scene`."""
    weights = {name: pair[overall.photo_gain is None] for name, pair in _WEIGHTS.items()}
    factors = {name: exp(weights[name] * value) for name, value in measured_ranges(overall).items()}
    faults = list(_faults(overall, run))
    expected = exp(weights["base"])
    for factor in (*factors.values(), *(fault.factor or 1.0 for fault in faults)):
        expected *= factor
    expected = min(expected, 1.0)
    letter = next(letter for letter, limit in LETTERS.items() if expected <= limit)
    if any(fault.factor is None for fault in faults) and letter < "D":
        letter = "D"
    found = [*faults, *_measured_reasons(overall, pairs, run, factors)]
    # Pictures without content come first: other measurements may follow from them.
    found.sort(key=lambda reason: -(reason.factor or inf))
    content = [Reason(found=text, change=_CONTENT_CHANGE, factor=1.0) for text in run.faulty_frames]
    folder = "SCENE" if scene is None else shlex.quote(scene)
    changes = [in_options(reason.change).replace(_SCENE, folder) for reason in (*content, *found)]
    reasons = [replace(reason, change=change) for reason, change in zip((*content, *found), changes, strict=True)]
    return Grade(
        letter=letter,
        expected_error=expected,
        reasons=tuple(reasons),
        first_change=reasons[0].change if reasons else "",
    )


def _faults(overall: Overall, run: RunRecord) -> Iterator[Reason]:
    if not run.network.trained and run.settings.get("depth") is None:
        yield Reason(
            found="the network is not trained: its depth is noise", change="leave out ⟨untrained⟩", factor=inf
        )
    check = run.calibration_check
    if check is not None and run.settings.get("poses") == "input":
        for finding in check.findings:
            certain = finding.certainty == "certain"
            yield Reason(found=f"calibration: {finding.what}", change=finding.fix, factor=None if certain else 2.0)
    if run.registration is not None and run.registration.is_used:
        missing = [camera.view for camera in run.registration.cameras if not camera.placed]
        if missing:
            yield Reason(
                found=f"evidence does not place {listed(missing)}: the network's cameras are used there",
                change=_cameras_change(run),
                factor=_SEAM_FACTOR,
            )
    if overall.seam is not None and overall.seam > _MAX_SEAM:
        yield Reason(
            found=f"neighbouring chunks differ by {overall.seam:.1%} of the depth",
            change="give a larger ⟨chunk⟩ and ⟨overlap⟩",
            factor=_SEAM_FACTOR,
        )
    if overall.flicker is not None and overall.flicker > _FLICKER:
        fused = run.settings.get("fuse", True)
        yield Reason(
            found=f"the depth of static pixels varies by {overall.flicker:.1%} over time",
            change="give a larger ⟨chunk⟩" if fused else "leave out ⟨fuse=False⟩",
            factor=_WORTH_NAMING,
        )


def _measured_reasons(
    overall: Overall, pairs: Sequence[PairQuality], run: RunRecord, factors: dict[str, float]
) -> Iterator[Reason]:
    if len(run.views) == 1:
        yield Reason(
            found="there is one view: nothing confirms its depth", change="film with two or more cameras", factor=2.0
        )
        return
    cameras = _camera_change(overall, pairs, run)
    depth = (_network_change(run) or cameras) if run.settings.get("fuse", True) else "leave out ⟨fuse=False⟩"
    wrong = "no better than" if (overall.photo_gain or 0.0) < _OUTLIER_GAIN else "little better than"
    known = "registered" if run.settings.get("calibration") is None else "calibrated"
    texts = {
        "photo": f"pictures of other views fit {wrong} at depths 20 % off (gain in correlation {{:+.2f}})",
        "camera_gap": f"the network's own cameras differ by {{:.1f}} deg from the {known} ones",
        "contradicted": "{:.0%} of the points that another view could see are in front of its surface",
        "residual": "the depth of two views differs by {:.1%} in the median",
        "confidence": "the mean confidence is {:.2f}",
        "predicted_cameras": "the cameras are predicted: nothing independent confirms them",
    }
    values = {**vars(overall), "photo": overall.photo_gain, "camera_gap": overall.camera_gap_deg}
    values["predicted_cameras"] = True
    changes = {"photo": cameras, "camera_gap": cameras, "predicted_cameras": _cameras_change(run)}
    for name, text in texts.items():
        if factors[name] > _WORTH_NAMING and values[name] is not None:
            yield Reason(found=text.format(values[name]), change=changes.get(name, depth), factor=factors[name])


def outlier_views(pairs: Sequence[PairQuality]) -> tuple[str, ...]:
    """Return the views whose pictures fit those of no other view, where most views fit at least one other."""
    best: dict[str, float] = {}
    for pair in pairs:
        if pair.photo_gain is not None:
            for name in pair.views:
                best[name] = max(best.get(name, -inf), pair.photo_gain)
    bad = tuple(name for name, gain in best.items() if gain < _OUTLIER_GAIN)
    good = [name for name, gain in best.items() if gain > _USUAL_GAIN]
    return bad if len(good) >= max(2, len(bad) + 1) else ()


def _camera_change(overall: Overall, pairs: Sequence[PairQuality], run: RunRecord) -> str:
    """Return what to do about cameras and depth that do not fit the pictures; the clock of a single view first."""
    network, source, bad = _network_change(run), _camera_source(run), outlier_views(pairs)
    clock = _clock_change(run, bad[0]) if len(bad) == 1 else ""
    if source != "calibrated":
        is_placed = run.registration is not None and run.registration.is_complete
        ways = (network, "pass ⟨calibration⟩") if is_placed else (_cameras_change(run), network)
        return "; or ".join(filter(None, (clock, *ways)))
    check = run.calibration_check
    is_supported = check is not None and not (check.findings or check.unconfirmed)
    of = f"the clock and the calibration of {listed(bad)}" if bad else "the calibration, its unit and the clocks"
    compare = f"compare {of} with the pictures"
    if len(run.views) > 1 and (run.rig is None or run.rig.cameras == "static"):
        options = as_words(run.settings, (*CALIBRATED, *OPENING))
        compare = f"compare {of}: `page4d inspect-scene {_SCENE}{options} --check`"
    if network and not bad and (is_supported or (overall.unlike_training or 0.0) > 1.0):
        return network
    return f"{compare}; if they are right, {network}" if network else compare


def _clock_change(run: RunRecord, view: str) -> str:
    """Return how to correct the clock of a view, from people only where the run saw some."""
    check, registration = run.calibration_check, run.registration
    pairs = [*(check.pairs if check else ()), *(registration.pairs if registration else ())]
    has_people = any(pair.evidence is Evidence.PEOPLE for pair in pairs)
    people = "⟨sync=people⟩ or " if has_people and run.settings.get("sync") != SyncMode.PEOPLE else ""
    return f"correct the clock of {view}: {people}⟨sync=FILE⟩"


def _cameras_change(run: RunRecord) -> str:
    """Return what gives a run other cameras than the network's."""
    if run.settings.get("calibration") is not None:
        return "leave out ⟨poses=predicted⟩"
    if run.registration is not None:
        return run.registration.advice or "pass ⟨calibration⟩"
    is_static = len(run.views) > 1 and (run.rig is None or run.rig.cameras != "moving")
    return "pass ⟨calibration⟩, or try ⟨register=auto⟩" if is_static else "pass ⟨calibration⟩"


def _network_change(run: RunRecord) -> str:
    """Return the advice to use another network than the bundled one, empty if another one was used."""
    return "use a network for real footage: ⟨weights=da3-base⟩" if run.network.notice else ""


def overall_quality(measured: Measurements, run: RunRecord) -> Overall:
    """Summarize the measurements of a result."""
    views, pairs = measured.views, measured.pairs
    domains = [chunk.domain for chunk in run.chunks if chunk.domain is not None]
    indicators = [value for record in domains for value in record.indicators.values()]
    return Overall(
        with_depth=mean_of([view.with_depth for view in views]) or 0.0,
        confirmed=mean_of([view.confirmed for view in views]) or 0.0,
        contradicted=mean_of(
            [
                pair.contradicted / max(pair.contradicted + pair.confirmed, 1e-9)
                for pair in pairs
                if pair.contradicted is not None and pair.confirmed is not None
            ]
        ),
        single=mean_of([view.single for view in views]) or 0.0,
        confidence=mean_of([view.confidence for view in views if view.with_depth]) or 0.0,
        residual=mean_of([pair.residual for pair in pairs]),
        residual_px=mean_of([pair.residual_px for pair in pairs]),
        photo=mean_of([pair.photo for pair in pairs]),
        photo_gain=mean_of([pair.photo_gain for pair in pairs]),
        flicker=mean_of([view.flicker for view in views]),
        unlike_training=max((inf if one is None else one for one in indicators), default=None),
        camera_gap_deg=mean_of([record.camera_disagreement_deg for record in domains]),
        are_cameras_given=_camera_source(run) != "predicted",
        seam=max((chunk.seam.residual_share or 0.0 for chunk in run.chunks if chunk.seam is not None), default=None),
    )


def _camera_source(run: RunRecord) -> Literal["calibrated", "registered", "predicted"]:
    if run.registration is not None and run.registration.is_used:
        return "registered"
    is_given = run.settings.get("calibration") is not None and run.settings.get("poses") == "input"
    return "calibrated" if is_given else "predicted"
