"""Pages of the viewer, decoded without a browser.

Source: viser 1.1, StateSerializer.serialize and as_html.
"""

import base64
import html
import json
import re
import struct
from dataclasses import replace

import numpy as np
import pytest

from page4d.options import ExportSettings
from page4d.output.pictures import open_pictures
from page4d.output.record import OOD_WARNING, SceneRecord
from page4d.viewer.content import viewer_content
from page4d.viewer.recording import estimated_bytes, record_page
from page4d.viewer.scene import Thumbnails, first_viewpoint, frustum, quaternion

pytest.importorskip("viser")
msgpack = pytest.importorskip("msgpack")
zstandard = pytest.importorskip("zstandard")


class Recording:
    """Messages of a page as (seconds, fields), with arrays in place of their placeholders."""

    def __init__(self, page: bytes) -> None:
        data = base64.b64decode(re.search(rb'__VISER_EMBED_DATA__="([^"]+)"', page)[1])
        inner = zstandard.ZstdDecompressor().decompressobj().decompress(data[8:])
        assert len(inner) == struct.unpack("<Q", data[:8])[0]
        length = struct.unpack("<Q", inner[:8])[0]
        self.fields = msgpack.unpackb(inner[8 : 8 + length])
        self._inner, self._starts, offset = inner, [], 8 + length
        for size in self.fields["binaryBufferLengths"]:
            offset += -offset % 8
            self._starts.append((offset, size))
            offset += size

    def of_type(self, kind: str) -> list[tuple[float, dict]]:
        return [(seconds, message) for seconds, message in self.fields["messages"] if message["type"] == kind]

    def array(self, placeholder: dict, dtype: str) -> np.ndarray:
        start, size = self._starts[placeholder["__binary_index"]]
        return np.frombuffer(self._inner[start : start + size], dtype=dtype)


@pytest.fixture(scope="module")
def page(capture) -> bytes:
    return record_page(viewer_content(capture.output, ExportSettings()))


def test_every_instant_has_static_and_moving_points_at_its_time(page, capture, content):
    found = Recording(page)
    clouds = found.of_type("PointCloudMessage")
    starts = (capture.times - capture.times[0]).tolist()
    assert [seconds for seconds, _ in clouds] == pytest.approx([start for start in starts for _ in range(2)])
    assert [message["name"] for _, message in clouds] == ["/static/points", "/moving/points"] * content.num_times
    assert found.fields["durationSeconds"] == pytest.approx(content.durations.sum())
    assert content.durations.max() > 1.5 * content.durations.min()


