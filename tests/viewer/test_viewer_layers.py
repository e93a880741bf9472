"""The viewer on a run with layers: static points are sent once, and moving ones at every instant."""

import numpy as np
import pytest

from page4d.choices import PointLayer
from page4d.exporters.points import PointFilter
from page4d.options import ExportSettings
from page4d.viewer.content import ViewerContent, viewer_content
from page4d.viewer.recording import estimated_bytes, record_page
from page4d.viewer.scene import ResidentClouds
from page4d.viewer.server import running_server
from tests.exporters.capture import UNEVEN, Capture, make_capture

pytest.importorskip("viser")


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
    from tests.viewer.test_viewer_recording import Recording

    contents = [viewer_content(one.output, ExportSettings(), is_page=True) for one in (layered, capture)]
    pages = [record_page(content) for content in contents]
    names = [message["name"] for _, message in Recording(pages[0]).of_type("PointCloudMessage")]
    assert names == ["/static/points", *["/moving/points"] * 4]
    assert len(pages[0]) < len(pages[1])
    sizes = [estimated_bytes(content, with_pictures=False) for content in contents]
    assert sizes[0] < sizes[1]
