"""A hub, or settings of the network, that are broken or hostile: errors in two lines, and no token in them."""

import json
from typing import Any

import pytest
from huggingface_hub import constants

from page4d.errors import WeightsError
from page4d.weights.resolve import find_weights
from tests.weights import hub_server
from tests.weights.hub_server import COMMIT, HubServer, Repository

pytestmark = pytest.mark.usefixtures("hub")

NAME = "hf:lab/net"
FILE = {"rfilename": "model.safetensors", "size": 4, "blobId": "a" * 40}


def listing(**changes: Any) -> bytes:
    return json.dumps({"sha": COMMIT, "siblings": [FILE | changes]}).encode()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        *(
            ((200, content, {}), "no answer of a hub")
            for content in (
                b"[" * 100_000,
                b'{"a":' * 100_000,
                b"<html>login</html>",
                b"\xff\xfe{}",
                b"9" * 10_000,
                b"[1, 2]",
                json.dumps({"sha": "../../x", "siblings": []}).encode(),
                json.dumps({"sha": COMMIT, "siblings": "ab"}).encode(),
                json.dumps({"sha": COMMIT, "siblings": [None]}).encode(),
                listing(size=-1),
                listing(size=10**30),
                listing(size=True),
                listing(size=float("inf")),
                listing(size=None),
                listing(lfs="x"),
                listing(lfs={"sha256": "../x"}),
                listing(rfilename="\ud800.safetensors"),
                listing(rfilename=None),
            )
        ),
        ((302, b"{}", {"location": "/api/models/lab/net/revision/main"}), "redirect"),
        ((302, b"{}", {"location": "file:///etc/passwd"}), "unsupported protocol"),
        ((200, b"{}", {"content-encoding": "gzip"}), "decompressing"),
    ],
    ids=lambda value: value[1][:60].decode(errors="replace") if isinstance(value, tuple) else value,
)
def test_answers_of_no_hub(answer: tuple[Any, ...], message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(hub_server._Handler, "_describe", lambda self, _: self._answer(*answer))
    with pytest.raises(WeightsError, match=message):
        find_weights(NAME)


def test_a_missing_file_is_named(hub: HubServer, monkeypatch: pytest.MonkeyPatch):
    hub.repositories["lab/net"] = Repository({"model.safetensors": b"abc"})
    monkeypatch.setattr(hub_server._Handler, "_send", lambda self, _: self._answer(404, b"", {}))
    with pytest.raises(WeightsError, match=r"lab/net has no file 'model\.safetensors'"):
        find_weights(NAME)


@pytest.mark.parametrize("token", ["hf_S\u00c9CRET", "hf_SEC RET", "hf_SEC\x01RET"])
def test_a_token_that_cannot_be_sent_is_not_shown(token: str, hub: HubServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(WeightsError, match="token for the hub has blanks") as caught:
        find_weights(NAME)
    assert "hf_S" not in caught.value.message + caught.value.hint
    assert not hub.requests


@pytest.mark.parametrize(
    "address",
    ["localhost", "", "ftp://x", "http://[::1", "http://127.0.0.1:99999", "http://127.0.0.1:abc", "http://a/\x1b"],
)
def test_an_endpoint_that_is_no_address(address: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "ENDPOINT", address)
    with pytest.raises(WeightsError, match="cannot fetch weights"):
        find_weights(NAME)


def test_a_login_in_the_endpoint_is_used_and_not_shown(hub: HubServer, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(constants, "ENDPOINT", f"http://user:secret@127.0.0.1:{hub.server_port}")
    seen: list[str | None] = []

    def describe(self: Any, _: str) -> None:
        seen.append(self.headers.get("authorization"))
        self._answer(500, b"", {})

    monkeypatch.setattr(hub_server._Handler, "_describe", describe)
    with pytest.raises(WeightsError) as caught:
        find_weights(NAME)
    assert "secret" not in caught.value.message + caught.value.hint
    assert str(seen[0]).startswith("Basic ")


@pytest.mark.parametrize(("name", "value"), [("HTTP_PROXY", "ftp://x"), ("HTTP_PROXY", "http://[::1")])
def test_settings_of_the_network_that_are_not_usable(name: str, value: str, monkeypatch: pytest.MonkeyPatch):
    from huggingface_hub import close_session

    close_session()
    monkeypatch.setenv(name, value)
    with pytest.raises(WeightsError, match="settings of the network"):
        find_weights(NAME)
    close_session()
