"""Guarantees of runs: atomic files, one writer per folder, clean interruption, and resuming with the same bytes."""

import fcntl
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from page4d.errors import OutputError
from page4d.io.atomic import claim_output
from page4d.run.predictor import NetworkPredictor
from page4d.run.run import Run
from page4d.scene import batches
from page4d_cli.app import run
from tests.cli.clips import rig, write_image_folder, write_scene
from tests.cli.conftest import NETWORK
from tests.cli.kills import random_kills
from tests.forks import command, forked
from tests.run.test_run_state import contents

pytestmark = pytest.mark.usefixtures("constant_forecast")

FRAMES = 5
CHUNKS = ("--chunk", "2", "--overlap", "1")
"""Many small chunks, so that there are chunks left to resume."""

MODULE = (sys.executable, "-m", "page4d_cli")


def before_prediction(patched: pytest.MonkeyPatch, number: int, action: Callable[[], object]) -> None:
    """Call `action` in this process before prediction `number`, counted from 1."""
    predict, calls = NetworkPredictor.predict, []

    def counted(self, batch, memory=None):
        calls.append(batch)
        if len(calls) == number:
            action()
        return predict(self, batch, memory)

    patched.setattr(NetworkPredictor, "predict", counted)


def arguments(scene: Path, out: Path, *more: object) -> list[object]:
    return ["reconstruct", scene, "--out", out, *NETWORK, *CHUNKS, *more]


def parts(folder: Path) -> list[Path]:
    return list(folder.rglob("*.part"))


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Path:
    return write_scene(tmp_path_factory.mktemp("promises") / "scene", frames=FRAMES)


@pytest.fixture(scope="module")
def finished(scene, tmp_path_factory) -> Path:
    """The folder of an uninterrupted run."""
    out = tmp_path_factory.mktemp("finished") / "out"
    assert run([str(argument) for argument in arguments(scene, out, "--quiet")]) == 0
    return out


@pytest.fixture(scope="module")
def whole(finished) -> dict[str, bytes]:
    return contents(finished)


@pytest.fixture
def out(finished, tmp_path) -> Path:
    """A copy of a finished run."""
    return Path(shutil.copytree(finished, tmp_path / "out"))


@pytest.fixture
def chunked(cli, scene):
    def call(out: Path, *more: object):
        return cli(*arguments(scene, out, *more))

    return call


class TestInterrupt:
    def test_a_signal_stops_between_files_and_resuming_writes_the_same_bytes(
        self, whole, tmp_path, chunked, monkeypatch
    ):
        out, before = tmp_path / "out", signal.getsignal(signal.SIGHUP)
        with monkeypatch.context() as patched:
            before_prediction(patched, 4, lambda: os.kill(os.getpid(), signal.SIGHUP))
            stopped = chunked(out)
        assert stopped.code == 128 + signal.SIGHUP
        text = f"error: interrupted after 3 of {FRAMES} instants\nhint:  continue with --resume\n"
        assert stopped.err.endswith(text)
        assert signal.getsignal(signal.SIGHUP) == before
        assert not parts(out)
        assert json.loads((out / "run.json").read_text())["status"] == "incomplete"
        assert chunked(out, "--resume").code == 0
        assert contents(out) == whole

    def test_a_signal_while_a_file_is_written_leaves_no_partial_file(self, whole, tmp_path, chunked, monkeypatch):
        out = tmp_path / "out"
        real, calls = os.fsync, 0

        def interrupted(handle: int) -> None:
            nonlocal calls
            calls += 1
            if calls == 30:
                os.kill(os.getpid(), signal.SIGINT)
            real(handle)

        monkeypatch.setattr(os, "fsync", interrupted)
        stopped = chunked(out)
        assert stopped.code == 130
        assert "continue with --resume" in stopped.err
        assert not parts(out)
        assert chunked(out, "--resume").code == 0
        assert contents(out) == whole

    def test_a_run_interrupted_before_the_first_frame_can_be_resumed(self, whole, tmp_path, chunked, monkeypatch):
        def stop(*_: object) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

        with monkeypatch.context() as patched:
            patched.setattr("page4d.run.run.check_disk", stop)
            stopped = chunked(tmp_path / "out")
        assert stopped.code == 143
        assert f"interrupted after 0 of {FRAMES} instants" in stopped.err
        assert chunked(tmp_path / "out", "--resume").code == 0
        assert contents(tmp_path / "out") == whole

    def test_a_killed_run_is_resumed_only_on_request_and_partial_files_are_removed(self, whole, out, chunked):
        for name in ("run.json", "state/chunk_00002.json", "state/chunk_00003.json"):
            (out / name).unlink()
        partial = out / "points" / ".frame_000004.ply.0123abcd.part"
        partial.write_bytes(b"partial")
        refused = chunked(out)
        assert refused.code == 2
        assert f"error: '{out}' already holds a result\nhint:  use --resume, --overwrite or" in refused.err
        assert chunked(out, "--resume").code == 0
        assert not partial.exists()
        assert contents(out) == whole

    @pytest.mark.parametrize("kills", [2, pytest.param(40, marks=pytest.mark.slow)])
    def test_runs_killed_at_random_times_write_the_same_bytes(self, scene, tmp_path, kills):
        words = ["reconstruct", str(scene), *NETWORK, *CHUNKS, "--frames", ":4", "--quiet"]
        code, out, err = forked(tmp_path, random_kills, tmp_path, kills, 5, words).ended()
        assert code == 0, err
        summary = json.loads(out)
        killed_at, num_chunks = summary["chunks_at_kills"], 3
        assert len(killed_at) == kills
        assert any(0 < done < num_chunks for done in killed_at), killed_at
        whole = contents(tmp_path / "whole")
        assert len([name for name in whole if name.startswith("state/chunk_")]) == num_chunks
        for number in range(summary["outputs"]):
            assert contents(tmp_path / str(number)) == whole


