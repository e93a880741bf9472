"""A quality report: measurements, grade and notes of a result, as one HTML page without other files or a network."""

import base64
import html
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import torch
from jaxtyping import Bool, Float
from numpy.typing import NDArray
from torch import Tensor

from page4d.errors import Progress, counted, number_text, percent_text
from page4d.formats.maps import encode_image
from page4d.options import in_options
from page4d.output.reader import Output, check_not_replaced, open_output
from page4d.plotting.canvas import DEPTH_MAP, ERROR_MAP, NO_VALUE, Color, colored
from page4d.quality.grade import grade, overall_quality
from page4d.quality.measure import MAX_INSTANTS, ComparedFrame, Example, Verdict, measure
from page4d.quality.record import Grade, PairQuality, QualityReport, Share, ViewQuality


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """A report with the frames that its page shows."""

    report: QualityReport
    output: Output
    example: Example


def report(out: Output | Path | str, scene: Path | str | None = None) -> QualityReport:
    """Measure the quality of a result without ground truth, and grade it.

    The depth maps of the views are compared with each other at up to 24 instants. With `scene`, the folder of the
    run's videos, their pictures are compared too: that alone shows cameras that are wrong but consistent.

    Raises:
        InputError: if there is no finished run, its files are damaged, or the videos are not those of the run.
    """
    return inspect(out, scene).report


def inspect(
    out: Output | Path | str,
    scene: Path | str | None = None,
    progress: Progress | None = None,
    max_instants: int = MAX_INSTANTS,
) -> Inspection:
    """As `report`, with the frames for its page; `progress` receives the instants done and in total."""
    output = open_output(out)
    measured = measure(output, None if scene is None else str(scene), progress, max_instants)
    check_not_replaced(output)
    overall = overall_quality(measured, output.run)
    content = QualityReport(
        out=str(output.layout.folder),
        scene=None if scene is None else str(scene),
        num_times=output.num_times,
        instants=measured.instants,
        views=measured.views,
        pairs=measured.pairs,
        overall=overall,
        grade=grade(overall, measured.pairs, output.run, None if scene is None else str(scene)),
        notes=_limitations(output, scene, len(measured.instants)),
    )
    return Inspection(report=content, output=output, example=measured.example)


def _limitations(output: Output, scene: Path | str | None, measured: int) -> tuple[str, ...]:
    found = []
    if scene is None:
        text = "without ⟨scene⟩, pictures are not compared: cameras that are wrong but consistent are not noticed"
        found.append(in_options(text))
    if len(output.view_names) == 1:
        found.append("one view: there is nothing to compare its depth with")
    if output.num_times > measured:
        found.append(f"measured at {measured} of {counted(output.num_times, 'instant')}")
    return (*found, *output.run.unmapped)


CONFIRMED: Color = (46, 150, 92)
CONTRADICTED: Color = (205, 62, 58)
SINGLE: Color = (226, 190, 100)
"""Colours of the agreement maps."""

MAX_FLICKER = 0.05
"""Relative standard deviation at the end of the colour map of flicker."""

_WIDTH = 236
"""Width of a picture in px: all maps of a view fit into one row of a window of 1280 px."""

_GRADE_COLORS = {"A": "#26945a", "B": "#6f9e2f", "C": "#c79a1b", "D": "#d0702a", "E": "#c33a36"}

_STYLE = """
:root { color-scheme: light; --ink: #202226; --faint: #6d7178; --line: #dededa; --paper: #f6f6f3; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 28px 24px 60px; max-width: 1340px; color: var(--ink); background: var(--paper);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 20px; margin: 0; } h2 { font-size: 16px; margin: 34px 0 8px; }
p { margin: 4px 0; max-width: 76em; } .faint { color: var(--faint); }
.head { display: flex; gap: 22px; align-items: center; margin-bottom: 18px; }
.grade { flex: none; width: 92px; height: 92px; border-radius: 14px; color: #fff; font-size: 58px; font-weight: 700;
  display: grid; place-items: center; }
.change { padding: 10px 14px; border-left: 4px solid var(--ink); background: #fff; max-width: 76em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; background: #fff; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 12px; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; color: var(--faint); vertical-align: bottom; }
th:first-child, td:first-child, td.text, th.text { text-align: left; } td.text { white-space: normal; }
td.cell { min-width: 64px; }
.row { display: flex; flex-wrap: wrap; gap: 14px; margin: 10px 0 20px; }
figure { margin: 0; } figcaption { font-size: 13px; color: var(--faint); }
img { display: block; }
.key { display: inline-block; width: 12px; height: 12px; border-radius: 2px; margin: 0 5px 0 16px; }
.regions td { width: 58px; text-align: center; padding: 9px 4px; border: 1px solid #fff; }
"""

Markup = str
"""Escaped HTML."""


