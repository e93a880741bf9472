"""A server of viser that only this machine reaches, and that prints nothing."""

import io
import logging
from contextlib import AbstractContextManager, redirect_stdout
from typing import TYPE_CHECKING

from page4d.errors import CapabilityError
from page4d.installation import install_command, require_extra
from page4d.viewer.port import HOST, free_port

if TYPE_CHECKING:
    from viser import ViserServer


def start_server(port: int, label: str) -> "ViserServer":
    """Start a server on a port, or the next free one; `label` is the title of its panel.

    Raises:
        CapabilityError: if viser is not installed or too old, or no port is free.
    """
    require_extra("viewer", "the viewer")
    import viser

    if not hasattr(viser.ViserServer, "initial_camera"):
        found = f"the viewer needs viser 1.1 or newer, and {viser.__version__} is installed"
        raise CapabilityError(found, install_command("viewer"))
    logging.getLogger("websockets").setLevel(logging.CRITICAL)  # connections that browsers drop
    with _silent():
        server = viser.ViserServer(host=HOST, port=free_port(port), label=label, verbose=False)
    server.gui.configure_theme(show_logo=False, show_share_button=False, dark_mode=True)
    return server


def stop_server(server: "ViserServer") -> None:
    """End a server and its threads."""
    with _silent():
        server.stop()


def _silent() -> AbstractContextManager[object]:
    """Drop standard output while the body runs: viser announces start and end even if it is not verbose."""
    return redirect_stdout(io.StringIO())
