"""The viewer on runs with layers, velocities and tracks, live and as a page."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from page4d.choices import PointLayer
from page4d.exporters.points import PointFilter
from page4d.options import ExportSettings
from page4d.viewer.content import ViewerContent, viewer_content
from page4d.viewer.recording import check_size, estimated_bytes, record_page
from page4d.viewer.scene import MAX_SEGMENTS, ResidentClouds, default_steps, track_segments, velocity_segments
from page4d.viewer.server import LiveViewer, live_viewer, running_server
from tests.exporters.capture import DRIFT, IMAGE_FPS, NUM_TRACKS, UNEVEN, Capture, make_capture
from tests.viewer.conftest import wait_until
from tests.viewer.test_viewer_recording import Recording

pytest.importorskip("viser")


@pytest.fixture(scope="module")
def fast_capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return make_capture(tmp_path_factory.mktemp("viewer-fast"), size=(60, 80), velocity=True, tracks=True)


@pytest.fixture
def fast(fast_capture: Capture) -> ViewerContent:
    return viewer_content(fast_capture.output, ExportSettings())


def test_segments_are_the_paths_of_moving_points(fast: ViewerContent) -> None:
    cloud = fast.points(1)
    points, colors = velocity_segments(cloud, fast.choice, 0.5 / IMAGE_FPS, limit=10_000)
    known = (cloud.dynamic != 0) & (cloud.velocity_sigma > 0)
    assert points.shape == colors.shape == (known.sum(), 2, 3)
    np.testing.assert_array_equal(points[:, 0], cloud.xyz[known])
    np.testing.assert_allclose(
        points[:, 1] - points[:, 0], np.tile(0.5 * np.array(DRIFT), (len(points), 1)), atol=1e-5
    )
    few = velocity_segments(cloud, fast.choice, 0.1, limit=20)
    assert len(few.points) == len(few.colors) == 20
    assert len(velocity_segments(cloud, fast.choice, 0.1).points) <= MAX_SEGMENTS


def test_segments_follow_the_choice_of_points(fast: ViewerContent) -> None:
    cloud = fast.points(1)
    for choice, kept in (
        (replace(fast.choice, only=PointLayer.STATIC), cloud.view < 0),
        (replace(fast.choice, only=PointLayer.MOVING), cloud.view >= 0),
        (replace(fast.choice, views=(2,)), cloud.view == 2),
        (replace(fast.choice, min_confidence=0.8), cloud.confidence >= 0.8),
    ):
        expected = int((kept & (cloud.velocity != 0).any(axis=1)).sum())
        assert len(velocity_segments(cloud, choice, 0.1, limit=10_000).points) == expected
    still = replace(cloud, velocity=None, velocity_sigma=None)
    assert velocity_segments(still, fast.choice, 0.1).points.shape == (0, 2, 3)


def test_fast_points_go_a_visible_part_of_the_scene(fast: ViewerContent, content: ViewerContent) -> None:
    length = default_steps(fast) / fast.frame_rate * np.linalg.norm(DRIFT) * IMAGE_FPS
    assert 0.02 < length / fast.diagonal < 0.08
    assert default_steps(content) == 1.0


def test_trails_are_the_steps_so_far(fast: ViewerContent) -> None:
    assert track_segments(fast.tracks, 0).points.shape == (0, 2, 3)
    points, colors = track_segments(fast.tracks, 2)
    # Track 0 begins at instant 1 and track 1 ends there.
    assert len(points) == 2 * (NUM_TRACKS - 2) + 1
    np.testing.assert_allclose(points[:, 1] - points[:, 0], np.tile(DRIFT, (len(points), 1)), atol=1e-5)
    assert (colors[:, 1].sum(axis=-1) > colors[:, 0].sum(axis=-1)).all()
    few = track_segments(fast.tracks, 3, limit=10, trail=1)
    assert len(few.points) == 10
    ends = fast.tracks.coords[3, ::4]
    np.testing.assert_array_equal(few.points[:, 1], ends[np.isfinite(ends).all(axis=-1)])


def num_shown(viewer: LiveViewer, name: str) -> int:
    """Return the number of visible segments of a node."""
    _, handle, number = viewer.motion._nodes.get(name, (None, None, 0))
    return number if handle is not None and handle.visible else 0


def test_the_panel_shows_and_hides_velocities_and_tracks(fast: ViewerContent) -> None:
    with live_viewer(fast, port=0) as viewer:
        wait_until(lambda: viewer.shown is not None)
        assert not num_shown(viewer, "/velocities")
        viewer.panel.velocities.value = True
        wait_until(lambda: num_shown(viewer, "/velocities") > 50)
        assert not num_shown(viewer, "/tracks")
        viewer.panel.tracks.value = True
        viewer.panel.instant.value = 3
        wait_until(lambda: num_shown(viewer, "/tracks") == 3 * (NUM_TRACKS - 2) + 2)
        viewer.panel.views[1].value = viewer.panel.views[0].value = False
        _, handle, number = viewer.motion._nodes["/velocities"]
        wait_until(lambda: viewer.motion._nodes["/velocities"][1] is not handle)
        assert 0 < num_shown(viewer, "/velocities") <= number
        viewer.panel.layer.value = "static"
        wait_until(lambda: num_shown(viewer, "/velocities") == 0)
        viewer.panel.velocities.value = viewer.panel.tracks.value = False
        wait_until(lambda: num_shown(viewer, "/tracks") == 0)


def test_runs_without_velocities_have_no_such_controls(content: ViewerContent) -> None:
    with live_viewer(content, port=0) as viewer:
        assert viewer.panel.velocities is None
        assert viewer.panel.tracks is None
        assert not viewer.motion._nodes


def test_a_page_has_velocities_and_tracks_of_every_instant(fast: ViewerContent, content: ViewerContent) -> None:
    pytest.importorskip("msgpack")
    pytest.importorskip("zstandard")
    page = record_page(fast)
    found = Recording(page)
    lines = [message for _, message in found.of_type("LineSegmentsMessage")]
    assert [message["name"] for message in lines] == ["/velocities/lines", "/tracks/lines"] * 4
    for place, message in enumerate(lines[::2]):
        points = found.array(message["props"]["points"], "<f4").reshape(-1, 2, 3)
        expected = velocity_segments(fast.points(place), fast.choice, default_steps(fast) / fast.frame_rate)
        np.testing.assert_array_equal(points, expected.points)
    assert 0.5 < estimated_bytes(fast, with_pictures=False) / len(page) < 2
    check_size(fast, with_pictures=False)
    assert not Recording(record_page(content)).of_type("LineSegmentsMessage")


def test_layers_have_the_velocities_of_their_moving_points(tmp_path: Path) -> None:
    capture = make_capture(tmp_path, size=(60, 80), velocity=True, layers=True)
    layered = viewer_content(capture.output, ExportSettings())
    assert layered.clouds.has_layers
    assert len(velocity_segments(layered.changing_points(1), layered.choice, 0.1).points) > 50
    assert default_steps(layered) > 0


@pytest.fixture(scope="module")
def layered(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    """The capture of the viewer, with layers."""
    return make_capture(tmp_path_factory.mktemp("viewer-layers"), numbers=UNEVEN, size=(60, 80), layers=True)


@pytest.fixture
def shown(layered: Capture) -> ViewerContent:
    return viewer_content(layered.output, ExportSettings())


def test_layers_are_those_of_the_run_relative_to_the_centre(layered: Capture, shown: ViewerContent):
    assert shown.clouds.has_layers
    for found, expected in (
        (shown.points(0, PointLayer.STATIC), layered.output.static_points()),
        (shown.points(2, PointLayer.MOVING), layered.output.moving_points(2)),
    ):
        np.testing.assert_allclose(found.xyz + shown.center, expected.xyz, atol=1e-5)
        assert np.array_equal(found.rgb, expected.rgb)
    static, moving = (shown.clouds.most(layer) for layer in (PointLayer.STATIC, PointLayer.MOVING))
    assert (sum(static), sum(moving)) == (
        layered.output.static_points().num_points,
        sum(layered.output.moving_points(index).num_points for index in range(4)),
    )
    assert not viewer_content(layered.output, ExportSettings(views=("cam01", "cam03"))).clouds.has_layers


@pytest.mark.parametrize("limit", [1, 2, 50, 700])
def test_a_budget_is_that_of_both_layers(limit: int, layered: Capture):
    content = viewer_content(layered.output, ExportSettings(max_points=limit))
    for place in range(4):
        layers = (PointLayer.STATIC, PointLayer.MOVING)
        static, moving = (content.points(place, layer).num_points for layer in layers)
        assert static + moving <= max(limit, 2)
        assert content.clouds.most(PointLayer.STATIC) == [static]
        assert content.clouds.most(PointLayer.MOVING)[place] == moving


def test_static_points_are_sent_once_and_every_choice_shows_its_points(layered: Capture, shown: ViewerContent):
    with running_server(0, "test") as server:
        clouds = ResidentClouds(server.scene, shown)
        static, moved = layered.output.static_points(), [layered.output.moving_points(i) for i in range(4)]
        assert clouds.show(0, shown.choice, 1.0) == static.num_points + moved[0].num_points
        node = clouds._static_node
        assert clouds.show(3, shown.choice, 2.0) == static.num_points + moved[3].num_points
        assert clouds._static_node is node
        assert node[0].point_size == 2.0
        while clouds.prepare_next():
            pass
        assert clouds.places == (0, 1, 2, 3)
        only = PointFilter(views=shown.choice.views, only=PointLayer.MOVING)
        assert clouds.show(1, only, 1.0) == moved[1].num_points
        some = PointFilter(views=(0, 2))
        assert clouds.show(1, some, 1.0) == np.isin(layered.output.points(1).view, (0, 2)).sum()
        assert not clouds._static_node[0].visible
        while clouds.prepare_next():
            pass
        assert clouds.show(2, shown.choice, 1.0) == static.num_points + moved[2].num_points
        assert clouds._static_node[0].visible
        assert [place for place, (handle, *_) in clouds._nodes.items() if handle.visible] == [2]


def test_more_instants_stay_in_the_browser_than_of_merged_clouds(capture: Capture, shown: ViewerContent):
    with running_server(0, "test") as server:
        room = 2 * max(shown.clouds.most())
        plain = viewer_content(capture.output, ExportSettings())
        assert ResidentClouds(server.scene, plain, room).capacity == 3
        assert ResidentClouds(server.scene, shown, room).capacity == 4


def test_a_page_holds_static_points_once_and_is_smaller(layered: Capture, capture: Capture):
    pytest.importorskip("msgpack")
    pytest.importorskip("zstandard")
    contents = [viewer_content(one.output, ExportSettings(), is_page=True) for one in (layered, capture)]
    pages = [record_page(content) for content in contents]
    names = [message["name"] for _, message in Recording(pages[0]).of_type("PointCloudMessage")]
    assert names == ["/static/points", *["/moving/points"] * 4]
    assert len(pages[0]) < len(pages[1])
    sizes = [estimated_bytes(content, with_pictures=False) for content in contents]
    assert sizes[0] < sizes[1]
