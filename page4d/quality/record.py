"""The content of a quality report: views, pairs of views, the run's own records, and the grade with its reasons."""

import json
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter

from page4d.errors import counted

REGIONS = 3
"""Rows and columns of the grid of regions in which the agreement of a view is given."""

Share = float
"""A number from 0 to 1."""


@dataclass(frozen=True, kw_only=True)
class PairQuality:
    """How the depth of the first view fits the second, over the pixels of the first with depth at all instants.

    `overlap` is the share of them that project onto a pixel with depth of the second view. Of these, `confirmed`
    ones lie on its surface, `contradicted` ones in front of it; the others are behind it. `residual` is the
    median relative difference of depth, `residual_px` the median symmetric reprojection error in pixels of the
    original image. `photo` is the median correlation (NCC) of the pictures at the depth, `photo_gain` the mean of
    what it exceeds that at depths 20 % off by: about 0 or below where cameras or depth do not fit the pictures.
    All are None without pixels to compare, the last two also without pictures.
    """

    views: tuple[str, str]
    overlap: Share
    confirmed: Share | None
    contradicted: Share | None
    residual: float | None
    residual_px: float | None
    photo: float | None = None
    photo_gain: float | None = None


@dataclass(frozen=True, kw_only=True)
class ViewQuality:
    """The depth of a view over all instants of the report.

    `with_depth` is the share of its pixels. Of these, `confirmed` ones lie on the surface of at least one other
    view, `contradicted` ones in front of the surface of one and on that of none, `single` ones on none and in
    front of none; `regions` are the confirmed shares of 3 x 3 regions of the image, rows from the top, None
    without depth. `residual_px` and `photo_gain` are the medians over its pairs, as in `PairQuality`. `flicker`
    is the median relative standard deviation over time of the depth of static pixels, None for a moving camera or
    one instant.
    """

    view: str
    with_depth: Share
    confirmed: Share
    contradicted: Share
    single: Share
    regions: tuple[tuple[Share | None, ...], ...]
    confidence: float
    residual_px: float | None
    photo_gain: float | None
    flicker: float | None


@dataclass(frozen=True, kw_only=True)
class Overall:
    """Means over views, or over pairs, and what the run recorded; None without data.

    `contradicted` is the share of the compared points that are not behind the other surface. `unlike_training` is the
    largest out-of-distribution indicator of the network in units of its limit; `camera_gap_deg` the median angle
    between rotations of the network's cameras and of the given or registered ones. `seam` is the largest residual
    between chunks, relative to the depth.
    """

    with_depth: Share
    confirmed: Share
    contradicted: Share | None
    single: Share
    confidence: float
    residual: float | None
    residual_px: float | None
    photo: float | None
    photo_gain: float | None
    flicker: float | None
    unlike_training: float | None
    camera_gap_deg: float | None
    are_cameras_given: bool
    seam: float | None


@dataclass(frozen=True, kw_only=True)
class Reason:
    """A measurement that lowers the grade: what was found, and what to change.

    `factor` is that by which it multiplies the expected error, 1 or more, infinite for noise; None for a fault that
    is certain, whatever the measurements: the grade is D at best.
    """

    found: str
    change: str
    factor: float | None


@dataclass(frozen=True, kw_only=True)
class Grade:
    """The expected relative error of points with the letter from A to E, and the reasons, the largest factor first.

    `expected_error` estimates the mean distance of points from the truth as a share of their depth. `first_change` is
    the one thing to change first, empty if nothing stands out.
    """

    letter: str
    expected_error: float
    reasons: tuple[Reason, ...]
    first_change: str

    @property
    def text(self) -> str:
        """The grade in one line."""
        return f"{self.letter}: expected error of points about {self.expected_error:.0%} of their depth"


@dataclass(frozen=True, kw_only=True)
class QualityReport:
    """The quality of a result without ground truth. `instants` are the indices of those that were measured."""

    out: str
    scene: str | None
    num_times: int
    instants: tuple[int, ...]
    views: tuple[ViewQuality, ...]
    pairs: tuple[PairQuality, ...]
    overall: Overall
    grade: Grade
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        """Return the grade in one line."""
        return f"<QualityReport of '{self.out}': grade {self.grade.letter}, {counted(len(self.views), 'view')}>"

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON-compatible document, in which infinite numbers are None."""
        document: dict[str, Any] = json.loads(TypeAdapter(QualityReport).dump_json(self))
        return document
