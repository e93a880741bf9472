"""Files appear whole or not at all, and one process holds a folder."""

import contextlib
import errno
import fcntl
import hashlib
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from page4d.errors import OutputError
from page4d.io import atomic
from page4d.io.atomic import (
    LOCK_NAME,
    check_file,
    check_folder,
    claim_output,
    open_atomic,
    output_error,
    remove_stale_parts,
    write_bytes_atomic,
)


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_a_written_file_is_what_it_says(tmp_path):
    written = write_bytes_atomic(tmp_path / "a" / "b.bin", b"abc" * 1000)
    assert written.path.read_bytes() == b"abc" * 1000
    assert written.num_bytes == 3000
    assert written.sha256 == hashlib.sha256(b"abc" * 1000).hexdigest()
    assert files_below(tmp_path) == ["a/b.bin"]


def test_a_streamed_file_replaces_the_older_one_when_it_is_complete(tmp_path):
    target = tmp_path / "x"
    target.write_bytes(b"old")
    with open_atomic(target) as file:
        file.write(b"ne")
        assert target.read_bytes() == b"old"
        file.write(b"w")
    assert target.read_bytes() == b"new"
    with pytest.raises(TypeError), open_atomic(target) as file:
        file.writelines([b"half", None])
    assert target.read_bytes() == b"new"
    assert files_below(tmp_path) == ["x"]


def test_streamed_files_of_killed_processes_are_deleted_and_those_being_written_kept(tmp_path, monkeypatch):
    target, other = tmp_path / "x", tmp_path / ".y.0123abcd.part"
    killed, folder = tmp_path / ".x.0123abcd.part", tmp_path / ".x.0123abce.part"
    for path in (killed, other):
        path.write_bytes(b"half")
    folder.mkdir()
    created = tmp_path / ".x.0123abcf.part"
    created.touch()  # by a process that has not locked it yet
    empty = tmp_path / ".x.0123abd0.part"
    empty.touch()
    os.utime(empty, (0, time.time() - 7200))
    locked = Mock(wraps=fcntl.flock)
    monkeypatch.setattr(atomic.fcntl, "flock", locked)
    with open_atomic(target) as first, open_atomic(target) as second:
        first.write(b"first")
        second.write(b"second")
        assert not killed.exists()
        assert not empty.exists()
        assert created.exists()
    assert all(call.args[1] & fcntl.LOCK_NB for call in locked.mock_calls)
    files = [str(getattr(call.args[0], "name", "")) for call in locked.mock_calls]
    assert str(killed) in files
    assert str(created) not in files  # its process does not wait to lock it
    assert target.read_bytes() == b"first"
    assert other.exists()
    assert folder.is_dir()


def test_the_users_umask_decides_the_mode(tmp_path):
    before = os.umask(0o027)
    try:
        written = write_bytes_atomic(tmp_path / "x", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE(written.path.stat().st_mode) == 0o640


def test_a_link_is_replaced_and_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "x").symlink_to(precious)
    write_bytes_atomic(tmp_path / "out" / "x", b"new")
    assert precious.read_text() == "mine"
    assert not (tmp_path / "out" / "x").is_symlink()


def test_a_full_disk_leaves_the_old_file_and_no_half_one(tmp_path, file_size_limit):
    target = tmp_path / "x"
    target.write_bytes(b"old")
    message = r"cannot write to .*x': the file is larger than"
    with pytest.raises(OutputError, match=message) as caught, file_size_limit(100_000):
        write_bytes_atomic(target, bytes(1_000_000))
    assert caught.value.exit_code == 5
    assert caught.value.hint
    assert target.read_bytes() == b"old"
    assert files_below(tmp_path) == ["x"]


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_no_space_at_any_step_is_named(tmp_path, monkeypatch, call: str):
    monkeypatch.setattr(atomic.os, call, Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OutputError, match="disk full"):
        write_bytes_atomic(tmp_path / "x", b"abc")
    assert files_below(tmp_path) == []


