"""Printed reports of runs, batches, calibration checks and registrations."""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from page4d.choices import Registration
from page4d.errors import Level, Notice, counted, human_size, listed, one_per_fact
from page4d.installation import install_command, is_installed
from page4d.options import OPENING, as_words, in_options
from page4d.output.layout import OutputLayout
from page4d_cli import console
from page4d_cli.tables import Cell, Column, Row, number_columns, print_fields, print_table

if TYPE_CHECKING:
    from page4d.batch.jobs import BatchRecord, SceneJob
    from page4d.output.record import AgreementRecord, NetworkRecord, RunRecord
    from page4d.output.rig_record import (
        CalibrationCheckRecord,
        PairRecord,
        PlacedRecord,
        RegistrationRecord,
        WorldRecord,
    )
    from page4d.quality.record import Grade
    from page4d.rig.board_views import BoardCameraRecord, BoardRecord
    from page4d.rig.records import RigRegistration
    from page4d.run.plan import RunPlan
    from page4d.scene.records import Clock, Scene


def report_check(record: "CalibrationCheckRecord") -> None:
    """Print the score of every pair of calibrated cameras, and what is wrong."""
    if record.pairs:
        rows = []
        for pair in record.pairs:
            figures = f"{pair.score:.2f}", str(pair.num_instants)
            rows.append(("-".join(pair.views), pair.evidence, *figures, "yes" if pair.fits else "no"))
        numbers = number_columns("evidence", ("score", "instants"))
        print_table([Column("pair"), *numbers, Column("fits")], rows, "calibration and pictures")
    views = {view for finding in record.findings for view in finding.views}
    faults = one_per_fact((Notice(finding.text) for finding in record.findings), views)
    fields = [("fault:", fault.marked_text) for fault in faults]
    fields += [("clock:", text) for text in record.clocks]
    print_fields([*fields, *([("check:", record.verdict)] if record.verdict else [])])


def report_registration(record: "RegistrationRecord", *, in_run: bool = True, verbose: bool = False) -> None:
    """Print how every camera is placed, and if `verbose` before it why pairs of views are accepted or not."""
    if verbose and record.pairs:
        numbers = number_columns("evidence", ("score", "control", "jackknife", "residual", "instants"))
        columns = [Column("pair"), *numbers, Column("accepted", wraps=True)]
        print_table(columns, [_pair(pair) for pair in record.pairs], "pairs of views")
    lens = (Column("focal length", right=True), Column("of"), Column("residual", right=True))
    columns = [Column("view"), Column("camera"), *lens, Column("reason", wraps=True)]
    cameras = [_camera(camera, in_run=in_run) for camera in record.cameras]
    print_table(columns, cameras, "cameras" if in_run else "cameras from evidence")


def report_registered(found: "RigRegistration", scene: "Scene", folder: Path, out: Path) -> None:
    """Print what a registration wrote, and the command that uses it."""
    record = found.record
    std = "" if record.metres_std is None else f" (+-{100 * record.metres_std:.2g} %)"
    is_metric = record.metres_per_unit is not None
    unit = f"metres{std}" if is_metric else "an arbitrary unit (--scale-from makes it metres)"
    placed = [camera.view for camera in record.cameras if camera.placed]
    known = " and the calibration" if record.num_known else ""
    origin = f"{record.evidence}{known}, lengths in {unit}"
    report_written(origin, placed, scene, folder, out, world_fields(found.world))


def report_written(
    origin: str, placed: list[str], scene: "Scene", folder: Path, out: Path, fields: Iterable[tuple[str, str]] = ()
) -> None:
    """Print what was written of the cameras of the `placed` views, and the command that uses it."""
    cameras = f"{len(placed)} of {counted(scene.num_views, 'camera')} from {origin}"
    clocks = clock_fields(scene.synchronisation, [view.clock for view in scene.views], scene.options.sync)
    print_fields([("wrote", f"{out}: {cameras}"), *clocks, *fields])
    views = {} if len(placed) == scene.num_views else {"views": placed}
    options = as_words({**vars(scene.options), "calibration": out, **views}, ("calibration", *OPENING))
    console.print_text("")
    console.print_next(f"page4d reconstruct {shlex.quote(str(folder))} --out OUT{options}")


def _pair(pair: "PairRecord") -> Row:
    return (
        "-".join(pair.views),
        pair.evidence,
        f"{pair.score:.2f}" if pair.evidence == "people" else f"{pair.score:.0f}",
        "" if pair.control is None else f"{pair.control:.2f}",
        "" if pair.jackknife_deg is None else f"{pair.jackknife_deg:.1f} deg",
        "" if pair.residual_px is None else f"{pair.residual_px:.1f} px",
        str(pair.num_instants),
        "yes" if pair.accepted else f"no: {pair.reason}",
    )


