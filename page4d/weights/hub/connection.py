"""Requests to the hub, with the user's token and settings of `huggingface_hub`, but without its telemetry.

A hub that stays silent, or refuses, is an error in two lines after a bounded time.
"""

import threading
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from page4d import __version__
from page4d.errors import Page4DError, WeightsError, shortened
from page4d.weights.catalogue import RepositoryKind
from page4d.weights.hub.names import HubReference

TIMEOUT_S = 10.0
"""Seconds to wait for a connection, or for the next bytes."""

MAX_SILENCE_S = 20.0
"""Seconds after which a request without an answer is given up."""

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

    @property
    def host(self) -> str:
        """Host and port of the hub."""
        return urlsplit(endpoint()).netloc

    @property
    def page(self) -> str:
        """Address of the repository, for a browser."""
        prefix = "datasets/" if self.reference.kind is RepositoryKind.DATASET else ""
        return f"{endpoint()}/{prefix}{self.reference.repository}"

    @cached_property
    def client(self) -> Any:
        """The HTTP client, with proxies and certificates as `huggingface_hub` configures them."""
        from huggingface_hub.utils import get_session  # type: ignore[attr-defined]

        return get_session()

    @cached_property
    def headers(self) -> dict[str, str]:
        """Headers of all requests: a token, if the user has one, and no description of the machine."""
        from huggingface_hub import constants, get_token

        token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
        headers = {"user-agent": f"page4d/{__version__}", "accept-encoding": "identity"}
        return headers | ({"authorization": f"Bearer {token}"} if token else {})

    @cached_property
    def broken(self) -> type[Exception]:
        """Base class of the client's errors of the network: httpx in release 1 of `huggingface_hub`, then httpx2."""
        package = import_module(type(self.client).__module__.partition(".")[0])
        error: type[Exception] = package.TransportError
        return error

    def read_json(self, url: str) -> Any:
        """Return the JSON document at an address.

        Raises:
            WeightsError: if the hub does not answer in `MAX_SILENCE_S`, or refuses.
        """
        answered: list[Any] = []

        def ask() -> None:
            try:
                answered.append(self.client.get(url, headers=self.headers, timeout=TIMEOUT_S))
            except Exception as error:
                answered.append(error)

        # In a thread: the client limits every step of a request, but not the name lookup, nor a trickle of bytes.
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(MAX_SILENCE_S)
        if not answered:
            raise self.unreachable(TimeoutError(f"no answer in {MAX_SILENCE_S:.0f} s"))
        answer = answered[0]
        if isinstance(answer, self.broken):
            raise self.unreachable(answer) from answer
        if isinstance(answer, Exception):
            raise answer
        if answer.status_code != OK:
            raise self.refused(answer)
        try:
            return answer.json()
        except ValueError as error:
            raise WeightsError(
                f"{self.host} did not answer as a hub does: its answer is not JSON",
                "check HF_ENDPOINT, and the proxy or login page of this network",
            ) from error

    def unreachable(self, error: Exception) -> Page4DError:
        """Return the error on a hub that cannot be reached or stays silent."""
        reason = shortened(str(error).strip().partition("\n")[0], 120) or type(error).__name__
        return WeightsError(
            f"cannot fetch weights '{self.reference.name}': {self.host} is unreachable ({reason})",
            f"try again later, or {self.by_hand()}",
        )

    def refused(self, response: Any) -> Page4DError:
        """Return the error on an answer without content."""
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
        if code == "EntryNotFound":
            return WeightsError(
                f"{what}: {self.reference.repository} has no file '{self.reference.file}'",
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
        return f"get {what} on another machine and pass the file: --weights FILE"
