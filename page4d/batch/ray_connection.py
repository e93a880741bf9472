"""Connection to a Ray cluster that the user has started.

Ray executes what its ports receive: a cluster that another user recorded on this machine is not joined.
"""

import os
import re
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from page4d.errors import CapabilityError, InterruptedRunError, Level, Notice, Notify, Stopped, UsageError
from page4d.installation import require_extra
from page4d.signals import deferred_signals

_START = "start one with `ray start --head`"
_DEFAULT_FOLDER = "/tmp"  # noqa: S108 (that of Ray; what is read there is checked)
_REACH_SECONDS = 10
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""What a client of HTTP/2 sends first, with an empty SETTINGS frame. Source: RFC 9113, 3.4."""

_SETTINGS_FRAME = 4


def parse_distributed(text: str) -> str:
    """Parse `ray[://HOST:PORT]` into an address, which is empty for the cluster of this machine.

    Raises:
        UsageError: if it is anything else.
    """
    if text == "ray":
        return ""
    found = re.fullmatch(r"ray://(?:\[[0-9a-fA-F:.]+\]|[\w.-]+):([0-9]{1,5})", text, re.ASCII)
    if found is None or not 0 < int(found[1]) < 65536:
        raise UsageError(f"⟨distributed='{text}'⟩ is not a Ray cluster", "give ray or ray://HOST:PORT")
    return text


@contextmanager
def joined_cluster(address: str, notify: Notify) -> Iterator[Any]:
    """Connect to a cluster while the body runs; without an address to that of RAY_ADDRESS, or of this machine.

    A process that is connected already stays with its cluster.

    Raises:
        CapabilityError: if Ray is not installed, or there is no cluster, or it is not reachable.
        InterruptedRunError: if a signal came meanwhile.
    """
    connected = sys.modules.get("ray")
    if connected is not None and connected.is_initialized():
        yield connected
        return
    cluster = _Cluster(address, "⟨distributed⟩") if address else _named_cluster(notify)
    if cluster is not None and cluster.is_recorded_here and _has_token():
        # As Ray does for the cluster that `ray start` recorded, for the rest of the process: Ray reads it once.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
    require_extra("ray", "⟨distributed=ray⟩")
    if cluster is None:
        raise CapabilityError(
            "⟨distributed=ray⟩, but no Ray cluster of yours runs on this machine, and RAY_ADDRESS names none",
            f"{_START}; ⟨jobs⟩ reconstructs several scenes at once without a cluster",
        )
    cluster.check_reachable()
    notify(Notice(f"joining the Ray cluster at {cluster.address} ({cluster.named_by})", Level.STEP))
    ray = import_module("ray")
    try:
        with deferred_signals():  # Ray replaces the handler of SIGTERM by one that raises SystemExit
            ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    except SystemExit as end:
        raise InterruptedRunError(signal_number=signal.SIGTERM) from end
    except (Stopped, InterruptedRunError, KeyboardInterrupt):  # a deferred signal
        ray.shutdown()
        raise
    except Exception as error:  # Ray documents no types: it raises those of sockets and gRPC, and RuntimeError
        raise CapabilityError(
            f"no Ray cluster at {cluster.address} ({cluster.named_by}): {first_line(error)}",
            "check the address, the version of Ray (`ray --version`) and the token (RAY_AUTH_TOKEN) of the cluster",
        ) from error
    with redirect_stdout(sys.stderr):  # Ray prints its messages to stdout, which is for results
        try:
            yield ray
        finally:
            ray.shutdown()


@dataclass(frozen=True)
class _Cluster:
    """Address of a cluster, and the option, variable or file that names it."""

    address: str
    named_by: str
    is_recorded_here: bool = False
    """Whether `ray start` recorded it on this machine."""

    def check_reachable(self) -> None:
        """Check that a server of gRPC answers, within seconds: Ray itself retries for minutes."""
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        hint = f"{_START}, or correct the address"
        if not (host and port.isdecimal() and 0 < int(port) < 65536):
            raise CapabilityError(f"{self.named_by}: '{self.address}' is not the address of a Ray cluster", hint)
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=_REACH_SECONDS) as connection:
                if os.environ.get("RAY_USE_TLS", "0") not in ("", "0"):
                    return
                connection.sendall(_HTTP2_PREFACE)
                answer = connection.recv(9)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or first_line(error)
            raise CapabilityError(f"no Ray cluster at {self.address} ({self.named_by}): {reason}", hint) from error
        if len(answer) < 4 or answer[3] != _SETTINGS_FRAME:
            raise CapabilityError(f"the server at {self.address} ({self.named_by}) is not a Ray cluster", hint)


def _named_cluster(notify: Notify) -> _Cluster | None:
    """Return the cluster that RAY_ADDRESS names, or the one that `ray start` recorded on this machine."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address not in ("", "auto"):
        return _Cluster(address, "RAY_ADDRESS")
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or _DEFAULT_FOLDER
    path = Path(folder, "ray", "ray_current_cluster")
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(handle, errors="replace") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return None
        # Anybody can write such a file, and a cluster can execute code here.
        if status.st_uid not in (0, os.getuid()):
            notify(Notice(f"the Ray cluster in '{path}' is of another user: not joined (set RAY_ADDRESS to join it)"))
            return None
        address = file.read(300).strip()
    return _Cluster(address, f"'{path}'", is_recorded_here=True) if address else None


def _has_token() -> bool:
    """Return whether the user has a token of Ray, in the environment or in a file."""
    file = os.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token")  # noqa: PTH111
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or Path(file).is_file()


def first_line(error: BaseException) -> str:
    """Return the first line of an error; the last one too, if a heading with a trace below it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