@pytest.mark.slow
def test_the_predicted_memory_is_that_of_the_run(tmp_path):
    """For a network of the size of the bundled one, with and without preview."""
    words: list[str] = []
    for times, views, side, more in ((2, 2, 64, ["--no-preview"]), (4, 2, 96, ["--no-preview"]), (2, 3, 96, [])):
        name = f"{times}x{views}x{side}"
        folder = write_scene(
            tmp_path / name, [f"cam{view}" for view in range(views)], frames=2 * times, size=(side, side)
        )
        options = ["--untrained", "--preset", "mv-demo", "--size", str(side), "--chunk", str(times), "--overlap", "1"]
        words += ["--", "reconstruct", str(folder), "--out", f"{tmp_path}/{name}_out", "--quiet", *options, *more]
    command = [sys.executable, "-m", "tests.cli.peaks", *words]
    for predicted, measured in json.loads(subprocess.run(command, check=True, capture_output=True).stdout):
        assert predicted == pytest.approx(measured, rel=0.2)  # allocators differ


class TestResume:
    @pytest.mark.parametrize(
        ("option", "names"),
        [
            (("--views", "1"), ["views", "inputs", "instants"]),
            (("--stride", "2"), ["stride", "instants"]),
            (("--precision", "bf16"), ["precision"]),
        ],
        ids=lambda value: value[0] if isinstance(value, tuple) else "",
    )
    def test_other_settings_are_refused_with_their_options(self, option, names, finished, chunked):
        refused = chunked(finished, "--resume", *option)
        assert refused.code == 2
        assert f"error: '{finished}' holds results of another run (differs: {', '.join(names)})" in refused.err
        assert "--overwrite" in refused.err

    def test_other_clocks_and_other_videos_of_the_same_name_are_refused(self, tmp_path, cli):
        scene, out = write_scene(tmp_path / "scene", frames=6), tmp_path / "out"
        (scene / "sync.json").write_text('{"cam02": {"offset_s": 0.0}}')
        assert cli(*arguments(scene, out)).code == 0
        (scene / "sync.json").write_text('{"cam02": {"offset_s": 0.0833333}}')
        refused = cli(*arguments(scene, out, "--resume"))
        assert (refused.code, "differs: instants" in refused.err) == (2, True)
        (scene / "sync.json").write_text('{"cam02": {"offset_s": 0.0}}')
        os.utime(scene / "cam02.mp4", (1, 1))
        refused = cli(*arguments(scene, out, "--resume"))
        assert (refused.code, "differs: inputs" in refused.err) == (2, True)
        assert "copies of inputs must keep their times, as with `cp -a`" in refused.err


class TestOverwrite:
    def test_overwriting_deletes_only_files_of_the_previous_run(self, out, chunked):
        other = [out / name for name in ("notes.txt", "points/other.ply", "depth/cam02/other.png", "x/y")]
        for path in other:
            path.parent.mkdir(exist_ok=True)
            path.write_text("other")
        assert chunked(out, "--views", "1", "--frames", ":3", "--overwrite").code == 0
        assert [path.read_text() for path in other] == ["other"] * 4
        names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
        assert not [name for name in names if "cam02" in name and "other" not in name]
        assert not (out / "points" / "frame_000003.ply").exists()
        assert not (out / "confidence" / "cam02").exists()

    def test_overwriting_deletes_files_of_an_unfinished_chunk(self, tmp_path, chunked, monkeypatch):
        out = tmp_path / "out"
        with monkeypatch.context() as patched:
            patched.setattr("page4d.run.state.StateFolder.write_chunk", _interrupt)
            assert chunked(out).code == 130
        with (out / ".page4d.lock").open("r+") as lock:  # it was released
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert (out / "depth" / "cam02" / "frame_000000.png").exists()
        assert chunked(out, "--views", "1", "--overwrite").code == 0
        assert not (out / "depth" / "cam02").exists()

    def test_a_symbolic_link_is_replaced_and_its_target_kept(self, out, tmp_path, chunked):
        target = tmp_path / "target.json"
        target.write_text("target")
        # A link in the place of run.json cannot be read.
        for names, code in (("cameras.json", "points/frame_000000.ply"), 0), (("run.json",), 2):
            for name in names:
                (out / name).unlink()
                (out / name).symlink_to(target)
            assert chunked(out, "--overwrite").code == code
            assert [(out / name).is_symlink() for name in names] == [code > 0] * len(names)
            assert target.read_text() == "target"


