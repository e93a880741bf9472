"""Texts that users take for names of weights, and folders of caches that do not exist."""

import os
import pwd
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

import page4d
from page4d.errors import OutputError, UsageError, WeightsError
from page4d.io.atomic import NO_CACHE
from page4d.io.folders import cache_folder, check_space
from page4d.rig.people import model
from page4d.weights.file_type import first_bytes
from page4d.weights.names import parse_weights, read_pin
from page4d.weights.resolve import converted_files, find_weights
from page4d.weights.wheels import PEOPLE, fetch_model


@pytest.mark.parametrize("text", ["s3://a/b.pt", "HTTPS://huggingface.co/a/b", "file:///a.safetensors"])
def test_addresses_of_any_scheme_are_refused(text: str):
    with pytest.raises(UsageError, match="are a web address"):
        parse_weights(text)


@pytest.mark.parametrize("given", ["", " ", 3, True, b"da3-small", ["da3-small"]])
def test_other_types_and_blanks_are_refused(given: Any):
    with pytest.raises(UsageError, match="not a name or a path"):
        page4d.load(given)


def test_a_broken_link_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("net").symlink_to("missing")
    assert parse_weights("net") == Path("net")
    with pytest.raises(WeightsError, match="do not exist"):
        first_bytes(Path("net"))


@pytest.mark.parametrize(("text", "named"), [("lab/net", True), ("runs/net.pt", False), ("/a", False)])
def test_a_missing_path_may_be_a_repository(text: str, named: bool):
    with pytest.raises(WeightsError, match="do not exist") as caught:
        first_bytes(Path(text))
    assert (f"give hf:{text};" in caught.value.hint) is named


def test_a_long_name_is_shortened():
    with pytest.raises(UsageError) as caught:
        find_weights("x" * 5000)
    assert len(caught.value.message) < 200
    assert "choose from mv-demo, da3-small" in caught.value.hint


def test_a_relative_cache_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    assert cache_folder() == tmp_path / ".cache" / "page4d"


@pytest.mark.parametrize("home", [None, "", "relative", "/dev/null"], ids=["unset", "empty", "relative", "no folder"])
def test_without_a_folder_for_caches_only_what_must_be_kept_fails(home: str | None, monkeypatch: pytest.MonkeyPatch):
    """Containers run under user ids without an entry in the list of users."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if home is None:
        monkeypatch.delenv("HOME")
        monkeypatch.setattr(pwd, "getpwuid", Mock(side_effect=KeyError))
    else:
        monkeypatch.setenv("HOME", home)
    # "/.cache" can be created by this user in some places; no other folder is tried.
    monkeypatch.setattr(os, "access", lambda path, mode: not mode & os.W_OK and Path(path).is_dir())
    assert cache_folder() == NO_CACHE
    assert read_pin(parse_weights("da3-small")) is None
    assert not model.is_fetched()
    assert [*converted_files()] == []
    for write in (lambda: fetch_model(PEOPLE), lambda: check_space({cache_folder() / "weights": 1}, "it")):
        with pytest.raises(OutputError, match="there is no folder for caches") as caught:
            write()
        assert "XDG_CACHE_HOME" in caught.value.hint
