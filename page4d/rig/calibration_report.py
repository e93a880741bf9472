"""Result of the check of a calibration: scores of pairs of cameras, and faults with their correction."""

from dataclasses import dataclass
from enum import StrEnum

MIN_FIT = 0.5
"""Score from which a pair fits."""


class Certainty(StrEnum):
    """How strong the evidence for a finding is."""

    CERTAIN = "certain"
    LIKELY = "likely"


class Fault(StrEnum):
    """Kind of a finding."""

    SWAPPED = "swapped"
    TURNED = "turned"
    DISPLACED = "displaced"
    DUPLICATE = "duplicate"
    CONVENTION = "convention"
    """Another image size, focal length or convention of all cameras."""

    CONTRADICTED = "contradicted"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A fault of a calibration: what is wrong, and how to correct it.

    `score` is that of the calibration on the pairs concerned, `better_score` that of the correction; None for faults
    that the calibration alone shows. `angle_deg` is the turn of a camera.
    """

    fault: Fault
    views: tuple[str, ...]
    certainty: Certainty
    what: str
    fix: str
    score: float | None = None
    better_score: float | None = None
    angle_deg: float | None = None

    @property
    def text(self) -> str:
        """One line."""
        return f"{self.what} ({self.certainty}); {self.fix}"


@dataclass(frozen=True, kw_only=True)
class PairCheck:
    """How well a pair of calibrated cameras fits keypoints of `num_instants` common instants; score in [0, 1]."""

    first: str
    second: str
    score: float
    num_instants: int

    @property
    def fits(self) -> bool:
        """Whether the keypoints support the calibration of the pair."""
        return self.score >= MIN_FIT


@dataclass(frozen=True, kw_only=True)
class CalibrationReport:
    """Result of a check. `unchecked` are views without evidence, `reason` states why nothing could be checked."""

    findings: tuple[Finding, ...]
    pairs: tuple[PairCheck, ...]
    unchecked: tuple[str, ...] = ()
    reason: str = ""

    @property
    def is_checked(self) -> bool:
        """Whether any pair could be compared."""
        return bool(self.pairs)
