"""Printed reports of `page4d reconstruct`: a plan, a result, or the outcomes of a batch."""

from pathlib import Path
from typing import TYPE_CHECKING

from page4d.errors import counted
from page4d_cli import console
from page4d_cli.check_report import report_check
from page4d_cli.registration_report import report_registration
from page4d_cli.tables import Cell, Column, Row, print_fields, print_table

if TYPE_CHECKING:
    from page4d.batch.jobs import BatchRecord
    from page4d.output.record import AgreementRecord, RunRecord
    from page4d.run.plan import RunPlan
    from page4d.run.time import TimeForecast

_SECONDS, _LONG_S, _MINUTES = 100.0, 600.0, 6000.0
"""Times up to here are shown in seconds, in tenths of minutes, and in minutes; longer ones in hours."""

_STAGES = {
    "check": "check",
    "decode": "decoding",
    "network": "network",
    "refine": "refinement",
    "clean": "fusion",
    "detail": "fine depth",
    "motion": "motion",
    "write": "writing",
    "preview": "previews",
}


def report_plan(plan: "RunPlan", out: Path, *, as_json: bool) -> None:
    """Print the plan of a run."""
    from page4d.run.time import forecast_time

    scene, network = plan.scene, plan.predictor.record
    sizes = [[width, height] for height, width in (transform.canvas_size for transform in plan.transforms)]
    are_one = all(size == sizes[0] for size in sizes)
    peak = plan.forecast.peak_bytes(max(chunk.length for chunk in plan.chunks))
    time = forecast_time(plan)
    if as_json:
        console.print_json(
            {
                "out": str(out),
                "network": network.name,
                "num_times": scene.num_times,
                "views": list(scene.view_names),
                "network_size": sizes[0] if are_one else None,
                "network_sizes": sizes,
                "map_sizes": [list(transform.map_size[::-1]) for transform in plan.map_transforms],
                "chunks": [[chunk.start, chunk.stop, chunk.overlap] for chunk in plan.chunks],
                "predicted_peak_memory_bytes": peak,
                "memory_bytes": plan.memory_limit.num_bytes,
                "predicted_seconds": {
                    **{stage: round(seconds, 3) for stage, seconds in time.seconds.items()},
                    "total": round(time.total, 3),
                },
                "bytes_on_disk": plan.bytes_on_disk,
                "will_register": plan.will_register,
                "will_check": plan.will_check,
                "registration_seconds": {stage.name: round(stage.seconds, 1) for stage in plan.registration_stages},
            }
        )
        return
    lengths = sorted({chunk.length for chunk in plan.chunks})
    span = f"{lengths[0]} to {lengths[-1]} instants" if len(lengths) > 1 else counted(lengths[0], "instant")
    texts = [f"{width}x{height}" for width, height in sizes]
    limit = plan.memory_limit
    allowed = f"{console.human_size(limit.num_bytes)} {'allowed' if limit.is_strict else 'available'}"
    fields = [
        ("scene", f"{scene.name}: {counted(scene.num_times, 'instant')} of {', '.join(scene.view_names)}"),
        ("network", ", ".join(filter(None, (network.name, network.notice)))),
        ("images", f"{texts[0] if are_one else ', '.join(texts)} px"),
        *_detail(plan),
        ("chunks", f"{len(plan.chunks)} of {span}, overlap {max(chunk.overlap for chunk in plan.chunks)}"),
        ("memory", f"peak about {console.human_size(peak)} ({plan.forecast.device}), {allowed}"),
    ]
    if plan.will_register:
        evidence = {"auto": "people and texture"}.get(plan.settings.register, plan.settings.register)
        fields.append(("cameras", f"registered from {evidence} before the network, else the network's"))
        stages = [f"{stage.name} {stage.seconds:.0f} s" for stage in plan.registration_stages]
        memory = console.human_size(max(stage.num_bytes for stage in plan.registration_stages))
        fields.append(("", f"at most about {', '.join(stages)}; {memory} of memory"))
    if plan.will_check:
        fields.append(("check", "the calibration is compared with camera motion and people before the network"))
    fields.append(("time", _time(time)))
    print_fields([*fields, ("disk", f"at most {console.human_size(plan.bytes_on_disk)} in '{out}'")])


