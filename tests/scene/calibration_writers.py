"""Writers of a known rig in every calibration format (numpy and scipy), and its projections by OpenCV."""

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import scipy.io
import torch
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from page4d.formats.camera_model import CalibratedCamera
from page4d.geometry.camera import project
from page4d.geometry.transforms import transform_points

Array = NDArray[np.float64]
OPENGL = np.diag([1.0, -1.0, -1.0, 1.0])


@dataclass(frozen=True)
class RigCamera:
    """A camera of the known rig: x_camera = rotation @ x_world + translation in metres, pixel centres at 0.5."""

    name: str
    rotation: Array
    translation: Array
    intrinsics: Array
    coefficients: tuple[float, ...]
    size: tuple[int, int]
    fisheye: bool = False

    @property
    def integer_intrinsics(self) -> Array:
        """Return the intrinsics for a top-left pixel centre at (0, 0)."""
        return self.intrinsics - np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])

    @property
    def vector(self) -> Array:
        """Return the rotation vector (of the closest rotation, if a test made the matrix a reflection)."""
        return Rotation.from_matrix(self.rotation * np.sign(np.linalg.det(self.rotation))).as_rotvec()

    @property
    def world_to_camera(self) -> Array:
        """Return the 4x4 pose."""
        return np.vstack([np.c_[self.rotation, self.translation], [0, 0, 0, 1]])

    def pixels(self, points: Array) -> Array:
        """Project world points with OpenCV, with pixel centres at 0.5."""
        arguments = (self.vector, self.translation, self.integer_intrinsics, np.array(self.coefficients))
        if self.fisheye:
            shown = cv2.fisheye.projectPoints(points[:, None], *arguments)[0]
        else:
            shown = cv2.projectPoints(points, *arguments)[0]
        return shown.reshape(-1, 2) + 0.5


def make_rig(fisheye: bool = False) -> list[RigCamera]:
    """Return three cameras that face the origin, with two image sizes and lens distortion."""
    rng = np.random.default_rng(7)
    cameras = []
    for index, angle in enumerate((0.3, 1.9, 4.0)):
        center = np.array([3 * np.cos(angle), 3 * np.sin(angle), 1.2 + 0.3 * index])
        forward = -center / np.linalg.norm(center)
        right = np.cross(forward, [0, 0, 1.0])
        right /= np.linalg.norm(right)
        rotation = np.stack([right, np.cross(forward, right), forward])
        rotation = Rotation.from_rotvec(rng.normal(size=3) * 0.05).as_matrix() @ rotation
        size = (480, 640) if index else (960, 544)
        intrinsics = np.array([[611.25 + index, 0, 318.7], [0, 612.5 - index, 241.3], [0, 0, 1]])
        coefficients = (-0.09, 0.03, -0.012, 0.004) if fisheye else (-0.21, 0.07, 0.0013, -0.0008)
        cameras.append(
            RigCamera(f"cam{index + 1:02d}", rotation, -rotation @ center, intrinsics, coefficients, size, fisheye)
        )
    return cameras


def read_pixels(camera: CalibratedCamera, points: Array, frame: int | None = None) -> Array:
    """Project world points with a camera as it was read."""
    pose = camera.world_to_camera if frame is None else camera.world_to_camera[frame]
    seen = transform_points(pose, torch.from_numpy(points))
    plane = seen[:, :2] / seen[:, 2:]
    if camera.distortion is not None:
        plane = camera.distortion.distort(plane)
    bent = torch.cat([plane, torch.ones_like(plane[:, :1])], dim=-1)
    return project(bent, camera.intrinsics)[0].numpy()