def _camera(camera: "PlacedRecord", *, in_run: bool) -> Row:
    verdict: str = camera.source
    if not in_run and verdict != "calibration":
        verdict = "placed" if camera.placed else "not placed"
    spread = "" if camera.focal_std is None else f" +-{100 * camera.focal_std:.0f} %"
    return (
        camera.view,
        verdict,
        f"{camera.focal:.0f} px{spread}",
        "estimated" if camera.focal_source == "unknown" else camera.focal_source,
        "" if camera.residual_px is None else f"{camera.residual_px:.1f} px",
        camera.reason,
    )


def report_board(record: "BoardRecord") -> None:
    """Print what the board determines of every camera."""
    numbers = number_columns("view", ("pictures", "covered", "tilts", "focal length"))
    columns = [*numbers, Column("distortion"), Column("residual", right=True)]
    print_table(columns, [_board_camera(camera) for camera in record.cameras], record.board)


def _board_camera(camera: "BoardCameraRecord") -> Row:
    spread = "" if camera.focal_std is None else f" +-{100 * camera.focal_std:.2g} %"
    return (
        camera.view,
        str(camera.num_pictures),
        f"{100 * camera.coverage:.0f} %",
        "" if camera.tilt_deg is None else f"{camera.tilt_deg[0]:.0f}-{camera.tilt_deg[1]:.0f} deg",
        "" if camera.focal is None else f"{camera.focal:.0f} px{spread}",
        " ".join(camera.terms),
        "" if camera.residual_px is None else f"{camera.residual_px:.2f} px",
    )


_SECONDS, _LONG_S, _MINUTES = 100.0, 600.0, 6000.0
"""Times up to here are shown in seconds, in tenths of minutes, and in minutes; longer ones in hours."""

_STAGES = {
    "register": "registration",
    "check": "check",
    "decode": "decoding",
    "network": "network",
    "predict": "network",
    "background": "background",
    "refine": "refinement",
    "people": "people",
    "clean": "fusion",
    "detail": "fine depth",
    "motion": "motion",
    "write": "writing",
    "preview": "previews",
}


def report_plan(plan: "RunPlan", out: Path, *, as_json: bool) -> dict[str, Any]:
    """Return the plan of a run as a JSON-compatible document, and print it unless `as_json`."""
    from page4d.rig.people.model import NO_POSE_MODEL
    from page4d.run.time import forecast_time, registration_stages

    scene, network = plan.scene, plan.network
    sizes = [[width, height] for height, width in (transform.canvas_size for transform in plan.transforms)]
    peak = plan.forecast.peak_bytes(max(chunk.length for chunk in plan.chunks))
    time = forecast_time(plan)
    spans = {} if time is None else {**time.seconds, "total": time.total}
    stages = registration_stages(scene, plan.settings) if plan.evidence.is_pending else ()
    document = {
        "out": str(out),
        "network": network.name,
        "num_times": scene.num_times,
        "views": list(scene.view_names),
        "network_sizes": sizes,
        "map_sizes": [list(transform.map_size[::-1]) for transform in plan.map_transforms],
        "chunks": [[chunk.start, chunk.stop, chunk.overlap] for chunk in plan.chunks],
        "predicted_peak_memory_bytes": peak,
        "memory_bytes": plan.memory_limit.num_bytes,
        "predicted_seconds": None if time is None else {name: round(s, 3) for name, s in spans.items()},
        "bytes_on_disk": plan.bytes_on_disk,
        "will_register": plan.evidence.is_pending,
        "will_check": plan.evidence.will_check,
        "registration_seconds": {stage.name: round(stage.seconds, 1) for stage in stages},
    }
    if as_json:
        return document
    lengths = sorted({chunk.length for chunk in plan.chunks})
    each = f"{lengths[0]} to {lengths[-1]} instants" if len(lengths) > 1 else counted(lengths[0], "instant")
    texts = [f"{width}x{height}" for width, height in sizes]
    limit = plan.memory_limit
    allowed = f"{human_size(limit.num_bytes)} {'allowed' if limit.is_strict else 'available'}"
    fields = [
        ("scene", f"{scene.name}: {counted(scene.num_times, 'instant')} of {', '.join(scene.view_names)}"),
        *clock_fields(scene.synchronisation, [view.clock for view in scene.views], scene.options.sync),
        ("network", ", ".join(filter(None, (network.name, network.notice)))),
        *mask_fields(network),
        ("images", f"{texts[0] if len(set(texts)) == 1 else ', '.join(texts)} px"),
        *_detail(plan),
        ("chunks", f"{len(plan.chunks)} of {each}, overlap {max(chunk.overlap for chunk in plan.chunks)}"),
        ("memory", f"peak about {human_size(peak)} ({plan.forecast.device}), {allowed}"),
    ]
    if stages:
        names = {stage.name for stage in stages}
        evidence = " and ".join(["people"] * ("keypoints" in names) + ["texture"] * ("texture" in names))
        sought = [view.name for view in scene.views if view.camera is None]
        of = f"of {listed(sought)} " if len(sought) < scene.num_views else ""
        origin = f"{of}registered from {evidence} before the network, else the network's"
        if evidence == "texture" and plan.settings.register is not Registration.TEXTURE:
            origin += f"; {NO_POSE_MODEL}"
        fields.append(("cameras", origin if evidence else "of a rig that moves as one, followed by texture"))
        seconds = [f"{stage.seconds:.0f} s for {stage.name}" for stage in stages]
        memory = human_size(max(stage.num_bytes for stage in stages))
        fields.append(("", f"at most about {', '.join(seconds)}; {memory} of memory"))
    if plan.evidence.will_check:
        fields.append(
            ("check", "the calibration is compared with camera motion, people and texture before the network")
        )
    if time is None:
        work = plan.forecast.network_tflop([chunk.length for chunk in plan.chunks])
        known = f" (network: {work:.3g} TFLOP)" if work else ""
        fields.append(("time", f"unknown until a first run of this network on this machine{known}"))
    else:
        parts = ", ".join(f"{_STAGES[stage]} {span(spent)}" for stage, spent in time.seconds.items() if spent > 0)
        overlapping = f" ({parts}; stages overlap)" if parts else ""
        fields.append(("time", f"about {span(time.total)}, as in the run of {time.date[:10]}{overlapping}"))
    print_fields([*fields, ("disk", f"at most {human_size(plan.bytes_on_disk)} in '{out}'")])
    return document


