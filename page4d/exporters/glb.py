"""glTF binary (GLB): the points of an instant, or of all as an animation, and the cameras.

Each instant is a node with a mesh of points, each view a node with a camera; in an animation of a run with layers one
more node has the points that never move. In an animation, the scale of an
instant's node is 1 while it is shown and else 0, without interpolation; moving cameras are interpolated.

Source: Khronos Group, glTF 2.0 specification; extension KHR_materials_unlit.
"""

import json
import shutil
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

import page4d
from page4d.choices import PointLayer
from page4d.errors import UsageError
from page4d.exporters.job import ExportJob, Written, exported_unit, lost_offsets, opengl_poses, vertical_fov
from page4d.exporters.pictures import linear_from_srgb
from page4d.formats.ply import PointCloud
from page4d.io.atomic import real_path
from page4d.io.folders import new_file
from page4d.output.layout import frame_name

NAME = "scene.glb"

_NODE_BYTES = 2048
"""More than the JSON and the animation of a node take."""

_LARGEST = 2**32 - 1
"""Lengths in a GLB file are unsigned 32-bit numbers."""

_HEADER, _CHUNK = struct.Struct("<4sII"), struct.Struct("<I4s")
_POINTS_MODE = 0
_VERTEX_BUFFER = 34962
_COMPONENTS = {"f4": 5126, "u2": 5123}
_KINDS = {1: "SCALAR", 3: "VEC3", 4: "VEC4"}
_NEAR = 1e-3
"""Distance of the near plane relative to the diagonal of the points' bounding box."""


def write(job: ExportJob, folder: Path) -> Written:
    """Write scene.glb with all instants of the export."""
    path = folder / NAME
    binary_path = path.with_suffix(".bin")
    with new_file(binary_path) as binary_file:
        scene = _Scene(_Binary(binary_file))
        for place in range(job.num_times):
            scene.add_instant(job, place, job.changing_points(place))
        if job.has_layers:
            scene.add_points({"name": "static"}, job.static_points())
        scene.add_cameras(job)
        if job.num_times > 1:
            scene.animate(job)
        document = json.dumps(scene.document(job), separators=(",", ":")).encode("ascii")
        with new_file(path) as file:
            _write_chunks(file, document, binary_file, scene.binary.size)
    binary_path.unlink()
    remarks = lost_offsets(job)
    if (job.intrinsics != job.intrinsics[:1]).any():
        remarks += ("the fields of view are those of the first instant: glTF has one per camera",)
    if job.settings.animated and job.num_times == 1:
        remarks += ("there is one instant, so there is no animation",)
    times = tuple((job.seconds - job.seconds[0]).tolist()) if job.num_times > 1 else ()
    return Written(num_points=scene.num_points, times=times, remarks=remarks)


def next_step(job: ExportJob, folder: Path) -> str:
    """Return how to open the result."""
    lines = [
        f"Drop '{real_path(folder) / NAME}' on https://gltf-viewer.donmccurdy.com",
        "Blender: File > Import > glTF 2.0",
    ]
    if job.num_times == 1 and job.output.num_times > 1:
        lines.append(f"It shows instant {job.instants[0]}; ⟨animated=True⟩ writes all")
    return "\n".join(lines)


def check(job: ExportJob) -> None:
    """Refuse a file that is too large; points are counted exactly only if the files of the run have too many.

    Raises:
        UsageError: if the file would exceed the limit of the format, 4 GiB.
    """
    clouds = job.clouds
    assert clouds is not None
    if job.has_layers:
        _check_size(job, sum(clouds.most(PointLayer.STATIC)) + sum(clouds.most(PointLayer.MOVING)))
    elif job.format.point_bytes * sum(clouds.most()) > _available(job):
        limit, counts = clouds.limit_of(), [clouds.read(place).num_points for place in range(job.num_times)]
        _check_size(job, sum(min(count, limit) if limit else count for count in counts))


def _check_size(job: ExportJob, num_points: int) -> None:
    if (size := job.format.point_bytes * num_points) > _available(job):
        raise UsageError(
            f"glb would have {size / 2**30:.1f} GiB, and its readers take at most 4 GiB",
            "give ⟨max_points⟩ or ⟨instants⟩, or use usd",
        )


