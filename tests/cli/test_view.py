"""`page4d view`: options, errors, the page, and the end of the live viewer."""

import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from page4d.installation import install_command
from page4d.options import parse_instants
from page4d_cli.commands import view as command
from tests.cli.test_process_edge import INTERRUPTED
from tests.exporters.capture import Capture, make_capture
from tests.forks import command as command_line
from tests.forks import forked


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    return make_capture(tmp_path_factory.mktemp("view"), size=(60, 80))


@pytest.fixture
def folder(capture) -> Path:
    return capture.folder


@pytest.fixture
def viser():
    return pytest.importorskip("viser")


@pytest.mark.usefixtures("viser")
def test_a_page_is_written_and_kept(cli, capture, folder, tmp_path):
    file = tmp_path / "new" / "room.html"
    ended = cli(
        "view", folder, "--html", file, "--instants", "1:3", "--views", "cam01,cam03", "--scene", capture.scene
    )
    assert ended.code == 0, ended.err
    assert ended.out == f"wrote {file}: 2 instants, {file.stat().st_size / 1e3:.3g} kB; open it in a browser\n"
    assert "record: 2/2 instants" in ended.err
    assert "read pictures: 4/4 pictures" in ended.err
    before = file.read_bytes()
    ended = cli("view", folder, "--html", file)
    assert (ended.code, ended.err) == (
        2,
        f"error: '{file}' already exists\nhint:  choose another name, or pass --overwrite\n",
    )
    assert file.read_bytes() == before
    assert cli("view", folder, "--html", file, "--overwrite", "-q").out == ""
    assert file.read_bytes() != before
    assert [path.name for path in file.parent.iterdir()] == ["room.html"]


def test_the_page_must_be_writable(cli, folder, tmp_path):
    (tmp_path / "file").touch()
    assert cli("view", folder, "--html", tmp_path / "file" / "x.html").code == 5
    assert cli("view", folder, "--html", tmp_path, "--overwrite").code == 5
    os.mkfifo(tmp_path / "pipe")
    assert cli("view", folder, "--html", tmp_path / "pipe", "--overwrite").code == 5
    assert (tmp_path / "pipe").is_fifo()


def test_viser_must_be_installed(cli, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "viser", None)
    ended = cli("view", folder)
    assert ended.code == 6
    assert (
        ended.err == f"error: the viewer needs viser, which cannot be imported\nhint:  {install_command('viewer')}\n"
    )


@pytest.mark.parametrize("release", ["0.2.23", "1.0.30", "2.0.0"])
def test_another_release_of_viser_is_refused(cli, folder, tmp_path, monkeypatch, viser, release):
    monkeypatch.setattr(viser, "__version__", release)
    ended = cli("view", folder, "--html", tmp_path / "x.html")
    found = f"the viewer needs viser 1.1 or newer, below 2, and {release} is installed"
    assert (ended.code, ended.err) == (6, f"error: {found}\nhint:  {install_command('viewer')}\n")


@pytest.mark.usefixtures("viser")
def test_a_page_that_is_too_large_is_refused(cli, folder, tmp_path, monkeypatch):
    from page4d.viewer import recording

    monkeypatch.setattr(recording, "MAX_PAGE_BYTES", 1_000_000)
    ended = cli("view", folder, "--html", tmp_path / "x.html", "--max-points", "0")
    assert ended.code == 2
    error, hint = ended.err.splitlines()
    assert error.startswith("error: the page would have about 1 MB with")
    assert hint == "hint:  give a smaller --max-points, or fewer --instants"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("number", "code", "last"), [(signal.SIGINT, 0, ["the viewer has ended"]), (signal.SIGTERM, 143, INTERRUPTED)]
)
@pytest.mark.usefixtures("viser")
def test_an_interrupt_ends_the_viewer(folder, tmp_path, number, code, last):
    environment = {name: value for name, value in os.environ.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = forked(tmp_path, command_line, ["view", str(folder), "--port", str(port)], environment=environment)
        address = process.line(0)
        time.sleep(0.2)
        ended, out, err = process.ended(number)
    assert address.startswith("http://127.0.0.1:")
    assert int(address.rpartition(":")[2]) != port
    assert (ended, out) == (code, f"{address}\n")
    lines = err.splitlines()
    assert lines[0] == f"warning: port {port} is in use; the viewer is at port {address.rpartition(':')[2]}"
    assert lines[1] == "Ctrl-C ends the viewer"
    assert "ssh -L" in lines[2]
    assert lines[3:] == last


@pytest.mark.parametrize(
    ("display", "ssh", "options", "opens"),
    [
        ("", "", (), False),
        (":0", "", (), True),
        (":0", "", ("--no-browser",), False),
        (":10", "192.0.2.1 50000 192.0.2.2 22", (), False),
    ],
)
@pytest.mark.usefixtures("viser")
def test_a_browser_opens_where_there_is_a_display(cli, folder, monkeypatch, display, ssh, options, opens):
    from page4d.viewer.server import LiveViewer

    opened: list[str] = []
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.setenv("SSH_CONNECTION", ssh)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(command.webbrowser, "open", opened.append)
    monkeypatch.setattr(LiveViewer, "wait", lambda _: None)
    ended = cli("view", folder, "--port", "0", *options)
    assert ended.code == 0
    assert ended.out.startswith("http://127.0.0.1:")
    assert opened == ([ended.out.strip()] if opens else [])
    assert ("ssh -L" in ended.err) == (not display or bool(ssh))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2:9:3", (2, 9, 3)),
        ("::2", (None, None, 2)),
        (":-1", (None, -1, 1)),
        ("4", (4, 5, 1)),
        ("-1", (-1, None, 1)),
        ("2:", (2, None, 1)),
    ],
)
def test_instants(text, expected):
    assert parse_instants(text) == expected


@pytest.mark.parametrize("text", ["", ":", "a", "1:2:3:4", "1:2:0", "1:2:-1", "1.5", "9" * 30])
def test_no_instants(text):
    with pytest.raises(ValueError, match="is not of the form A:B"):
        parse_instants(text)