def span(seconds: float) -> str:
    """Format a time in the unit that suits it."""
    if seconds < _LONG_S:
        return f"{seconds:.0f} s" if seconds < _SECONDS else f"{seconds / 60:.1f} min"
    return f"{seconds / 60:.0f} min" if seconds < _MINUTES else f"{seconds / 3600:.1f} h"


def _detail(plan: "RunPlan") -> list[tuple[str, str]]:
    """Return the size of depth and clouds, if it is not the network's, and what it costs."""
    if plan.fine_transforms is None:
        return []
    sizes = [f"{width}x{height}" for height, width in (transform.map_size for transform in plan.map_transforms)]
    shown = sizes[0] if len(set(sizes)) == 1 else ", ".join(sizes)
    pixels = sum(transform.map_size[0] * transform.map_size[1] for transform in plan.map_transforms)
    return [("depth", f"{shown} px, {pixels:,} pixels per instant (--depth-size)")]


def mask_fields(network: "NetworkRecord") -> list[tuple[str, str]]:
    """Return the line about the network of the motion masks, if it is another one."""
    return [] if network.motion_masks is None else [("masks", f"what moves, by {network.motion_masks}")]


def world_fields(world: "WorldRecord | None") -> list[tuple[str, str]]:
    """Return the line about the world of a result, if one is chosen."""
    return [] if world is None else [("world", world.text)]


def report_run(
    record: "RunRecord", job: "SceneJob", seconds: float, grade: "Grade | None" = None, *, verbose: bool = False
) -> None:
    """Print a summary of a result: what it is, its grade, its files, what to do next, and the `seconds` it took."""
    metric, out, notice = record.unit == "metre", job.out, record.network.notice
    if grade is not None and "--weights" in grade.first_change:  # the advice is given once
        notice = notice.partition(":")[0]
    lengths = "metres, estimated by the network" if record.scale_source == "network" else "metres"
    fields = [
        ("result", f"{record.scene.name} -> {out}"),
        ("instants", f"{len(record.times)}, {record.times[0]:.3f} to {record.times[-1]:.3f} s"),
        ("views", ", ".join(view.name for view in record.views)),
        *clock_fields(
            record.scene.synchronisation, [view.clock for view in record.views], record.settings.get("sync")
        ),
        ("network", " - ".join(filter(None, (record.network.name, notice)))),
        *mask_fields(record.network),
        *_cameras(record),
        *world_fields(record.world),
        ("lengths", lengths if metric else "in an arbitrary unit"),
        ("points", f"{record.counts.points:,}"),
    ]
    if record.chunks[1:]:
        seams = [chunk.seam.residual for chunk in record.chunks if chunk.seam is not None]
        known = [residual for residual in seams if residual is not None]
        worst = f"largest median residual {max(known):.3g}{' m' if metric else ''}" if known else "no common pixels"
        fields.append(("seams", f"{len(seams)}, {worst}"))
    if grade is not None:
        fields += grade_fields(grade)
    layout = OutputLayout(out, ())
    opened = (
        (layout.contact_sheet, layout.cloud_preview, layout.orbit)
        if record.settings["preview"]
        else (out / "points",)
    )
    fields += [("open" if number == 0 else "", str(path)) for number, path in enumerate(opened)]
    print_fields(fields)
    console.print_text("")
    if verbose:
        _report_evidence(record, record.scale.symbol)
    place, scene = shlex.quote(str(out)), shlex.quote(str(job.scene))
    missing = "" if is_installed("viewer") else f"  # after: {install_command('viewer')}"
    console.print_next(f"page4d view {place} --scene {scene}{missing}\npage4d report {place} --scene {scene}")
    taken = {_STAGES[name]: spent for name, spent in record.timings.items() if name in _STAGES}
    longest = sorted(taken, key=lambda name: -taken[name])[:4]
    stages = ", ".join(f"{name} {span(taken[name])}" for name in taken if name in longest and taken[name] >= 1)
    peaks = [human_size(size or 0) for size in (record.peak_memory_bytes, record.predicted_peak_memory_bytes)]
    console.print_text("")
    print_fields(
        [
            ("time", span(seconds) + (f" ({stages})" if stages else "")),
            ("peak memory", f"{peaks[0]} ({record.device}), predicted {peaks[1]}"),
        ]
    )


