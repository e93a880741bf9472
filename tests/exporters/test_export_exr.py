"""OpenEXR depth, read back by OpenEXR."""

from pathlib import Path

import numpy as np
import pytest

from page4d.exporters.export import export
from page4d.output.reader import Output
from tests.exporters.capture import Capture

OpenEXR = pytest.importorskip("OpenEXR")


def test_depth_is_exact(moving_capture: Capture, tmp_path: Path) -> None:
    done = export(moving_capture.folder, "exr", tmp_path / "exr", instants=(1, None, 2))[0]
    output = moving_capture.output
    paths = sorted((tmp_path / "exr" / "depth").rglob("*.exr"))
    assert [str(path.relative_to(tmp_path / "exr" / "depth")) for path in paths] == [
        f"{name}/frame_{place:06d}.exr" for name in output.view_names for place in range(2)
    ]
    assert (done.record.files, [each.time for each in done.record.instants]) == (8, [0, 1])
    for path in paths:
        file = OpenEXR.File(str(path), separate_channels=True)
        channels = {name: channel.pixels for name, channel in file.channels().items()}
        assert set(channels) == {"Z", "confidence.V"}
        name, instant = path.parent.name, (1, 3)[int(path.stem[-6:])]
        assert (channels["Z"].dtype, channels["confidence.V"].dtype) == (np.float32, np.float16)
        np.testing.assert_array_equal(channels["Z"], output.depth(instant, name))
        np.testing.assert_allclose(channels["confidence.V"], output.confidence(instant, name), atol=3e-4)
        assert file.header()["page4d:unit"] == "metre"
        assert file.header()["compression"] == OpenEXR.ZIP_COMPRESSION


def test_missing_depth_is_zero(capture: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    depth = Output.depth

    def with_a_hole(output: Output, index: int, view: str) -> np.ndarray:
        values = depth(output, index, view)
        values[10:20, 30:50] = 0
        return values

    monkeypatch.setattr(Output, "depth", with_a_hole)
    export(capture.folder, "exr", tmp_path / "exr", scale=3.0, instants=(0, 1, 1), views=("cam01",))
    pixels = OpenEXR.File(str(tmp_path / "exr/depth/cam01/frame_000000.exr")).channels()["Z"].pixels
    hole = np.zeros(pixels.shape, dtype=bool)
    hole[10:20, 30:50] = True
    assert (pixels[hole] == 0).all()
    np.testing.assert_allclose(pixels[~hole], 3 * depth(capture.output, 0, "cam01")[~hole], rtol=1e-6)
