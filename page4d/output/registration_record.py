"""Registration in `run.json`: the pairs of views with their evidence, and the camera of every view."""

from typing import Annotated, Literal

from pydantic import Field

from page4d.choices import Registration
from page4d.io.json_records import FileModel, Sha256
from page4d.output.diagnostics import Count, Name

_Positive = Annotated[float, Field(gt=0.0)]
_NotNegative = Annotated[float, Field(ge=0.0)]


class PairRecord(FileModel):
    """Two views with the evidence on their relative pose.

    `score` is the support per possible person and instant for people, the number of unique inliers for texture.
    `control` is the best score where no agreement can be, None without such a control; `jackknife_deg` the median
    change of rotation between halves of the evidence; `residual_px` the median epipolar error of supporting matches.
    `reason` states why a pair is not accepted.
    """

    views: tuple[Name, Name]
    evidence: Literal["people", "texture"]
    score: _NotNegative
    control: _NotNegative | None = None
    jackknife_deg: _NotNegative | None = None
    residual_px: _NotNegative | None = None
    num_instants: Count = 0
    accepted: bool
    reason: str = ""


class PlacedRecord(FileModel):
    """The camera of a view: whether evidence places it, or why not, and the `source` of the camera in the result.

    `focal` is in pixels of the original image; `focal_std` is the relative standard deviation of an estimated one;
    `residual_px` is the median reprojection error. `focal` is a start value where the source is `unknown` and the
    view is not placed.
    """

    view: Name
    placed: bool
    source: Literal["evidence", "network"]
    focal: _Positive
    focal_source: Literal["calibration", "option", "exif", "unknown"]
    focal_std: _NotNegative | None = None
    residual_px: _NotNegative | None = None
    reason: str = ""


class RegistrationRecord(FileModel):
    """Cameras from evidence: what was requested, pairs and cameras, the number of sampled instants, and lengths.

    `person_height` is the median height of the people in units of the registered rig, `metres_per_unit` the length of
    its unit if a known length gives it. `pose_model` is the SHA-256 of the model that found the keypoints. `seconds`
    are those of the stages; `advice` is what to try for views that are not placed.
    """

    asked: Registration
    pairs: list[PairRecord] = Field(default_factory=list)
    cameras: list[PlacedRecord] = Field(default_factory=list)
    num_instants: Count = 0
    metres_per_unit: _Positive | None = None
    person_height: _Positive | None = None
    pose_model: Sha256 | None = None
    notes: list[str] = Field(default_factory=list)
    advice: str = ""
    seconds: dict[str, _NotNegative] = Field(default_factory=dict)

    @property
    def num_placed(self) -> int:
        """Number of views that evidence places."""
        return sum(camera.placed for camera in self.cameras)

    @property
    def is_used(self) -> bool:
        """Whether the result has cameras from evidence."""
        return any(camera.source == "evidence" for camera in self.cameras)

    @property
    def evidence(self) -> str:
        """Names of the evidence of accepted pairs."""
        return " and ".join(sorted({pair.evidence for pair in self.pairs if pair.accepted}))
