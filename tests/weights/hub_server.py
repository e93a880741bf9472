"""A server on 127.0.0.1 with the interface of the hub: files by range, refusals, failures."""

import hashlib
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "c0ffee" + "0" * 34
TOKEN = "hf_test"  # not a secret


@dataclass
class Repository:
    """Files by name at one commit; those in `small` are stored in git, by SHA-1."""

    files: dict[str, bytes]
    commit: str = COMMIT
    gated: bool = False
    small: frozenset[str] = frozenset({"config.json"})
    announced: dict[str, bytes] = field(default_factory=dict)
    """Content whose digest is stated in place of that of the file."""

    def digest(self, name: str) -> str:
        """The digest that is stated of a file."""
        content = self.announced.get(name, self.files[name])
        if name in self.small:
            return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return hashlib.sha256(content).hexdigest()

    def sibling(self, name: str) -> dict[str, object]:
        size, digest = len(self.announced.get(name, self.files[name])), self.digest(name)
        lfs = None if name in self.small else {"sha256": digest, "size": size, "pointerSize": 134}
        return {"rfilename": name, "size": size, "blobId": "0" * 40, "lfs": lfs}


class HubServer(ThreadingHTTPServer):
    """Serves `repositories` by identifier; `break_after` cuts each transfer off after so many bytes."""

    daemon_threads = True
    repositories: dict[str, Repository]

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories = {}
        self.requests: list[tuple[str, str | None]] = []
        """Path and range of every request; paths of HEAD begin with that word."""

        self.agents: set[str] = set()
        self.break_after: int | None = None
        self.breaks = 0
        """How many transfers are cut off."""

        self.status: int | None = None
        """The answer to everything, if set."""

        self.silent = threading.Event()
        """While it is set, requests are accepted and never answered."""

        self.ended = threading.Event()

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def ranges(self) -> list[str | None]:
        """The ranges of the requests for content."""
        return [given for path, given in self.requests if path.startswith("/") and "/resolve/" in path]

    def handle_error(self, *_: object) -> None:
        """Ignore clients that left."""


class _Handler(BaseHTTPRequestHandler):
    server: HubServer
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._respond("HEAD ")

    def do_GET(self) -> None:
        self._respond("")

    def _respond(self, method: str) -> None:
        path = unquote(urlsplit(self.path).path)
        self.server.requests.append((method + path, self.headers.get("range")))
        self.server.agents.add(self.headers.get("user-agent", ""))
        if self.server.silent.is_set():
            self.server.ended.wait(30)
            return
        if self.server.status is not None:
            self._refuse(self.server.status, "")
            return
        (self._describe if path.startswith("/api/") else self._send)(path.removeprefix("/datasets"))

    def log_message(self, *_: object) -> None:
        pass

    def _describe(self, path: str) -> None:
        _, _, kind, owner, name, _, revision = path.split("/", 6)
        repository = self.server.repositories.get(f"{owner}/{name}")
        if repository is None:
            self._refuse(401, "RepoNotFound")
        elif revision not in ("main", repository.commit):
            self._refuse(404, "RevisionNotFound")
        else:
            siblings = [repository.sibling(file) for file in repository.files]
            text = json.dumps({"id": f"{owner}/{name}", "sha": repository.commit, "siblings": siblings, "kind": kind})
            self._answer(200, text.encode(), {"content-type": "application/json"})

    def _send(self, path: str) -> None:
        owner, name, _, commit, file = path[1:].split("/", 4)
        repository = self.server.repositories[f"{owner}/{name}"]
        assert commit == repository.commit
        if repository.gated and self.headers.get("authorization") != f"Bearer {TOKEN}":
            self._refuse(401, "GatedRepo")
            return
        if file not in repository.files:
            self._refuse(404, "EntryNotFound")
            return
        content = repository.files[file]
        given = self.headers.get("range")
        begin = int(given.removeprefix("bytes=").removesuffix("-")) if given else 0
        headers = {"x-repo-commit": commit, "etag": f'"{repository.digest(file)}"'}
        if given:
            headers["content-range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
        rest = content[begin:]
        if self.server.break_after is not None and self.server.breaks > 0 and self.command == "GET":
            self.server.breaks -= 1
            self._head(206 if given else 200, len(rest), headers)
            self.wfile.write(rest[: self.server.break_after])
            self.wfile.flush()
            self.close_connection = True
            return
        self._answer(206 if given else 200, rest, headers)

    def _refuse(self, status: int, code: str) -> None:
        self._answer(status, b"refused", {"x-error-code": code} if code else {})

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self._head(status, len(content), headers)
        if self.command == "GET":
            self.wfile.write(content)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(length)}.items():
            self.send_header(name, value)
        self.end_headers()


@contextmanager
def running_hub() -> Iterator[HubServer]:
    """Run a server until the body ends."""
    server = HubServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.ended.set()
        server.shutdown()
        server.server_close()


def refuse_other_hosts(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Make every connection fail that does not go to this server, or to a closed port of this machine."""
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: tuple[str, int]) -> None:
        assert address in (("127.0.0.1", port), ("127.0.0.1", 1)), f"a request to {address}"
        connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded)
