"""Printed reports of `page4d reconstruct`: a plan, a result, or the outcomes of a batch."""

from pathlib import Path
from typing import TYPE_CHECKING

from page4d_cli import console

if TYPE_CHECKING:
    from page4d.batch.jobs import BatchRecord
    from page4d.export.diagnostics import AgreementRecord
    from page4d.export.run_record import RunRecord
    from page4d.inference.run_plan import RunPlan


def report_plan(plan: "RunPlan", out: Path, *, as_json: bool) -> None:
    """Print the plan of a run."""
    scene, network = plan.scene, plan.predictor.record
    sizes = [[width, height] for height, width in (transform.canvas_size for transform in plan.transforms)]
    are_one = all(size == sizes[0] for size in sizes)
    peak = plan.forecast.peak_bytes(max(chunk.length for chunk in plan.chunks))
    seconds = plan.forecast.network_seconds([chunk.length for chunk in plan.chunks])
    if as_json:
        console.print_json(
            {
                "out": str(out),
                "network": network.name,
                "num_times": scene.num_times,
                "views": list(scene.view_names),
                "network_size": sizes[0] if are_one else None,
                "network_sizes": sizes,
                "chunks": [[chunk.start, chunk.stop, chunk.overlap] for chunk in plan.chunks],
                "predicted_peak_memory_bytes": peak,
                "memory_bytes": plan.memory_limit.num_bytes,
                "predicted_network_seconds": round(seconds, 3),
                "bytes_on_disk": plan.bytes_on_disk,
            }
        )
        return
    lengths = sorted({chunk.length for chunk in plan.chunks})
    span = f"{lengths[0]} to {lengths[-1]}" if len(lengths) > 1 else f"{lengths[0]}"
    console.print_text(f"scene    {scene.name}: {scene.num_times} instants of {', '.join(scene.view_names)}")
    console.print_text(f"network  {network.name}{f', {network.notice}' if network.notice else ''}")
    texts = [f"{width}x{height}" for width, height in sizes]
    console.print_text(f"images   {texts[0] if are_one else ', '.join(texts)} px")
    overlap = max(chunk.overlap for chunk in plan.chunks)
    console.print_text(f"chunks   {len(plan.chunks)} of {span} instants, overlap {overlap}")
    limit, source = plan.memory_limit, plan.forecast.device
    allowed = f"{console.human_size(limit.num_bytes)} {'allowed' if limit.is_strict else 'available'}"
    console.print_text(f"memory   peak about {console.human_size(peak)} ({source}), {allowed}")
    if plan.forecast.cost is not None:
        console.print_text(f"time     about {seconds:.3g} s for the network, without refinement")
    console.print_text(f"disk     at most {console.human_size(plan.bytes_on_disk)} in '{out}'")


def report_run(record: "RunRecord", out: Path) -> None:
    """Print a summary of a result."""
    from rich import box
    from rich.table import Table

    title = console.cell(f"{record.scene.name} -> {out}")
    table = Table(box=box.SIMPLE, show_header=False, title=title, title_justify="left")
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    seconds = record.timings["total"]
    table.add_row("instants", f"{len(record.times)}, {record.times[0]:.3f} to {record.times[-1]:.3f} s")
    table.add_row("views", console.cell(", ".join(view.name for view in record.views)))
    network = " - ".join(part for part in (record.network.name, record.network.notice) if part)
    table.add_row("network", console.cell(network))
    if record.rig is not None:
        table.add_row("cameras", "static, one per view" if record.rig.cameras == "static" else "moving")
    metric = record.unit == "metre"
    table.add_row("lengths", "metres" if metric else "in an arbitrary unit")
    table.add_row("points", f"{record.counts.points:,}")
    if record.chunks[1:]:
        seams = [chunk.seam.residual for chunk in record.chunks if chunk.seam is not None]
        known = [residual for residual in seams if residual is not None]
        worst = f"largest median residual {max(known):.3g}{' m' if metric else ''}" if known else "no common pixels"
        table.add_row("seams", f"{len(seams)}, {worst}")
    table.add_row("time", f"{seconds:.1f} s, {len(record.times) * len(record.views) / seconds:.2f} images/s")
    peaks = [console.human_size(size or 0) for size in (record.peak_memory_bytes, record.predicted_peak_memory_bytes)]
    table.add_row("peak memory", f"{peaks[0]} ({record.device}), predicted {peaks[1]}")
    if record.settings["preview"]:
        table.add_row("preview", console.cell(str(out / "preview" / "contact_sheet.png")))
    else:
        table.add_row("clouds", console.cell(str(out / "points")))
    console.print_table(table)
    if record.calibration_residuals is not None:
        _report_agreement(record.calibration_residuals, "m" if metric else "units")


def _report_agreement(agreement: "AgreementRecord", unit: str) -> None:
    """Print the residuals between the network's cameras and the calibration."""
    from rich import box
    from rich.table import Table

    table = Table(
        box=box.SIMPLE, title="residuals between the network's cameras and the calibration", title_justify="left"
    )
    table.add_column("view")
    for name in ("rotation", f"center [{unit}]", "share of rig", "focal length"):
        table.add_column(name, justify="right")
    for camera in agreement.cameras:
        share = "" if camera.share is None else f"{camera.share:.1%}"
        rotation, focal = f"{camera.rotation_deg:.2f} deg", f"{camera.focal_percent:+.1f} %"
        fault = "  <- at fault" if camera.view == agreement.at_fault else ""
        table.add_row(console.cell(camera.view + fault), rotation, f"{camera.distance:.3f}", share, focal)
    console.print_table(table)


def report_batch(record: "BatchRecord") -> None:
    """Print the outcomes of the scenes of a batch."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE)
    table.add_column("scene", overflow="fold")
    table.add_column("status")
    for name in ("instants", "views", "points", "seconds", "warnings"):
        table.add_column(name, justify="right")
    table.add_column("result or error", overflow="fold")
    colours = {"complete": "green", "failed": "red", "interrupted": "yellow"}
    for scene in record.scenes:
        colour = colours.get(scene.status, "dim")
        status = f"[{colour}]{scene.status}[/]" + (f" ({scene.exit_code})" if scene.exit_code else "")
        numbers = [scene.num_times, scene.num_views, scene.num_points]
        counts = ["" if number is None else f"{number:,}" for number in numbers]
        seconds = f"{scene.seconds:.1f}" if scene.seconds else ""
        warnings = str(len(scene.warnings)) if scene.warnings else ""
        table.add_row(
            console.cell(Path(scene.scene).name),
            status,
            *counts,
            seconds,
            warnings,
            console.cell(scene.error or scene.out),
        )
    console.print_table(table)
