"""Images, masks and depth that cannot be used, through the command line: two lines and an exit code."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.cli.clips import picture, write_image_folder

Cli = Callable[..., Any]
TIFF = b"Exif\0\0II*\0"


def scene_in(folder: Path) -> Path:
    for seed, name in enumerate(("cam01", "cam02")):
        write_image_folder(folder / name, frames=3, seed=seed)
    return folder


def write_maps(folder: Path, image: np.ndarray, suffix: str = "png") -> Path:
    for name in ("cam01", "cam02"):
        (folder / name).mkdir(parents=True)
        for index in range(3):
            assert cv2.imwrite(str(folder / name / f"{index:06d}.{suffix}"), image)
    return folder


def test_damaged_exif_data_and_animations_are_warnings(cli: Cli, tmp_path: Path) -> None:
    scene = scene_in(tmp_path / "scene")
    first, second = (Image.fromarray(picture(index)) for index in (0, 1))
    first.save(scene / "cam01" / "000001.png", exif=TIFF + b"\xff\xff\xff\xff")
    first.save(scene / "cam02" / "000001.png", save_all=True, append_images=[second])
    ended = cli("inspect-scene", scene, "--json")
    assert ended.code == 0
    assert "cam01: damaged EXIF data in 1 of 3 images (first 000001.png): read without rotation" in ended.out
    assert "cam02: animation or several pages in 1 of 3 images (first 000001.png)" in ended.out


DEPTHS = {
    "8-bit grayscale": (np.full((48, 64), 200, np.uint8), "png"),
    "16-bit colour": (np.full((48, 64, 3), 2000, np.uint16), "png"),
    "8-bit colour": (np.full((48, 64, 3), 200, np.uint8), "jpg"),
}


@pytest.mark.parametrize("kind", DEPTHS)
def test_inexact_depth_is_refused(kind: str, cli: Cli, tmp_path: Path) -> None:
    scene, depth = scene_in(tmp_path / "scene"), write_maps(tmp_path / "depth", *DEPTHS[kind])
    ended = cli("reconstruct", scene, "--out", tmp_path / "out", "--depth", depth)
    assert ended.code == 3
    name = f"cam01/000000.{DEPTHS[kind][1]}"
    assert ended.err.splitlines()[-2:] == [
        f"error: {name} has {kind} pixels, which are not measured depth",
        "hint:  give depth as 16-bit grayscale PNG or TIFF, or as lossless gray16 video such as FFV1 in MKV",
    ]
    assert not (tmp_path / "out").exists()


def test_masks_that_leave_no_pixel_are_refused(reconstruct: Cli, tmp_path: Path) -> None:
    scene, masks = scene_in(tmp_path / "scene"), write_maps(tmp_path / "m", np.full((48, 64), 255, np.uint8))
    ended = reconstruct(scene, tmp_path / "out", "--masks", masks, "--mask-meaning", "ignore")
    assert ended.code == 3
    assert ended.err.splitlines()[-2:] == [
        "error: the masks leave no pixel of any frame",
        "hint:  --mask-meaning ignore ignores white pixels: check the masks",
    ]


def test_a_frame_removed_during_a_run_is_named(
    reconstruct: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from page4d.run.run import Run

    scene, execute = scene_in(tmp_path / "scene"), Run.execute

    def after_removal(run: Run, *arguments: object) -> object:
        (scene / "cam02" / "000001.png").unlink(missing_ok=True)
        return execute(run, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Run, "execute", after_removal)
    ended = reconstruct(scene, tmp_path / "out")
    assert ended.code == 3
    assert ended.err.splitlines()[-2:] == [
        "error: cam02/000001.png was removed during the run",
        "hint:  restore it, and continue with --resume",
    ]