def write_qualisys(folder: Path, rig: list[RigCamera]) -> Path:
    """Write `.qca.txt`; the field of view starts at (16, 8) of the sensor."""
    left, top = 16, 8
    nodes = []
    for camera in rig:
        k, (k1, k2, p1, p2) = camera.integer_intrinsics, camera.coefficients
        right, bottom = left + camera.size[1] - 1, top + camera.size[0] - 1
        matrix = np.diag([1.0, -1.0, -1.0]) @ camera.rotation
        center = -camera.rotation.T @ camera.translation * 1000
        turned = " ".join(f'r{i + 1}{j + 1}="{matrix[i, j]!r}"' for i in range(3) for j in range(3))
        nodes.append(
            f'<camera active="1" serial="{camera.name}" viewrotation="0">'
            f'<fov_video left="{left}" top="{top}" right="{right}" bottom="{bottom}"/>'
            f'<transform {turned} x="{center[0]!r}" y="{center[1]!r}" z="{center[2]!r}"/>'
            f'<intrinsic focalLengthU="{k[0, 0] * 64!r}" focalLengthV="{k[1, 1] * 64!r}" '
            f'centerPointU="{(k[0, 2] + left) * 64!r}" centerPointV="{(k[1, 2] + top) * 64!r}" skew="0.0" '
            f'radialDistortion1="{k1}" radialDistortion2="{k2}" radialDistortion3="0.0" '
            f'tangentalDistortion1="{p1}" tangentalDistortion2="{p2}"/></camera>'
        )
    text = f"<?xml version='1.0' encoding='ASCII'?>\n<calibration><cameras>{''.join(nodes)}</cameras></calibration>"
    path = folder / "Calib.qca.txt"
    path.write_text(text.replace("np.float64(", "").replace(')"', '"'))
    return path


def write_toml(folder: Path, rig: list[RigCamera], metre: float = 1.0) -> Path:
    """Write a Pose2Sim file (Anipose: `metre` = 1000)."""
    blocks = [
        (
            f'[{camera.name}]\nname = "{camera.name}"\nsize = [{camera.size[1]}.0, {camera.size[0]}.0]\n'
            f"matrix = {camera.integer_intrinsics.tolist()}\ndistortions = {list(camera.coefficients)}\n"
            f"rotation = {camera.vector.tolist()}\ntranslation = {(camera.translation * metre).tolist()}\n"
            f"fisheye = {str(camera.fisheye).lower()}\n"
        )
        for camera in rig
    ]
    path = folder / "Calib.toml"
    path.write_text("\n".join(blocks) + "\n[metadata]\nadjusted = false\nerror = 0.0\n")
    return path


def write_yaml(
    folder: Path, rig: list[RigCamera], sizes: bool = True, files: tuple[str, str] = ("intri.yml", "extri.yml")
) -> Path:
    """Write lenses and poses into two files, or one, with OpenCV's own writer."""
    storages = {name: cv2.FileStorage(str(folder / name), cv2.FILE_STORAGE_WRITE) for name in files}
    for storage in storages.values():
        storage.startWriteStruct("names", cv2.FileNode_SEQ)
        for camera in rig:
            storage.write("", camera.name)
        storage.endWriteStruct()
    lenses, poses = (storages[name] for name in files)
    for camera in rig:
        lenses.write(f"K_{camera.name}", camera.integer_intrinsics)
        lenses.write(f"dist_{camera.name}", np.array([[*camera.coefficients, 0.0]]))
        if sizes:
            lenses.write(f"H_{camera.name}", camera.size[0])
            lenses.write(f"W_{camera.name}", camera.size[1])
        poses.write(f"R_{camera.name}", camera.vector[:, None])
        poses.write(f"Rot_{camera.name}", camera.rotation)
        poses.write(f"T_{camera.name}", camera.translation[:, None])
    for storage in storages.values():
        storage.release()
    return folder


def write_caliscope(folder: Path, rig: list[RigCamera]) -> Path:
    """Write `camera_array.toml`: nested tables, rotations as matrices and, as in newer versions, as vectors."""
    text = ""
    for index, camera in enumerate(rig):
        rotation = camera.vector.tolist() if index else camera.rotation.tolist()
        coefficients = [list(camera.coefficients)] if index else list(camera.coefficients)
        text += (
            f"[cameras.{index}]\ncam_id = {index}\nrotation_count = {index}\nexposure = -7\nerror = 0.4\n"
            f"ignore = false\nsize = [{camera.size[1]}, {camera.size[0]}]\nrotation = {rotation}\n"
            f"matrix = {camera.integer_intrinsics.tolist()}\ndistortions = {coefficients}\n"
            f"translation = {camera.translation.tolist()}\nfisheye = {str(camera.fisheye).lower()}\n\n"
        )
    path = folder / "camera_array.toml"
    path.write_text(text)
    return path


def _rows(matrix: Array) -> str:
    return ", ".join(f"[{', '.join(repr(float(value)) for value in row)}]" for row in matrix)


