"""Folders that appear complete or not at all."""

import errno
import os
import shutil
import signal
from pathlib import Path
from unittest.mock import Mock

import pytest

from page4d.errors import OutputError, UsageError
from page4d.io.folders import staged_folder, write_file


def test_a_folder_appears_when_the_body_ends(tmp_path: Path) -> None:
    target = tmp_path / "a" / "out"
    with staged_folder(target) as staged:
        write_file(staged / "deep" / "file", b"1")
        assert not target.exists()
    assert (target / "deep" / "file").read_bytes() == b"1"
    assert [path.name for path in target.parent.iterdir()] == ["out"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ValueError])
def test_a_failure_leaves_the_older_folder_and_nothing_else(tmp_path: Path, failure: type[BaseException]) -> None:
    target = tmp_path / "out"
    write_file(target / "old", b"1")

    def fail() -> None:
        with staged_folder(target, replace=True) as staged:
            write_file(staged / "new", b"2")
            raise failure

    with pytest.raises(failure):
        fail()
    assert [path.name for path in target.iterdir()] == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_link_is_followed(tmp_path: Path) -> None:
    write_file(tmp_path / "there" / "old", b"1")
    (tmp_path / "out").symlink_to("there")
    with staged_folder(tmp_path / "out", replace=True) as staged:
        write_file(staged / "new", b"2")
    assert (tmp_path / "out").is_symlink()
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["new"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "there"]


def test_a_folder_that_another_process_wrote_meanwhile_is_kept(tmp_path: Path) -> None:

    def export() -> None:
        with staged_folder(tmp_path / "out") as staged:
            write_file(staged / "new", b"2")
            write_file(tmp_path / "out" / "other", b"1")

    with pytest.raises(UsageError, match="not empty any more"):
        export()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["other"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_file_system_error_names_the_target(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot write"), staged_folder(tmp_path / "file" / "out"):
        pass
    monkeypatch.setattr(Path, "open", Mock(side_effect=OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(OutputError, match=f"'{tmp_path}/out/new': disk full"), staged_folder(tmp_path / "out") as new:
        write_file(new / "new", b"1")


def test_an_error_of_the_body_is_not_taken_for_one_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(BlockingIOError), staged_folder(tmp_path / "out"):
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    assert not list(tmp_path.iterdir())


def test_a_signal_at_the_creation_of_the_temporary_folder_leaves_nothing(tmp_path: Path, monkeypatch) -> None:
    create = Path.mkdir

    def interrupted(path: Path, *arguments: object, **options: object) -> None:
        create(path, *arguments, **options)
        if path.name.endswith(".part"):
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt), staged_folder(tmp_path / "out"):
        pass
    assert not list(tmp_path.iterdir())


def test_a_signal_during_the_exchange_of_folders_waits_for_its_end(tmp_path: Path, monkeypatch) -> None:
    delete = shutil.rmtree

    def interrupted(path: Path, **options: bool) -> None:
        if path.exists():
            signal.raise_signal(signal.SIGINT)
        delete(path, **options)

    write_file(tmp_path / "out" / "old", b"1")
    monkeypatch.setattr("page4d.io.folders.shutil.rmtree", interrupted)
    with pytest.raises(KeyboardInterrupt), staged_folder(tmp_path / "out", replace=True) as staged:
        write_file(staged / "new", b"2")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