def page(inspection: Inspection) -> str:
    """Return the page of a report as HTML; equal input gives an equal page."""
    report = inspection.report
    name = html.escape(Path(report.out).resolve().name)
    parts = [
        *_head(report, name),
        *_reasons(report.grade),
        "<h2>Views</h2>",
        *_views(report.views),
        *(_pairs(report) if report.pairs else ()),
        *_pictures(inspection),
        *(["<h2>Notes</h2>"] if report.notes else []),
        *(f"<p>{html.escape(note)}</p>" for note in report.notes),
    ]
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Quality of {name}: {report.grade.letter}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def _head(report: QualityReport, name: Markup) -> Iterator[Markup]:
    grade, color = report.grade, _GRADE_COLORS[report.grade.letter]
    measured = f"{counted(len(report.instants), 'instant')} of {report.num_times}"
    pictures = "with" if report.scene is not None else "without"
    yield f'<div class="head"><div class="grade" style="background: {color}">{grade.letter}</div><div>'
    yield f"<h1>Quality of {name}</h1>"
    yield (
        f"<p>Expected error of points: about {grade.expected_error:.0%} of their depth, estimated without ground "
        f'truth.</p><p class="faint">{counted(len(report.views), "view")}, {measured}, {pictures} pictures</p>'
        "</div></div>"
    )
    change = html.escape(grade.first_change) if grade.first_change else "Nothing stands out."
    yield f'<p class="change"><b>Change first:</b> {change}</p>'


def _reasons(grade: Grade) -> Iterator[Markup]:
    if not grade.reasons:
        return
    yield "<h2>Reasons</h2>"
    rows = [
        (html.escape(reason.found), factor_text(reason.factor), html.escape(reason.change))
        for reason in grade.reasons
    ]
    yield _table(("found", "error", "change"), rows, texts=(0, 2))


def factor_text(factor: float | None) -> str:
    """Return the factor of a reason; None is a fault."""
    return "fault" if factor is None else f"x {factor:.1f}"


def _views(views: Sequence[ViewQuality]) -> Iterator[Markup]:
    headings = (
        *("view", "with depth<br>%", "confirmed<br>%", "contra-<br>dicted %", "single<br>view %", "confidence"),
        *("reprojection<br>residual px", "photo gain", "flicker<br>%"),
    )
    yield _table(headings, [(html.escape(view.view), *view_texts(view)) for view in views])


def view_texts(view: ViewQuality) -> tuple[str, ...]:
    """Return the numbers of a view in tables."""
    return (
        *(percent_text(share) for share in (view.with_depth, view.confirmed, view.contradicted, view.single)),
        f"{view.confidence:.2f}",
        number_text(view.residual_px, "{:.2f}"),
        number_text(view.photo_gain, "{:+.2f}"),
        percent_text(view.flicker, 2),
    )


def _pairs(report: QualityReport) -> Iterator[Markup]:
    """Yield matrices of all pairs: rows are projected into columns."""
    names = [view.view for view in report.views]
    by_views = {pair.views: pair for pair in report.pairs}

    def confirmed(pair: PairQuality) -> tuple[float | None, str]:
        compared = None if pair.confirmed is None or pair.contradicted is None else pair.confirmed + pair.contradicted
        share = None if not compared or pair.confirmed is None else pair.confirmed / compared
        return share, percent_text(share)

    def residual(pair: PairQuality) -> tuple[float | None, str]:
        value = pair.residual_px
        return None if value is None else 1 - value / 5, number_text(value, "{:.2f}")

    def gain(pair: PairQuality) -> tuple[float | None, str]:
        value = pair.photo_gain
        return None if value is None else value / 0.4, number_text(value, "{:+.2f}")

    yield "<h2>Pairs of views</h2>"
    yield '<p class="faint">Points of the view of a row, projected into the view of a column.</p><div class="row">'
    yield _matrix("confirmed, of those not behind its surface, %", names, by_views, confirmed)
    yield _matrix("median reprojection residual, px", names, by_views, residual)
    if report.overall.photo_gain is not None:
        yield _matrix("gain in correlation of pictures", names, by_views, gain)
    yield "</div>"


def _matrix(
    title: str,
    names: Sequence[str],
    pairs: dict[tuple[str, str], PairQuality],
    shown: Callable[[PairQuality], tuple[float | None, str]],
) -> Markup:
    """Return a matrix of pairs, from red (0) to green (1)."""
    rows = []
    for name in names:
        cells = [f"<td>{html.escape(name)}</td>"]
        for other in names:
            pair = pairs.get((name, other))
            value, text = (None, "") if pair is None else shown(pair)
            cells.append(f'<td class="cell" style="background: {_tint(value)}">{text}</td>')
        rows.append(f"<tr>{''.join(cells)}</tr>")
    heads = "".join(f"<th>{html.escape(name)}</th>" for name in ("", *names))
    return (
        f'<figure class="wide"><figcaption>{title}</figcaption><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></figure>"
    )


def _tint(value: float | None) -> str:
    """Return a light colour from red (0) over yellow to green (1); none without a value."""
    if value is None:
        return "transparent"
    share = min(max(value, 0.0), 1.0)
    return f"hsl({120 * share:.0f} 55% 82%)"


