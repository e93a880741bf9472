"""Registration of the static views of a scene: which evidence is used, the cameras, and their record."""

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from page4d.choices import Registration
from page4d.errors import Level, Notice, listed
from page4d.options import in_options
from page4d.output.rig_record import PairRecord, PlacedRecord, RegistrationRecord
from page4d.rig.assembly import Assembly, in_world
from page4d.rig.checks import confirmed_rig
from page4d.rig.evidence import PixelEvidence
from page4d.rig.people.model import POSE_MODEL, is_fetched
from page4d.rig.people.pose import are_agreed
from page4d.rig.people_clocks import late_views
from page4d.rig.records import Evidence, RigRegistration, placed_record
from page4d.scene.records import ViewCamera

_RECORDED = ("score", "control", "jackknife_deg", "residual_px", "num_instants", "reason")
"""Fields of a pair that its record has too."""

NO_POSE_MODEL = f"body keypoints are not used: '{POSE_MODEL.command}' fetches the model"


def register_rig(evidence: PixelEvidence, notify: Callable[[Notice], None]) -> RigRegistration:
    """Register the views of a scene, all of them static, from the evidence that its settings name.

    Calibrated cameras are kept, and the others are placed in their world. The result depends only on the scene and
    the settings.

    Raises:
        UsageError: if `focal` is invalid.
        InputError: if a frame cannot be decoded, or the file of `intrinsics` is unusable.
    """
    assembly = assembled(evidence)
    # Features, matches and networks refer to the evidence: they would stay in memory until cycles are collected.
    vars(evidence).pop("textures", None)
    for note in assembly.notes:
        notify(Notice(note))
    asked = evidence.settings.register
    lacks_model = asked in (Registration.AUTO, Registration.PEOPLE) and assembly.people is None
    cameras, found = placed_views(assembly)
    height = assembly.person_height
    if text := assumed_centers(assembly):
        notify(Notice(text, Level.INFO))
    record = RegistrationRecord(
        asked=asked,
        pairs=pair_records(assembly),
        cameras=cameras,
        num_instants=assembly.num_instants,
        person_height=height and height[0],
        person_height_std=height and height[1],
        notes=[*([NO_POSE_MODEL] if lacks_model else []), *map(in_options, assembly.notes)],
        seconds={stage: round(seconds, 3) for stage, seconds in assembly.seconds.items()},
    )
    return RigRegistration(record=record, cameras=found)


def assembled(evidence: PixelEvidence) -> Assembly:
    """Register the pairs of views of a scene and place their cameras.

    Where people place all views in loops of accepted pairs, texture is extracted by one method and only with known
    focal lengths, to be matched near epipolar lines. Elsewhere it is extracted with unknown focal lengths only where
    people place some views, edges show all focal lengths, or the settings request texture.
    """
    settings, start = evidence.settings, time.perf_counter()
    uses_people = settings.register in (Registration.AUTO, Registration.PEOPLE) and is_fetched()
    people = evidence.people if uses_people else None
    detected = time.perf_counter()
    textures = evidence.textures if settings.register in (Registration.AUTO, Registration.TEXTURE) else ()
    make = partial(
        Assembly,
        names=evidence.scene.view_names,
        known={place: view.camera for place, view in enumerate(evidence.scene.views) if view.camera is not None},
        people=people,
        texture=textures,
        texture_alone=settings.register is Registration.TEXTURE,
        edges=evidence.edges if settings.register is not Registration.PEOPLE else (),
        num_instants=len(evidence.instants),
        seed=settings.seed,
        progress=evidence.progress,
    )
    assembly = confirmed_rig(lambda lenses: make(lenses=lenses), evidence.lenses)
    _note_clocks(assembly, evidence)
    extraction = {kind: seconds for source in textures for kind, seconds in source.seconds.items()}
    duration = time.perf_counter() - detected - sum(extraction.values())
    assembly.seconds |= {"keypoints": detected - start} | extraction | {"pairs and adjustment": duration}
    return assembly


