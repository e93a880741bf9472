"""One export in progress: what a writer of a format reads, in the exported world and at exported pictures.

This includes the rate of the instants, maps for formats that contain them as they are, and cameras as OpenGL cameras:
x right, y up, looking along -z.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
from numpy.typing import NDArray

from page4d.choices import ImageFormat, PointLayer
from page4d.conventions import OPENGL_AXES
from page4d.errors import listed
from page4d.exporters.formats import Format
from page4d.exporters.pictures import PictureGeometry, Size
from page4d.exporters.points import CloudReader, ModelPoints
from page4d.exporters.world import ExportWorld
from page4d.formats.maps import PNG_PARAMETERS, encode_image
from page4d.formats.ply import PointCloud
from page4d.formats.tracks import Tracks
from page4d.geometry.transforms import invert_rigid, is_constant
from page4d.io.folders import write_file
from page4d.options import ExportSettings
from page4d.output.layout import frame_name
from page4d.output.pictures import Pictures
from page4d.output.reader import Output


def frame_rate(seconds: NDArray[np.float64]) -> float:
    """Return the instants per second of increasing times [T], from their median step; 1 for a single instant."""
    return 1.0 / float(np.median(np.diff(seconds))) if len(seconds) > 1 else 1.0


JPG_QUALITY = 95


@dataclass(frozen=True, kw_only=True)
class ExportView:
    """A view of an export or a viewer: its true `name`, the `label` of its files or nodes, its `index` in the run.

    `index` is also the value of the property `view` of clouds. `size` is (height, width) of the original pictures. A
    view that is `held_out` is for testing.
    """

    name: str
    label: str
    index: int
    size: tuple[int, int]
    held_out: bool = False


@dataclass(frozen=True, kw_only=True)
class Written:
    """What a writer wrote: the number of points, each instant's time in the format, and remarks for the user.

    `times` is one number or text per exported instant, as a reader of the format sees it; `held_out` are the views,
    or the instants as in "instant 8", that readers of the format keep for testing. `labels` are the views' names in
    the format, where they differ from the labels of the job.
    """

    num_points: int = 0
    times: tuple[float | int | str, ...] = ()
    held_out: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ExportPicture:
    """An exported picture: RGB `pixels` [H, W, 3] of an instant and a view, both counted from 0."""

    place: int
    view: int
    pixels: NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class ExportJob:
    """An export of V views and T instants; instants and views are counted from 0 among the exported ones (`place`).

    `instants` are the indices in the run, `seconds` [T] their times on the common clock. `world_to_camera`
    [T, V, 4, 4] and `intrinsics` [T, V, 3, 3] are in double precision, in the exported world and at the exported
    pictures; a camera that does not move has the same numbers at all instants. `clouds` are None for formats without
    points, `geometry` and `pictures` describe the exported pictures; `pictures` are None where there are none.
    """

    output: Output
    settings: ExportSettings
    format: Format
    views: tuple[ExportView, ...]
    instants: tuple[int, ...]
    seconds: NDArray[np.float64]
    world: ExportWorld
    up_found: str
    world_to_camera: NDArray[np.float64]
    geometry: tuple[PictureGeometry, ...]
    clouds: CloudReader | None
    pictures: Pictures | None
    image_format: ImageFormat
    advance: Callable[[], None] = field(default=lambda: None)

    @cached_property
    def intrinsics(self) -> NDArray[np.float64]:
        """Intrinsics [T, V, 3, 3] of the exported pictures."""
        return np.stack([geometry.intrinsics for geometry in self.geometry], axis=1)

    @property
    def sizes(self) -> tuple[Size, ...]:
        """The (height, width) of every view's exported pictures."""
        return tuple(geometry.size for geometry in self.geometry)

    @cached_property
    def camera_to_world(self) -> NDArray[np.float64]:
        """Rigid poses [T, V, 4, 4] from camera to world."""
        return invert_rigid(torch.from_numpy(self.world_to_camera)).numpy()

    @property
    def num_times(self) -> int:
        """Number of exported instants T."""
        return len(self.instants)

    @property
    def frame_rate(self) -> float:
        """Instants per second, from the median step; 1 for a single instant."""
        return frame_rate(self.seconds)

    @property
    def is_regular(self) -> bool:
        """Whether all steps in time equal their median within 1 %."""
        steps = np.diff(self.seconds)
        return bool((np.abs(steps * self.frame_rate - 1.0) <= 0.01).all())

    def is_static(self, view: int) -> bool:
        """Return whether a view's camera, pose and intrinsics, is the same at all instants."""
        return is_constant(self.world_to_camera[:, view]) and is_constant(self.intrinsics[:, view])

    @property
    def is_static_rig(self) -> bool:
        """Whether no camera moves."""
        return all(self.is_static(view) for view in range(len(self.views)))

    # Pictures and maps

    def read_pictures(self) -> Iterator[ExportPicture]:
        """Yield the exported pictures, view by view; each is decoded once.

        Raises:
            InputError: if a frame cannot be decoded.
        """
        assert self.pictures is not None, f"{self.format.name} has no pictures"
        for view, (record, geometry) in enumerate(zip(self.views, self.geometry, strict=True)):
            for place, pixels in enumerate(self.pictures.read(record.name, self.instants)):
                yield ExportPicture(place=place, view=view, pixels=geometry.picture(pixels, place))
                self.advance()

    def root(self, folder: Path, place: int) -> Path:
        """Return the folder of the dataset that has an instant: with `per_instant` each has its own."""
        return folder / frame_name(self.instants[place]) if self.settings.per_instant else folder

    def frame_path(self, place: int, view: int) -> str:
        """Return the path of a frame below a folder of its dataset, without suffix."""
        label = self.views[view].label
        return label if self.settings.per_instant else f"{label}/{frame_name(self.instants[place])}"

    def write_picture(self, path: Path, picture: ExportPicture) -> None:
        """Write a picture; `path` has no suffix yet.

        Raises:
            OutputError: if the file cannot be written.
        """
        write_file(self.picture_path(path), encode_picture(picture.pixels, self.image_format))

    def picture_path(self, path: Path) -> Path:
        """Append the suffix of pictures."""
        return path.with_name(f"{path.name}.{self.image_format}")

    def depth(self, place: int, view: int) -> NDArray[np.float32]:
        """Return a depth map [h, w] in exported units, 0 where there is none, at the resolution of the run's maps.

        Where exported pictures have fewer pixels, it is theirs.
        """
        depth = self.output.depth(self.instants[place], self.views[view].name)
        return self._scaled(self.geometry[view].mapped(depth, place))

    def confidence(self, place: int, view: int) -> NDArray[np.float32]:
        """Return a confidence map [h, w] in [0, 1] at the resolution of the run's maps."""
        confidence = self.output.confidence(self.instants[place], self.views[view].name)
        return self.geometry[view].mapped(confidence, place)

    def velocity(self, place: int, view: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return velocities [h, w, 3] in the exported world per second, and their standard deviations [h, w].

        Both are 0 where the velocity is unknown, at the resolution of the run's maps.

        Raises:
            UsageError: if the run has no velocities.
        """
        velocity, sigma = self.output.velocity(self.instants[place], self.views[view].name)
        mapped = self.geometry[view].mapped(velocity, place)
        moved = self.world.points(mapped.reshape(-1, 3)).reshape(mapped.shape)
        return moved, self._scaled(self.geometry[view].mapped(sigma, place))

    def moving(self, place: int, view: int, *, at_maps: bool = False) -> NDArray[np.bool_] | None:
        """Return a motion mask at the size [H, W] of the exported picture, or [h, w] of the run's maps.

        None if the run predicted no motion.
        """
        mask = self.output.dynamic(self.instants[place], self.views[view].name)
        if mask is None:
            return None
        geometry = self.geometry[view]
        return geometry.mapped(mask.astype(np.uint8), place, None if at_maps else geometry.size) > 0

    # Points

    def instant_points(self, place: int, layer: PointLayer = PointLayer.ALL) -> PointCloud:
        """Return the points of an instant, or of a layer of it, in the exported world, within the budget.

        If the budget is that of the capture, every instant gets an equal part of it, unless it has its own model.
        """
        cloud = self._moved(self._clouds.sampled(place, layer))
        self.advance()
        return cloud

    @property
    def has_layers(self) -> bool:
        """Whether static points of the run are in a file of their own that serves the exported instants."""
        if self.clouds is None or self.num_times == 1 or self.settings.per_instant:
            return False
        return self.clouds.has_layers

    def static_points(self) -> PointCloud:
        """Return the points that never move, of a run with layers, in the exported world and within the budget."""
        return self._moved(self._clouds.sampled(0, PointLayer.STATIC))

    def changing_points(self, place: int) -> PointCloud:
        """Return the points of an instant that move, or all of a run without layers, as `static_points`."""
        return self.instant_points(place, PointLayer.MOVING if self.has_layers else PointLayer.ALL)

    def model_points(self) -> ModelPoints:
        """Return the points of all instants as one model: static ones once, moving ones of every instant."""
        points = self._clouds.model()
        for _ in range(self.num_times):
            self.advance()
        return ModelPoints(cloud=self._moved(points.cloud), place=points.place)

    def parts(self, folder: Path) -> Iterator[tuple[Path, range, ModelPoints]]:
        """Yield folder, instants and points of the dataset, or with `per_instant` of that of every instant."""
        if not self.settings.per_instant:
            yield folder, range(self.num_times), self.model_points()
            return
        for place in range(self.num_times):
            cloud = self.instant_points(place)
            points = ModelPoints(cloud=cloud, place=np.full(cloud.num_points, place, dtype=np.int32))
            yield self.root(folder, place), range(place, place + 1), points

    @property
    def _clouds(self) -> CloudReader:
        assert self.clouds is not None, f"{self.format.name} has no points"
        return self.clouds

    def _moved(self, cloud: PointCloud) -> PointCloud:
        return replace(
            cloud,
            xyz=self.world.points(cloud.xyz),
            normals=None if cloud.normals is None else self.world.directions(cloud.normals),
            velocity=None if cloud.velocity is None else self.world.points(cloud.velocity),
            velocity_sigma=None if cloud.velocity_sigma is None else self._scaled(cloud.velocity_sigma),
        )

    @cached_property
    def tracks(self) -> Tracks | None:
        """Tracks of the exported instants and views, in the exported world; None if the run has none.

        Tracks without a position at these instants are left out.
        """
        if not self.output.has_tracks:
            return None
        tracks = self.output.tracks().selected(self.instants, [view.index for view in self.views])
        moved = self.world.points(tracks.coords.reshape(-1, 3).astype(np.float32))
        sigma = self._scaled(tracks.sigma.astype(np.float32))
        return replace(tracks, coords=moved.reshape(tracks.coords.shape), sigma=sigma)

    def _scaled(self, lengths: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return lengths, or speeds, of the run in exported units."""
        return lengths if self.world.scale == 1.0 else (lengths * self.world.scale).astype(np.float32)

    def project(self, xyz: NDArray[Any], place: int, view: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Project exported points [N, 3] into an exported picture: pixels [N, 2] and z-depth [N].

        Pixels of points at depth 0 are not finite.
        """
        pose = self.world_to_camera[place, view]
        in_camera = xyz.astype(np.float64) @ pose[:3, :3].T + pose[:3, 3]
        homogeneous = in_camera @ self.intrinsics[place, view].T
        with np.errstate(divide="ignore", invalid="ignore"):
            return homogeneous[:, :2] / homogeneous[:, 2:], in_camera[:, 2]

    def in_picture(
        self, xyz: NDArray[Any], place: int, view: int
    ) -> tuple[NDArray[np.bool_], NDArray[np.float64], NDArray[np.float64]]:
        """Return which exported points [N, 3] lie in a picture, and the pixels [M, 2] and z-depth [M] of these."""
        pixels, depth = self.project(xyz, place, view)
        height, width = self.sizes[view]
        inside = (depth > 0) & ((pixels >= 0) & (pixels < (width, height))).all(axis=1)
        return inside, pixels[inside], depth[inside]


def encode_picture(pixels: NDArray[np.uint8], image_format: ImageFormat) -> bytes:
    """Encode an RGB picture [H, W, 3], or a grayscale one [H, W] of 8 or 16 bits."""
    parameters = (cv2.IMWRITE_JPEG_QUALITY, JPG_QUALITY) if image_format is ImageFormat.JPG else PNG_PARAMETERS
    return encode_image(pixels, f".{image_format}", parameters)


def exported_unit(job: ExportJob) -> str:
    """Return the length of one exported unit: "metre", "0.01 metre" or "arbitrary"."""
    unit, scale = job.output.run.unit, job.world.scale
    return unit if scale == 1.0 or unit == "arbitrary" else f"{1 / scale:.9g} {unit}"


_LOST_PX = 0.5
"""Offsets of the principal point below this are not worth a remark."""


def opengl_poses(job: ExportJob) -> NDArray[np.float64]:
    """Return poses [T, V, 4, 4] from OpenGL cameras to the exported world."""
    poses: NDArray[np.float64] = job.camera_to_world * np.array(OPENGL_AXES) + 0.0  # no -0
    return poses


def vertical_fov(job: ExportJob) -> NDArray[np.float64]:
    """Return the vertical field of view [T, V] in radians, of cameras with a centred principal point."""
    heights = np.array([size[0] for size in job.sizes])
    return 2 * np.arctan(heights / (2 * job.intrinsics[..., 1, 1]))


def lost_offsets(job: ExportJob) -> tuple[str, ...]:
    """Return a remark on the views whose principal point is off the centre, for formats that assume it centred."""
    centers = np.array([size[::-1] for size in job.sizes]) / 2
    offsets = np.linalg.norm(job.intrinsics[..., :2, 2] - centers, axis=-1).max(axis=0)
    views = [f"{view.name} {px:.1f} px" for view, px in zip(job.views, offsets, strict=True) if px > _LOST_PX]
    if not views:
        return ()
    return (f"{job.format.name} has no principal point; pictures are off their camera by: {listed(views, 4)}",)
