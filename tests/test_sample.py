"""The sample equals the output of its recorded command."""

import json
from pathlib import Path

import av
import cv2
import numpy as np

from page4d.lab.synthetic.capture import SyntheticCapture

WRITTEN = ("truth_stride", "truth_motion", "quality_crf")
"""Options of the files, not of the capture."""

SAMPLE = Path(__file__).parents[1] / "samples" / "room"


def test_the_sample_equals_the_rendering_of_its_recorded_options():
    options = json.loads((SAMPLE / "truth" / "capture.json").read_text())["options"]
    settings = {name: value for name, value in options.items() if name not in WRITTEN}
    capture = SyntheticCapture(**(settings | {"image_size": tuple(options["image_size"])}))
    cameras = json.loads((SAMPLE / "truth" / "cameras.json").read_text())["cameras"]
    assert tuple(cameras) == capture.view_names
    for view, name in enumerate(capture.view_names):
        assert np.allclose(cameras[name]["world_to_camera"], capture.cameras.world_to_camera[0, view], atol=1e-12)
    view, time = 2, 20
    with av.open(str(SAMPLE / "cam03.mp4")) as container:
        frames = [frame.to_ndarray(format="rgb24").astype(float) for frame in container.decode(video=0)]
    assert len(frames) == 24
    rendered = capture.rendered(time, view)
    error = np.square(frames[time] - capture.frame(time, view)).mean()
    assert 10 * np.log10(255**2 / error) > 30
    stored = cv2.imread(str(SAMPLE / "truth" / "depth" / "cam03" / f"{time:06d}.png"), cv2.IMREAD_UNCHANGED)
    assert np.abs(stored / 1000 - rendered.depth.numpy()).max() <= 0.00051