def write_kalibr(folder: Path, rig: list[RigCamera], world: bool = True) -> Path:
    """Write `camchain.yaml`; with a `world` the first camera has a pose, too, as mrcal writes it."""
    text = ""
    for index, camera in enumerate(rig):
        k = camera.integer_intrinsics
        before = rig[index - 1].world_to_camera if index else np.eye(4)
        pose = camera.world_to_camera @ np.linalg.inv(before)
        text += f"{camera.name}:\n  T_cn_cnm1: [{_rows(pose)}]\n" if index or world else f"{camera.name}:\n"
        text += (
            (
                f"  camera_model: pinhole\n  intrinsics: [{k[0, 0]!r}, {k[1, 1]!r}, {k[0, 2]!r}, {k[1, 2]!r}]\n"
                f"  distortion_model: {'equidistant' if camera.fisheye else 'radtan'}\n"
                f"  distortion_coeffs: {list(camera.coefficients)}\n  rostopic: /{camera.name}/image_raw\n"
                f"  resolution: [{camera.size[1]}, {camera.size[0]}]\n"
            )
            .replace("np.float64(", "")
            .replace(")", "")
        )
    path = folder / "camchain.yaml"
    path.write_text(text)
    return path


def write_mc_calib(folder: Path, rig: list[RigCamera]) -> Path:
    """Write `calibrated_cameras_data.yml` with OpenCV's own writer; poses map cameras to the world."""
    path = folder / "calibrated_cameras_data.yml"
    storage = cv2.FileStorage(str(path), cv2.FILE_STORAGE_WRITE)
    storage.write("nb_camera", len(rig))
    for index, camera in enumerate(rig):
        storage.startWriteStruct(f"camera_{index}", cv2.FileNode_MAP)
        storage.write("camera_matrix", camera.integer_intrinsics)
        storage.write("distortion_vector", np.array([[*camera.coefficients, *([] if camera.fisheye else [0.0])]]))
        storage.write("distortion_type", int(camera.fisheye))
        storage.write("camera_group", 0)
        storage.write("img_width", camera.size[1])
        storage.write("img_height", camera.size[0])
        storage.write("camera_pose_matrix", np.linalg.inv(camera.world_to_camera))
        storage.endWriteStruct()
    storage.release()
    return path


def write_panoptic(folder: Path, rig: list[RigCamera]) -> Path:
    """Write the calibration of a sequence of the Panoptic Studio: a list of cameras, centimetres."""
    cameras = [
        {"name": camera.name, "type": "hd", "resolution": list(camera.size[::-1]), "panel": 0, "node": index,
         "K": camera.integer_intrinsics.tolist(), "distCoef": [*camera.coefficients, 0.0],
         "R": camera.rotation.tolist(), "t": (100 * camera.translation[:, None]).tolist()}
        for index, camera in enumerate(rig)
    ]  # fmt: skip
    path = folder / "calibration_160906_pizza1.json"
    path.write_text(json.dumps({"calibDataSource": "160906_calib_norm", "cameras": cameras}))
    return path


def write_tables(folder: Path, rig: list[RigCamera]) -> Path:
    """Write `calibration_full.json` as AvatarReX has it: a flat matrix, rotation and vector for each name."""
    tables = {
        camera.name: {"K": camera.integer_intrinsics.ravel().tolist(), "R": camera.rotation.ravel().tolist(),
                      "T": camera.translation.tolist(), "distCoeff": [*camera.coefficients, 0.0],
                      "imgSize": [*camera.size[::-1]], "rectifyAlpha": 0.0}
        for camera in rig
    }  # fmt: skip
    path = folder / "calibration_full.json"
    path.write_text(json.dumps(tables))
    return path


def matlab_camera(camera: RigCamera) -> dict[str, Array]:
    """Return K, r, t and distortion of Label3D: for rows, the centre of the top-left pixel at (1, 1)."""
    matrix = camera.intrinsics + np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
    radial, tangential = np.array([camera.coefficients[:2]]), np.array([camera.coefficients[2:]])
    return {"K": matrix.T, "RDistort": radial, "TDistort": tangential, "r": camera.rotation.T,
            "t": camera.translation[None]}  # fmt: skip


def write_label3d(folder: Path, rig: list[RigCamera], compressed: bool = True) -> Path:
    """Write `label3d_dannce.mat` with SciPy: cameras, their names, and labels that are not read."""
    params, names, labels = (np.empty((len(rig), 1), object) for _ in range(3))
    for index, camera in enumerate(rig):
        params[index, 0], names[index, 0] = matlab_camera(camera), camera.name
        labels[index, 0] = {"data_3d": np.zeros((90, 66)), "data_frame": np.arange(90.0), "note": "größer"}
    path = folder / "label3d_dannce.mat"
    content = {"labelData": labels, "params": params, "camnames": names.T}
    scipy.io.savemat(path, content, do_compression=compressed)
    return path


