"""The process of the command: signals during imports, limits of the system, and values that are empty."""

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from unittest.mock import Mock

import av
import pytest

from page4d.errors import InputError, InterruptedRunError
from page4d.signals import in_threads
from page4d_cli import app, console
from page4d_cli.stopping import stops_cleanly
from tests.cli.clips import write_scene
from tests.cli.conftest import NETWORK
from tests.cli.test_promises import CHUNKS, before_prediction

INTERRUPTED = ["error: interrupted", "hint:  repeat the command"]

AT_IMPORT = """
import os, signal, sys
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(Finder)  # a library may import it again; a second signal would end the process
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Finder)
sys.argv = ["page4d", *{words!r}]
{start}
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Path:
    return write_scene(tmp_path_factory.mktemp("edge") / "scene", frames=4)


def start(code: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


class TestSignals:
    @pytest.mark.parametrize(
        ("module", "number"),
        [("typer", signal.SIGHUP), pytest.param("numpy", signal.SIGTERM, marks=pytest.mark.slow)],
    )
    def test_a_signal_during_imports_is_no_error(self, module, number, tmp_path, scene):
        words = ["reconstruct", str(scene), "--out", str(tmp_path / "out"), "--untrained"]
        run = "from page4d_cli.app import main; main()"
        done = start(AT_IMPORT.format(module=module, number=int(number), words=words, start=run))
        assert (done.returncode, done.stderr.splitlines()[-2:]) == (128 + number, INTERRUPTED)
        assert "Traceback" not in done.stderr

    @pytest.mark.parametrize("package", ["page4d", "page4d_cli"])
    def test_ctrl_c_before_the_command_line_is_loaded_is_no_error(self, package):
        run = f"import runpy; runpy.run_module({package!r}, run_name='__main__', alter_sys=True)"
        done = start(
            AT_IMPORT.format(module="page4d_cli.console", number=int(signal.SIGINT), words=["doctor"], start=run)
        )
        assert (done.returncode, done.stderr) == (130, "error: interrupted\nhint:  repeat the command\n")

    @pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGINT], ids=["nohup", "background"])
    def test_a_signal_that_is_ignored_stays_ignored(self, number, scene, tmp_path, cli, monkeypatch):
        before = signal.signal(number, signal.SIG_IGN)
        try:
            before_prediction(monkeypatch, 2, lambda: os.kill(os.getpid(), number))
            assert cli("reconstruct", scene, *NETWORK, *CHUNKS, "--out", tmp_path / "out").code == 0
            assert signal.getsignal(number) is signal.SIG_IGN
        finally:
            signal.signal(number, before)

    def test_a_signal_whose_exception_a_library_replaced_is_an_interruption(self, cli, monkeypatch):
        def swallowing(_: object) -> int:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except BaseException:
                raise ImportError("initialization failed") from None
            return 0

        monkeypatch.setattr(app, "_run_app", swallowing)
        ended = cli("doctor")
        assert (ended.code, ended.err) == (143, "error: interrupted\nhint:  repeat the command\n")

    @pytest.mark.parametrize("replaced", [False, True], ids=["caught", "replaced"])
    def test_a_signal_is_not_taken_for_a_damaged_file(self, replaced):
        def read() -> None:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
            except Exception:
                raise InputError("the file is damaged") from None
            except BaseException:
                if replaced:  # as the start of a library in C may
                    raise SystemError("initialization failed") from None
                raise

        with pytest.raises(InterruptedRunError, match="interrupted") as stopped, stops_cleanly():
            read()
        assert stopped.value.exit_code == 143

    @pytest.mark.parametrize(("last", "fails"), [(0, False), (0, True), (1, True)])
    def test_threads_end_at_a_signal_or_an_error_of_another_one(self, last, fails):
        done: list[int] = []

        def run(item, step):
            for index in range(1000):
                if (item, index) == (last, 3):
                    if fails:
                        raise InputError("damaged")
                    os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(0.005)
                step()

        expected = pytest.raises(InputError if fails else InterruptedRunError)
        with expected, stops_cleanly():
            in_threads(run, range(3), lambda number, _: done.append(number), 3000, 2)
        assert done == list(range(1, len(done) + 1))
        assert len(done) < 500
        assert in_threads(lambda item, step: (step(), item)[1], [7, 8], lambda *_: None, 2, 4) == [7, 8]

    def test_a_thread_other_than_the_main_one_can_run_a_command(self):
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(app.run(["--version"])))
        thread.start()
        thread.join()
        assert codes == [0]


class TestLimits:
    @pytest.mark.parametrize(
        ("error", "code", "text"),
        [
            (OSError(errno.EMFILE, "Too many open files"), 6, "too many open files"),
            (RuntimeError("can't start new thread"), 6, "no more threads"),
            (OSError(errno.ENOSPC, "No space left on device", "x/log"), 5, "cannot write to 'x/log': disk full"),
            (MemoryError("Unable to allocate 1 TiB"), 7, "out of memory: Unable to allocate 1 TiB"),
            (PermissionError(errno.EACCES, "Permission denied", "x"), 6, "'x': Permission denied"),
            (ValueError("a bug"), 1, "internal error: ValueError: a bug"),
        ],
        ids=lambda value: repr(value)[:30],
    )
    def test_an_error_that_no_reader_expected_has_its_exit_code(self, error, code, text, cli, monkeypatch):
        monkeypatch.setattr(app, "_run_app", Mock(side_effect=error))
        ended = cli("doctor")
        assert ended.code == code
        assert ended.err.startswith(f"error: {text}") or text in ended.err.splitlines()[0]
        assert len(ended.err.splitlines()) == 2

    def test_too_few_open_files_are_not_blamed_on_a_video(self, scene, tmp_path, cli):
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert cli("inspect-scene", scene).code == 0
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
        held = []
        try:
            while True:
                held.append(os.open(tmp_path, os.O_RDONLY))
        except OSError:
            pass
        try:
            ended = cli("inspect-scene", scene)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
            for each in held:
                os.close(each)
        assert ended.code == 6
        assert "error: too many open files: this process may open 64\nhint:  raise the limit" in ended.err

    @pytest.mark.parametrize(
        ("number", "code"),
        [(errno.EMFILE, 6), (errno.EAGAIN, 6), (errno.ENOMEM, 7)],
        ids=["files", "threads", "memory"],
    )
    def test_a_decoder_without_resources_is_not_blamed_on_the_video(self, number, code, scene, cli, monkeypatch):
        def fail(file: object, *_: object, **__: object) -> None:
            av.error.err_check(-number, str(file))

        monkeypatch.setattr(av, "open", fail)
        monkeypatch.setattr("page4d.scene.video.memory_is_scarce", lambda: True)
        ended = cli("inspect-scene", scene)
        assert ended.code == code
        assert "cam01" not in ended.err

    @pytest.mark.parametrize("failing", ["traceback.format_exception", "tempfile.mkstemp"])
    def test_an_internal_error_without_memory_to_report_it_is_out_of_memory(self, failing, cli, monkeypatch):
        monkeypatch.setattr(app, "_run_app", Mock(side_effect=ValueError("a bug")))
        monkeypatch.setattr(failing, Mock(side_effect=MemoryError))
        ended = cli("doctor")
        assert (ended.code, ended.err.splitlines()[0]) == (7, "error: out of memory")

    @pytest.mark.parametrize("error", [MemoryError(), ImportError("failed to map segment"), OSError(24, "files")])
    def test_an_error_is_printed_even_without_memory_for_colours(self, error, capfd, monkeypatch):
        monkeypatch.setattr(console, "error_console", Mock(side_effect=error))
        assert app.run(["inspect-scene", "no\nfolder"]) == 2
        assert capfd.readouterr().err.startswith("error: scene folder 'no\\nfolder' does not exist\nhint:  ")

    def test_a_deleted_working_folder_is_named(self, tmp_path):
        code = "import os, sys; os.rmdir(os.getcwd()); from page4d_cli.app import run; sys.exit(run(['doctor']))"
        folder = tmp_path / "gone"
        folder.mkdir()
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = start(code, cwd=folder, env=environment)
        assert (done.returncode, done.stderr.splitlines()[0]) == (
            6,
            "error: the working folder does not exist any more",
        )


@pytest.mark.parametrize("value", ["", " ", "\t\n", "a\0b"], ids=repr)
@pytest.mark.parametrize(
    "words",
    [
        "reconstruct scene --out",
        "synthesize --out",
        "export out --format glb --to",
        "evaluate out scene --plots",
        "train --out",
        "pretrain scene --out",
        "convert-weights a.pt --out",
    ],
)
@pytest.mark.parametrize("joined", [False, True])
def test_an_empty_output_is_refused_by_every_command(words, value, joined, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    *before, option = words.split()
    ended = cli(*before, f"{option}={value}") if joined else cli(*before, option, value)
    reason = "contains a NUL character" if "\0" in value else "is empty"
    assert ended.code == 2
    assert f"error: the value of {option} {reason}\nhint:  " in ended.err
    assert list(tmp_path.iterdir()) == []


REFUSED = {
    "loop": "a link is in the way",
    "/dev/null/x": "a part of the path is a file",
    "file/below": "a part of the path is a file",
    "dangling/below": "a part of the path is a file",
    "x" * 300: "too long",
}
TARGETS = (
    "reconstruct {scene} --untrained --out",
    "synthesize --out",
    "evaluate out {scene} --plots",
    "train --out",
    "pretrain {scene} --out",
)


@pytest.mark.parametrize("name", REFUSED, ids=lambda name: name[:12])
@pytest.mark.parametrize("words", TARGETS, ids=lambda text: text.split(" ")[0])
def test_an_impossible_output_is_refused_by_every_command(words, name, cli, scene, tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "file").write_text("")
    target = str(tmp_path / name)
    ended = cli(*(word.format(scene=scene) for word in words.split()), target)
    assert ended.code == 5
    shown = target[:60] if len(target) > 300 else f"{target}': "  # long paths are abbreviated
    assert f"error: cannot write to '{shown}" in ended.err
    assert REFUSED[name] in ended.err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file", "loop"]


@pytest.mark.parametrize("words", ["evaluate out {scene} --plots", "pretrain {scene} --out"])
def test_pictures_that_would_be_a_view_of_the_scene_are_refused(words, cli, scene, tmp_path):
    target = tmp_path / "link" / "plots"
    (tmp_path / "link").symlink_to(scene)
    ended = cli(*(word.format(scene=scene) for word in words.split()), target)
    assert ended.code == 2
    assert f"error: the pictures in '{target}' would be read as a view of the scene '{scene}'" in ended.err
    assert not target.exists()


def test_an_output_inside_the_scene_is_no_view_of_it(scene, cli, tmp_path):
    from page4d.scene.discover import discover

    inside = Path(shutil.copytree(scene, tmp_path / "scene"))
    assert cli("reconstruct", inside, *NETWORK, "--out", inside / "result").code == 0
    assert [candidate.name for candidate in discover(inside).candidates] == ["cam01", "cam02"]
    again = cli("reconstruct", inside, *NETWORK, "--out", inside / "result", "--resume")
    assert again.code == 0
