"""Agisoft Metashape `cameras.xml`: exported sensors, and cameras of single images.

`transform` maps the camera (OpenCV axes) to its component or chunk, whose own transform, a similarity, maps to the
world. Pixels have the centre of the top-left one at (0.5, 0.5).

Source: Agisoft Metashape Professional manual, appendix "Camera models"; the file as exported by version 2.0.
"""

from pathlib import Path
from xml.etree.ElementTree import Element

import torch
from jaxtyping import Float
from torch import Tensor

from page4d.conventions import Scale
from page4d.errors import InputError, counted, listed
from page4d.formats import build
from page4d.formats.build import ImageCamera
from page4d.formats.camera_model import CORRECTION_HINT, Calibration
from page4d.formats.files import MAX_IMAGES, check_count, error_context, unreadable
from page4d.geometry.distortion import Distortion
from page4d.geometry.transforms import invert_rigid

_Lens = tuple[Float[Tensor, "3 3"], Distortion | None, tuple[int, int]]


def read(path: Path, root: Element) -> Calibration:
    """Read the aligned cameras of the only chunk; its scale is arbitrary.

    The image with the label `000000` in the group `cam01` is frame 000000 of the view cam01.
    """
    chunks = [chunk for chunk in root.findall("chunk") if chunk.find("cameras//transform") is not None]
    if len(chunks) != 1:
        raise unreadable(path, f"it has {counted(len(chunks), 'chunk')} with aligned cameras, expected 1")
    chunk = chunks[0]
    parts = {part.get("id"): part.find("transform") for part in chunk.iterfind("components/component")}
    sensors = {sensor.get("id"): sensor for sensor in chunk.iterfind("sensors/sensor")}
    listed_cameras = _named(chunk.find("cameras"), "")
    check_count(path, len(listed_cameras), "images", MAX_IMAGES)
    aligned = [(name, node) for name, node in listed_cameras if node.find("transform") is not None]
    images_of = build.group_images([name for name, _ in aligned])
    check_count(path, len({name.view for name in images_of}))
    images = []
    for (label, node), name in zip(aligned, images_of, strict=True):
        with error_context(path.name, label):
            intrinsics, distortion, size = _lens(sensors.get(node.get("sensor_id")))
            pose = torch.tensor(_numbers(node, "transform", 16), dtype=torch.float64).reshape(4, 4)
            part = parts.get(node.get("component_id"))
            turn, shift, scale = _similarity(chunk.find("transform") if part is None else part)
            to_world = build.pose_matrix(turn @ pose[:3, :3], (scale * turn @ pose[:3, 3] + shift).tolist())
        images.append(ImageCamera(name, intrinsics, invert_rigid(to_world), size, distortion))
    left_out = [name for name, node in listed_cameras if node.find("transform") is None]
    notices = (f"{path.name}: {listed(left_out, 4)} left out: without a transform",) if left_out else ()
    cameras = build.join_images(path.name, images)
    return Calibration(path=path, scale=Scale.ARBITRARY, cameras=cameras, notices=notices)


def _named(parent: Element | None, folder: str) -> list[tuple[str, Element]]:
    """Return the cameras with their labels, below the labels of their groups."""
    found = []
    for node in () if parent is None else parent:
        label = folder + node.get("label", node.get("id", "?"))
        if node.tag == "group":
            found += _named(node, f"{label}/") if not folder else []
        elif node.tag == "camera":
            found.append((label, node))
    return found


def _similarity(node: Element | None) -> tuple[Float[Tensor, "3 3"], Float[Tensor, " 3"], float]:
    """Return rotation, translation and scale of a transform; the identity if there is none."""
    values = [[1.0, 0, 0, 0, 1, 0, 0, 0, 1], [0.0, 0, 0], [1.0]]
    if node is not None and node.find("rotation") is not None:
        values = [_numbers(node, tag, len(known)) for tag, known in zip(_PARTS, values, strict=True)]
    turn, shift = (torch.tensor(part, dtype=torch.float64) for part in values[:2])
    return turn.reshape(3, 3), shift, values[2][0]


_PARTS = ("rotation", "translation", "scale")


def _lens(sensor: Element | None) -> _Lens:
    """Return intrinsics, distortion and (height, width) of a sensor.

    u = w/2 + cx + (f + b1) x + b2 y and v = h/2 + cy + f y; the tangential p1 and p2 are OpenCV's p2 and p1.
    """
    nodes = [] if sensor is None else sensor.findall("calibration")
    node = next((node for node in nodes if node.get("class") == "adjusted"), nodes[-1] if nodes else None)
    if sensor is None or node is None:
        raise InputError("its sensor has no calibration", "align the photos, and export the cameras again")
    kind = node.get("type", sensor.get("type", "frame"))
    if kind not in ("frame", "fisheye"):
        raise InputError(f"the sensor type {kind[:40]} is not supported", "export undistorted pictures")
    resolution = node.find("resolution")
    resolution = sensor.find("resolution") if resolution is None else resolution
    sides = {} if resolution is None else resolution.attrib
    height, width = build.whole_size(*(build.number_of(sides.get(key), f"the {key}") for key in ("height", "width")))
    value = {child.tag: build.number_of(child.text, child.tag) for child in node if child.tag in _COEFFICIENTS}
    f, cx, cy, b1, b2, k1, k2, k3, k4, p1, p2, p3, p4 = (value.get(key, 0.0) for key in _COEFFICIENTS)
    is_fisheye = kind == "fisheye"
    if "f" not in value:
        raise InputError("its calibration has no focal length f", "export the cameras with Metashape 1.3 or later")
    if p3 or p4 or (k4 and not is_fisheye) or (is_fisheye and (p1 or p2)):
        raise InputError(
            "the lens has k4, p3 or p4, or the fisheye lens p1 or p2, which are not supported",
            "align with k1 k2 k3 p1 p2 (fisheye: k1 to k4), or export undistorted pictures",
        )
    distortion = build.fisheye((k1, k2, k3, k4)) if is_fisheye else build.brown_conrady((k1, k2, p2, p1, k3))
    return build.pinhole(f + b1, f, width / 2 + cx, height / 2 + cy, b2), distortion, (height, width)


_COEFFICIENTS = ("f", "cx", "cy", "b1", "b2", "k1", "k2", "k3", "k4", "p1", "p2", "p3", "p4")


def _numbers(node: Element, tag: str, count: int) -> list[float]:
    words = (node.findtext(tag) or "").split()
    if len(words) != count:
        raise InputError(f"<{tag}> has {len(words)} numbers, expected {count}", CORRECTION_HINT)
    return [build.number_of(word, tag) for word in words]
