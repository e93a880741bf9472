"""Lenses of views come from a calibration without its poses, from focal, from EXIF, or from a start value."""

import json
from dataclasses import replace
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from PIL import Image

from page4d.choices import CalibrationResize
from page4d.errors import InputError, Notice, UsageError
from page4d.rig.lens import START_FOCAL, lenses_of
from page4d.rig.records import FocalSource
from page4d.scene.open import open_scene
from page4d.scene.records import Scene

HEIGHT, WIDTH = 48, 64
FOCAL_MM, FOCAL_35MM, RESOLUTION, RESOLUTION_UNIT, EXIF_WIDTH, ORIENTATION = (
    0x920A, 0xA405, 0xA20E, 0xA210, 0xA002, 0x0112,
)  # fmt: skip


def write_photo(folder: Path, name: str = "0.jpg", orientation: int = 1, **tags: object) -> None:
    """Write a photo with EXIF; `tags` are named by their number, such as `x920A`."""
    folder.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    exif.get_ifd(0x8769).update({int(tag[1:], 16): value for tag, value in tags.items()})
    Image.new("RGB", (WIDTH, HEIGHT), "gray").save(folder / name, exif=exif)


def photo_scene(folder: Path, orientation: int = 1, **tags: object) -> Scene:
    for view in ("cam01", "cam02"):
        write_photo(folder / view, orientation=orientation, **tags)
    return open_scene(folder)


def write_rig(path: Path, names: tuple[str, ...], size: tuple[int, int]) -> Path:
    """Write intrinsics and poses that no rig has: all cameras at one place."""
    matrix = [[70.0, 0.0, 31.0], [0.0, 71.0, 25.5], [0.0, 0.0, 1.0]]
    views = {
        name: {"image_size": [size[1], size[0]], "intrinsics": matrix, "world_to_camera": np.eye(4).tolist()}
        for name in names
    }
    path.write_text(json.dumps({"views": views, "scale": "metric", "pixel_center": 0.5}))
    return path


def test_without_a_statement_the_start_value_is_relative_to_the_long_side(tmp_path: Path) -> None:
    for lens in lenses_of(photo_scene(tmp_path / "rig", orientation=6)):
        assert lens.image_size == (WIDTH, HEIGHT)
        assert lens.focal == START_FOCAL * WIDTH
        assert lens.intrinsics[:2, 2].tolist() == [HEIGHT / 2, WIDTH / 2]
        assert not lens.is_known


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_35_mm_equivalent_in_exif_has_the_diagonal_field_of_view_of_film(tmp_path: Path, orientation: int) -> None:
    for lens in lenses_of(photo_scene(tmp_path / "rig", orientation, xA405=26, x920A=4.25)):
        assert lens.focal_source is FocalSource.EXIF
        assert np.hypot(WIDTH, HEIGHT) / lens.focal == pytest.approx(np.hypot(36, 24) / 26)


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(("unit", "per_mm"), [(2, 25.4), (3, 10.0)])
def test_a_focal_length_in_mm_counts_with_the_resolution_of_the_sensor(
    tmp_path: Path, orientation: int, unit: int, per_mm: float
) -> None:
    # The recorded image has twice the width, as if it was resized since: 128 px on 16 mm.
    tags = {"x920A": 20.0, "xA20E": 8 * per_mm, "xA210": unit, "xA002": 2 * WIDTH}
    for lens in lenses_of(photo_scene(tmp_path / "rig", orientation, **tags)):
        assert lens.focal == pytest.approx(20.0 / 16 * WIDTH)
        assert lens.focal_source is FocalSource.EXIF


@pytest.mark.parametrize(
    "tags", [{"x920A": 4.25}, {"xA405": 0}, {"xA405": 1}, {"x920A": 4.25, "xA20E": 8.0, "xA210": 9}]
)
def test_incomplete_or_implausible_exif_counts_as_none(tmp_path: Path, tags: dict[str, object]) -> None:
    lenses = lenses_of(photo_scene(tmp_path / "rig", **tags))
    assert {lens.focal_source for lens in lenses} == {FocalSource.UNKNOWN}


def test_a_view_whose_images_state_several_focal_lengths_has_none(tmp_path: Path) -> None:
    for view, last in (("cam01", 26), ("cam02", 52)):
        write_photo(tmp_path / view, "0.jpg", xA405=26)
        write_photo(tmp_path / view, "1.jpg", xA405=last)
    first, second = lenses_of(open_scene(tmp_path))
    assert first.focal_source is FocalSource.EXIF
    assert second.focal_source is FocalSource.UNKNOWN