def _available(job: ExportJob) -> int:
    """Return the bytes that points may have."""
    return _LARGEST - _NODE_BYTES * (job.num_times + len(job.views)) - 28 * job.num_times * len(job.views)


def _write_chunks(file: BinaryIO, document: bytes, binary: BinaryIO, size: int) -> None:
    """Write the file: header, JSON padded by spaces, and the binary chunk, copied from a file."""
    document += b" " * (-len(document) % 4)
    total = _HEADER.size + _CHUNK.size + len(document) + _CHUNK.size + size
    file.write(_HEADER.pack(b"glTF", 2, total))
    file.write(_CHUNK.pack(len(document), b"JSON") + document)
    file.write(_CHUNK.pack(size, b"BIN\0"))
    binary.seek(0)
    shutil.copyfileobj(binary, file, 1 << 20)


@dataclass
class _Binary:
    """The binary chunk: arrays are appended to a file, each with its buffer view and accessor."""

    file: BinaryIO
    size: int = 0
    views: list[dict[str, Any]] = field(default_factory=list)
    accessors: list[dict[str, Any]] = field(default_factory=list)

    def add(self, values: NDArray[Any], *, is_vertex: bool = False, has_bounds: bool = False) -> int:
        """Append an array [N] or [N, C] of float32 or normalised uint16, and return the index of its accessor."""
        data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        self.views.append({"buffer": 0, "byteOffset": self.size, "byteLength": len(data)})
        if is_vertex:
            self.views[-1]["target"] = _VERTEX_BUFFER
        flat = values.reshape(len(values), -1)
        accessor = {
            "bufferView": len(self.views) - 1,
            "componentType": _COMPONENTS[values.dtype.str[1:]],
            "count": len(values),
            "type": _KINDS[flat.shape[1]],
        }
        if values.dtype == np.uint16:
            accessor["normalized"] = True
        if has_bounds:
            accessor |= {"min": flat.min(axis=0).tolist(), "max": flat.max(axis=0).tolist()}
        self.accessors.append(accessor)
        self.file.write(data)
        self.size += len(data)
        return len(self.accessors) - 1


