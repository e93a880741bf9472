"""The live viewer in the process of the tests; a browser is not needed."""

import socket
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from page4d.errors import CapabilityError, InputError
from page4d.options import ExportSettings
from page4d.output.pictures import open_pictures
from page4d.viewer.content import ViewerContent, viewer_content
from page4d.viewer.scene import ResidentClouds, Thumbnails, frustum
from page4d.viewer.server import HOST, LAST_PORT, LiveViewer, free_port, live_viewer, running_server
from tests.viewer.conftest import wait_until

viser = pytest.importorskip("viser")

LOOPBACK = "0100007F"
LISTENING = "0A"


def visible(viewer: LiveViewer) -> list[int]:
    """Return the instants whose cloud is visible."""
    return [place for place, (handle, *_) in viewer.clouds._nodes.items() if handle.visible]


def _running(content: ViewerContent) -> Iterator[LiveViewer]:
    with live_viewer(content, port=0) as viewer:
        wait_until(lambda: viewer.shown is not None and len(viewer.clouds.places) == 4)
        yield viewer


viewer = pytest.fixture(_running)
untouched = pytest.fixture(_running, scope="module")


def test_only_this_machine_reaches_the_server(untouched):
    sockets = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    port = f"{untouched.port:04X}"
    listening = [words[1] for words in sockets if words[3] == LISTENING and words[1].endswith(f":{port}")]
    assert listening == [f"{LOOPBACK}:{port}"]
    sockets = [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    assert not [words for words in sockets if words[3] == LISTENING and words[1].endswith(f":{port}")]


def test_the_server_ends(content):
    with live_viewer(content, port=0) as viewer:
        port = viewer.port
        socket.create_connection(("127.0.0.1", port)).close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", port))
    assert not any(thread.is_alive() for thread in viewer._threads)


def test_a_taken_port_is_avoided(content):
    free = free_port(0)
    assert free_port(free) == free > 1023
    taken = socket.create_server((HOST, 0))
    port = taken.getsockname()[1]
    with taken, live_viewer(content, port=port) as viewer:
        assert viewer.port != port
        assert viewer.address == f"http://127.0.0.1:{viewer.port}"
    with (
        socket.create_server((HOST, LAST_PORT)),
        pytest.raises(CapabilityError, match="no port from 65535 on is free"),
    ):
        free_port(LAST_PORT)


@pytest.mark.parametrize(
    ("origin", "is_accepted"),
    [
        ("http://127.0.0.1:{port}", True),
        ("http://localhost:9000", True),
        (None, True),
        ("http://example.com", False),
        ("http://127.0.0.1.example.com:{port}", False),
        ("null", False),
    ],
)
def test_pages_of_other_sites_cannot_read_the_scene(untouched, origin, is_accepted):
    client = pytest.importorskip("websockets.sync.client")
    address, protocol = f"ws://127.0.0.1:{untouched.port}", f"viser-v{viser.__version__}"
    origin = origin and origin.format(port=untouched.port)

    def received() -> int:
        with client.connect(address, origin=origin, subprotocols=[protocol], max_size=None) as connection:
            return len(connection.recv(timeout=10))

    if is_accepted:
        assert received() > 0
    else:
        with pytest.raises(Exception, match="HTTP 403"):
            received()


def test_nothing_is_printed(content, capfd):
    with live_viewer(content, port=0):
        pass
    assert capfd.readouterr() == ("", "")


def test_there_is_no_share_button(untouched):
    messages = list(untouched.server._websock_server._broadcast_buffer.message_from_id.values())
    themes = [message for message in messages if type(message).__name__ == "ThemeConfigurationMessage"]
    assert [theme.show_share_button for theme in themes] == [False]


def test_the_slider_shows_an_instant(viewer, content):
    assert visible(viewer) == [0]
    viewer.panel.instant.value = 2
    wait_until(lambda: viewer.shown.place == 2)
    assert visible(viewer) == [2]
    assert viewer.panel.time.value == f"{content.seconds[2]:.3f} s (instant 2)"


def test_filters_change_the_points(viewer, content):
    cloud = content.points(0)

    def shown(expected: int) -> None:
        wait_until(lambda: viewer.panel.count.value == f"{expected:,} points")
        assert len(viewer.clouds._nodes[0][0].points) == expected

    shown(cloud.num_points)
    viewer.panel.layer.value = "moving"
    shown(int(cloud.dynamic.sum()))
    viewer.panel.layer.value = "static"
    shown(int((1 - cloud.dynamic).sum()))
    viewer.panel.min_confidence.value = 0.5
    shown(int(((cloud.dynamic == 0) & (cloud.confidence >= 0.5)).sum()))
    viewer.panel.views[1].value = False
    shown(int(((cloud.dynamic == 0) & (cloud.confidence >= 0.5) & (cloud.view != 1)).sum()))
    assert visible(viewer) == [0]
    viewer.panel.instant.value = 1
    cloud = content.points(1)
    number = int(((cloud.dynamic == 0) & (cloud.confidence >= 0.5) & (cloud.view != 1)).sum())
    wait_until(lambda: viewer.panel.count.value == f"{number:,} points")


def test_switches_of_cameras(viewer):
    frusta = viewer.cameras.handles
    assert [handle.visible for handle in frusta] == [True] * 4
    viewer.panel.views[2].value = False
    wait_until(lambda: [handle.visible for handle in frusta] == [True, True, False, True])
    viewer.panel.frusta.value = False
    wait_until(lambda: not any(handle.visible for handle in frusta))


def test_the_size_of_points(viewer, content):
    viewer.panel.point_size.value = 2.5
    wait_until(lambda: viewer.clouds._nodes[0][0].point_size == pytest.approx(2.5 * content.point_size))


def test_playing_goes_around(viewer):
    seen: list[int] = []
    viewer.panel.fps.value = 40.0
    viewer.panel.play.value = True

    def has_gone_around() -> bool:
        place = viewer.shown.place
        if not seen or seen[-1] != place:
            seen.append(place)
        return {0, 1, 2, 3} == set(seen) and any(after < before for before, after in pairwise(seen))

    wait_until(has_gone_around)  # on a busy machine instants are skipped, others than the last time around
    viewer.panel.play.value = False


def test_playing_without_loop_stops_at_the_end(viewer):
    viewer.panel.loop.value = False
    viewer.panel.fps.value = 40.0
    viewer.panel.play.value = True
    wait_until(lambda: not viewer.panel.play.value)
    wait_until(lambda: viewer.shown.place == 3)


def test_numbers_out_of_range_are_limited(viewer):
    viewer.panel.fps.value = 0.0
    assert viewer.panel.duration == 10.0
    for typed, place in ((99, 3), (-5, 0)):
        viewer.panel.instant.value = typed
        wait_until(lambda place=place: viewer.shown.place == place)


def test_hotkeys(viewer):
    commands = {handle.hotkey: handle for handle in viewer.server.gui._command_handle_from_uuid.values()}

    def press(key: str) -> None:
        for trigger in commands[key]._impl.trigger_cb:
            trigger(None)

    press("pagedown")
    wait_until(lambda: viewer.shown.place == 1)
    press("pageup")
    press("pageup")
    wait_until(lambda: viewer.shown.place == 3)
    press("space")
    assert viewer.panel.play.value
    press("space")
    assert not viewer.panel.play.value


def test_pictures_follow_the_instant(capture, content):
    thumbnails = Thumbnails(content, open_pictures(capture.output, capture.scene))
    with live_viewer(content, thumbnails, port=0) as viewer:
        for place in (0, 3):
            viewer.panel.instant.value = place
            wait_until(lambda place=place: viewer.shown is not None and viewer.shown.place == place)
            wait_until(lambda: all(handle.image is not None for handle in viewer.cameras.handles))
            wait_until(
                lambda place=place: all(
                    np.array_equal(handle.image, thumbnails.get(place, view))
                    for view, handle in enumerate(viewer.cameras.handles)
                )
            )


def test_frusta_of_moving_cameras_follow_the_instant(moving_capture):
    content = viewer_content(moving_capture.output, ExportSettings())
    with live_viewer(content, port=0) as viewer:
        viewer.panel.instant.value = 3
        wait_until(lambda: viewer.shown is not None and viewer.shown.place == 3)
        for view, handle in enumerate(viewer.cameras.handles):
            assert np.allclose(handle.position, content.camera_to_world[3, view, :3, 3])
            fov, _ = frustum(content.intrinsics[3, view], content.views[view].size)
            assert handle.fov == pytest.approx(fov)


def test_few_instants_stay_in_the_browser_if_there_is_no_room(content):
    with running_server(0, "test") as server:
        clouds = ResidentClouds(server.scene, content, max_points=10)
        assert clouds.capacity == 3
        clouds.show(0, content.choice, 1.0)
        while clouds.prepare_next():
            pass
        assert clouds.places == (0, 1, 2)
        clouds.show(1, content.choice, 1.0)
        while clouds.prepare_next():
            pass
        assert clouds.places == (1, 2, 3)
        clouds.show(3, content.choice, 1.0)
        assert clouds._nodes[3][0].visible
        assert not clouds._nodes[1][0].visible
        assert clouds.prepare_next()
        assert 3 in clouds.places
        assert len(clouds.places) == 3


class FakeCamera:
    """The camera of a browser."""

    aspect = 2.0

    def __init__(self, client: "FakeClient") -> None:
        self.client = client
        self.position = np.zeros(3)


class FakeClient:
    """A browser."""

    client_id = 5

    def __init__(self) -> None:
        self.camera = FakeCamera(self)

    def atomic(self):
        return nullcontext()


def test_a_click_on_a_frustum_moves_the_camera_into_it(viewer, content):
    client, look_through = FakeClient(), viewer.look_through
    look_through.enter(client, 1)
    pose = content.camera_to_world[0, 1]
    assert np.allclose(client.camera.position, pose[:3, 3])
    direction = np.array(client.camera.look_at) - client.camera.position
    assert np.allclose(direction / np.linalg.norm(direction), pose[:3, 2])
    fov, aspect = frustum(content.intrinsics[0, 1], content.views[1].size)
    assert client.camera.fov == pytest.approx(fov)
    wait_until(lambda: not viewer.cameras.handles[1].visible)
    narrow = FakeClient()
    narrow.camera.aspect = 0.5
    look_through.enter(narrow, 1)
    assert np.tan(narrow.camera.fov / 2) * 0.5 == pytest.approx(np.tan(fov / 2) * aspect)


def test_the_frustum_is_back_when_the_camera_leaves_it_or_returns_to_the_overview(viewer):
    client, look_through = FakeClient(), viewer.look_through
    look_through.enter(client, 1)
    entered = np.array(client.camera.position)
    client.camera.position = entered + 1.0
    look_through.moved(client.camera)
    assert look_through.view == 1, "the camera has not arrived"
    client.camera.position = entered
    look_through.moved(client.camera)
    assert look_through.view == 1
    client.camera.position = entered + 1.0
    look_through.moved(client.camera)
    assert look_through.view is None
    wait_until(lambda: viewer.cameras.handles[1].visible)
    look_through.enter(client, 1)
    assert look_through.view == 1
    look_through.overview(client)  # before the camera has arrived
    assert look_through.view is None
    wait_until(lambda: viewer.cameras.handles[1].visible)


def test_a_single_instant_has_nothing_to_play(capture):
    content = viewer_content(capture.output, ExportSettings(instants=(2, 3, 1)))
    with live_viewer(content, port=0) as viewer:
        wait_until(lambda: viewer.shown is not None)
        assert viewer.panel.instant.disabled
        assert viewer.panel.play.disabled
        assert visible(viewer) == [0]


def test_a_failure_is_raised_where_the_viewer_is_awaited(content, monkeypatch):
    class Broken:
        bounds, most = content.clouds.bounds, content.clouds.most
        has_layers = False

        def sampled(self, place: int, layer):
            if place == 2:
                raise InputError("'frame_000002.ply' is missing", "run page4d again with existing='resume'")
            return content.clouds.sampled(place, layer)

    broken = replace(content, clouds=Broken(), instants=(0, 1, 2, 3))
    monkeypatch.setitem(broken.__dict__, "middle_points", content.middle_points)
    with live_viewer(broken, port=0) as viewer, pytest.raises(InputError, match=r"frame_000002\.ply"):
        viewer.wait()
