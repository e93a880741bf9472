"""Records of cameras from evidence in pixels: registrations, their worlds, and checks of calibrations.

They are parts of `run.json`, and of what registration and checks write by themselves.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, NonNegativeFloat, PositiveFloat

from page4d.choices import Registration, UpAxis, WorldFrame
from page4d.errors import listed
from page4d.io.json_records import FileModel, Sha256, readable

Name = Annotated[str, BeforeValidator(lambda value: readable(value) if isinstance(value, str) else value)]
Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
Row = Annotated[list[float], Field(min_length=3, max_length=3)]
Matrix = Annotated[list[Annotated[list[float], Field(min_length=4, max_length=4)]], Field(min_length=4, max_length=4)]


class Evidence(StrEnum):
    """What a relative pose was estimated from."""

    PEOPLE = "people"
    TEXTURE = "texture"
    LEARNED = "learned texture"


class FocalSource(StrEnum):
    """Origin of a focal length."""

    CALIBRATION = "calibration"
    """A calibration file whose poses are not used."""

    OPTION = "option"
    """`focal`."""

    EXIF = "exif"
    UNKNOWN = "unknown"
    """A start value in units of the long side, and estimated."""


class PairRecord(FileModel):
    """Two views with the evidence of `num_instants` common instants on their relative pose.

    `score` is the support per possible person and instant for people, the number of unique inliers for
    texture (SIFT) and learned texture (ALIKED-n16 and LightGlue).
    `control` is the best score where no agreement can be, None without such a control; `jackknife_deg` the median
    change of rotation between halves of the evidence; `residual_px` the median epipolar error of supporting matches;
    `distance_std` the relative standard deviation of the distance between the cameras if both are placed. `reason`
    states why a pair is not accepted.
    """

    views: tuple[Name, Name]
    evidence: Evidence
    score: NonNegativeFloat
    control: NonNegativeFloat | None = None
    jackknife_deg: NonNegativeFloat | None = None
    residual_px: NonNegativeFloat | None = None
    num_instants: Count = 0
    distance_std: NonNegativeFloat | None = None
    accepted: bool
    reason: str = ""


class PlacedRecord(FileModel):
    """The camera of a view: whether it is placed, or why not, and the `source` of the camera in the result.

    `focal` is in pixels of the original image; `focal_std` is the relative standard deviation of an estimated one;
    `residual_px` is the median reprojection error, `epipolar_px` the standard deviation of the epipolar lines of
    other views (median over these), both in pixels of the original image. `edges` is whether directions of straight
    edges correct the camera. `focal` is a start value where the source is `unknown` and the view is not placed.
    """

    view: Name
    placed: bool
    source: Literal["calibration", "evidence", "network"]
    focal: PositiveFloat
    focal_source: FocalSource
    focal_std: NonNegativeFloat | None = None
    residual_px: NonNegativeFloat | None = None
    epipolar_px: NonNegativeFloat | None = None
    edges: bool = False
    reason: str = ""


class WorldRecord(FileModel):
    """The world of a result, if it is chosen: upright, or that of the first camera, and then why it is not upright.

    `up` is the axis that points up in it, and `transform` the rigid transform into it, from the world of the given or
    registered cameras. There, `vertical` is the unit vector up with its standard deviation, and `floor` the height of
    the floor along it, in the unit of the cameras. They are from `num_poses` of people, a person at an instant each,
    from `num_points` on the floor, or, if both are 0, from a board on the floor.

    If `num_coordinates` of the points have coordinates, the world is theirs. They fit within `coordinates_rms` metres
    and give the `metres_per_unit` of the cameras, with the relative standard deviation `metres_std`, None for cameras
    in metres. With points on a line, the vertical is that of people if there are `num_poses`.
    """

    frame: WorldFrame
    up: UpAxis | None = None
    transform: Matrix | None = None
    vertical: Row | None = None
    vertical_std_deg: NonNegativeFloat | None = None
    floor: float | None = None
    floor_std: NonNegativeFloat | None = None
    num_poses: Count = 0
    num_points: Count = 0
    num_coordinates: Count = 0
    coordinates_rms: NonNegativeFloat | None = None
    metres_per_unit: PositiveFloat | None = None
    metres_std: NonNegativeFloat | None = None
    reason: str = ""

    @property
    def text(self) -> str:
        """Which world it is, in one line."""
        if self.frame is not WorldFrame.UPRIGHT:
            return f"that of the first camera{self.reason and f': {self.reason}'}"
        origin = f"{self.num_points} points on the floor" if self.num_points else "the board on the floor"
        if self.num_poses:
            origin = f"{self.num_poses} poses of people"
        if self.num_coordinates:
            gravity = f", gravity from {origin}" if self.num_poses else ""
            origin = f"coordinates of {self.num_coordinates} points, within {self.coordinates_rms:.3f} m{gravity}"
            origin += "" if self.metres_std is None else f", lengths +-{100 * self.metres_std:.2g} %"
        std = "" if self.vertical_std_deg is None else f" ({origin}, +-{self.vertical_std_deg:.1f} degrees)"
        return f"upright, {self.up} is up{std}"


class RegistrationRecord(FileModel):
    """Cameras from evidence: what was requested, pairs and cameras, the number of sampled instants, and lengths.

    `person_height` is the median height of the people in units of the registered rig, `metres_per_unit` the length of
    its unit if a known length gives it; `person_height_std` and `metres_std` are relative. `pose_model` is the
    SHA-256 of the model that found the keypoints. `clocks_in_doubt` is whether assumed clocks may be why no view is
    placed. `seconds` are those of the stages; `advice` is what to try for views that are not placed.
    """

    asked: Registration
    pairs: list[PairRecord] = Field(default_factory=list)
    cameras: list[PlacedRecord] = Field(default_factory=list)
    num_instants: Count = 0
    metres_per_unit: PositiveFloat | None = None
    metres_std: NonNegativeFloat | None = None
    person_height: PositiveFloat | None = None
    person_height_std: NonNegativeFloat | None = None
    pose_model: Sha256 | None = None
    notes: list[str] = Field(default_factory=list)
    clocks_in_doubt: bool = False
    advice: str = ""
    seconds: dict[str, NonNegativeFloat] = Field(default_factory=dict)

    @property
    def num_known(self) -> int:
        """Number of views that keep the camera of a calibration."""
        return sum(camera.source == "calibration" for camera in self.cameras)

    @property
    def num_placed(self) -> int:
        """Number of views with a camera of a calibration or from evidence."""
        return sum(camera.placed for camera in self.cameras)

    @property
    def is_complete(self) -> bool:
        """Whether all views are placed."""
        return self.num_placed == len(self.cameras)

    @property
    def is_used(self) -> bool:
        """Whether the result has cameras from evidence."""
        return any(camera.source == "evidence" for camera in self.cameras)

    @property
    def gives_cameras(self) -> bool:
        """Whether the result has cameras from a calibration or from evidence."""
        return any(camera.source != "network" for camera in self.cameras)

    @property
    def evidence(self) -> str:
        """Names of the evidence of accepted pairs, and of straight edges."""
        kinds = sorted({str(pair.evidence) for pair in self.pairs if pair.accepted})
        kinds += ["straight edges"] if any(camera.edges for camera in self.cameras) else []
        return ", ".join([*kinds[:-2], " and ".join(kinds[-2:])])


Certainty = Literal["certain", "likely"]
Fault = Literal["swapped", "turned", "displaced", "duplicate", "mirrored", "convention", "contradicted"]
"""Kind of a finding; `convention` is another image size, focal length or convention of all cameras."""


class PairFitRecord(FileModel):
    """How well two calibrated cameras fit people or texture at `num_instants` common instants."""

    views: tuple[Name, Name]
    evidence: Evidence
    score: Share
    num_instants: Count
    fits: bool


class FindingRecord(FileModel):
    """A fault: what is wrong, and its correction.

    `score` is that of the calibration on the pairs of these views, `better_score` that of the correction; null for
    faults that the calibration alone shows. `angle_deg` is the turn of a camera.
    """

    fault: Fault
    views: tuple[Name, ...]
    certainty: Certainty
    what: str
    fix: str
    score: Share | None = None
    better_score: Share | None = None
    angle_deg: NonNegativeFloat | None = None

    @property
    def text(self) -> str:
        """One line."""
        return f"{self.what} ({self.certainty}); {self.fix}"


class CalibrationCheckRecord(FileModel):
    """Comparison of a calibration of static cameras with people and texture.

    `unconfirmed` are views whose cameras the evidence does not determine, `reason` names evidence that was not
    fetched, `clocks` are warnings on the clocks. `pose_model` is the SHA-256 of the model that found the keypoints,
    `seconds` are those of the stages.
    """

    pairs: tuple[PairFitRecord, ...] = ()
    findings: tuple[FindingRecord, ...] = ()
    unconfirmed: tuple[Name, ...] = ()
    clocks: tuple[str, ...] = ()
    reason: str = ""
    num_instants: Count = 0
    pose_model: Sha256 | None = None
    seconds: dict[str, NonNegativeFloat] = Field(default_factory=dict)

    def confirms(self, view: str) -> bool:
        """Return whether the evidence confirms the camera of a view."""
        return not self.findings and view not in self.unconfirmed

    @property
    def verdict(self) -> str:
        """One line if no fault is named, else empty."""
        if self.findings:
            return ""
        if self.unconfirmed:
            why = self.reason or "people and texture do not determine them"
            return f"not confirmed: {listed(self.unconfirmed)} ({why})"
        lowest = min((pair.score for pair in self.pairs), default=0.0)
        return f"no fault of the calibration is found (lowest score of a pair {lowest:.2f})"
