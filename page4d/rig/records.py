"""Records of registration: lenses, keypoints, relative poses of pairs of views with their evidence, and the rig.

Rotations are numpy arrays; angles are in degrees.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from pydantic import Field
from scipy.spatial.transform import Rotation

from page4d.errors import Progress, counted
from page4d.geometry.distortion import Distortion, LensModel
from page4d.io.json_records import FileModel
from page4d.output.rig_record import Evidence as Evidence
from page4d.output.rig_record import FocalSource as FocalSource
from page4d.output.rig_record import PlacedRecord, RegistrationRecord, WorldRecord
from page4d.rig.camera_motion import ViewMotion
from page4d.scene.records import ViewCamera

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

StageProgress = Callable[[int, int, str], None]
"""Receives the steps done of a stage, all its steps, and its name, such as "registering: keypoints cam02"."""


def no_progress(done: int, total: int, stage: str = "") -> None:
    """Ignore progress."""


def of_stage(progress: StageProgress, stage: str) -> Progress:
    """Return what receives the steps of one stage."""
    return lambda done, total: progress(done, total, stage)


@dataclass(frozen=True, kw_only=True)
class Lens:
    """Intrinsics of a view at original pixels, pixel centres at 0.5.

    `intrinsics` [3, 3] are those of the undistorted image; where `focal_source` is `UNKNOWN`, a start value, with the
    principal point at the centre unless straight edges show another, and evidence is found before its distortion is
    known. `image_size` is (height, width).
    """

    intrinsics: Float[Array, "3 3"]
    image_size: tuple[int, int]
    distortion: Distortion | None = None
    focal_source: FocalSource = FocalSource.UNKNOWN

    @property
    def is_known(self) -> bool:
        """Whether the focal length is known."""
        return self.focal_source is not FocalSource.UNKNOWN

    @property
    def is_centered(self) -> bool:
        """Whether the principal point is the centre of the picture."""
        return bool(np.array_equal(2 * self.intrinsics[:2, 2], self.image_size[::-1]))

    @property
    def focal(self) -> float:
        """Focal length in pixels: the geometric mean of both axes."""
        return float(np.sqrt(self.intrinsics[0, 0] * self.intrinsics[1, 1]))

    @property
    def estimated_k1(self) -> float:
        """Estimated radial distortion; 0 where there is none."""
        return 0.0 if self.is_known or self.distortion is None else self.distortion.coefficients[0]

    def with_focal(self, focal: float) -> Float[Array, "3 3"]:
        """Return the intrinsics with another focal length in px."""
        matrix = self.intrinsics.copy()
        matrix[:2, :2] *= focal / self.focal
        return matrix

    def estimated(self, intrinsics: Float[Array, "3 3"], k1: float) -> "Lens":
        """Return the lens with these intrinsics and radial distortion."""
        bent = Distortion(model=LensModel.BROWN_CONRADY, coefficients=(k1, 0.0, 0.0, 0.0)) if k1 else None
        return replace(self, intrinsics=intrinsics, distortion=bent)

    def camera(self, world_to_camera: Float[Array, "4 4"]) -> ViewCamera:
        """Return the camera of a view with this lens."""
        pose, intrinsics = (torch.from_numpy(matrix.copy()) for matrix in (world_to_camera, self.intrinsics))
        return ViewCamera(world_to_camera=pose, intrinsics=intrinsics, distortion=self.distortion)


@dataclass(frozen=True, kw_only=True)
class RigCamera:
    """A calibrated camera of a static rig: lens and `world_to_camera` [4, 4]."""

    lens: Lens
    world_to_camera: Float[Array, "4 4"]

    @property
    def rotation(self) -> Float[Array, "3 3"]:
        """Rotation of the world into the camera."""
        return self.world_to_camera[:3, :3]

    @cached_property
    def center(self) -> Float[Array, " 3"]:
        """Position in the world."""
        return -self.rotation.T @ self.world_to_camera[:3, 3]

    def placed(self, rotation: Float[Array, "3 3"], center: Float[Array, " 3"]) -> "RigCamera":
        """Return a camera with the same lens at another pose."""
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = rotation, -rotation @ center
        return replace(self, world_to_camera=pose)


NUM_JOINTS = 33
"""Landmarks of BlazePose."""

EXCHANGED_JOINTS = np.array(
    [0, 4, 5, 6, 1, 2, 3, 8, 7, 10, 9, *np.arange(11, NUM_JOINTS).reshape(-1, 2)[:, ::-1].ravel()], dtype=np.int64
)
"""For every landmark its counterpart on the other side of the body."""


@dataclass(frozen=True, kw_only=True)
class Tracklet:
    """Body keypoints of one person in one view over n instants, in increasing order, with gaps.

    `instants` are indices of the sampled instants. `joints` are undistorted original pixels. Joints are the J = 33
    landmarks of BlazePose; left and right are the person's.
    """

    instants: Int[NDArray[np.int64], " n"]
    joints: Float[Array, "n J 2"]
    visibility: Float[Array, "n J"]

    def at(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> "Tracklet":
        """Return it at some of its instants."""
        return Tracklet(instants=self.instants[rows], joints=self.joints[rows], visibility=self.visibility[rows])


ViewPeople = tuple[Tracklet, ...]
"""People of one view."""


@dataclass(frozen=True, kw_only=True)
class PointMatches:
    """K corresponding points of two views, in undistorted original pixels, with weights in (0, 1].

    `first_ids` and `second_ids` [K] identify a point within its view: equal ids of a view in matches with several
    other views are one scene point at one instant. For people the id is ((tracklet * T) + instant) * J + joint,
    where T is the number of sampled instants; for texture the index of the feature.
    """

    first: Float[Array, "K 2"]
    second: Float[Array, "K 2"]
    weights: Float[Array, " K"]
    first_ids: Int[NDArray[np.int64], " K"]
    second_ids: Int[NDArray[np.int64], " K"]


Pair = tuple[int, int]
"""Two views."""


@dataclass(frozen=True, kw_only=True)
class PairPose:
    """The relative pose of two `views`, x2 = rotation @ x1 + s * direction, with its evidence.

    The other fields are those of `PairRecord` in `run.json`; `residual_px` is a Sampson error. `reason` is empty for
    accepted pairs; a pair that `needs_loop` is refused only as long as no loop of three views confirms it, and one
    that `contradicts_known` because its views have other cameras in the calibration.
    """

    views: Pair
    evidence: Evidence
    rotation: Float[Array, "3 3"] | None = None
    direction: Float[Array, " 3"] | None = None
    score: float = 0.0
    control: float | None = None
    jackknife_deg: float | None = None
    residual_px: float | None = None
    num_instants: int = 0
    matches: PointMatches | None = None
    reason: str = ""
    needs_loop: bool = False
    contradicts_known: bool = False

    @property
    def is_accepted(self) -> bool:
        """Whether the pair passed the gate."""
        return self.rotation is not None and not self.reason

    @property
    def key(self) -> tuple[Pair, Evidence]:
        """What distinguishes it from other pairs of a rig."""
        return self.views, self.evidence


class RigRegistration(FileModel):
    """Cameras of a rig from evidence, in the world of the first placed one, or in another `world`, and their record.

    `cameras` are at original pixels and in the unit of the rig; `motions` are those of all cameras, if measured.
    """

    record: RegistrationRecord
    cameras: list[ViewCamera | None]
    motions: list[ViewMotion] = Field(default_factory=list)
    world: WorldRecord | None = None

    def __repr__(self) -> str:
        """Return the number of placed cameras in one line."""
        return f"<RigRegistration: {self.record.num_placed} of {counted(len(self.cameras), 'camera')} placed>"

    def with_record(self, **changes: object) -> "RigRegistration":
        """Return it with changes of its record."""
        return self.model_copy(update={"record": self.record.model_copy(update=changes)})


def extent_of(centers: Float[Array, "N 3"]) -> float:
    """Return the largest distance of camera centres from their mean; 0 if they are at one point."""
    extent = float(np.linalg.norm(centers - centers.mean(0), axis=-1).max())
    return extent if extent > 1e-9 * (1 + float(np.abs(centers).max())) else 0.0


def placed_record(name: str, lens: Lens, reason: str = "", **fields: Any) -> PlacedRecord:
    """Record the camera of a view, from evidence by default, placed unless there is a reason; `fields` are others."""
    focal: dict[str, Any] = {"focal": lens.focal, "focal_source": lens.focal_source}
    fields = {"source": "network" if reason else "evidence"} | focal | fields
    return PlacedRecord(view=name, placed=not reason, reason=reason, **fields)


def exp_rotation(vector: Float[Array, "*batch 3"]) -> Float[Array, "*batch 3 3"]:
    """Convert rotation vectors to matrices."""
    return np.asarray(Rotation.from_rotvec(vector.reshape(-1, 3)).as_matrix().reshape(*vector.shape, 3))


def log_rotation(matrix: Float[Array, "*batch 3 3"]) -> Float[Array, "*batch 3"]:
    """Convert rotation matrices to vectors."""
    return np.asarray(Rotation.from_matrix(matrix).as_rotvec())


def rotation_angle_deg(
    first: Float[Array, "*batch 3 3"], second: Float[Array, "*batch 3 3"]
) -> Float[Array, "*batch"]:
    """Return the angle between rotations in degrees."""
    return np.asarray(np.degrees(Rotation.from_matrix(np.swapaxes(first, -1, -2) @ second).magnitude()))


def direction_angle_deg(first: Float[Array, "*batch 3"], second: Float[Array, "*batch 3"]) -> Float[Array, "*batch"]:
    """Return the angle between vectors in degrees, accurate near 0 and 180; 90 where one vanishes."""
    cross = np.linalg.norm(np.cross(first, second), axis=-1)
    dot = (first * second).sum(-1)
    vanishing = (cross == 0) & (dot == 0)
    return np.asarray(np.where(vanishing, 90.0, np.degrees(np.arctan2(cross, dot))))