def test_a_folder_in_the_way_leaves_nothing_behind(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(OutputError, match="a folder is in the way"):
        write_bytes_atomic(tmp_path / "x", b"abc")
    assert files_below(tmp_path) == []


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "disk full"),
        (errno.EDQUOT, "quota"),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
        (errno.EIO, os.strerror(errno.EIO)),
    ],
)
def test_each_reason_has_words_and_a_hint(number: int, words: str):
    error = output_error(OSError(number, os.strerror(number)), Path("out"))
    assert words in error.message
    assert "'out'" in error.message
    assert error.hint


@pytest.mark.parametrize("number", [errno.EINVAL, errno.EIO])
def test_folders_that_know_no_sync_are_no_failure(tmp_path, monkeypatch, number: int):
    real = os.fsync

    def files_only(handle: int) -> None:
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(number, os.strerror(number))
        real(handle)

    monkeypatch.setattr(atomic.os, "fsync", files_only)
    expected = pytest.raises(OutputError) if number == errno.EIO else contextlib.nullcontext()
    with expected:
        write_bytes_atomic(tmp_path / "x", b"abc")
    assert files_below(tmp_path) == ["x"]


def test_only_our_own_leftovers_are_removed(tmp_path):
    (tmp_path / "depth" / "cam01").mkdir(parents=True)
    (tmp_path / "other_run" / "points").mkdir(parents=True)
    stale = tmp_path / "depth" / "cam01" / ".frame_000000.png.0123abcd.part"
    stale.write_bytes(b"half")
    kept = ["notes.part", ".x.part", ".frame.png.0123ABCD.part", "depth/.frame.png.0123abcd.part2"]
    kept.append("other_run/points/.frame_000000.ply.0123abcd.part")
    for name in kept:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / ".link.0123abcd.part").symlink_to(tmp_path / "notes.part")
    assert remove_stale_parts(tmp_path, ["", "depth/*", "points"]) == (stale,)
    assert files_below(tmp_path) == sorted([*kept, ".link.0123abcd.part"])
    assert not stale.parent.exists()
    (tmp_path / "linked").symlink_to(tmp_path / "other_run")
    assert remove_stale_parts(tmp_path, ["linked/*"]) == (), "folders behind a link are those of another run"


def test_claiming_a_folder_makes_it_and_clears_leftovers(tmp_path):
    folder = tmp_path / "a" / "out"
    with claim_output(folder):
        assert files_below(folder) == [LOCK_NAME]
        assert (folder / LOCK_NAME).read_text().strip() == str(os.getpid())
    (folder / ".x.00000000.part").write_bytes(b"half")
    with contextlib.suppress(ValueError), claim_output(folder):
        assert files_below(folder) == [LOCK_NAME]
        raise ValueError
    assert (folder / LOCK_NAME).read_text() == ""