def write_file_pairs(folder: Path, rig: list[RigCamera]) -> Path:
    """Write a lens and a pose per camera into two folders, as WILDTRACK and MultiviewX have them."""
    for kind in ("intrinsic", "extrinsic"):
        (folder / kind).mkdir()
    for camera in rig:
        storage = cv2.FileStorage(str(folder / "intrinsic" / f"intr_{camera.name}.xml"), cv2.FILE_STORAGE_WRITE)
        storage.write("camera_matrix", camera.integer_intrinsics)
        storage.write("distortion_coefficients", np.array([[*camera.coefficients, 0.0]]))
        storage.write("image_width", camera.size[1])
        storage.write("image_height", camera.size[0])
        storage.release()
        rows = [f"<{key}>\n  {' '.join(map(repr, value.tolist()))}</{key}>" for key, value in
                (("rvec", camera.vector), ("tvec", camera.translation))]  # fmt: skip
        text = '<?xml version="1.0"?>\n<opencv_storage>\n' + "\n".join(rows) + "\n</opencv_storage>\n"
        (folder / "extrinsic" / f"extr_{camera.name}.xml").write_text(text)
    return folder


def _row_or_column(camera: RigCamera) -> list[list[float]]:
    """Return coefficients as OpenCV returns them: a row, or a column of a fisheye lens."""
    values = np.array(camera.coefficients)
    return (values[:, None] if camera.fisheye else values[None]).tolist()


def write_multical(folder: Path, rig: list[RigCamera]) -> Path:
    """Write `calibration.json` of multical; the last pose is named relative to the rig's camera."""
    cameras = {
        camera.name: {"model": "fisheye" if camera.fisheye else "standard", "image_size": list(camera.size[::-1]),
                      "K": camera.integer_intrinsics.tolist(), "dist": _row_or_column(camera)}
        for camera in rig
    }  # fmt: skip
    poses = {camera.name: {"R": camera.rotation.tolist(), "T": camera.translation.tolist()} for camera in rig}
    poses[f"{rig[2].name}_to_{rig[0].name}"] = poses.pop(rig[2].name)
    path = folder / "calibration.json"
    path.write_text(json.dumps({"cameras": cameras, "camera_poses": poses, "image_sets": {"rgb": []}}))
    return path


def write_metashape(folder: Path, rig: list[RigCamera], scale: float = 2.0) -> Path:
    """Write `cameras.xml`: the chunk has another world, and one sensor only an initial calibration."""
    turn = Rotation.from_rotvec([0.3, -1.2, 0.5]).as_matrix()
    shift = np.array([1.0, -2.0, 0.5])
    sensors, cameras = "", ""
    for index, camera in enumerate(rig):
        k, c = camera.intrinsics, camera.coefficients
        names = ("k1", "k2", "k3", "k4") if camera.fisheye else ("k1", "k2", "p2", "p1")
        height, width = camera.size
        values = {"f": k[1, 1], "cx": k[0, 2] - width / 2, "cy": k[1, 2] - height / 2, "b1": k[0, 0] - k[1, 1]}
        values |= dict(zip(names, c, strict=True))
        lens = "".join(f"<{key}>{float(value)!r}</{key}>" for key, value in values.items())
        size = f'<resolution width="{width}" height="{height}"/>'
        kind = f'type="{"fisheye" if camera.fisheye else "frame"}"'
        initial = f'<calibration {kind} class="initial">{size}<f>500</f></calibration>'
        adjusted = f'<calibration {kind} class="{"adjusted" if index else "initial"}">{size}{lens}</calibration>'
        sensors += f'<sensor id="{index}" label="x" {kind}>{size}{initial if index else ""}{adjusted}</sensor>'
        to_world = np.linalg.inv(camera.world_to_camera)
        matrix = np.eye(4)
        matrix[:3, :3] = turn.T @ to_world[:3, :3]
        matrix[:3, 3] = turn.T @ (to_world[:3, 3] - shift) / scale
        numbers = " ".join(repr(float(value)) for value in matrix.ravel())
        cameras += f'<camera id="{index}" sensor_id="{index}" label="{camera.name}"><transform>{numbers}</transform>'
        cameras += "</camera>"
    text = [" ".join(repr(float(value)) for value in np.ravel(part)) for part in (turn, shift, scale)]
    world = "".join(
        f"<{tag}>{part}</{tag}>" for tag, part in zip(("rotation", "translation", "scale"), text, strict=True)
    )
    path = folder / "cameras.xml"
    path.write_text(
        f'<document version="2.0.0"><chunk label="Chunk 1"><sensors>{sensors}</sensors><cameras>{cameras}</cameras>'
        f"<transform>{world}</transform></chunk></document>"
    )
    return path


