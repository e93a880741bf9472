"""Check of a calibration in `run.json`: the fit of every pair of cameras, and the faults that were found."""

from typing import Annotated, Literal

from pydantic import Field

from page4d.io.json_records import FileModel, Sha256
from page4d.output.diagnostics import Count, Name

_Score = Annotated[float, Field(ge=0.0, le=1.0)]
_NotNegative = Annotated[float, Field(ge=0.0)]


class PairFitRecord(FileModel):
    """How well two calibrated cameras fit the people at `num_instants` common instants."""

    views: tuple[Name, Name]
    score: _Score
    num_instants: Count
    fits: bool


class FindingRecord(FileModel):
    """A fault: what is wrong, and its correction.

    `score` is that of the calibration on the pairs of these views, `better_score` that of the correction; null for
    faults that the calibration alone shows. `angle_deg` is the turn of a camera.
    """

    fault: Literal["swapped", "turned", "displaced", "duplicate", "convention", "contradicted"]
    views: list[Name]
    certainty: Literal["certain", "likely"]
    what: str
    fix: str
    score: _Score | None = None
    better_score: _Score | None = None
    angle_deg: _NotNegative | None = None

    @property
    def text(self) -> str:
        """One line."""
        return f"{self.what} ({self.certainty}); {self.fix}"


class CalibrationCheckRecord(FileModel):
    """Comparison of a calibration of static cameras with the people in the views.

    `unchecked` are views without enough people, `reason` states why nothing was compared, `clocks` are warnings on
    the clocks. `pose_model` is the SHA-256 of the model that found the keypoints, `seconds` are those of the stages.
    """

    pairs: list[PairFitRecord] = Field(default_factory=list)
    findings: list[FindingRecord] = Field(default_factory=list)
    unchecked: list[Name] = Field(default_factory=list)
    clocks: list[str] = Field(default_factory=list)
    reason: str = ""
    num_instants: Count = 0
    pose_model: Sha256 | None = None
    seconds: dict[str, _NotNegative] = Field(default_factory=dict)

    @property
    def is_checked(self) -> bool:
        """Whether any pair could be compared."""
        return bool(self.pairs)

    def fits(self, view: str) -> bool:
        """Return whether people support the calibration of all compared pairs of a view, at least one."""
        own = [pair.fits for pair in self.pairs if view in pair.views]
        return bool(own) and all(own)