def test_a_second_process_is_refused_until_the_first_ends(tmp_path):
    program = (
        "import sys, pathlib; from page4d.io.atomic import claim_output\n"
        "with claim_output(pathlib.Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout.readline() == "held\n"
        expected = rf"'{tmp_path}' is in use by another page4d \(pid {process.pid}\)"
        with pytest.raises(OutputError, match=expected) as caught, claim_output(tmp_path):
            pass
        assert caught.value.exit_code == 5
        process.kill()
    with claim_output(tmp_path):
        pass


def test_a_file_or_a_path_below_a_file_cannot_be_claimed(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(OutputError, match=r"cannot write to .*it is a file"), claim_output(tmp_path / "f"):
        pass
    with pytest.raises(OutputError, match="a part of the path is a file"), claim_output(tmp_path / "f" / "out"):
        pass


def test_a_link_at_the_lock_is_not_followed(tmp_path):
    (tmp_path / LOCK_NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OutputError, match="a link is in the way"), claim_output(tmp_path):
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("number", "words"), [(errno.EACCES, "permission denied"), (errno.EROFS, "read-only")])
def test_a_folder_that_cannot_be_written_is_refused_before_any_work(tmp_path, monkeypatch, number: int, words: str):
    real = os.open

    def refuse(path: object, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL:
            raise OSError(number, os.strerror(number))
        return real(path, flags, mode)

    monkeypatch.setattr(atomic.os, "open", refuse)
    with pytest.raises(OutputError, match=f"cannot write to '{tmp_path}': .*{words}"), claim_output(tmp_path):
        pytest.fail("the body ran")


@pytest.mark.parametrize(
    ("flags", "words"), [(os.ST_RDONLY, "the file system is read-only"), (0, "permission denied")]
)
def test_a_read_only_file_system_is_not_taken_for_a_lack_of_permission(tmp_path, monkeypatch, flags: int, words: str):
    monkeypatch.setattr(atomic.os, "access", lambda *_: False)
    monkeypatch.setattr(atomic.os, "statvfs", lambda _: SimpleNamespace(f_flag=flags))
    with pytest.raises(OutputError, match=words):
        check_folder(tmp_path / "out")


@pytest.mark.parametrize(
    ("entries", "available", "words"),
    [(100, 0, r"holds no more files \(inodes\)"), (100, 1, "disk full"), (0, 0, "disk full")],
)
def test_a_disk_without_inodes_is_not_called_full(tmp_path, monkeypatch, entries: int, available: int, words: str):
    def of(folder: Path) -> SimpleNamespace:
        assert folder.is_dir()
        return SimpleNamespace(f_files=entries, f_favail=available)

    monkeypatch.setattr(atomic.os, "statvfs", of)
    error = output_error(OSError(errno.ENOSPC, "No space left on device"), tmp_path / "not created" / "x")
    with pytest.raises(OutputError, match=words):
        raise error


def test_a_file_system_without_locks_is_used_and_another_locking_error_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOTSUP, "Operation not supported")))
    with claim_output(tmp_path) as folder:
        assert folder == tmp_path
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.EIO, "Input/output error")))
    with pytest.raises(OutputError, match="Input/output error"), claim_output(tmp_path):
        pass


@pytest.mark.parametrize("call", ["open", "write", "fsync", "close"])
def test_a_signal_at_any_step_leaves_no_partial_file(tmp_path, monkeypatch, call: str):
    """Stop after the system call, when Python handles signals."""
    real = getattr(os, call)

    def stopping(*arguments: object) -> None:
        real(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(atomic.os, call, stopping)
    with pytest.raises(KeyboardInterrupt):
        write_bytes_atomic(tmp_path / "x", b"abc")
    monkeypatch.undo()
    assert files_below(tmp_path) == []


def test_a_signal_before_the_file_is_moved_leaves_no_partial_file(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_bytes_atomic(tmp_path / "x", b"abc")
    with pytest.raises(KeyboardInterrupt), open_atomic(tmp_path / "y") as file:
        file.write(b"abc")
    assert files_below(tmp_path) == []


TARGETS = {
    "file": "it is a file",
    "file/below": "a part of the path is a file",
    "loop": "a link is in the way",
    "loop/below": "a link is in the way",
    "dangling": "it is a link to nothing",
    "x" * 300: "too long",
    "x/" * 3000: "too long",
    "/dev/null": "it is not a folder",
    "a\0b": "null",
}


@pytest.mark.parametrize(("name", "reason"), TARGETS.items(), ids=lambda text: text[:20].replace("\0", "NUL"))
def test_a_folder_that_cannot_be_is_refused_with_its_reason(tmp_path, name: str, reason: str):
    (tmp_path / "file").write_text("")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = files_below(tmp_path)
    with pytest.raises(OutputError, match=reason):
        check_folder(tmp_path / name)
    assert files_below(tmp_path) == before


def test_a_possible_folder_is_not_created(tmp_path):
    for target in (tmp_path, tmp_path / "a" / "b", tmp_path / "new\nline", tmp_path / "s" / ".." / "t"):
        check_folder(target)
    check_file(tmp_path / "a" / "b.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "reason"), [("", "a folder is in the way"), ("file/x.png", "file"), ("y" * 300, "too long")]
)
def test_an_output_file_that_cannot_be_is_refused_with_its_reason(tmp_path, name: str, reason: str):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match=reason):
        check_file(tmp_path / name)


def test_a_full_disk_is_found_before_any_work(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic.os, "write", Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OutputError, match="disk full"):
        check_folder(tmp_path / "out")
    assert files_below(tmp_path) == []
