"""Accuracy on public captures of rigs: cameras, board corners, clocks and depth against their references.

Errors of pairs are angles between relative poses of all pairs of placed cameras, as HumanCalib reports them.
Positions are compared after one similarity of all camera centres, distances between cameras after scaling by the
longest one.

Source: `page4d.evaluation.cameras`; Caliscope, the CSV files of `tests/sessions/post_optimization`.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from page4d.choices import CalibrationResize
from page4d.errors import InputError, Notice, Observer, SilentObserver, unknown_name
from page4d.evaluation.cameras import absolute_errors, align_rig, pair_errors, root_mean_square
from page4d.evaluation.evaluate import evaluate
from page4d.geometry.alignment import align_points_robust
from page4d.geometry.transforms import camera_centers
from page4d.io.json_records import FileModel
from page4d.rig.adjust import Observations, triangulate
from page4d.rig.epipolar import undistorted_pixels
from page4d.rig.opening import open_scene
from page4d.rig.records import Array, Lens, RigRegistration
from page4d.run.reconstruct import reconstruct
from page4d.run.registration import missing_models, reasons, register
from page4d.scene.records import Scene, ViewCamera

WRONG_DEG = 6.0
"""Rotation error after the alignment beyond which a placed camera counts as a false placement."""

F_SCORE_AT = 0.05
"""Threshold of the F-score of clouds in metres."""


@dataclass(frozen=True, kw_only=True)
class PublicRig:
    """A public capture: where it comes from, and its references by their paths in its folder.

    `cameras` is a calibration in metres. With `corners`, `xy_CHARUCO.csv` and `xyz_CHARUCO.csv` hold the corners of a
    board. `clocks` is a sync file with the true offsets, `depth` the truth of `page4d evaluate`.
    """

    name: str
    title: str
    source: str
    cameras: str = ""
    resize: CalibrationResize | None = None
    corners: bool = False
    clocks: str = ""
    depth: str = ""


RIGS = {
    rig.name: rig
    for rig in (
        PublicRig(
            name="office",
            title="24 of the 57 frames of caliscope, a sample of page4d",
            source="samples/office",
            cameras="camera_array.toml",
            corners=True,
        ),
        PublicRig(
            name="caliscope",
            title="4 webcams, a seated man and a ChArUco board",
            source="mprib/caliscope, tests/sessions/post_optimization",
            cameras="camera_array.toml",
            corners=True,
        ),
        PublicRig(
            name="treadmill",
            title="4 cameras around a man on a treadmill",
            source="perfanalytics/pose2sim, demo",
            cameras="Calib.qca.txt",
            resize=CalibrationResize.CROP_CENTER,
        ),
        PublicRig(
            name="tabletop",
            title="4 RGB-D cameras above a table, a hand lifts objects",
            source="DexYCB",
            cameras="truth/cameras.json",
            depth="truth",
        ),
        PublicRig(
            name="sports",
            title="3 cameras of the CMU Panoptic dome, not synchronized",
            source="CMU Panoptic 161029_sports1",
            clocks="sync.json",
        ),
    )
}


class RigErrors(FileModel):
    """Errors of the registered cameras of a rig; None where they have no value.

    `lenses` are "known" (those of the reference) or "unknown". `wrong` counts placed cameras that are more than
    `WRONG_DEG` off. Rotation and direction are those of pairs, `centers_mm` and `distances_mm` root mean squares,
    `focal` is the largest relative error, `residual_px` the median over cameras. `corners_mm` is the median distance
    of triangulated corners from the reference after a similarity, `flatness_mm` that from the plane of their board.
    """

    lenses: str
    evidence: str
    views: int
    placed: int
    wrong: int
    rotation_deg: float | None = None
    rotation_max_deg: float | None = None
    direction_deg: float | None = None
    direction_max_deg: float | None = None
    centers_mm: float | None = None
    distances_mm: float | None = None
    focal: float | None = None
    residual_px: float | None = None
    corners_mm: float | None = None
    flatness_mm: float | None = None
    seconds: float


class ClockErrors(FileModel):
    """Errors in ms of the offsets that people give, relative to the first view; or why there are none."""

    median_ms: float | None = None
    max_ms: float | None = None
    reason: str = ""
    seconds: float


class DepthFigures(FileModel):
    """A reconstruction with the reference cameras against the depth of sensors, without any alignment."""

    abs_rel: float | None
    precision: float | None
    recall: float | None
    f_score: float | None
    seconds: float


class Validation(FileModel):
    """What `validate` measured on one public rig."""

    rig: str
    title: str
    source: str
    cameras: tuple[RigErrors, ...] = ()
    clocks: ClockErrors | None = None
    depth: DepthFigures | None = None


def validate(name: str, folder: Path | str, observer: Observer | None = None) -> Validation:
    """Measure page4d on a public rig in `folder`, against every reference that it has.

    Raises:
        UsageError: if no rig has the name.
        InputError: if the folder is not that of the rig.
    """
    if name not in RIGS:
        raise unknown_name("public rig", name, RIGS)
    rig, folder, observer = RIGS[name], Path(folder), observer or SilentObserver()
    for file in (rig.cameras, rig.clocks, rig.depth):
        if file and not (folder / file).exists():
            raise InputError(f"'{folder}' is not the rig {rig.name}: it has no {file}", f"get it from {rig.source}")
    cameras: tuple[RigErrors, ...] = ()
    depth = None
    if rig.cameras:
        scene = open_scene(folder, calibration=folder / rig.cameras, calibration_resize=rig.resize)
        cameras = tuple(_registered(rig, folder, scene, observer))
        depth = _reconstructed(folder / rig.depth, scene, observer) if rig.depth else None
    clocks = _synchronized(folder, rig.clocks, observer) if rig.clocks else None
    return Validation(rig=rig.name, title=rig.title, source=rig.source, cameras=cameras, clocks=clocks, depth=depth)


def _registered(rig: PublicRig, folder: Path, scene: Scene, observer: Observer) -> Sequence[RigErrors]:
    """Register the rig with the lenses of the reference, and without."""
    unknown = replace(scene, views=tuple(replace(view, camera=None) for view in scene.views))
    file = scene.options.calibration
    truth = [view.camera for view in scene.views if view.camera is not None]
    errors = []
    for lenses, given in (("known", file), ("unknown", None)):
        start = time.process_time()
        registration = register(unknown, intrinsics=given, observer=observer)
        seconds = time.process_time() - start
        found = rig_errors(registration, truth, lenses, seconds)
        if left := found.views - found.placed:
            record = registration.record
            causes = "; ".join([reasons(record), *(f"run {offer}" for offer in missing_models(record))])
            observer.notice(Notice(f"{lenses} lenses: {left} of {found.views} cameras are not placed: {causes}"))
        if rig.corners and found.placed > 1:
            corners, flatness = board_errors(folder, registration, scene)
            found = found.model_copy(update={"corners_mm": corners, "flatness_mm": flatness})
        errors.append(found)
    return errors


def rig_errors(found: RigRegistration, truth: Sequence[ViewCamera], lenses: str, seconds: float) -> RigErrors:
    """Compare the placed cameras of a registration with those of a reference in metres."""
    record = found.record
    errors = RigErrors(
        lenses=lenses, evidence=record.evidence, views=len(truth), placed=record.num_placed, wrong=0, seconds=seconds
    )
    pairs = [(mine, true) for mine, true in zip(found.cameras, truth, strict=True) if mine is not None]
    if len(pairs) < 2:
        return errors
    mine, true = (torch.stack([camera.world_to_camera for camera in side]) for side in zip(*pairs, strict=True))
    relative = pair_errors(mine, true)
    distance, turn = absolute_errors(align_rig(mine, true).transform.apply_to_cameras(mine), true)
    focal = [float(one.intrinsics[0, 0] / other.intrinsics[0, 0]) - 1 for one, other in pairs]
    residuals = [camera.residual_px for camera in record.cameras if camera.placed and camera.residual_px is not None]
    changes = {
        "wrong": int((turn > WRONG_DEG).sum()),
        "rotation_deg": float(np.median(relative.rotation_deg)),
        "rotation_max_deg": float(relative.rotation_deg.max()),
        "direction_deg": float(np.median(relative.signed_direction_deg)),
        "direction_max_deg": float(relative.signed_direction_deg.max()),
        "centers_mm": 1000 * root_mean_square(distance),
        "distances_mm": _distance_error(camera_centers(mine), camera_centers(true)),
        "focal": max(map(abs, focal)) if lenses == "unknown" else None,
        "residual_px": float(np.median(residuals)) if residuals else None,
    }
    return errors.model_copy(update=changes)


def _distance_error(mine: Float[torch.Tensor, "K 3"], true: Float[torch.Tensor, "K 3"]) -> float | None:
    """Return the root mean square error in mm of the distances in m between cameras, scaled by the longest one."""
    measured, reference = torch.pdist(mine), torch.pdist(true)
    longest = int(reference.argmax())
    others = torch.arange(len(reference)) != longest
    errors = (measured * (reference[longest] / measured[longest]) - reference)[others]
    return 1000 * root_mean_square(errors) if len(errors) else None


def board_errors(folder: Path, found: RigRegistration, scene: Scene) -> tuple[float, float]:
    """Triangulate the detected corners of a board by registered cameras, and compare them with the reference.

    Return the median distance in mm after a similarity, and the median distance in mm from the plane of the board.
    """
    pixels, corners = (
        np.genfromtxt(folder / file, delimiter=",", names=True) for file in ("xy_CHARUCO.csv", "xyz_CHARUCO.csv")
    )
    keys = {(row["sync_index"], row["keypoint_id"]): index for index, row in enumerate(corners)}
    point = np.array([keys.get((row["sync_index"], row["keypoint_id"]), -1) for row in pixels])
    names = [view.name.rpartition("_")[2] for view in scene.views]
    tracks = []
    for view, camera in enumerate(found.cameras):
        if camera is not None:
            own = (pixels["cam_id"] == float(names[view])) & (point >= 0)
            # OpenCV's pixels have the centre of the first one at 0.
            seen = np.stack([pixels["img_loc_x"][own], pixels["img_loc_y"][own]], axis=-1) + 0.5
            size, intrinsics = scene.views[view].source.size, camera.intrinsics.numpy()
            lens = Lens(intrinsics=intrinsics, image_size=size, distortion=camera.distortion)
            tracks.append((np.full(own.sum(), view), point[own], undistorted_pixels(seen, lens)))
    views, points, positions = (np.concatenate(column) for column in zip(*tracks, strict=True))
    order = np.lexsort((views, points))
    numbers = np.arange(len(corners))  # of the instants, by which the points are found again after the selection
    none = np.full(len(corners), -1)
    every = Observations(
        view=views[order],
        point=points[order],
        pixels=positions[order],
        weights=np.ones(len(order)),
        person=none,
        instant=numbers,
        joint=none,
    ).select(np.ones(len(order), bool))
    cameras = [np.eye(4) if camera is None else camera.world_to_camera.numpy() for camera in found.cameras]
    lenses = [np.eye(3) if camera is None else camera.intrinsics.numpy() for camera in found.cameras]
    placed, is_known = triangulate(np.stack(cameras), np.stack(lenses), every)
    reference = corners[every.instant[is_known]]
    true = torch.from_numpy(np.stack([reference[f"{axis}_coord"] for axis in "xyz"], axis=-1))
    mine = torch.from_numpy(placed[is_known])
    moved = align_points_robust(mine, true)[0].apply(mine)
    distance = float(np.median((moved - true).norm(dim=-1)))
    return 1000 * distance, 1000 * _flatness(moved.numpy(), reference["sync_index"])


def _flatness(points: Float[Array, "P 3"], instants: Array) -> float:
    """Return the median distance of points from the plane through those of their instant."""
    distances = []
    for instant in np.unique(instants):
        own = points[instants == instant]
        if len(own) > 3:
            own = own - own.mean(0)
            distances.append(np.abs(own @ np.linalg.svd(own, full_matrices=False)[2][2]))
    return float(np.median(np.concatenate(distances))) if distances else 0.0


def _synchronized(folder: Path, file: str, observer: Observer) -> ClockErrors:
    """Compare offsets from people with those of a sync file, both relative to the first view."""
    true = [view.clock.offset_s for view in open_scene(folder, sync=str(folder / file)).views]
    start = time.process_time()
    try:
        scene = open_scene(folder, sync="people", progress=observer.progress)
    except InputError as error:
        return ClockErrors(reason=error.marked_message, seconds=time.process_time() - start)
    seconds = time.process_time() - start
    mine = [view.clock.offset_s for view in scene.views]
    errors = 1000 * np.abs(np.diff([mine, true], axis=0)[0] - (true[0] - mine[0]))[1:]
    return ClockErrors(median_ms=float(np.median(errors)), max_ms=float(errors.max()), seconds=seconds)


def _reconstructed(truth: Path, scene: Scene, observer: Observer) -> DepthFigures:
    """Reconstruct the scene with its cameras, and compare depth and clouds with the truth."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.process_time()
        reconstruct(scene, out=Path(folder) / "out", observer=observer)
        seconds = time.process_time() - start
        found = evaluate(Path(folder) / "out", truth, threshold=F_SCORE_AT)
    assert found.depth is not None
    assert found.points is not None
    errors, points = found.depth.results[0].overall, found.points.overall
    return DepthFigures(
        abs_rel=errors.abs_rel,
        precision=points.precision,
        recall=points.recall,
        f_score=points.f_score,
        seconds=seconds,
    )