def _interrupt(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_a_frame_removed_during_a_run_is_named(reconstruct, tmp_path, monkeypatch):
    scene, execute = tmp_path / "scene", Run.execute
    for name in ("cam01", "cam02"):
        write_image_folder(scene / name)

    def after_removal(run: Run, *arguments: object) -> object:
        (scene / "cam02" / "000001.png").unlink(missing_ok=True)
        return execute(run, *arguments)

    monkeypatch.setattr(Run, "execute", after_removal)
    ended = reconstruct(scene, tmp_path / "out")
    assert ended.code == 3
    assert ended.err.splitlines()[-2:] == [
        "error: cam02/000001.png was removed during the run",
        "hint:  restore it, and continue with --resume",
    ]


class TestOutputPaths:
    def test_unsafe_and_colliding_view_names_are_replaced(self, tmp_path, cli):
        names = ["a b", "a_b", "-dash", "caf\u00e9", "new\nline", "esc\x1b[31m", "[red]b", "\u6444\u50cf", "n" * 90]
        scene, out = write_scene(tmp_path / "s", names, frames=2), tmp_path / "out"
        ended = cli("reconstruct", scene, "--out", out, *NETWORK)
        assert ended.code == 0, ended.err
        assert "\x1b[31m" not in ended.out + ended.err
        views = json.loads((out / "run.json").read_text())["views"]
        assert {view["name"] for view in views} == set(names)
        folders = {path.name for path in (out / "depth").iterdir()}
        assert folders == {view["safe_name"] for view in views}
        assert {"a_b", "a_b_2", "_dash", "cafe", "new_line", "esc__31m", "_red_b", "__", "n" * 64} == folders
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "s"]

    def test_a_view_name_that_is_not_utf8_is_escaped(self, tmp_path, cli):
        scene, out = write_scene(tmp_path / "s", ["cam01", "x"], frames=2), tmp_path / "out"
        (scene / "x.mp4").rename(os.fsdecode(os.fsencode(scene) + b"/caf\xe9.mp4"))
        assert cli("inspect-scene", scene, "--json").code == 0
        assert "caf\\udce9" in cli("inspect-scene", scene).out
        for more in ((), ("--resume",), ("--overwrite",)):
            ended = cli("reconstruct", scene, "--out", out, *NETWORK, *more)
            assert ended.code == 0, ended.err
        assert (out / "depth" / "caf_").is_dir()

    def test_camera_names_of_a_calibration_are_not_used_as_paths(self, tmp_path, cli):
        scene, out = write_scene(tmp_path / "s", frames=2), tmp_path / "a" / "b" / "out"
        (scene / "rig.json").write_text(rig("../../x", "/etc/y"))
        options = ("--calibration", scene / "rig.json", "--calibration-match", "order")
        assert cli("reconstruct", scene, "--out", out, *NETWORK, *options).code == 0
        assert {path.name for path in (out / "cameras").iterdir()} == {
            f"cam0{view}.{kind}" for view in (1, 2) for kind in ("tum", "open3d.json")
        }
        assert sorted(path.name for path in tmp_path.rglob("*x*") if out not in path.parents) == []


class TestOneWriter:
    def test_a_folder_is_claimed_during_the_whole_run(self, tmp_path, chunked, monkeypatch):
        out, refused = tmp_path / "out", []

        def claim() -> None:
            with pytest.raises(OutputError, match="in use by another page4d"), claim_output(out):
                pass
            refused.append(out)

        before_prediction(monkeypatch, 2, claim)
        assert (chunked(out, "--frames", ":3").code, refused) == (0, [out])

    def test_a_stale_lock_file_is_ignored(self, tmp_path, chunked):
        tmp_path.joinpath(".page4d.lock").write_text("99999\n")
        assert chunked(tmp_path, "--frames", ":2").code == 0


