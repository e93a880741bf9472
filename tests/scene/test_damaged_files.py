"""Files of every kind in which bytes were changed are read or called damaged, with the exit code of an input."""

from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import OpenEXR
import pytest

from page4d.scene.batches import open_batches
from page4d.scene.open import open_scene
from tests.fuzzing import read_or_refuse
from tests.scene.clip_writers import write_counter_clip

PICTURE = cv2.resize(np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8), (64, 48))
DEPTH = np.linspace(0.5, 9.5, 48 * 64, dtype=np.float32).reshape(48, 64)


def write_exr(path: Path) -> None:
    OpenEXR.File({"compression": OpenEXR.ZIP_COMPRESSION, "type": OpenEXR.scanlineimage}, {"Z": DEPTH}).write(
        str(path)
    )


KINDS: dict[str, tuple[Callable[[Path], object], int]] = {
    "mp4": (lambda path: write_counter_clip(path, 4), 12),
    "mkv": (lambda path: write_counter_clip(path, 4), 12),
    "png": (lambda path: cv2.imwrite(str(path), PICTURE), 30),
    "jpg": (lambda path: cv2.imwrite(str(path), PICTURE), 30),
    "tif": (lambda path: cv2.imwrite(str(path), DEPTH), 30),
    "exr": (write_exr, 30),
    "npy": (lambda path: np.save(path, DEPTH), 30),
}
"""Writers of a valid file, and the number of damaged copies that are tried."""

LARGEST = {"mp4": (b"stts", 8), "mkv": (b"\x16\x54\xae\x6b", 4), "exr": (b"box2i\0", 16), "npy": (b"'shape': (", 10)}
"""Marks of sizes and counts, and the offset of their high byte: large ones request absurd memory."""


def read_all(folder: Path, suffix: str) -> None:
    is_depth = suffix in ("tif", "exr", "npy")
    scene = open_scene(folder / "rig", depth=folder / "depth" if is_depth else None)
    with open_batches(scene, long_side=64, multiple=1) as reader:
        reader.read(0, scene.num_times)


@pytest.mark.parametrize("suffix", KINDS)
def test_changed_bytes_are_damage(suffix: str, tmp_path: Path) -> None:
    write, count = KINDS[suffix]
    (tmp_path / "rig" / "b").mkdir(parents=True)
    cv2.imwrite(str(tmp_path / "rig" / "b" / "0.png"), PICTURE)
    path = tmp_path / "rig" / f"a.{suffix}" if suffix in ("mp4", "mkv") else tmp_path / "rig" / "b" / f"0.{suffix}"
    if suffix in ("tif", "exr", "npy"):
        path = tmp_path / "depth" / "b" / f"0.{suffix}"
        path.parent.mkdir(parents=True)
    elif suffix == "jpg":
        (tmp_path / "rig" / "b" / "0.png").unlink()
    write(path)
    read_all(tmp_path, suffix)
    content = path.read_bytes()
    random = np.random.default_rng(len(content))
    changes = [
        {int(at): int(random.integers(256)) for at in random.integers(0, len(content), 4)} for _ in range(count)
    ]
    if suffix in LARGEST:
        mark, offset = LARGEST[suffix]
        changes += [{content.index(mark) + offset: value} for value in (0x7F, 0xFF, ord("9"))]
    for change in changes:
        damaged = bytearray(content)
        for at, value in change.items():
            damaged[at] = value
        path.write_bytes(damaged)
        read_or_refuse(lambda: read_all(tmp_path, suffix), codes=(3,))
