"""Connection to a Ray cluster: an existing one, or one of this machine that only its user can reach.

Processes that Ray started and did not end are ended.

Ray executes what its ports receive. A cluster that this module starts listens on loopback addresses only, requires a
random token, and keeps its sockets and logs in a folder of mode 0700 that is removed with it.
"""

import contextlib
import functools
import importlib
import ipaddress
import os
import re
import secrets
import shutil
import signal
import socket
import stat
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from page4d.errors import CapabilityError, InterruptedRunError, Level, Notice, Notify, Stopped, UsageError
from page4d.installation import install_command
from page4d.signals import deferred_signals

_SECONDS = 5.0
"""Time in which killed processes must end."""


@contextmanager
def ended_if_it_fails() -> Iterator[None]:
    """Kill the processes that the body started, and theirs, if it raises. Without /proc nothing is killed."""
    before = descendants()
    try:
        yield
    except BaseException:
        until = time.monotonic() + _SECONDS
        while (started := descendants() - before) and time.monotonic() < until:
            for process in started:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                with contextlib.suppress(ChildProcessError):  # not a child of this process, or already reaped
                    os.waitpid(process, os.WNOHANG)
            time.sleep(0.02)
        raise


def descendants(process: int | None = None) -> set[int]:
    """Return the children of a process, by default of this one, their children, and so on; needs /proc."""
    children = defaultdict(list)
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name in parentheses may contain anything; state and parent follow. Source: proc(5).
            state, parent = status.read_text(errors="replace").rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue  # it has ended
        if state != "Z":
            children[int(parent)].append(int(status.parent.name))
    found: set[int] = set()
    waiting = [os.getpid() if process is None else process]
    while waiting:
        for child in children[waiting.pop()]:
            found.add(child)
            waiting.append(child)
    return found


_OLDEST_WITH_TOKENS = (2, 52)
"""Version of Ray that introduced authentication. Source: docs.ray.io, "Ray token authentication"."""

_LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Makes all servers of a new cluster listen on 127.0.0.1, as they do on macOS; read when Ray is imported.