class TestDisk:
    def test_a_full_disk_is_reported_and_the_run_can_be_resumed(self, whole, tmp_path, chunked, monkeypatch):
        """RLIMIT_FSIZE simulates the disk: larger files cannot be written."""
        out, limits = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
        with monkeypatch.context() as patched:
            before_prediction(patched, 3, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4000, limits[1])))
            try:
                refused = chunked(out)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert refused.code == 5
        assert f"error: cannot write to '{out}/" in refused.err
        assert re.search(rf"\(after [12] of {FRAMES} instants\)", refused.err), "the previous chunk may be unfinished"
        assert "repeat with --resume" in refused.err
        assert not parts(out)
        assert chunked(out, "--resume").code == 0
        assert contents(out) == whole

    def test_a_disk_without_space_left_is_reported(self, tmp_path, chunked, monkeypatch):
        real = os.write

        def full(handle: int, data: bytes) -> int:
            if len(data) > 8000:
                raise OSError(28, "No space left on device")
            return real(handle, data)

        monkeypatch.setattr("page4d.io.atomic.os.write", full)
        monkeypatch.setattr("page4d.formats.open3d.has_room_for", lambda *_: False)
        ended = chunked(tmp_path / "out")
        assert ended.code == 5
        assert f"disk full (after 0 of {FRAMES} instants)" in ended.err
        assert "hint:  free space, then repeat with --resume" in ended.err
        assert not parts(tmp_path)

    def test_too_little_space_is_refused_before_prediction(self, tmp_path, chunked, monkeypatch):
        monkeypatch.setattr("page4d.run.state.shutil.disk_usage", lambda _: SimpleNamespace(free=1))
        ended = chunked(tmp_path / "out")
        assert ended.code == 5
        assert f"in '{tmp_path / 'out'}'" in ended.err
        assert "free" in ended.err
        assert not (tmp_path / "out" / "points").exists()

    @pytest.mark.parametrize("place", ["file", "link"])
    def test_an_impossible_output_folder_is_refused_before_the_scene_is_opened(
        self, place, tmp_path, chunked, monkeypatch
    ):
        monkeypatch.setattr("page4d.scene.open.open_scene", lambda *_: pytest.fail("the scene was opened"))
        (tmp_path / "file").write_text("x")
        (tmp_path / "link").symlink_to("nowhere")
        ended = chunked(tmp_path / place)
        assert ended.code == 5
        assert f"error: cannot write to '{tmp_path / place}'" in ended.err

    def test_a_full_standard_output_is_reported(self):
        if not Path("/dev/full").exists():
            pytest.skip("no /dev/full here")
        with Path("/dev/full").open("w") as full:
            command = [*MODULE, "reconstruct", "--help"]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        assert done.returncode == 5
        assert done.stderr.startswith("error: cannot write to standard output")


class TestMemory:
    def test_frames_decoded_when_memory_ran_out_are_used(self, tmp_path, chunked, monkeypatch):
        """Decoders of some views are ahead when a batch does not fit; their videos must not count as damaged."""
        read, calls = batches._OpenView.read, []

        def failing(view, first, stop):
            calls.append(view)
            if len(calls) == 2:
                raise MemoryError
            return read(view, first, stop)

        smaller = ("--chunk", "2", "--overlap", "1")
        assert chunked(tmp_path / "smaller", *smaller).code == 0
        monkeypatch.setattr(batches._OpenView, "read", failing)
        ended = chunked(tmp_path / "failing", "--chunk", "5", "--overlap", "1")
        assert ended.code == 0, ended.err
        assert "out of memory with 5 instants per chunk: continuing with 2" in ended.err
        clouds = [
            {path.name: path.read_bytes() for path in (tmp_path / out / "points").iterdir()}
            for out in ("smaller", "failing")
        ]
        assert clouds[0] == clouds[1]


def with_closed_output(words: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    os.dup2(write, 1)
    os.dup2(write, 2)
    command(words)


class TestClosedOutput:
    @staticmethod
    def start(*words: object, **options: object) -> subprocess.Popen[str]:
        """Start a command with a closed pipe as its output."""
        read, write = os.pipe()
        os.close(read)
        try:
            return subprocess.Popen([*MODULE, *map(str, words)], stdout=write, text=True, **options)
        finally:
            os.close(write)

    def test_a_closed_pipe_is_no_error(self):
        process = self.start("reconstruct", "--help", stderr=subprocess.PIPE)
        assert (process.communicate(timeout=120)[1], process.returncode) == ("", 0)

    def test_a_run_continues_when_its_output_is_closed(self, scene, tmp_path):
        words = [str(word) for word in arguments(scene, tmp_path / "out", "--frames", ":2")]
        assert forked(tmp_path, with_closed_output, words).ended()[0] == 0
        assert json.loads((tmp_path / "out" / "run.json").read_text())["status"] == "complete"

    def test_a_missing_standard_output_is_no_error(self):
        def close() -> None:
            os.close(1)

        done = subprocess.run(
            [*MODULE, "--version"], stderr=subprocess.PIPE, preexec_fn=close, timeout=120, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")
