"""A quality report without ground truth: measurements, grade and notes."""

from dataclasses import dataclass
from pathlib import Path

from page4d.errors import counted
from page4d.output.reader import Output, open_output
from page4d.quality.grade import grade
from page4d.quality.measure import MAX_INSTANTS, Example, Step, measure
from page4d.quality.overall import overall_quality
from page4d.quality.record import QualityReport


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """A report with the frames that its page shows."""

    report: QualityReport
    output: Output
    example: Example


def report(out: Path | str, scene: Path | str | None = None) -> QualityReport:
    """Measure the quality of a result without ground truth, and grade it.

    The depth maps of the views are compared with each other at up to 24 instants. With `scene`, the folder of the
    run's videos, their pictures are compared too: that alone shows cameras that are wrong but consistent.

    Raises:
        InputError: if there is no finished run, its files are damaged, or the videos are not those of the run.
    """
    return inspect(out, scene).report


def inspect(out: Path | str, scene: Path | str | None = None, progress: Step | None = None) -> Inspection:
    """As `report`, with the frames for its page; `progress` receives the instants done and in total."""
    output = open_output(out)
    measured = measure(output, None if scene is None else str(scene), progress)
    overall = overall_quality(measured, output.run)
    content = QualityReport(
        out=str(output.layout.folder),
        scene=None if scene is None else str(scene),
        num_times=output.num_times,
        instants=measured.instants,
        views=measured.views,
        pairs=measured.pairs,
        overall=overall,
        grade=grade(overall, measured.pairs, output.run),
        notes=_notes(output, scene),
    )
    return Inspection(report=content, output=output, example=measured.example)


def _notes(output: Output, scene: Path | str | None) -> tuple[str, ...]:
    """Return what limits the report."""
    found = []
    if scene is None:
        found.append(
            "without --scene, pictures are not compared: cameras that are wrong but consistent are not noticed"
        )
    else:
        found.extend(output.pictures(scene).remarks)
    if len(output.view_names) == 1:
        found.append("one view: there is nothing to compare its depth with")
    if output.num_times > MAX_INSTANTS:
        found.append(f"measured at {MAX_INSTANTS} of {counted(output.num_times, 'instant')}")
    return tuple(found)