@pytest.mark.parametrize("key", ["com.apple.quicktime.camera.focal_length.35mm_equivalent"])
def test_the_metadata_of_a_video_state_a_focal_length(tmp_path: Path, key: str) -> None:
    for view in ("cam01", "cam02"):
        with av.open(str(tmp_path / f"{view}.mov"), "w", options={"movflags": "use_metadata_tags"}) as container:
            container.metadata[key] = "26"
            stream = container.add_stream("mpeg4", rate=30, width=WIDTH, height=HEIGHT, pix_fmt="yuv420p")
            for _ in range(3):
                frame = av.VideoFrame.from_ndarray(np.full((HEIGHT, WIDTH, 3), 128, np.uint8), "rgb24")
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    for lens in lenses_of(open_scene(tmp_path)):
        assert lens.focal == pytest.approx(26 * np.hypot(WIDTH, HEIGHT) / np.hypot(36, 24))


def test_focal_options_take_precedence_over_exif(tmp_path: Path) -> None:
    scene = photo_scene(tmp_path / "rig", xA405=26)
    for lens in lenses_of(scene, "70"):
        assert (lens.focal, lens.focal_source) == (70.0, FocalSource.OPTION)
    first, second = lenses_of(scene, "cam02=52mm")
    assert first.focal_source is FocalSource.EXIF
    assert second.focal_source is FocalSource.OPTION
    assert second.focal == pytest.approx(2 * first.focal)
    assert [lens.focal for lens in lenses_of(scene, "cam01=70, cam02=71.5px")] == [70.0, 71.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("long", "'long' is not a focal length"),
        ("-5", "'-5' is not a focal length"),
        ("0", "'0' is not a focal length"),
        ("70,71", "2 values without names"),
        ("cam01=70,71", "'71' has no name of a view"),
        ("cam07=70", "no view is called 'cam07'"),
        ("cam01=70,cam01=71", "cam01 is given twice"),
        ("2", "cam01: .*focal length"),
    ],
)
def test_unusable_focal_options_are_refused(tmp_path: Path, text: str, message: str) -> None:
    scene = photo_scene(tmp_path / "rig")
    with pytest.raises(UsageError, match=message) as error:
        lenses_of(scene, text)
    assert error.value.hint


def test_a_calibration_gives_its_lenses_without_its_poses(tmp_path: Path) -> None:
    scene = photo_scene(tmp_path / "rig", xA405=26)
    file = write_rig(tmp_path / "cameras.json", ("cam02", "cam01", "cam03"), (HEIGHT, WIDTH))
    for lens in lenses_of(scene, "90", file):
        assert lens.focal_source is FocalSource.CALIBRATION
        assert lens.intrinsics[0].tolist() == [70.0, 0.0, 31.0]


def test_the_sizes_of_a_calibration_must_be_those_of_the_views(tmp_path: Path) -> None:
    scene = photo_scene(tmp_path / "rig")
    file = write_rig(tmp_path / "cameras.json", scene.view_names, (2 * HEIGHT, 2 * WIDTH))
    with pytest.raises(InputError, match="calibration is for 128x96") as error:
        lenses_of(scene, intrinsics=file)
    assert "calibration_resize" in error.value.hint
    scene = replace(scene, options=replace(scene.options, calibration_resize=CalibrationResize.SCALE))
    assert lenses_of(scene, intrinsics=file)[0].intrinsics[0, 0] == 35.0
    wide = write_rig(tmp_path / "wide.json", scene.view_names, (HEIGHT, 2 * WIDTH))
    text = "cam01: calibration is for 128x48, video is 64x48; scale applied, with pixels stretched by 0.5"
    notices: list[Notice] = []
    lenses_of(scene, intrinsics=wide, notify=notices.append)
    assert notices.pop(0).text == f"{text}: wrong if edges were cut off"
    lenses = zip(scene.views, lenses_of(scene), strict=True)
    known = tuple(replace(view, camera=lens.camera(np.eye(4))) for view, lens in lenses)
    notices.clear()
    lenses_of(replace(scene, views=known), intrinsics=wide, notify=notices.append)
    assert not notices  # views with cameras keep their lenses
    turned = write_rig(tmp_path / "turned.json", scene.view_names, (WIDTH, HEIGHT))
    with pytest.raises(InputError, match="calibration is for 48x64"):
        lenses_of(scene, intrinsics=turned)


def test_opencv_intrinsics_need_no_extrinsics(tmp_path: Path) -> None:
    scene = photo_scene(tmp_path / "rig")
    file = tmp_path / "intri.yml"
    storage = cv2.FileStorage(str(file), cv2.FILE_STORAGE_WRITE)
    for name in scene.view_names:
        storage.write(f"K_{name}", np.array([[70.0, 0, 31.5], [0, 71.0, 24.0], [0, 0, 1.0]]))
        storage.write(f"dist_{name}", np.array([[0.1, 0.0, 0.0, 0.0, 0.0]]))
    storage.release()
    named = tmp_path / "other" / "lenses.yml"
    named.parent.mkdir()
    named.write_bytes(file.read_bytes())
    for path in (file, tmp_path, named):
        for lens in lenses_of(scene, intrinsics=path):
            assert lens.intrinsics[0].tolist() == [70.0, 0.0, 32.0]  # OpenCV's pixel centres are integers
            assert lens.distortion is not None