The parameter `_node_ip_address="127.0.0.1"` does not: Ray replaces it by the address of the network interface.
Source: ray/_private/services.py, get_node_ip_address and resolve_ip_for_localhost (Ray 2.52 to 2.60).
"""

_DEFAULT_FOLDER = "/tmp"  # noqa: S108 (that of Ray; what is made in it is private, what is read there is checked)

_REACH_SECONDS = 10
_LONGEST_SOCKET_PATH = 107
_SOCKET_IN_FOLDER = "/r/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
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
    """Connect to a cluster while the body runs; without an address to one on this machine, started if necessary.

    A process that is connected already stays with its cluster.

    Raises:
        CapabilityError: if Ray is not installed, is too old, or the cluster is not reachable.
        InterruptedRunError: if a signal came meanwhile.
    """
    connected = sys.modules.get("ray")
    if connected is not None and connected.is_initialized():
        yield connected
        return
    existing = _Existing(address, "⟨distributed⟩") if address else _named_cluster(notify)
    with _joined(existing, notify) if existing else local_cluster() as ray:
        yield ray


@contextmanager
def local_cluster(num_cpus: int | None = None) -> Iterator[Any]:
    """Run a cluster on this machine for this process, with workers on all CPUs or on a number of them.

    Raises:
        CapabilityError: if Ray is not installed, cannot be restricted to this machine, or does not start.
        InterruptedRunError: if a signal came meanwhile.
    """
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": _token()}
    with _environment(_LOOPBACK_ONLY | secret), _private_folder() as folder:
        ray = _imported()
        _check_restricted(ray)
        options = {"address": "local", "include_dashboard": False, "num_cpus": num_cpus, "_temp_dir": f"{folder}/r"}
        with _initialized(ray, options, "no Ray cluster on this machine", "run without ⟨distributed=ray⟩"):
            yield ray


@dataclass(frozen=True)
class _Existing:
    """Address of an existing cluster, and the option, variable or file that names it."""

    address: str
    named_by: str
    recorded_here: bool = False
    """Whether `ray start` recorded it on this machine."""

    def check_reachable(self) -> None:
        """Check that a server of gRPC answers, within seconds: Ray itself retries for minutes."""
        host, _, port = self.address.removeprefix("ray://").rpartition(":")
        hint = "start it with `ray start --head`, or correct the address"
        if self.named_by != "⟨distributed⟩":
            hint += "; RAY_ADDRESS=local starts a cluster for this run"
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


def _named_cluster(notify: Notify) -> _Existing | None:
    """Return the cluster that RAY_ADDRESS names, or the one that `ray start` recorded on this machine."""
    address = os.environ.get("RAY_ADDRESS", "")
    if address == "local":
        return None
    if address not in ("", "auto"):
        return _Existing(address, "RAY_ADDRESS")
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
    return _Existing(address, f"'{path}'", recorded_here=True) if address else None


@contextmanager
def _joined(existing: _Existing, notify: Notify) -> Iterator[Any]:
    existing.check_reachable()
    notify(Notice(f"joining the Ray cluster at {existing.address} ({existing.named_by})", Level.STEP))
    file = None if os.environ.get("RAY_AUTH_TOKEN") else _token_file()
    if file is not None and stat.S_IMODE(file.stat().st_mode) & 0o077:
        notify(Notice(f"other users can read the token of Ray in '{file}'; run `chmod 600 '{file}'`"))
    # As Ray does for the cluster that `ray start` recorded; a token is never sent to other addresses unasked.
    with_token = existing.recorded_here and "RAY_AUTH_MODE" not in os.environ
    with_token = with_token and (file is not None or bool(os.environ.get("RAY_AUTH_TOKEN")))
    with _environment({"RAY_AUTH_MODE": "token"} if with_token else {}):
        ray = _imported()
        failure = f"no Ray cluster at {existing.address} ({existing.named_by})"
        hint = "check the address, the version of Ray (`ray --version`) and the token (RAY_AUTH_TOKEN) of the cluster"
        with _initialized(ray, {"address": existing.address}, failure, hint):
            yield ray


@contextmanager
def _initialized(ray: Any, options: dict[str, Any], failure: str, hint: str) -> Iterator[None]:
    """Connect this process while the body runs."""
    try:
        # Ray replaces the handler of SIGTERM by one that raises SystemExit, and may leave processes behind.
        with deferred_signals(), ended_if_it_fails():
            ray.init(**options, log_to_driver=False, configure_logging=False)
    except SystemExit as end:
        raise InterruptedRunError("interrupted", "", signal.SIGTERM) from end
    except (Stopped, InterruptedRunError, KeyboardInterrupt):  # a deferred signal
        ray.shutdown()
        raise
    except Exception as error:  # Ray documents no types: it raises those of sockets and gRPC, and RuntimeError
        raise CapabilityError(f"{failure}: {first_line(error)}", hint) from error
    with contextlib.redirect_stdout(sys.stderr):  # Ray prints its messages to stdout, which is for results
        try:
            yield
        finally:
            ray.shutdown()


def _imported() -> Any:
    """Return the module of Ray."""
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError) and error.name == "ray"
        found = "⟨distributed=ray⟩ needs Ray" if missing else f"Ray cannot be imported: {first_line(error)}"
        raise CapabilityError(found, f"install it: {install_command('ray')}") from error


def _check_restricted(ray: Any) -> None:
    """Check that a new cluster can be closed to other machines and other users."""
    join = "or start a cluster with `ray start --head`, which this run then joins"
    version = tuple(int(part) for part in re.findall(r"\d+", ray.__version__)[:2])
    if version < _OLDEST_WITH_TOKENS:
        oldest = ".".join(map(str, _OLDEST_WITH_TOKENS))
        raise CapabilityError(
            f"Ray {ray.__version__} cannot authenticate: every user of this machine could run code in the cluster",
            f"install Ray {oldest} or newer, {join}",
        )
    address = ray.util.get_node_ip_address()
    if not ipaddress.ip_address(address).is_loopback:
        raise CapabilityError(
            f"Ray {ray.__version__} would listen on {address}, not on this machine alone",
            f"install the version of Ray in constraints.txt, {join}",
        )


@functools.cache
def _token() -> str:
    """Return the token of the clusters of this process; Ray caches the first one."""
    return secrets.token_hex(32)


def _token_file() -> Path | None:
    try:
        path = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or "~/.ray/auth_token").expanduser()
    except RuntimeError:  # the user has no home folder
        return None
    return path if path.is_file() else None


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process and of those that it starts while the body runs."""
    earlier = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in earlier.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _private_folder() -> Iterator[str]:
    """Create a folder that only this user can enter, short enough for the names of sockets, and remove it."""
    room = _LONGEST_SOCKET_PATH - len(_SOCKET_IN_FOLDER) - len("/ray-12345678")
    for parent in (tempfile.gettempdir(), _DEFAULT_FOLDER):
        if len(os.fsencode(parent)) > room:
            continue
        try:
            folder = tempfile.mkdtemp(prefix="ray-", dir=parent)
        except OSError:
            continue
        break
    else:
        raise CapabilityError(
            f"Ray has no folder for its sockets: '{tempfile.gettempdir()}' is too long or not writable",
            f"set TMPDIR to a writable folder with a path of at most {room} bytes",
        )
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def first_line(error: BaseException) -> str:
    """Return the first line of an error; the last one too, if a heading with a trace below it."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{lines[0]} {lines[-1]}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