def _time(time: "TimeForecast") -> str:
    """Return the expected time of a run and of its stages, and where the rates are from."""
    parts = ", ".join(f"{_STAGES[stage]} {_span(seconds)}" for stage, seconds in time.seconds.items() if seconds > 0)
    source = "no run was measured yet" if time.measured is None else f"as in the run of {time.measured.date[:10]}"
    overlapping = f" ({parts}; stages overlap)" if parts else ""
    return f"about {_span(time.total)}, {source}{overlapping}"


def _span(seconds: float) -> str:
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


def _lengths(record: "RunRecord") -> str:
    if record.unit != "metre":
        return "in an arbitrary unit"
    return "metres, estimated by the network" if record.scale_source == "network" else "metres"


def report_run(record: "RunRecord", out: Path) -> None:
    """Print a summary of a result."""
    seconds, metric = record.timings["total"], record.unit == "metre"
    fields = [
        ("result", f"{record.scene.name} -> {out}"),
        ("instants", f"{len(record.times)}, {record.times[0]:.3f} to {record.times[-1]:.3f} s"),
        ("views", ", ".join(view.name for view in record.views)),
        ("network", " - ".join(part for part in (record.network.name, record.network.notice) if part)),
    ]
    if record.rig is not None:
        moving = ", ".join(view.view for view in record.rig.views if not view.is_static)
        verdicts = {"static": "static, one per view", "moving": "moving", "mixed": f"static except {moving}"}
        fields.append(("cameras", verdicts[record.rig.cameras]))
    registration = record.registration
    if registration is not None and registration.pairs and not registration.num_placed:
        reason = f"{registration.cameras[0].view}: {registration.cameras[0].reason}"
        fields.append(("registered", f"none, the cameras are the network's ({reason}); {registration.advice}"))
    fields += [
        ("lengths", _lengths(record)),
        ("points", f"{record.counts.points:,}"),
    ]
    if record.chunks[1:]:
        seams = [chunk.seam.residual for chunk in record.chunks if chunk.seam is not None]
        known = [residual for residual in seams if residual is not None]
        worst = f"largest median residual {max(known):.3g}{' m' if metric else ''}" if known else "no common pixels"
        fields.append(("seams", f"{len(seams)}, {worst}"))
    peaks = [console.human_size(size or 0) for size in (record.peak_memory_bytes, record.predicted_peak_memory_bytes)]
    preview, clouds = out / "preview" / "contact_sheet.png", out / "points"
    print_fields(
        [
            *fields,
            ("time", f"{seconds:.1f} s, {len(record.times) * len(record.views) / seconds:.2f} images/s"),
            ("peak memory", f"{peaks[0]} ({record.device}), predicted {peaks[1]}"),
            ("preview", str(preview)) if record.settings["preview"] else ("clouds", str(clouds)),
        ]
    )
    if registration is not None and registration.num_placed:
        console.print_text("")
        report_registration(registration)
    if record.calibration_check is not None and record.calibration_check.is_checked:
        console.print_text("")
        report_check(record.calibration_check)
    if record.calibration_residuals is not None:
        if registration is None:
            console.print_text("")
        cameras = "calibration" if registration is None else "registration"
        _report_agreement(record.calibration_residuals, "m" if metric else "units", cameras)


def _report_agreement(agreement: "AgreementRecord", unit: str, known: str = "calibration") -> None:
    """Print the residuals between the network's cameras and the calibrated or registered ones."""
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
    columns = [Column("view"), *(Column(heading, right=True) for heading in headings)]
    print_table(columns, rows, f"residuals between the network's cameras and the {known}")


_COLORS = {"complete": "green", "failed": "red", "interrupted": "yellow"}


def report_batch(record: "BatchRecord") -> None:
    """Print the outcomes of the scenes of a batch."""
    numbers = ("instants", "views", "points", "seconds", "warnings")
    columns = [Column("scene"), Column("status"), *(Column(name, right=True) for name in numbers)]
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
