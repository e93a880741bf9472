"""A server of viser that only this machine reaches, and that prints nothing."""

import io
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Any

from page4d.errors import CapabilityError
from page4d.installation import install_command, require_extra
from page4d.viewer.port import HOST, free_port

if TYPE_CHECKING:
    from viser import ViserServer

_OWN_ORIGIN = re.compile(r"http://(127\.0\.0\.1|localhost)(:[0-9]+)?")
"""Sites of the viewer's own pages; a forwarded port may have another number."""

_OLDEST, _TOO_NEW = (1, 1), (2,)
"""Releases of viser whose interface is used here."""


def start_server(port: int, label: str) -> "ViserServer":
    """Start a server on a port, or the next free one; `label` is the title of its panel.

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
    return server


def stop_server(server: "ViserServer") -> None:
    """End a server and its threads."""
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