def _note_clocks(rig: Assembly, evidence: PixelEvidence) -> None:
    """Report placed views whose people fit those of the others better at another time.

    Views that are not placed count as others, too: a late one agrees with few.
    """
    instants = np.asarray(evidence.instants)
    if rig.people is None or len(instants) < 2:
        return
    step = int(np.diff(instants).min())
    placed = rig.cameras().keys()
    people = [one for one in rig.pairs.values() if one.evidence is Evidence.PEOPLE and are_agreed(one)]
    pairs = sorted((one for one in people if placed & {*one.views}), key=lambda one: not one.is_accepted)
    found = late_views(rig.people, rig.lenses, pairs, instants // step)
    interval_s = step * float(np.median(np.diff(evidence.scene.times)))
    late = [(view, apart) for view, apart in found.items() if view in placed]
    for view, apart in late[-1:] if len(placed) == 2 else late:  # of two views either may be late
        text = f"people in {rig.names[view]} fit the other views {abs(apart) * interval_s:.2f} s"
        later = "later" if apart > 0 else "earlier"
        rig.notes.append(f"{text} {later}: cameras may be degrees wrong (⟨sync=people⟩ or ⟨sync=FILE⟩)")


def assumed_centers(rig: Assembly) -> str:
    """Return what follows from the principal points of placed views of unknown lenses; empty if there are none."""
    placed = rig.cameras()
    unknown = [rig.names[view] for view in placed if not rig.lenses[view].is_known and rig.lenses[view].is_centered]
    if rig.adjustment is None or not unknown or len(placed) < 2:
        return ""
    rows = [row for row, view in enumerate(rig.placement.views) if view in placed]
    std = float(np.median(rig.adjustment.rotation_std_deg()[np.ix_(rows, rows)][np.triu_indices(len(rows), 1)]))
    place = f"{listed(unknown)}: the principal point of an unknown lens is assumed at the centre of the pictures"
    return f"{place}, rotations are uncertain by {std:.1f} degrees, and by more if a video was cropped off the centre"


def placed_views(rig: Assembly) -> tuple[list[PlacedRecord], list[ViewCamera | None]]:
    """Return the record of every view, and its camera if it is placed.

    The world is that of the known cameras, else the first placed one.
    """
    if rig.adjustment is not None:
        for view in rig.placement.views:
            rig.lenses[view] = rig.lens(view, rig.adjustment)
    rig.pairs |= {pair.key: pair for pair in rig.placement.dropped}
    cameras = rig.cameras()
    if len(cameras) < 2 and not rig.known:
        cameras = {}
    parts = rig.parts()
    origin = np.linalg.inv(cameras[min(cameras)]) if cameras and not rig.known else np.eye(4)
    errors = _errors(rig, tuple(cameras))
    records: list[PlacedRecord] = []
    found: list[ViewCamera | None] = []
    for view, (name, lens) in enumerate(zip(rig.names, rig.lenses, strict=True)):
        if view not in cameras:
            records.append(placed_record(name, lens, _reason(rig, view, parts)))
            found.append(None)
            continue
        record, pose = placed_record(name, lens, "", **errors.get(view, {})), cameras[view] @ origin
        if view in rig.known:
            record = record.model_copy(update={"source": "calibration"})
        elif rig.known:
            pose = in_world(pose, -rig.center / rig.unit, rig.unit)
        records.append(record)
        found.append(rig.known.get(view) or lens.camera(pose))
    return records, found


def pair_records(rig: Assembly) -> list[PairRecord]:
    """Record all pairs that were tried."""
    found, row, placed = rig.adjustment, rig.placement.views.index, rig.cameras().keys()
    return [
        PairRecord(
            views=(rig.names[pair.views[0]], rig.names[pair.views[1]]),
            evidence=pair.evidence,
            distance_std=found.distance_std(*map(row, pair.views)) if found and placed >= {*pair.views} else None,
            accepted=pair.is_accepted,
            **{name: getattr(pair, name) for name in _RECORDED},
        )
        for pair in rig.pairs.values()
    ]


def _errors(rig: Assembly, views: Sequence[int]) -> dict[int, dict[str, float | None]]:
    """Return, per view, its residual, whether edges correct it, and two standard deviations.

    These are of an unknown focal length, and of epipolar lines in px, the median over the other views.
    """
    if (found := rig.adjustment) is None:
        return {}
    rows = [rig.placement.views.index(view) for view in views]
    sizes = [rig.lenses[view].image_size for view in rig.placement.views]
    lines = found.epipolar_std_px(sizes)[np.ix_(rows, rows)].T
    return {
        view: {
            "residual_px": rig.residual(view, found),
            "focal_std": None if rig.lenses[view].is_known else float(found.focal_std[row]),
            "epipolar_px": float(np.nanmedian(of_view)) if np.isfinite(of_view).any() else None,
            "edges": row in found.directed,
        }
        for view, row, of_view in zip(views, rows, lines, strict=True)
    }


def _reason(rig: Assembly, view: int, parts: tuple[tuple[int, ...], ...]) -> str:
    if view in rig.reasons:
        return rig.reasons[view]
    part = next(part for part in parts if view in part)
    if len(part) > 1 and part != parts[0]:
        main = "the calibrated ones" if rig.known else "the placed ones"
        return f"in a part of {len(part)} views apart from {main}"
    if view in rig.placement.undetermined:
        return "its distance from the other cameras is not determined"
    if view in rig.placement.views:
        return "no other camera is placed"
    if len(part) > 1:
        return "its pairs contradict the others"
    own = [pair for pair in rig.pairs.values() if view in pair.views and pair.rotation is not None]
    people, texture = ([one for one in own if (one.evidence is Evidence.PEOPLE) is kind] for kind in (True, False))
    best = [max(pairs, key=lambda pair: pair.score).reason for pairs in (people, texture) if pairs]
    reason = f"no accepted pair, the best: {'; '.join(best)}" if best else "no pair with common evidence"
    unused = rig.texture and not texture and not rig.texture_applies()
    return f"{reason}; texture needs known focal lengths" if unused else reason
