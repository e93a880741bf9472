"""The live viewer: a server that only this machine reaches, whose pages share one scene and one panel.

One thread changes the scene; widgets and cameras only wake it up.
"""

import errno
import io
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Any

from page4d.errors import CapabilityError
from page4d.installation import install_command, require_extra
from page4d.viewer.content import ViewerContent
from page4d.viewer.panel import LookThrough, Panel, Wanted
from page4d.viewer.scene import CameraNodes, MotionNodes, ResidentClouds, Thumbnails, prepare_scene

if TYPE_CHECKING:
    from viser import GuiButtonHandle, GuiEvent, ViserServer

HOST = "127.0.0.1"
"""Address of the viewer: programs of other machines cannot reach it."""

LAST_PORT = 65_535
_ATTEMPTS = 100


def free_port(wanted: int) -> int:
    """Return the wanted port if it is free, else the next free one; any free port for 0.

    Raises:
        CapabilityError: if there is none.
    """
    reason = "in use"
    for port in range(wanted, min(wanted + _ATTEMPTS, LAST_PORT + 1)):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError as error:
                reason = "in use" if error.errno == errno.EADDRINUSE else (error.strerror or str(error))
                continue
            return int(probe.getsockname()[1])
    raise CapabilityError(f"no port from {wanted} on is free: {reason}", "give another ⟨port⟩, such as 8080")


_OWN_ORIGIN = re.compile(r"http://(127\.0\.0\.1|localhost)(:[0-9]+)?")
"""Sites of the viewer's own pages; a forwarded port may have another number."""

_OLDEST, _TOO_NEW = (1, 1), (2,)
"""Releases of viser whose interface is used here."""


@contextmanager
def running_server(port: int, label: str) -> Iterator["ViserServer"]:
    """Run a server on a port, or the next free one, while the body runs; `label` is the title of its panel.

    Raises:
        CapabilityError: if viser is not installed or of another release, or no port is free.
    """
    require_extra("viewer", "the viewer")
    import viser

    release = tuple(int(number) for number in re.findall(r"\d+", viser.__version__)[:2])
    if not _OLDEST <= release < _TOO_NEW:
        found = f"the viewer needs viser 1.1 or newer, below 2, and {viser.__version__} is installed"
        raise CapabilityError(found, install_command("viewer"))
    logging.getLogger("websockets").setLevel(logging.CRITICAL)  # connections that browsers drop
    with _silent(), _own_pages_only():
        server = viser.ViserServer(host=HOST, port=free_port(port), label=label, verbose=False)
    server.gui.configure_theme(show_logo=False, show_share_button=False, dark_mode=True)
    try:
        yield server
    finally:
        with _silent():
            server.stop()


@contextmanager
def _own_pages_only() -> Iterator[None]:
    """Make a server that starts in the body refuse pages of other sites: any site could read the scene otherwise.

    Browsers state the site of a page in the header Origin. viser has no option for this check.
    """
    module = import_module("websockets.asyncio.server")
    serve = module.serve

    def guarded(*arguments: Any, process_request: Callable[..., Any], **options: Any) -> Any:
        def check(connection: Any, request: Any) -> Any:
            origin = request.headers.get("Origin")
            if origin is not None and _OWN_ORIGIN.fullmatch(origin) is None:
                return connection.respond(HTTPStatus.FORBIDDEN, "pages of other sites are refused\n")
            return process_request(connection, request)

        return serve(*arguments, process_request=check, **options)

    vars(module)["serve"] = guarded
    try:
        yield
    finally:
        vars(module)["serve"] = serve


def _silent() -> AbstractContextManager[object]:
    """Drop standard output while the body runs: viser announces start and end even if it is not verbose."""
    return redirect_stdout(io.StringIO())


DEFAULT_PORT = 8080


