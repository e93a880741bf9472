"""Tables of a registration: pairs of views with their evidence, and the camera of every view."""

from typing import TYPE_CHECKING

from page4d_cli.tables import Column, Row, print_table

if TYPE_CHECKING:
    from page4d.output.record import PairRecord, PlacedRecord, RegistrationRecord


def report_registration(record: "RegistrationRecord", *, in_run: bool = True) -> None:
    """Print why pairs of views are accepted or not, and how every camera is placed."""
    numbers = [Column(title, right=True) for title in ("score", "control", "jackknife", "residual", "instants")]
    pairs = [_pair(pair) for pair in record.pairs]
    columns = [Column("pair"), Column("evidence"), *numbers, Column("accepted", wraps=True)]
    print_table(columns, pairs, "pairs of views")
    columns = [
        *(
            Column("view"),
            Column("camera"),
            Column("focal length", right=True),
            Column("of"),
            Column("residual", True),
        ),
        Column("reason", wraps=True),
    ]
    cameras = [_camera(camera, in_run=in_run) for camera in record.cameras]
    print_table(columns, cameras, "cameras" if in_run else "cameras from evidence")


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
    verdict = "placed" if camera.placed else "not placed"
    if in_run:
        verdict = "evidence" if camera.source == "evidence" else "network"
    spread = "" if camera.focal_std is None else f" +-{100 * camera.focal_std:.0f} %"
    return (
        camera.view,
        verdict,
        f"{camera.focal:.0f} px{spread}",
        "estimated" if camera.focal_source == "unknown" else camera.focal_source,
        "" if camera.residual_px is None else f"{camera.residual_px:.1f} px",
        camera.reason,
    )