def write_nerfstudio(folder: Path, rig: list[RigCamera], applied: Array | None = None) -> Path:
    """Write `transforms.json` with one image per camera; `applied` transforms the world as nerfstudio does."""
    frames = []
    for camera in rig:
        k, c = camera.intrinsics, camera.coefficients
        lens = dict(zip(("k1", "k2", "k3", "k4") if camera.fisheye else ("k1", "k2", "p1", "p2"), c, strict=True))
        matrix = (np.eye(4) if applied is None else applied) @ np.linalg.inv(camera.world_to_camera) @ OPENGL
        frames.append(
            {"file_path": f"./images/{camera.name}.png", "transform_matrix": matrix.tolist(), "fl_x": k[0, 0],
             "fl_y": k[1, 1], "cx": k[0, 2], "cy": k[1, 2], "w": camera.size[1], "h": camera.size[0], **lens}
        )  # fmt: skip
    content = {"camera_model": "OPENCV_FISHEYE" if rig[0].fisheye else "OPENCV", "frames": frames}
    if applied is not None:
        content["applied_transform"] = applied[:3].tolist()
    path = folder / "transforms.json"
    path.write_text(json.dumps(content))
    return path


def write_nerfstudio_applied(folder: Path, rig: list[RigCamera]) -> Path:
    """Write `transforms.json` in a transformed world."""
    turn = Rotation.from_rotvec([0.3, -1.2, 0.5]).as_matrix()
    return write_nerfstudio(folder, rig, np.vstack([np.c_[turn, [1.0, -2.0, 0.5]], [0, 0, 0, 1]]))


def _colmap_numbers(camera: RigCamera) -> tuple[list[float], list[float]]:
    k = camera.intrinsics
    quaternion = Rotation.from_matrix(camera.rotation).as_quat()[[3, 0, 1, 2]]
    return [k[0, 0], k[1, 1], k[0, 2], k[1, 2], *camera.coefficients], [*quaternion, *camera.translation]


def write_colmap_text(folder: Path, rig: list[RigCamera]) -> Path:
    """Write cameras.txt and images.txt; only the first image has an empty line of points."""
    cameras, images = ["# CAMERA_ID MODEL"], ["# IMAGE_ID", "# pairs of lines"]
    for index, camera in enumerate(rig):
        parameters, pose = ([repr(float(value)) for value in values] for values in _colmap_numbers(camera))
        model = "OPENCV_FISHEYE" if camera.fisheye else "OPENCV"
        cameras.append(f"{index + 5} {model} {camera.size[1]} {camera.size[0]} {' '.join(parameters)}")
        images += [f"{index + 1} {' '.join(pose)} {index + 5} {camera.name}.png", "1.5 2.5 -1" if index else ""]
    (folder / "cameras.txt").write_text("\n".join(cameras) + "\n")
    (folder / "images.txt").write_text("\n".join(images) + "\n")
    return folder


def write_colmap_binary(folder: Path, rig: list[RigCamera]) -> Path:
    """Write cameras.bin and images.bin into sparse/0."""
    cameras, images = struct.pack("<Q", len(rig)), struct.pack("<Q", len(rig))
    for index, camera in enumerate(rig):
        parameters, pose = _colmap_numbers(camera)
        cameras += struct.pack("<iiQQ8d", index + 5, 5 if camera.fisheye else 4, *camera.size[::-1], *parameters)
        images += struct.pack("<i7di", index + 1, *pose, index + 5) + f"{camera.name}.png".encode() + b"\0"
        images += struct.pack("<Q", index) + struct.pack("<ddq", 1.5, 2.5, -1) * index
    model = folder / "sparse" / "0"
    model.mkdir(parents=True)
    (model / "cameras.bin").write_bytes(cameras)
    (model / "images.bin").write_bytes(images)
    return folder


def _own_distortion(camera: RigCamera) -> dict[str, object]:
    return {"model": "fisheye" if camera.fisheye else "brown-conrady", "coefficients": list(camera.coefficients)}