def test_points_are_those_of_the_run(page, capture, content):
    found = Recording(page)
    for number, (_, message) in enumerate(found.of_type("PointCloudMessage")):
        cloud = capture.output.points(number // 2)
        cloud = cloud[cloud.dynamic == number % 2]
        xyz = found.array(message["props"]["points"], "<f2").reshape(-1, 3).astype(np.float64)
        assert np.array_equal(found.array(message["props"]["colors"], "u1").reshape(-1, 3), cloud.rgb)
        assert np.abs(xyz + content.center - cloud.xyz).max() < content.point_size / 5
    positions = {
        tuple(message["position"])
        for _, message in found.of_type("SetPositionMessage")
        if "static" in message["name"]
    }
    assert positions == {tuple(content.center)}


def test_frusta_are_those_of_the_cameras(page, content):
    found = Recording(page)
    frusta = found.of_type("CameraFrustumMessage")
    poses = {message["name"]: message["wxyz"] for _, message in found.of_type("SetOrientationMessage")}
    places = {message["name"]: message["position"] for _, message in found.of_type("SetPositionMessage")}
    assert [message["name"] for _, message in frusta] == [f"/cameras/{view.name}" for view in content.views]
    for number, (_, message) in enumerate(frusta):
        fov, aspect = frustum(content.intrinsics[0, number], content.views[number].size)
        assert message["props"]["fov"] == pytest.approx(fov)
        assert message["props"]["aspect"] == pytest.approx(aspect)
        assert poses[message["name"]] == pytest.approx(quaternion(content.camera_to_world[0, number]))
        assert places[message["name"]] == pytest.approx(content.camera_to_world[0, number, :3, 3].tolist())
        assert message["props"]["_image_data"] is None


def test_frusta_of_moving_cameras_move(moving_capture):
    content = viewer_content(moving_capture.output, ExportSettings(max_points=50))
    found = Recording(record_page(content))
    centers = [
        message["position"]
        for _, message in found.of_type("SetPositionMessage")
        if message["name"] == f"/cameras/{content.views[1].name}"
    ]
    assert np.allclose(centers, content.camera_to_world[:, 1, :3, 3], atol=1e-6)
    assert len(np.unique(np.round(centers, 6), axis=0)) == content.num_times


def test_the_scene_is_seen_from_the_first_viewpoint(page, content):
    viewpoint = first_viewpoint(content)
    found = Recording(page)
    for kind, field, expected in (
        ("SetCameraPositionMessage", "position", viewpoint.position),
        ("SetCameraLookAtMessage", "look_at", viewpoint.look_at),
        ("SetCameraNearMessage", "near", viewpoint.near),
        ("SetCameraFarMessage", "far", viewpoint.far),
    ):
        assert found.of_type(kind)[-1][1][field] == pytest.approx(expected)


def test_pictures_are_in_the_page_if_there_are_any(capture):
    content = viewer_content(capture.output, ExportSettings(max_points=50))
    thumbnails = Thumbnails(content, open_pictures(capture.output, capture.scene))
    list(thumbnails.read())
    found = Recording(record_page(content, thumbnails))
    updates = [
        message for _, message in found.of_type("SceneNodeUpdateMessage") if message["updates"].get("_image_data")
    ]
    first = [message["props"]["_image_data"] for _, message in found.of_type("CameraFrustumMessage")]
    assert None not in first
    assert len(updates) >= len(content.views) * (content.num_times - 1)


def test_the_same_run_gives_the_same_page_and_progress_counts_instants(capture):
    seen = []
    content = viewer_content(capture.output, ExportSettings(max_points=50))
    page = record_page(content, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert record_page(content) == page


def test_the_page_is_one_file_without_addresses(page):
    text = page.decode()
    assert "<title>scene - page4d</title>" in text
    assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"(?!data:)", text)


def test_the_panel_describes_the_result_and_has_the_switches_of_the_live_viewer(page, content):
    text = page.decode()
    switches = dict(re.findall(r'<input type="checkbox" name="/(\w+)"( checked)?>', text))
    assert switches == {"static": " checked", "moving": " checked", "cameras": " checked"}
    assert content.description(is_graded=True) in text
    assert re.search(
        r"4 views, 4 instants, unit: metre.*&nbsp;cam04.*grade [A-E]: .* \(without the pictures\)<", text
    )
    assert json.dumps([content.instant_text(place) for place in range(4)]) in text
    places = [
        message["position"][0]
        for _, message in Recording(page).of_type("SetPositionMessage")
        if message["name"] == "/instant"
    ]
    assert places == [1, 2, 3]


def test_a_description_warns_of_footage_unlike_the_training_set(capture):
    run = capture.output.run.model_copy(update={"warnings": [f"{OOD_WARNING} <b>: do not trust depth"]})
    content = viewer_content(replace(capture.output, run=run), ExportSettings())
    assert f"{html.escape(OOD_WARNING)} &lt;b&gt;: do not trust depth" in content.description(is_graded=False)


def test_the_name_of_a_scene_is_no_markup(capture):
    run = capture.output.run.model_copy(update={"scene": SceneRecord(name="<script>\\1 & Kamera \u00fc")})
    content = viewer_content(replace(capture.output, run=run), ExportSettings(max_points=50, instants=(0, 1, 1)))
    text = record_page(content).decode()
    assert "<title>&lt;script&gt;\\1 &amp; Kamera \u00fc - page4d</title>" in text


def test_the_size_is_estimated(page, content):
    assert estimated_bytes(content, with_pictures=False) == pytest.approx(len(page), rel=0.35)
