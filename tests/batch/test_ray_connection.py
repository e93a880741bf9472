"""Which Ray cluster a run connects to, and what it refuses."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from page4d.batch import ray_connection
from page4d.batch.ray_connection import joined_cluster, parse_distributed
from page4d.errors import CapabilityError, InterruptedRunError, UsageError
from page4d.installation import install_command
from page4d.signals import deferred_signals
from page4d_cli.app import run


@pytest.fixture(autouse=True)
def without_clusters(monkeypatch, tmp_path):
    """Hide the clusters of this machine and of its user."""
    for name in "ADDRESS TMPDIR AUTH_MODE AUTH_TOKEN AUTH_TOKEN_PATH USE_TLS".split():
        monkeypatch.delenv(f"RAY_{name}", raising=False)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def server():
    """Serve an answer of several bytes on a port of 127.0.0.1; an empty one means silence."""
    listening = socket.create_server(("127.0.0.1", 0))
    answer = SimpleNamespace(data=b"", address=f"127.0.0.1:{listening.getsockname()[1]}")

    def serve() -> None:
        try:
            connection, _ = listening.accept()
        except OSError:
            return  # nobody connected
        with connection:
            connection.recv(100)
            connection.sendall(answer.data)
            if not answer.data:
                connection.recv(100)  # until the other side gives up

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield answer
    listening.shutdown(socket.SHUT_RDWR)
    listening.close()
    thread.join(10)


@pytest.mark.parametrize(
    ("text", "address"),
    [("ray", ""), *[(text, text) for text in ("ray://head:10001", "ray://10.0.0.1:1", "ray://[::1]:65535")]],
)
def test_addresses_are_parsed(text, address):
    assert parse_distributed(text) == address


NO_ADDRESSES = ["", "dask", "raylet", "RAY", " ray", "ray\n", "ray:", "ray://", "ray://head", "ray://:10001"]
NO_PORTS = ["ray://head:0", "ray://head:65536", "ray://head:x", "ray://head:1/path", "ray://head:\u0663"]
NO_HOSTS = ["ray://he ad:1", "ray://a@b:1"]


@pytest.mark.parametrize("text", [*NO_ADDRESSES, *NO_PORTS, *NO_HOSTS])
def test_other_clusters_are_refused(text):
    with pytest.raises(UsageError, match="is not a Ray cluster"):
        parse_distributed(text)


class TestExistingCluster:
    @pytest.mark.parametrize("place", ["environment", "file"])
    def test_an_address_without_a_server_is_an_error_within_seconds(self, tmp_path, monkeypatch, capsys, place):
        with socket.create_server(("127.0.0.1", 0)) as listening:
            address = f"127.0.0.1:{listening.getsockname()[1]}"
        if place == "environment":
            monkeypatch.setenv("RAY_ADDRESS", address)
        else:
            record(tmp_path, address)
        named_by = "RAY_ADDRESS" if place == "environment" else f"'{tmp_path}/ray/ray_current_cluster'"
        ended = run(["reconstruct", str(tmp_path / "scene"), "--out", str(tmp_path / "out"), "--distributed", "ray"])
        error, hint = capsys.readouterr().err.splitlines()
        assert ended == 6
        assert error == f"error: no Ray cluster at {address} ({named_by}): Connection refused"
        assert "ray start --head" in hint

    @pytest.mark.parametrize("address", ["head", "head:", ":6379", "head:x", "head:0", "head:65536", "ray://head"])
    def test_an_odd_address_in_the_environment_is_an_error(self, monkeypatch, address):
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(CapabilityError, match="is not the address of a Ray cluster"), joined_cluster("", print):
            pass

    def test_another_server_is_an_error(self, server):
        server.data = b"HTTP/1.1 400 Bad Request\r\n\r\n"
        with (
            pytest.raises(CapabilityError, match="is not a Ray cluster"),
            joined_cluster(f"ray://{server.address}", print),
        ):
            pass

    def test_a_silent_server_is_an_error(self, monkeypatch, server):
        monkeypatch.setattr(ray_connection, "_REACH_SECONDS", 0.2)
        with pytest.raises(CapabilityError, match="timed out"), joined_cluster(f"ray://{server.address}", print):
            pass

    def test_joining_is_announced_and_failures_of_ray_are_errors_of_the_environment(self, monkeypatch, server):
        server.data = b"\0\0\0\4\0\0\0\0\0"
        monkeypatch.setenv("RAY_ADDRESS", server.address)
        calls, notices = [], []

        def init(**options):
            calls.append(options["address"])
            raise RuntimeError("Version mismatch:\n trace\nThe cluster runs Ray 2.53")

        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=init, is_initialized=lambda: False))
        expected = pytest.raises(CapabilityError, match=r"Version mismatch: The cluster runs Ray 2\.53")
        with expected, joined_cluster("", notices.append):
            pass
        assert calls == [server.address]
        assert [notice.text for notice in notices] == [f"joining the Ray cluster at {server.address} (RAY_ADDRESS)"]

    @pytest.mark.parametrize(("raised", "is_shut_down"), [(SystemExit, False), (KeyboardInterrupt, True)])
    def test_a_signal_while_ray_connects_interrupts_the_run(self, monkeypatch, server, raised, is_shut_down):
        """The handler of SIGTERM that Ray installs raises SystemExit."""
        server.data = b"\0\0\0\4\0\0\0\0\0"
        monkeypatch.setenv("RAY_ADDRESS", server.address)
        ended = []

        def init(**_):
            raise raised

        fake = SimpleNamespace(init=init, is_initialized=lambda: False, shutdown=lambda: ended.append(True))
        monkeypatch.setitem(sys.modules, "ray", fake)
        with pytest.raises((InterruptedRunError, KeyboardInterrupt)) as caught, joined_cluster("", lambda _: None):
            pass
        assert isinstance(caught.value, KeyboardInterrupt) or caught.value.exit_code == 128 + signal.SIGTERM
        assert bool(ended) == is_shut_down

    @pytest.mark.parametrize("mode", [None, "disabled"])
    def test_the_token_of_the_user_is_used_as_by_ray_and_what_ray_prints_is_no_result(
        self, tmp_path, monkeypatch, capsys, server, mode
    ):
        server.data = b"\0\0\0\4\0\0\0\0\0"
        record(tmp_path, server.address)
        token = tmp_path / ".ray" / "auth_token"
        token.parent.mkdir()
        token.write_text("0" * 64)
        monkeypatch.setattr(os, "environ", os.environ | ({} if mode is None else {"RAY_AUTH_MODE": mode}))
        modes = []
        fake = SimpleNamespace(
            init=lambda **_: modes.append(os.environ.get("RAY_AUTH_MODE")),
            shutdown=lambda: None,
            is_initialized=lambda: False,
        )
        monkeypatch.setitem(sys.modules, "ray", fake)
        with joined_cluster("", lambda _: None) as ray:
            assert ray is fake
            print("(raylet) A worker died")
        assert modes == [mode or "token"]
        assert capsys.readouterr() == ("", "(raylet) A worker died\n")

    def test_the_cluster_of_another_user_is_not_joined(self, tmp_path, monkeypatch):
        path = record(tmp_path, "127.0.0.1:6379")
        if os.getuid() == 0:
            os.chown(path, 1234, -1)
        monkeypatch.setattr(os, "getuid", lambda: 4321)
        notices = []
        assert ray_connection._named_cluster(notices.append) is None
        assert "is of another user" in notices[0].text

    def test_a_pipe_or_link_in_place_of_the_record_is_ignored(self, tmp_path):
        path = tmp_path / "ray" / "ray_current_cluster"
        path.parent.mkdir()
        os.mkfifo(path)
        assert ray_connection._named_cluster(print) is None
        path.unlink()
        (tmp_path / "file").write_text("127.0.0.1:6379")
        path.symlink_to(tmp_path / "file")
        assert ray_connection._named_cluster(print) is None

    def test_without_a_cluster_the_error_names_the_command_that_starts_one(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
        with pytest.raises(CapabilityError, match="no Ray cluster of yours") as caught, joined_cluster("", print):
            pass
        assert "ray start --head" in caught.value.hint

    def test_without_ray_the_error_names_the_command_that_installs_it(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "ray", None)
        with pytest.raises(CapabilityError, match="needs ray") as caught, joined_cluster("", print):
            pass
        assert install_command("ray") in caught.value.hint


def record(folder: Path, address: str) -> Path:
    """Write what `ray start --head` writes."""
    path = folder / "ray" / "ray_current_cluster"
    path.parent.mkdir()
    path.write_text(address)
    return path


class TestDeferredSignals:
    def test_a_signal_is_delivered_after_the_body_and_handlers_are_restored(self):
        received = []
        earlier = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
        try:
            with deferred_signals():
                signal.raise_signal(signal.SIGTERM)
                assert received == []
                signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as `ray.init` replaces it
            assert received == [signal.SIGTERM]
        finally:
            signal.signal(signal.SIGTERM, earlier)

    def test_a_second_signal_ends_the_process(self):
        code = (
            "import signal\nfrom page4d.signals import deferred_signals\nwith deferred_signals():\n"
            "    signal.raise_signal(signal.SIGTERM)\n    signal.raise_signal(signal.SIGTERM)\n    print('alive')"
        )
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
        assert (ended.returncode, ended.stdout) == (-signal.SIGTERM, b"")