def write_truth(folder: Path, rig: list[RigCamera]) -> Path:
    """Write a plain ground truth with integer pixel centres."""
    cameras = {
        camera.name: {"world_to_camera": camera.world_to_camera.tolist(), "width": camera.size[1],
                      "intrinsics": camera.integer_intrinsics.tolist(), "height": camera.size[0],
                      "distortion": _own_distortion(camera)}
        for camera in rig
    }  # fmt: skip
    path = folder / "cameras.json"
    convention = "OpenCV axes, world_to_camera 4x4, translation in metres, intrinsics with integer pixel centres"
    path.write_text(json.dumps({"convention": convention, "cameras": cameras}), encoding="utf-8-sig")
    return path


def output_content(rig: list[RigCamera]) -> dict[str, object]:
    """Return the content of cameras.json as written by a run."""
    views = {
        camera.name: {"image_size": list(camera.size[::-1]), "static": True, "intrinsics": camera.intrinsics.tolist(),
                      "world_to_camera": camera.world_to_camera.tolist(), "distortion": _own_distortion(camera)}
        for camera in rig
    }  # fmt: skip
    center = "the centre of the top-left pixel is (0.5, 0.5)"
    return {"page4d": "0.1", "conventions": {"pixel_center": center}, "scale": "metric", "unit": "metre",
            "times": [0.0, 0.5], "views": views}  # fmt: skip


def write_output(folder: Path, rig: list[RigCamera]) -> Path:
    """Write cameras.json as written by a run."""
    path = folder / "cameras.json"
    path.write_text(json.dumps(output_content(rig)))
    return path


def edit_json(path: Path, edit: Callable[[Any], object]) -> Path:
    """Change the content of a file."""
    content = json.loads(path.read_text(encoding="utf-8-sig"))
    edit(content)
    path.write_text(json.dumps(content))
    return path


def write_dat_files(folder: Path, rig: list[RigCamera]) -> Path:
    """Write a lens and a pose per camera, of which one file has a second pose, as those of TemugeB/handpose3d."""
    for number, camera in enumerate(rig):
        rows = lambda matrix: "".join(" ".join(repr(float(x)) for x in row) + " \n" for row in matrix)  # noqa: E731
        lens = f"intrinsic:\n{rows(camera.integer_intrinsics)}distortion:\n{rows([camera.coefficients])}"
        (folder / f"{camera.name}{'_intrinsics' * (number % 2)}.dat").write_text(lens)
        pose = f"R:\n{rows(camera.rotation)}T:\n{rows(np.reshape(camera.translation, (3, 1)))}"
        other = f"\n#below is another one.\nR:\n{rows(np.eye(3))}T:\n{rows(np.ones((3, 1)))}" * (number % 2)
        (folder / (f"{camera.name}_rot_trans.dat" if number % 2 else f"rot_trans_{camera.name}.dat")).write_text(
            pose + other
        )
    return folder


Writer = Callable[[Path, list[RigCamera]], Path]
WRITERS: dict[str, Writer] = {
    "qualisys": write_qualisys,
    "toml": write_toml,
    "caliscope": write_caliscope,
    "dat": write_dat_files,
    "yaml": write_yaml,
    "yaml-one": partial(write_yaml, files=("calib.yaml",) * 2),
    "yaml-xml": partial(write_yaml, files=("intri.xml", "extri.xml")),
    "yaml-json": partial(write_yaml, files=("intri.json", "extri.json")),
    "kalibr": write_kalibr,
    "mc-calib": write_mc_calib,
    "panoptic": write_panoptic,
    "tables": write_tables,
    "file-pairs": write_file_pairs,
    "label3d": write_label3d,
    "label3d-plain": partial(write_label3d, compressed=False),
    "multical": write_multical,
    "metashape": write_metashape,
    "nerfstudio": write_nerfstudio,
    "nerfstudio-applied": write_nerfstudio_applied,
    "colmap-text": write_colmap_text,
    "colmap-binary": write_colmap_binary,
    "truth": write_truth,
    "output": write_output,
}
NAMES = {"caliscope": ("cam_0", "cam_1", "cam_2"), "mc-calib": ("camera_0", "camera_1", "camera_2")}
"""Names of the cameras of the rig, where they are not cam01, cam02 and cam03."""

FISHEYE_FORMATS = tuple(
    name
    for name in WRITERS
    if not name.startswith(("qualisys", "dat", "yaml", "panoptic", "tables", "file", "label3d"))
)