def _pictures(inspection: Inspection) -> Iterator[Markup]:
    """Yield the pictures of each view at the instant in the middle."""
    report, example = inspection.report, inspection.example
    seconds = inspection.output.run.times[example.instant]
    near, far = _depth_range(example)
    keys = (
        ("confirmed by another view", CONFIRMED),
        ("in front of its surface", CONTRADICTED),
        ("seen by no other view", SINGLE),
        ("no depth", NO_VALUE),
    )
    yield f"<h2>Maps at {seconds:.3f} s</h2><p class='faint'>Agreement:"
    yield "".join(f'<span class="key" style="background: rgb{color}"></span>{text}' for text, color in keys)
    unit = inspection.output.run.scale.symbol
    yield f"</p><p class='faint'>Depth from {near:.3g} (blue) to {far:.3g} {unit} (red), logarithmic."
    if any(spread is not None for spread in example.flicker):
        yield f" Flicker from 0 (black) to {MAX_FLICKER:.0%} (yellow) of the depth; grey moves or is unknown."
    yield "</p>"
    for index, view in enumerate(report.views):
        frame, verdict, flicker = example.frames[index], example.verdicts[index], example.flicker[index]
        yield f'<h2>{html.escape(view.view)}</h2><div class="row">'
        if frame.picture is not None:
            yield _figure((frame.picture.permute(1, 2, 0) * 255).round().byte().numpy(), "picture")
        yield _figure(_depth_picture(frame, near, far), "depth")
        yield _figure(_verdict_picture(frame, verdict), "agreement")
        if flicker is not None:
            shown = (flicker / MAX_FLICKER).numpy()
            yield _figure(colored(np.nan_to_num(shown), np.isfinite(shown), ERROR_MAP), "flicker of static pixels")
        yield f"<figure><figcaption>confirmed by region, %</figcaption>{_regions(view.regions)}</figure></div>"


def _regions(regions: Sequence[Sequence[Share | None]]) -> Markup:
    rows = [
        "".join(f'<td style="background: {_tint(share)}">{percent_text(share)}</td>' for share in row)
        for row in regions
    ]
    return f'<table class="regions">{"".join(f"<tr>{row}</tr>" for row in rows)}</table>'


def _depth_range(example: Example) -> tuple[float, float]:
    """Return the 2 % and 98 % quantiles of depth over all views."""
    depths = torch.cat([frame.view.depth[frame.view.known] for frame in example.frames])
    if not len(depths):
        return 1.0, 2.0
    low, high = np.quantile(depths.numpy(), (0.02, 0.98))
    return float(low), float(max(high, low * 1.01))


def _depth_picture(frame: ComparedFrame, near: float, far: float) -> NDArray[np.uint8]:
    known: Bool[Tensor, "H W"] = frame.view.known
    depth: Float[Tensor, "H W"] = torch.where(known, frame.view.depth, near)
    share = (depth / near).log() / np.log(far / near)
    return colored(share.numpy(), known.numpy(), DEPTH_MAP)


def _verdict_picture(frame: ComparedFrame, verdict: Verdict) -> NDArray[np.uint8]:
    """Return the agreement map, shaded by the picture if there is one."""
    picture = np.full((*frame.view.size, 3), NO_VALUE, np.float32)
    for mask, color in (
        (verdict.confirmed, CONFIRMED),
        (verdict.contradicted, CONTRADICTED),
        (verdict.single, SINGLE),
    ):
        picture[mask.numpy()] = color
    if frame.picture is not None:
        picture *= 0.55 + 0.7 * frame.picture.mean(dim=0).numpy()[..., None]
    return picture.clip(0, 255).astype(np.uint8)


def _figure(picture: NDArray[np.uint8], caption: str) -> Markup:
    height, width = picture.shape[:2]
    shown = (_WIDTH, round(height * _WIDTH / width)) if width >= height else (round(width * _WIDTH / height), _WIDTH)
    method = cv2.INTER_AREA if shown[0] < width else cv2.INTER_NEAREST
    resized = cv2.resize(picture, shown, interpolation=method)
    data = base64.b64encode(encode_image(resized, ".png", [cv2.IMWRITE_PNG_COMPRESSION, 9])).decode("ascii")
    return (
        f'<figure><figcaption>{caption}</figcaption><img width="{shown[0]}" height="{shown[1]}" alt="{caption}" '
        f'src="data:image/png;base64,{data}"></figure>'
    )


def _table(headings: Sequence[Markup], rows: Sequence[Sequence[Markup]], texts: Sequence[int] = ()) -> Markup:
    kinds = [' class="text"' if index in texts else "" for index in range(len(headings))]
    heads = "".join(f"<th{kind}>{heading}</th>" for kind, heading in zip(kinds, headings, strict=True))
    body = "".join(
        f"<tr>{''.join(f'<td{kind}>{cell}</td>' for kind, cell in zip(kinds, row, strict=True))}</tr>" for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'