def _cameras(record: "RunRecord") -> Iterator[tuple[str, str]]:
    """Yield the origin of the cameras, whether they move, and why some are not placed, or their pictures not used."""
    from page4d.run.registration import reasons, registration_notices

    registration = record.registration
    origin = record.scene.calibration if record.settings.get("poses") == "input" else None
    parts = [origin or "the network's"]
    if record.rig is not None:
        moving = ", ".join(view.view for view in record.rig.views if not view.is_static)
        verdicts = {"static": "static, one per view", "moving": "moving", "mixed": f"static except {moving}"}
        parts.append(verdicts[record.rig.cameras])
    yield "cameras", ": ".join(parts)
    if registration is not None and not registration.is_complete:
        for notice in registration_notices(registration):
            if notice.level is not Level.WARNING:
                yield "not placed", f"{reasons(registration)}; {registration.advice}"
    if record.fine_depth is not None and record.fine_depth.reason:
        yield "fine depth", record.fine_depth.reason


def _report_evidence(record: "RunRecord", unit: str) -> None:
    if record.registration is not None:
        report_registration(record.registration, verbose=True)
    if record.calibration_check is not None:
        report_check(record.calibration_check)
        console.print_text("")
    if record.calibration_residuals is not None:
        known = "calibration" if record.registration is None else "registration"
        _report_agreement(record.calibration_residuals, unit, known)


def grade_fields(grade: "Grade") -> list[tuple[str, str]]:
    """Return the lines of a grade and of the one thing to change."""
    return [("grade", grade.text), ("change first", grade.first_change or "nothing stands out")]


def _report_agreement(agreement: "AgreementRecord", unit: str, known: str = "calibration") -> None:
    is_checked = known == "calibration"  # cameras from evidence are more certain than predicted ones
    headings = ("rotation", f"centre [{unit}]", "share of rig", "focal length")
    rows = [
        (
            camera.view + ("  <- differs" if is_checked and camera.view == agreement.at_fault else ""),
            f"{camera.rotation_deg:.2f} deg",
            f"{camera.distance:.3f}",
            "" if camera.share is None else f"{100 * camera.share:.1f} %",
            f"{camera.focal_percent:+.1f} %",
        )
        for camera in agreement.cameras
    ]
    print_table(number_columns("view", headings), rows, f"residuals between the network's cameras and the {known}")


_COLORS = {"complete": "green", "failed": "red", "interrupted": "yellow"}


def report_batch(record: "BatchRecord") -> None:
    """Print the outcomes of the scenes of a batch."""
    numbers = ("instants", "views", "points", "seconds", "warnings")
    columns = [Column("scene"), *number_columns("status", numbers)]
    rows: list[Row] = []
    for scene in record.scenes:
        counts = (scene.num_times, scene.num_views, scene.num_points)
        status = scene.status + (f" ({scene.exit_code})" if scene.exit_code else "")
        rows.append(
            (
                Path(scene.scene).name,
                Cell(status, _COLORS.get(scene.status, "dim")),
                *("" if number is None else f"{number:,}" for number in counts),
                f"{scene.seconds:.1f}" if scene.seconds else "",
                str(len(scene.warnings) or ""),
                scene.error or scene.out,
            )
        )
    print_table([*columns, Column("result or error", wraps=True)], rows)


def clock_fields(method: str, clocks: "Sequence[Clock]", sync: object) -> list[tuple[str, str]]:
    """Return the line of the clocks in use; none of a single view."""
    from page4d.scene.clocks import describe_clocks

    return [("clocks", in_options(describe_clocks(method, clocks, sync)))] if len(clocks) > 1 else []