class LiveViewer:
    """A running viewer; created by `live_viewer`."""

    def __init__(self, server: "ViserServer", content: ViewerContent, thumbnails: Thumbnails | None) -> None:
        self._content = content
        self._thumbnails = thumbnails
        self._changed, self._ending = threading.Event(), threading.Event()
        self._failure: Exception | None = None
        self.server = server
        prepare_scene(server, content)
        self.panel = Panel(server, content, self._changed.set)
        self.clouds = ResidentClouds(server.scene, content)
        self.motion = MotionNodes(server.scene, content)
        self.cameras = CameraNodes(server.scene, content, thumbnails)
        self.look_through = LookThrough(
            server, content, self.cameras.handles, lambda: self.panel.place, self._changed.set
        )
        self.panel.overview.on_click(self._go_to_overview)
        self.shown: Wanted | None = None
        self._state: object = None
        self._due = 0.0
        self._is_prepared = False
        works = [self._run, self._read_pictures, self.panel.grade]
        self._threads = [threading.Thread(target=self._guarded, args=(work,), daemon=True) for work in works]

    @property
    def address(self) -> str:
        """URL of the page."""
        return f"http://{HOST}:{self.port}"

    @property
    def port(self) -> int:
        """Port of the server, which may be another one than the wanted one."""
        return int(self.server.get_port())

    def start(self) -> None:
        """Show the first instant and answer to the widgets."""
        self._changed.set()
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Wait until the viewer fails, as it does if a file of the run disappears.

        Raises:
            Page4DError: the failure.
        """
        self._ending.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """End the threads."""
        self._ending.set()
        self._changed.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=5)

    def _go_to_overview(self, event: "GuiEvent[GuiButtonHandle]") -> None:
        if event.client is not None:
            self.look_through.overview(event.client)

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # raised again where the viewer is awaited
            self._failure = self._failure or error
            self._ending.set()

    def _read_pictures(self) -> None:
        for _ in () if self._thumbnails is None else self._thumbnails.read():
            if self._ending.is_set():
                return
            self._changed.set()

    def _run(self) -> None:
        while not self._ending.is_set():
            self._changed.wait(self._pause())
            self._changed.clear()
            self._play()
            self._show()
            if not self._changed.is_set():
                self._is_prepared = not self.clouds.prepare_next()

    def _pause(self) -> float | None:
        """Return the seconds until there is work even if nothing changes; None if there is none."""
        if not self._is_prepared:
            return 0.0
        return max(self._due - time.monotonic(), 0.0) if self.panel.play.value else None

    def _play(self) -> None:
        """Go to the next instant when it is due; after a delay all later instants are later."""
        if not self.panel.play.value:
            self._due = 0.0
            return
        now, duration = time.monotonic(), self.panel.duration
        if self._due == 0.0:
            self._due = now + duration
        elif now >= self._due:
            self._due = max(self._due + duration, now)
            self.panel.play.value = self.panel.step(1)

    def _show(self) -> None:
        """Make the scene that of the panel."""
        wanted, hidden = self.panel.wanted(), self.look_through.view
        views = range(len(self._content.views))
        read = tuple(self._thumbnails is not None and self._thumbnails.has(wanted.place, view) for view in views)
        if (wanted, hidden, read) == self._state:
            return
        with self.server.atomic():
            number = self.clouds.show(wanted.place, wanted.choice, wanted.point_size)
            cloud = self.clouds.cloud(wanted.place)
            self.motion.show(wanted.place, cloud, wanted.choice, wanted.velocity_steps, tracks=wanted.tracks)
            self.cameras.show(wanted.place)
            for view, is_on in enumerate(wanted.cameras):
                self.cameras.handles[view].visible = is_on and view != hidden
        self.panel.describe(wanted.place, number)
        self._state, self.shown, self._is_prepared = (wanted, hidden, read), wanted, False


@contextmanager
def live_viewer(
    content: ViewerContent, thumbnails: Thumbnails | None = None, port: int = DEFAULT_PORT
) -> Iterator[LiveViewer]:
    """Serve a run on this machine while the body runs.

    Args:
        content: what is shown.
        thumbnails: pictures of the frusta, which are read meanwhile.
        port: port of the server; the next free one if it is taken, any free one for 0.

    Raises:
        CapabilityError: if viser is not installed, or no port is free.
    """
    with running_server(port, content.output.run.scene.name) as server:
        viewer = LiveViewer(server, content, thumbnails)
        try:
            viewer.start()
            yield viewer
        finally:
            viewer.stop()
