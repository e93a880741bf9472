"""`page4d report`: tables on the terminal, JSON, and errors."""

import json
from pathlib import Path

import pytest

from page4d_cli.app import run
from tests.quality.runs_without_truth import write_run


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    return write_run(tmp_path_factory.mktemp("report"))


def test_tables_have_every_view_and_pair(folders: tuple[Path, Path], capsys):
    scene, out = folders
    assert run(["report", str(out), "--scene", str(scene)]) == 0
    printed = capsys.readouterr().out
    assert "cam01 > cam02" in printed
    assert "grade" in printed
    assert "change first" in printed


def test_json_has_the_grade(folders: tuple[Path, Path], capsys):
    assert run(["report", str(folders[1]), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["grade"]["letter"] in "ABCDE"
    assert len(document["views"]) == 3


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert run(["report", str(tmp_path)]) == 3
    error = capsys.readouterr().err
    assert "run.json is missing" in error
    assert len(error.strip().splitlines()) == 2


def test_an_unwritable_page_is_refused_before_the_work(folders: tuple[Path, Path], tmp_path, capsys):
    assert run(["report", str(folders[1]), "--html", str(tmp_path)]) in (2, 5)
    assert len(capsys.readouterr().err.strip().splitlines()) == 2
