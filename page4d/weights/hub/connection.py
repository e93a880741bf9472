"""Requests to the hub, with the user's token and settings of `huggingface_hub`, but without its telemetry.

A hub that stays silent, or refuses, is an error in two lines after a bounded time.
"""

import re
import threading
import time
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from page4d import __version__
from page4d.errors import Page4DError, WeightsError, shortened
from page4d.io.documents import DocumentError, parse_json
from page4d.weights.catalogue import RepositoryKind
from page4d.weights.hub.names import HubReference

TIMEOUT_S = 10.0
"""Seconds to wait for a connection, or for the next bytes."""

MAX_SILENCE_S = 20.0
"""Seconds after which a request without an answer is given up."""

_MAX_ANSWER_BYTES = 64 * 2**20
"""Largest list of files that is read; that of 20,000 files has about 5 MB."""

_CHECK_NETWORK = "check HF_ENDPOINT, and the proxy or login page of this network"

_VISIBLE = re.compile(r"[!-~]+")

OK, PARTIAL = 200, 206
_DENIED = (401, 403)
_MISSING = 404


def is_offline() -> bool:
    """Return whether the user has switched requests off, with HF_HUB_OFFLINE."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def endpoint() -> str:
    """Return the address of the hub: that of HF_ENDPOINT, if it is set."""
    from huggingface_hub import constants

    return str(constants.ENDPOINT)


@dataclass(frozen=True)
class Connection:
    """Requests on behalf of a reference, which errors name."""

    reference: HubReference

    @cached_property
    def host(self) -> str:
        """Host and port of the hub.

        Raises:
            WeightsError: if HF_ENDPOINT is not a web address.
        """
        return urlsplit(_without_login(endpoint())).netloc

    @property
    def page(self) -> str:
        """Address of the repository, for a browser."""
        return f"{_without_login(endpoint())}/{self._path}"

    @property
    def files(self) -> str:
        """Address of the repository, for requests."""
        return f"{endpoint()}/{self._path}"

    @property
    def _path(self) -> str:
        prefix = "datasets/" if self.reference.kind is RepositoryKind.DATASET else ""
        return f"{prefix}{self.reference.repository}"

    @cached_property
    def client(self) -> Any:
        """The HTTP client, with proxies and certificates as `huggingface_hub` configures them.

        Raises:
            WeightsError: if they are not usable.
        """
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

        try:
            return get_session()
        except Exception as error:  # of any kind: InvalidURL, ValueError, OSError, ImportError
            raise WeightsError(
                f"cannot fetch weights '{self.reference.name}': the settings of the network are not usable "
                f"({_reason(error)})",
                "check HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and SSL_CERT_FILE",
            ) from error

    @cached_property
    def headers(self) -> dict[str, str]:
        """Headers of all requests: a token, if the user has one, and no description of the machine.

        Raises:
            WeightsError: if the token cannot be sent; errors of the client would print it.
        """
        from huggingface_hub import constants, get_token

        token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
        if token and not _VISIBLE.fullmatch(token):
            raise WeightsError(
                "the token for the hub has blanks, control characters or characters beyond ASCII",
                "copy it again into HF_TOKEN, or log in with 'hf auth login'",
            )
        headers = {"user-agent": f"page4d/{__version__}", "accept-encoding": "identity"}
        return headers | ({"authorization": f"Bearer {token}"} if token else {})

    @cached_property
    def broken(self) -> tuple[type[Exception], ...]:
        """Errors of the client: those of httpx in release 1 of `huggingface_hub`, then of httpx2."""
        package = import_module(type(self.client).__module__.partition(".")[0])
        return package.RequestError, package.InvalidURL, UnicodeError

    def read_json(self, url: str) -> Any:
        """Return the JSON document at an address.

        Raises:
            WeightsError: if the hub does not answer in `MAX_SILENCE_S`, or refuses.
        """
        answered: list[bytes | Exception] = []
        self.headers, self.host, self.broken  # noqa: B018  errors of settings are raised here

        def ask() -> None:
            try:
                answered.append(self._content(url))
            except Exception as error:
                answered.append(error)

        # In a thread: the client limits every step of a request, but not the name lookup, nor a trickle of bytes.
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(MAX_SILENCE_S)
        answer: bytes | Exception = answered[0] if answered else TimeoutError(f"no answer in {MAX_SILENCE_S:.0f} s")
        if isinstance(answer, Exception) and isinstance(answer, (*self.broken, OSError)):
            raise self.unreachable(answer) from answer
        if isinstance(answer, Exception):
            raise answer
        try:
            return parse_json(answer.decode())
        except (DocumentError, UnicodeError) as error:
            raise self.no_hub("its answer is not JSON") from error

    def _content(self, url: str) -> bytes:
        """Return the content of an answer of bounded size."""
        content, end = bytearray(), time.monotonic() + MAX_SILENCE_S
        with self.client.stream("GET", url, headers=self.headers, timeout=TIMEOUT_S) as response:
            if response.status_code != OK:
                raise self.refused(response)
            for block in response.iter_bytes():
                content += block
                if len(content) > _MAX_ANSWER_BYTES:
                    raise self.no_hub(f"its answer has more than {_MAX_ANSWER_BYTES // 2**20} MB")
                if time.monotonic() > end:  # the caller has given up
                    raise TimeoutError
        return bytes(content)

    def no_hub(self, why: str) -> Page4DError:
        """Return the error on an answer that no hub gives."""
        return WeightsError(f"{self.host} did not answer as a hub does: {why}", _CHECK_NETWORK)

    def unreachable(self, error: Exception) -> Page4DError:
        """Return the error on a hub that cannot be reached or stays silent."""
        return WeightsError(
            f"cannot fetch weights '{self.reference.name}': {self.host} is unreachable ({_reason(error)})",
            f"try again later, or {self.by_hand()}",
        )

    def refused(self, response: Any, file: str | None = None) -> Page4DError:
        """Return the error on an answer without content, for a file or the whole repository."""
        what, status = f"weights '{self.reference.name}'", response.status_code
        code = response.headers.get("X-Error-Code", "")
        if code == "GatedRepo" or (status in _DENIED and code != "RepoNotFound"):
            return WeightsError(
                f"{what} are gated: {self.host} asks for permission ({status})",
                f"accept the licence on {self.page}, then log in with 'hf auth login' or set HF_TOKEN",
            )
        if code == "RevisionNotFound":
            return WeightsError(
                f"{what}: {self.reference.repository} has no revision '{self.reference.revision or 'main'}'",
                f"see {self.page}/commits/main",
            )
        if code == "EntryNotFound" or (file is not None and status == _MISSING and not code):
            return WeightsError(
                f"{what}: {self.reference.repository} has no file '{file or self.reference.file}'",
                f"see {self.page}/tree/main",
            )
        if code == "RepoNotFound" or status == _MISSING:
            return WeightsError(
                f"{what}: {self.host} has no repository {self.reference.repository}, or it is private ({status})",
                "check the name; for a private repository log in with 'hf auth login' or set HF_TOKEN",
            )
        return WeightsError(
            f"cannot fetch {what}: {self.host} answers with error {status}", f"try again later, or {self.by_hand()}"
        )

    def by_hand(self) -> str:
        """Return how to get the file without network."""
        where = f"{self.page}/resolve/{self.reference.revision or 'main'}/{self.reference.file}"
        what = where if self.reference.file else f"the weights of {self.page}"
        return f"get {what} on another machine and pass the file: ⟨weights=FILE⟩"


def _without_login(address: str) -> str:
    """Return an address without a name and a password, for messages.

    Raises:
        WeightsError: if it is not a web address.
    """
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or not _VISIBLE.fullmatch(address):
        shown = shortened(address.rpartition("@")[2])
        raise WeightsError(
            f"HF_ENDPOINT '{shown}' is not a web address", "give one such as https://huggingface.co, or unset it"
        )
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _reason(error: Exception) -> str:
    """Return the first line of an error, for a message."""
    return shortened(str(error).strip().partition("\n")[0], 120) or type(error).__name__
