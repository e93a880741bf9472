"""`page4d view`: a run in a browser, from a server on this machine or as one HTML page."""

import os
import signal
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from page4d.errors import Stopped, UsageError, counted, human_size
from page4d.installation import require_extra
from page4d.io.atomic import write_bytes_atomic
from page4d.options import SELECTION, ExportSettings, Option, RunInstants, RunViews
from page4d_cli import console, options
from page4d_cli.progress import count, displayed_progress
from page4d_cli.stopping import stops_cleanly

if TYPE_CHECKING:
    from page4d.viewer.content import ViewerContent
    from page4d.viewer.scene import Thumbnails

SERVER = "Live viewer"
PAGE = "HTML page"


@options.command
def view(
    out: Annotated[Path, options.Run],
    scene: Annotated[
        Path | None, Option("Folder of the run's videos, whose pictures the cameras then show.", SELECTION, "FOLDER")
    ] = None,
    instants: RunInstants = ExportSettings.instants,
    views: RunViews = None,
    max_points: Annotated[
        int | None,
        Field(ge=0, le=2**31 - 1),
        Option(
            "Largest number of points per instant, drawn at random from every view; 0 shows all. Default: "
            "200000; in an HTML page also at most 5000000 in all instants together.",
            SELECTION,
            "N",
        ),
    ] = None,
    port: Annotated[
        int | None,
        Field(ge=0, le=65535),
        Option(
            "Port of the server on this machine; the next free one if it is taken, any free one for 0. "
            "Default: 8080.",
            SERVER,
        ),
    ] = None,
    no_browser: Annotated[bool, Option("Do not open the page in a browser.", SERVER)] = False,
    html: Annotated[
        Path | None,
        Option(
            "Write one HTML page that plays without a server or a network, instead of starting the viewer.",
            PAGE,
            "FILE",
        ),
    ] = None,
    overwrite: Annotated[bool, Option("Replace an existing page.", PAGE)] = False,
    quiet: options.Quiet = False,
) -> None:
    """Show the points and cameras of a run in a browser.

    The viewer answers only to programs on this machine. Ctrl-C ends it.
    """
    _check_options(port, no_browser, html, overwrite)
    from page4d.output.pictures import open_pictures
    from page4d.output.reader import open_output
    from page4d.viewer.content import viewer_content
    from page4d.viewer.recording import check_page_file
    from page4d.viewer.scene import Thumbnails

    output = open_output(out)
    if html is not None:
        check_page_file(output, html, overwrite=overwrite)
    require_extra("viewer", "the viewer")
    with stops_cleanly():
        settings = ExportSettings(scene=scene, instants=instants, views=views, max_points=max_points)
        content = viewer_content(output, settings, is_page=html is not None)
        thumbnails = None if scene is None else Thumbnails(content, open_pictures(output, scene))
        if html is not None:
            _write_page(content, thumbnails, html, quiet=quiet)
        else:
            _serve(content, thumbnails, port, opens_browser=not no_browser, quiet=quiet)


def _check_options(port: int | None, no_browser: bool, html: Path | None, overwrite: bool) -> None:
    if html is None and overwrite:
        raise UsageError("--overwrite without --html", "give the file of the page, or leave --overwrite out")
    if html is not None and (port is not None or no_browser):
        option = "--no-browser" if port is None else "--port"
        raise UsageError(f"{option} and --html contradict each other", "give one of them")


def _write_page(content: "ViewerContent", thumbnails: "Thumbnails | None", file: Path, *, quiet: bool) -> None:
    from page4d.output.reader import check_not_replaced
    from page4d.viewer.recording import check_size, record_page

    check_size(content, with_pictures=thumbnails is not None)
    if thumbnails is not None:
        with displayed_progress("read pictures", count("picture"), quiet=quiet) as progress:
            for number in thumbnails.read():
                progress.update(number, thumbnails.total)
    with displayed_progress("record", count("instant"), quiet=quiet) as progress:
        page = record_page(content, thumbnails, progress.update)
    check_not_replaced(content.output)
    written = write_bytes_atomic(file, page)
    if not quiet:
        size = human_size(written.num_bytes)
        console.print_text(f"wrote {file}: {counted(content.num_times, 'instant')}, {size}; open it in a browser")


def _serve(
    content: "ViewerContent", thumbnails: "Thumbnails | None", port: int | None, *, opens_browser: bool, quiet: bool
) -> None:
    from page4d.viewer.server import DEFAULT_PORT, live_viewer

    wanted = DEFAULT_PORT if port is None else port
    with live_viewer(content, thumbnails, wanted) as viewer:
        if wanted not in (0, viewer.port):
            console.print_message(
                f"port {wanted} is in use; the viewer is at port {viewer.port}", "warning: ", "yellow"
            )
        console.print_text(viewer.address)
        sys.stdout.flush()
        is_here = _is_here()
        if not quiet:
            console.print_message("Ctrl-C ends the viewer")
            if not is_here:
                forward = f"ssh -L {viewer.port}:127.0.0.1:{viewer.port} HOST"
                console.print_message(f"from another machine, forward the port and open the address: {forward}")
        if is_here and opens_browser:
            webbrowser.open(viewer.address)
        try:
            viewer.wait()
        except Stopped as stopped:
            if stopped.number != signal.SIGINT:
                raise
            after = "\n" * sys.stderr.isatty()  # the ^C that a terminal shows
            sys.stderr.write(f"{after}the viewer has ended\n")


def _is_here() -> bool:
    """Return whether the user sits at a display of this machine; X11 over ssh would draw its browser remotely."""
    has_display = any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
    return not os.environ.get("SSH_CONNECTION") and (has_display or sys.platform in ("darwin", "win32"))
