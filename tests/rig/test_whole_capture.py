"""Evidence in pixels: registration of a short run takes all instants of the capture; each part is measured once."""

from dataclasses import replace

import numpy as np
import pytest

from page4d.options import RegisterSettings
from page4d.rig import evidence as whole_capture
from page4d.rig.evidence import PixelEvidence, with_all_instants
from page4d.rig.samples import ViewSample
from page4d.scene.records import Clock, Scene, View
from page4d.scene.timeline import build_timeline


class Source:
    """A source without pictures."""

    label, codec, size = "video", "h264", (4, 6)

    def __init__(self, num_frames: int, fps: float) -> None:
        self.frame_times = np.arange(num_frames) / fps


def scene(stride: int = 1, frames: tuple[int | None, int | None] = (None, None), num_frames: int = 300) -> Scene:
    sources = [Source(num_frames, 60.0), Source(num_frames, 60.0)]
    clocks = [Clock(), Clock(offset_s=0.5)]
    times = [clock.to_common(source.frame_times) for clock, source in zip(clocks, sources, strict=True)]
    timeline = build_timeline(("a", "b"), times, stride=stride, frames=frames)
    views = tuple(
        View(name=name, source=source, clock=clock, indices=indices)
        for name, source, clock, indices in zip("ab", sources, clocks, timeline.indices, strict=True)
    )
    return Scene(name="scene", views=views, times=timeline.times)


@pytest.mark.parametrize("stride", [2, 12])
def test_a_stride_is_ignored_within_the_range_of_a_run(stride: int):
    full = with_all_instants(scene(stride, (40, 240)))
    assert full.times[0] == scene(stride, (40, 240)).times[0]
    assert full.num_times == len(range(40, 240, stride)) * stride - stride + 1
    assert np.diff(full.times) == pytest.approx(1 / 60)
    assert np.diff(full.views[0].indices).tolist() == [1] * (full.num_times - 1)
    assert full.views[0].indices[0] - full.views[1].indices[0] == 30  # half a second apart


def test_a_short_range_is_extended_to_the_capture():
    assert with_all_instants(scene(frames=(10, 20))).num_times == scene().num_times
    assert with_all_instants(scene(frames=(10, 20), num_frames=90)).num_times == scene(num_frames=90).num_times


def test_a_complete_scene_is_returned_unchanged():
    whole = scene()
    assert with_all_instants(whole) is whole
    single = replace(whole, views=tuple(replace(view, indices=view.indices[:1]) for view in whole.views))
    alone = replace(single, times=whole.times[:1])
    assert with_all_instants(alone, min_span=0) is alone


@pytest.mark.parametrize(
    ("part", "function"),
    [
        ("samples", "sample_views"),
        ("motions", "measure_camera_motion"),
        ("lenses", "lenses_of"),
        ("people", "detect_people"),
    ],
)
def test_evidence_is_measured_once_and_on_first_access(part: str, function: str, monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []
    monkeypatch.setattr(whole_capture, function, lambda *_: calls.append(1) or ("found",))
    pixels = PixelEvidence(scene())
    if part != "samples":
        pixels.samples = tuple(ViewSample(view=name) for name in pixels.scene.view_names)
    assert pixels.whole() is pixels
    assert not calls
    assert getattr(pixels, part) is getattr(pixels, part)
    assert len(calls) == 1


def test_some_views_keep_the_lenses_that_options_give_all_views():
    pixels = PixelEvidence(scene(), RegisterSettings(focal="a=5,b=7"))
    part = pixels.of_views([1])
    assert part.scene.view_names == ("b",)
    assert [lens.focal for lens in part.lenses] == [7.0]
