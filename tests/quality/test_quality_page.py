"""The page of a report: complete in one file, with escaped names and pictures that can be decoded."""

import base64
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import cv2
import numpy as np
import pytest

from page4d.quality.page import inspect, page
from page4d_cli.app import run as command
from tests.quality.runs_without_truth import write_run


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return write_run(tmp_path_factory.mktemp("<b>page&"))


class Outline(HTMLParser):
    """Collects open tags, and fails on one that is closed out of order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self.count += 1
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_one_file_with_pictures(folders: tuple[Path, Path]) -> None:
    scene, out = folders
    text = page(inspect(out, scene))
    outline = Outline()
    outline.feed(text)
    assert outline.open == []
    assert not re.search(r"(?:src|href)=\"(?!data:image/png;base64,)", text)
    assert "http" not in text.replace("<!doctype html>", "")
    pictures = re.findall(r"data:image/png;base64,([^\"]+)", text)
    assert len(pictures) == 3 * 4  # picture, depth, agreement and flicker of three views
    for data in pictures:
        decoded = cv2.imdecode(np.frombuffer(base64.b64decode(data), np.uint8), cv2.IMREAD_COLOR)
        assert max(decoded.shape[:2]) == 236


def test_equal_runs_have_equal_pages(folders: tuple[Path, Path]) -> None:
    assert page(inspect(folders[1])) == page(inspect(folders[1]))


def test_names_are_escaped(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    out = tmp_path / "a <script> & co"
    out.symlink_to(folders[1])
    assert "<script>" not in page(inspect(out))


def test_the_command_writes_the_page_once(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    file = tmp_path / "q.html"
    arguments = ["report", str(folders[1]), "--html", str(file), "-q"]
    assert command(arguments) == 0
    first = file.read_bytes()
    assert command(arguments) == 2
    assert file.read_bytes() == first
    assert command([*arguments, "--overwrite", "--scene", str(folders[0])]) == 0
    assert file.read_bytes() != first


def test_the_command_prints_tables_or_json(folders: tuple[Path, Path], capsys) -> None:
    assert command(["report", str(folders[1]), "--scene", str(folders[0])]) == 0
    printed = capsys.readouterr().out
    assert all(text in printed for text in ("cam01 > cam02", "grade", "change first"))
    assert command(["report", str(folders[1]), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["grade"]["letter"] in "ABCDE", len(document["views"])) == (True, 3)


def test_a_page_that_cannot_be_written_costs_no_report(folders, tmp_path, capsys, file_size_limit) -> None:
    with file_size_limit(1000):
        assert command(["report", str(folders[1]), "--html", str(tmp_path / "q.html")]) == 5
    assert "\ngrade" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())