@dataclass
class _Scene:
    """The JSON chunk, built node by node: first the instants, then the views."""

    binary: _Binary
    num_points: int = 0
    first_camera: int = 0
    nodes: list[dict[str, Any]] = field(default_factory=list)
    meshes: list[dict[str, Any]] = field(default_factory=list)
    cameras: list[dict[str, Any]] = field(default_factory=list)
    channels: list[dict[str, Any]] = field(default_factory=list)
    samplers: list[dict[str, Any]] = field(default_factory=list)
    lower: NDArray[np.float32] = field(default_factory=lambda: np.full(3, np.inf, dtype=np.float32))
    upper: NDArray[np.float32] = field(default_factory=lambda: np.full(3, -np.inf, dtype=np.float32))

    def add_instant(self, job: ExportJob, place: int, cloud: PointCloud) -> None:
        """Append the points of an instant; one without points is a node without mesh."""
        node = {"name": frame_name(job.instants[place]), "extras": {"seconds": float(job.seconds[place])}}
        self.add_points(node | ({"scale": [0.0, 0.0, 0.0]} if place > 0 and cloud.num_points else {}), cloud)

    def add_points(self, node: dict[str, Any], cloud: PointCloud) -> None:
        """Append points as a node; without points it has no mesh."""
        self.nodes.append(node)
        if not cloud.num_points:
            return
        node["mesh"] = len(self.meshes)
        colors = np.full((cloud.num_points, 4), 65535, dtype=np.uint16)  # linear RGB and opacity
        colors[:, :3] = np.rint(linear_from_srgb(cloud.rgb) * 65535.0)
        attributes = {
            "POSITION": self.binary.add(cloud.xyz, is_vertex=True, has_bounds=True),
            "COLOR_0": self.binary.add(colors, is_vertex=True),
        }
        self.meshes.append(
            {"name": node["name"], "primitives": [{"mode": _POINTS_MODE, "attributes": attributes, "material": 0}]}
        )
        self.num_points += cloud.num_points
        self.lower = np.minimum(self.lower, cloud.xyz.min(axis=0))
        self.upper = np.maximum(self.upper, cloud.xyz.max(axis=0))

    def add_cameras(self, job: ExportJob) -> None:
        """Append the cameras, as they are at the first instant; the far plane is at infinity."""
        self.first_camera = len(self.nodes)
        poses, fov = opengl_poses(job)[0], vertical_fov(job)[0]
        near = max(_NEAR * float(np.linalg.norm(self.upper - self.lower)), 1e-6) if self.num_points else _NEAR
        for view, record in enumerate(job.views):
            height, width = job.sizes[view]
            fx, fy = job.intrinsics[0, view, 0, 0], job.intrinsics[0, view, 1, 1]
            lens = {"aspectRatio": float(width / fx / (height / fy)), "yfov": float(fov[view]), "znear": near}
            self.nodes.append(
                {
                    "name": record.name,
                    "camera": len(self.cameras),
                    "translation": poses[view, :3, 3].tolist(),
                    "rotation": Rotation.from_matrix(poses[view, :3, :3]).as_quat().tolist(),
                }
            )
            self.cameras.append({"name": record.name, "type": "perspective", "perspective": lens})

    def animate(self, job: ExportJob) -> None:
        """Show one instant at a time, and move the cameras that move."""
        seconds = (job.seconds - job.seconds[0]).astype(np.float32)
        end = np.float32(seconds[-1] + 1.0 / job.frame_rate)
        ends = np.append(seconds[1:], end)
        patterns: dict[tuple[int, ...], int] = {}
        for place in range(job.num_times):
            if "mesh" not in self.nodes[place]:
                continue
            keys = {0.0: 0, float(seconds[place]): 1, float(ends[place]): int(place == job.num_times - 1)}
            shown = tuple(keys.values())
            if shown not in patterns:
                patterns[shown] = self.binary.add(np.repeat(np.array(shown, dtype=np.float32)[:, None], 3, axis=1))
            times = self.binary.add(np.array(list(keys), dtype=np.float32), has_bounds=True)
            self._add_channel(place, "scale", times, patterns[shown], "STEP")
        moving = [view for view in range(len(job.views)) if not job.is_static(view)]
        if moving:
            times, poses = self.binary.add(seconds, has_bounds=True), opengl_poses(job)
        for view in moving:
            node = self.first_camera + view
            positions = self.binary.add(poses[:, view, :3, 3].astype(np.float32))
            rotations = self.binary.add(_continuous_quaternions(poses[:, view, :3, :3]).astype(np.float32))
            self._add_channel(node, "translation", times, positions, "LINEAR")
            self._add_channel(node, "rotation", times, rotations, "LINEAR")

    def _add_channel(self, node: int, path: str, times: int, values: int, interpolation: str) -> None:
        self.samplers.append({"input": times, "output": values, "interpolation": interpolation})
        self.channels.append({"sampler": len(self.samplers) - 1, "target": {"node": node, "path": path}})

    def document(self, job: ExportJob) -> dict[str, Any]:
        """Return the JSON chunk."""
        generator = f"page4d {page4d.__version__}"
        material = {
            "name": "points",
            "extensions": {"KHR_materials_unlit": {}},
            "pbrMetallicRoughness": {"baseColorFactor": [1, 1, 1, 1], "metallicFactor": 0, "roughnessFactor": 1},
        }
        parts = {
            "asset": {"version": "2.0", "generator": generator, "extras": {"unit": exported_unit(job)}},
            "extensionsUsed": ["KHR_materials_unlit"],
            "scene": 0,
            "scenes": [{"name": job.output.run.scene.name, "nodes": list(range(len(self.nodes)))}],
            "nodes": self.nodes,
            "meshes": self.meshes,
            "materials": [material],
            "cameras": self.cameras,
            "accessors": self.binary.accessors,
            "bufferViews": self.binary.views,
            "buffers": [{"byteLength": self.binary.size}],
        }
        if self.channels:
            parts["animations"] = [{"name": "time", "channels": self.channels, "samplers": self.samplers}]
        return parts


def _continuous_quaternions(rotations: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return quaternions xyzw of rotations [T, 3, 3]; of q and -q the nearer to the previous one."""
    quaternions = Rotation.from_matrix(rotations).as_quat()
    flips = np.sign((quaternions[1:] * quaternions[:-1]).sum(axis=1))
    signs = np.cumprod(np.append(1.0, np.where(flips == 0, 1.0, flips)))
    return quaternions * signs[:, None]
