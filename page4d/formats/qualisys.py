"""Qualisys Track Manager (QTM) `.qca.txt`: XML in millimetres and 1/64 pixels.

Source: checked against the four cameras of the Pose2Sim demo (BSD-3-Clause).
"""

from pathlib import Path
from xml.etree import ElementTree

import torch

from page4d.conventions import Scale
from page4d.errors import InputError, shortened
from page4d.formats.build import number_of, pinhole
from page4d.formats.camera_model import CORRECTION_HINT, CalibratedCamera, Calibration
from page4d.formats.camera_table import table_camera
from page4d.formats.files import check_count, error_context

_UNITS_PER_PIXEL = 64.0
_MM_PER_METRE = 1000.0


def read(path: Path, root: ElementTree.Element) -> Calibration:
    """Read the parsed content of a `.qca.txt` file; its scale is metric."""
    nodes = root.findall("./cameras/camera")
    check_count(path, len(nodes))
    active = [node for node in nodes if node.get("active", "1") != "0"]
    cameras = tuple(_camera(path, node, f"number {index + 1}") for index, node in enumerate(active))
    return Calibration(
        path=path, scale=Scale.METRIC, cameras=cameras, file_unit="mm", notices=_notices(path.name, nodes)
    )


def _notices(label: str, nodes: list[ElementTree.Element]) -> tuple[str, ...]:
    texts = []
    for node in nodes:
        name = shortened(node.get("serial", "?"))
        if node.get("active", "1") == "0":
            texts.append(f"{label}: camera {name} is inactive and is ignored")
        elif node.get("viewrotation", "0") != "0":
            angle = shortened(node.get("viewrotation", ""))
            texts.append(f"{label}: camera {name} has a display rotation of {angle} degrees in QTM")
    return tuple(texts)


def _camera(path: Path, node: ElementTree.Element, fallback_name: str) -> CalibratedCamera:
    name = node.get("serial", fallback_name)
    with error_context(path.name, name):
        intrinsic = _child(node, "intrinsic")
        view = _child(node, "fov_video")
        transform = _child(node, "transform")
        left, top, right, bottom = (_number(view, key) for key in ("left", "top", "right", "bottom"))
        size = {"height": bottom - top + 1, "width": right - left + 1}
        fx, fy, skew, cx, cy = (
            _number(intrinsic, key, default) / _UNITS_PER_PIXEL
            for key, default in (("focalLengthU", None), ("focalLengthV", None), ("skew", 0.0), *_CENTRE)
        )
        signs = {1: 1.0, 2: -1.0, 3: -1.0}  # The camera axes of QTM are x right, y up, z backwards.
        rows = [[sign * _number(transform, f"r{row}{column}") for column in (1, 2, 3)] for row, sign in signs.items()]
        center = torch.tensor([_number(transform, key) for key in "xyz"], dtype=torch.float64) / _MM_PER_METRE
        shift = -torch.tensor(rows, dtype=torch.float64) @ center
        lens = {"K": pinhole(fx, fy, cx - left, cy - top, skew).tolist(), "D": _distortion_coefficients(intrinsic)}
    return table_camera(path, name, lens | size | {"R": rows, "T": shift.tolist()}, True)


_CENTRE = (("centerPointU", None), ("centerPointV", None))


def _distortion_coefficients(intrinsic: ElementTree.Element) -> list[float]:
    """Return k1 k2 p1 p2 k3; QTM misspells the tangential keys as "tangental"."""
    k1, k2, k3 = (_number(intrinsic, f"radialDistortion{order}", 0.0) for order in (1, 2, 3))
    p1, p2 = (
        _number(intrinsic, f"tangentalDistortion{order}", _number(intrinsic, f"tangentialDistortion{order}", 0.0))
        for order in (1, 2)
    )
    return [k1, k2, p1, p2, k3]


def _child(node: ElementTree.Element, tag: str) -> ElementTree.Element:
    found = node.find(tag)
    if found is None:
        raise InputError(f"<{tag}> is missing", CORRECTION_HINT)
    return found


def _number(node: ElementTree.Element, key: str, default: float | None = None) -> float:
    text = node.get(key)
    return default if text is None and default is not None else number_of(text, f"{key} of <{node.tag}>")
