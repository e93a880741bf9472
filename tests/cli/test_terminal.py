"""Output of the commands on the terminal: help, tables, JSON, notices and errors."""

import json
import re
import resource
import shutil
import subprocess
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest

import page4d
from page4d.batch.jobs import SceneJob
from page4d.errors import human_size
from page4d.formats.tracks import read_tracks
from page4d.run import memory as memory_budget
from page4d.run.predictor import NetworkPredictor
from page4d.scene.open import open_scene
from page4d_cli import console
from page4d_cli.commands import doctor
from page4d_cli.commands.reconstruct import _graded
from tests.cli.clips import rig, write_depth, write_image_folder, write_scene, write_video
from tests.quality.test_quality_grade import run_record

COMMANDS = (
    *("reconstruct", "inspect-scene", "synthesize", "evaluate", "train", "pretrain"),
    *("doctor", "convert-weights", "inspect-shapes", "benchmark", "export"),
)
HEAVY = ("torch", "av", "cv2", "open3d", "scipy", "numpy", "viser", "pxr", "OpenEXR")


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Path:
    return write_scene(tmp_path_factory.mktemp("terminal") / "scene")


@pytest.fixture
def measured(tmp_path) -> tuple[Path, tuple[str, ...]]:
    """A scene with cameras and depth, and the options of a run without a network and without warnings."""
    folder = write_scene(tmp_path / "scene")
    for name in ("cam01", "cam02"):
        write_depth(folder / "truth" / name)
    (folder / "rig.json").write_text(rig("cam01", "cam02"))
    return folder, ("--calibration", str(folder / "rig.json"), "--depth", str(folder / "truth"))


class TestHelp:
    def test_every_command_prints_its_help_without_heavy_imports(self):
        """In one new process, as imported modules stay loaded."""
        code = (
            "import sys\nfrom page4d_cli.app import run\n"
            f"codes = [run([command, '--help']) for command in {COMMANDS}] + [run(['--version']), run(['--help'])]\n"
            "codes += [run(['export', '--list']), run(['export', '--list', '--json'])]\n"
            f"print(codes, [name for name in {HEAVY} if name in sys.modules])"
        )
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"CPU time: {after.ru_utime - before.ru_utime:.2f} s")
        assert done.stdout.rstrip().endswith(f"{[0] * (len(COMMANDS) + 4)} []")

    def test_the_version_is_that_of_the_package(self, cli):
        ended = cli("--version")
        assert (ended.code, ended.out, ended.err) == (0, f"page4d {page4d.__version__}\n", "")
        project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
        assert project["project"]["scripts"]["page4d"] == "page4d_cli.__main__:start"


class TestReconstruct:
    def test_results_go_to_stdout_and_the_rest_to_stderr(self, scene, tmp_path, reconstruct):
        ended = reconstruct(scene, tmp_path / "out")
        assert ended.code == 0
        assert "UNTRAINED NETWORK: THE VALUES ARE NOISE" in ended.out
        assert f"open {tmp_path / 'out' / 'points'}" in re.sub(" +", " ", ended.out)
        assert "warning: UNTRAINED NETWORK: THE VALUES ARE NOISE" in ended.err
        assert "4/4" in ended.err
        assert "\x1b" not in ended.out + ended.err, "no colours without a terminal"

    def test_the_preview_named_in_the_report_exists(self, scene, tmp_path, cli):
        out = tmp_path / "out"
        ended = cli("reconstruct", scene, "--out", out, "--untrained", "--preset", "mv-tiny", "--size", "28")
        named = re.findall(r"\S+/preview/\S+", ended.out)
        assert [Path(name).name for name in named] == ["contact_sheet.png", "cloud.png", "orbit.mp4"]
        assert all(Path(name).is_file() for name in named)
        assert "E: expected error of points" in ended.out
        assert "change first" in ended.out

    def test_a_result_that_cannot_be_read_again_is_not_graded(self, tmp_path, capsys):
        job = SceneJob(scene=tmp_path, out=tmp_path)
        assert _graded(run_record(settings={"preview": True}), job) is None
        assert capsys.readouterr().err.startswith("warning: the result is not graded: ")
        assert _graded(run_record(settings={"preview": False}), job) is None
        assert capsys.readouterr().err == ""

    def test_json_is_the_only_thing_on_stdout(self, scene, tmp_path, reconstruct):
        document = json.loads(reconstruct(scene, tmp_path / "out", "--json").out)
        on_disk = json.loads((tmp_path / "out" / "run.json").read_text())
        assert document == {"out": str(tmp_path / "out"), **on_disk}

    def test_quiet_prints_nothing_without_warnings(self, measured, tmp_path, cli):
        folder, options = measured
        ended = cli(
            "reconstruct", folder, "--out", tmp_path / "out", "--no-preview", "--no-check", "--quiet", *options
        )
        assert (ended.code, ended.out, ended.err) == (0, "", "")

    def test_quiet_keeps_warnings(self, scene, tmp_path, reconstruct):
        ended = reconstruct(scene, tmp_path / "out", "--quiet", "--cameras", "moving")
        assert (ended.out, ended.err) == ("", "warning: UNTRAINED NETWORK: THE VALUES ARE NOISE\n")

    def test_verbose_adds_informational_notices(self, scene, tmp_path, reconstruct):
        text = "info: ignored notes.txt: not a video"
        scene = shutil.copytree(scene, tmp_path / "scene")
        (scene / "notes.txt").touch()
        assert text not in reconstruct(scene, tmp_path / "a").err
        assert text in reconstruct(scene, tmp_path / "b", "--verbose").err

    @pytest.mark.parametrize("more", [(), ("--json",)], ids=["text", "json"])
    def test_dry_run_writes_nothing(self, more, scene, tmp_path, reconstruct):
        out = tmp_path / "deep" / "out"
        ended = reconstruct(scene, out, "--dry-run", "--chunk", "2", "--overlap", "1", *more)
        assert ended.code == 0
        assert list(tmp_path.iterdir()) == []
        if more:
            assert json.loads(ended.out)["chunks"] == [[0, 2, 0], [1, 3, 1], [2, 4, 1]]
        else:
            assert "chunks   3 of 2 instants, overlap 1" in ended.out
            assert re.search(r"disk     at most \d+ kB in", ended.out)

    def test_dry_run_prints_the_warnings_of_the_scene(self, tmp_path, reconstruct):
        folder = write_scene(tmp_path / "s")
        write_video(folder / "cam03.mp4", 2, seed=3)
        ended = reconstruct(folder, tmp_path / "out", "--dry-run")
        assert "warning: common span 0.00-0.08 s (2 frames); cam03 ends first" in ended.err

    @pytest.mark.parametrize(
        ("words", "is_empty"), [("--min-confidence 1", True), ("--min-confidence 0", False), ("--min-views 9", True)]
    )
    def test_empty_clouds_are_a_warning(self, words, is_empty, scene, tmp_path, reconstruct):
        ended = reconstruct(scene, tmp_path / "out", *words.split(), "--edge-angle", "90")
        assert ended.code == 0
        lines = [line for line in ended.err.splitlines() if "all point clouds are empty: no pixel has depth" in line]
        assert [words in line and "--edge-angle 90" in line for line in lines] == [True] * is_empty

    def test_footage_unlike_the_training_set_is_a_warning_and_json_has_the_graded_values(
        self, scene, tmp_path, reconstruct, monkeypatch
    ):
        predict = NetworkPredictor.predict

        def doubtful(self, batch, memory=None):
            return predict(self, batch, memory)._replace(ood={"doubt": 2.5, "depth_gap": float("inf")}, kept=())

        monkeypatch.setattr(NetworkPredictor, "predict", doubtful)
        ended = reconstruct(scene, tmp_path / "out", "--json", "--no-preview")
        assert ended.code == 0
        text = "this footage is unlike the network's training set (far: inconsistent depth between views, low depth"
        assert f"warning: {text}" in ended.err
        assert "warning: held-out pixels do not support the refined cameras" in ended.err
        (chunk, *_) = json.loads(ended.out)["chunks"]
        assert chunk["domain"] == {"indicators": {"doubt": 2.5, "depth_gap": None}, "camera_disagreement_deg": None}
        assert chunk["refined"] == []

    def test_square_brackets_in_names_are_not_markup(self, tmp_path, reconstruct):
        folder = write_scene(tmp_path / "[bold]", ["[red]a", "b[0]"])
        ended = reconstruct(folder, tmp_path / "x[" / "b]")
        assert ended.code == 0, ended.err
        assert "[red]a, b[0]" in ended.out
        assert "[bold] -> " in ended.out


class TestInspectScene:
    def test_json_equals_the_scene_of_the_library(self, scene, cli):
        ended = cli("inspect-scene", scene, "--json")
        document = json.loads(ended.out)
        opened = open_scene(scene)
        assert ended.err == ""
        assert document["scene"] == "scene"
        assert document["num_times"] == opened.num_times == 4
        assert [view["view"] for view in document["views"]] == list(opened.view_names)
        assert document["views"][0] | {"fps": 12.0} == {
            "view": "cam01",
            "file": "cam01.mp4",
            "codec": "h264",
            "size": [64, 48],
            "fps": 12.0,
            "duration_s": pytest.approx(4 / 12),
            "num_frames": 4,
            "dropped": 0,
            "duplicated": 0,
            "is_variable": False,
            "offset_s": 0.0,
            "rate": 1.0,
            "std_seconds": None,
            "calibrated": False,
            "distorted": False,
            "masked": False,
        }
        assert document["last_s"] == pytest.approx(0.25)
        assert {notice["level"] for notice in document["notices"]} <= {"info", "warning"}

    def test_image_folders_are_views(self, tmp_path, cli):
        write_image_folder(tmp_path / "left")
        write_image_folder(tmp_path / "right", seed=1)
        document = json.loads(cli("inspect-scene", tmp_path, "--json", "--image-fps", "10").out)
        assert [(view["file"], view["codec"], view["fps"]) for view in document["views"]] == [
            ("left/", "png", 10.0),
            ("right/", "png", 10.0),
        ]
        assert (document["synchronisation"], document["start_ns"]) == ("frame numbers in the file names", None)

    def test_the_absolute_start_is_shown(self, tmp_path, cli):
        write_image_folder(tmp_path / "left")
        for number, file in enumerate(sorted((tmp_path / "left").iterdir())):
            file.rename(file.with_stem(f"{1_403_636_579_763_555_584 + number * 40_000_000}"))
        assert " s after the time stamp 1403636579.764 s" in cli("inspect-scene", tmp_path).out
        document = json.loads(cli("inspect-scene", tmp_path, "--json").out)
        assert document["start_ns"] == 1_403_636_579_763_555_584


class TestSynthesize:
    OPTIONS = ("--views", "2", "--frames", "2", "--size", "32x32")

    def test_json_and_files(self, tmp_path, cli):
        ended = cli("synthesize", "--out", tmp_path / "s", *self.OPTIONS, "--json")
        assert json.loads(ended.out)["views"] == ["cam01", "cam02"]
        assert (tmp_path / "s" / "cam02.mp4").is_file()
        assert cli("inspect-scene", tmp_path / "s").code == 0

    def test_progress_without_a_terminal_is_a_plain_line(self, tmp_path, cli):
        words = ["synthesize", "--views", "1", "--family", "single", "--frames", "20", "--size", "16x16"]
        loud = cli(*words, "--out", tmp_path / "loud")
        assert loud.code == 0
        assert re.fullmatch(r"(render: \d+/20 frames, [^\n]*\n)*render: 20/20 frames, 0:0\d:\d\d\n", loud.err)
        quiet = cli(*words, "--quiet", "--out", tmp_path / "quiet")
        assert (quiet.code, quiet.out, quiet.err) == (0, "", "")

    def test_true_motion_is_written_on_request(self, tmp_path, cli):
        words = ["synthesize", "--views", "2", "--frames", "3", "--size", "64x48", "--seed", "9", "--truth-motion"]
        refused = cli(*words, "--readout", "10", "--out", tmp_path / "refused")
        assert (refused.code, "motion of frames read out over 0.01 s" in refused.err) == (2, True)
        assert not (tmp_path / "refused").exists()
        assert cli(*words, "--quiet", "--out", tmp_path / "capture").code == 0
        truth = tmp_path / "capture" / "truth"
        assert len(list((truth / "motion").rglob("*.png"))) == 6
        assert read_tracks(truth / "tracks.npz").coords.shape[0] == 3


class TestDoctor:
    @pytest.mark.parametrize(("flags", "is_named"), [({"processor", "BogoMIPS"}, True), ({"no_such_flag"}, False)])
    def test_a_cpu_with_bfloat16_is_named(self, flags, is_named, monkeypatch):
        """Words of every /proc/cpuinfo stand for the flags."""
        monkeypatch.setattr(doctor, "_BF16_FLAGS", flags)
        found = doctor._processor()
        assert found.ok
        assert ("--precision bf16" in found.found) == is_named

    def test_required_libraries_are_found(self, cli):
        ended = cli("doctor", "--json")
        found = {row["name"]: row for row in json.loads(ended.out)}
        assert ended.code == 0
        assert {"Python 3.11+", "PyTorch", "video (PyAV)", "images (OpenCV)", "GPU", "Open3D"} <= set(found)
        assert all(row["ok"] for row in found.values() if row["needed"])
        assert all(row["fix"] for row in found.values() if not row["ok"])

    def test_a_checkpoint_that_fits_is_suggested_with_its_command(self, cli, monkeypatch):
        monkeypatch.setattr(doctor, "_CHECKS", ())
        monkeypatch.setattr(memory_budget, "total_bytes", lambda _: 64 * 10**9)
        rows = {row["name"]: row for row in json.loads(cli("doctor", "--json").out)}
        assert rows["checkpoint for any use"]["fix"] == "page4d reconstruct SCENE --out OUT --weights da3-base"
        assert rows["checkpoint for non-commercial use"]["found"].startswith("da3-giant: CC-BY-NC-4.0, 5.4 GB")

    def test_no_checkpoint_is_suggested_where_none_fits(self, cli, monkeypatch):
        monkeypatch.setattr(doctor, "_CHECKS", ())
        monkeypatch.setattr(memory_budget, "total_bytes", lambda _: 10**9)
        ended = cli("doctor")
        assert (ended.code, ended.out.count("none: too little memory")) == (0, 2)

    def test_no_checkpoint_is_suggested_without_pytorch(self, monkeypatch):
        monkeypatch.setitem(sys.modules, "page4d.run.memory", None)
        assert doctor._checkpoints() == []

    @pytest.mark.usefixtures("without_open3d")
    def test_a_missing_system_library_of_open3d_is_reported_with_its_package(self, cli, monkeypatch):
        monkeypatch.setattr(doctor, "_CHECKS", (doctor._open3d,))
        ended = cli("doctor")
        assert ended.code == 0, "Open3D is optional"
        assert "Open3D cannot start: system library libEGL.so.1 is missing" in ended.out
        assert "sudo apt-get install libusb-1.0-0 libegl1 libgl1" in ended.out

    def test_only_doctor_names_the_missing_folder_for_caches(self, cli, monkeypatch):
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setenv("HOME", "/dev/null")
        monkeypatch.setattr(doctor, "_CHECKS", (doctor._caches,))
        [row] = [row for row in json.loads(cli("doctor", "--json").out) if row["name"] == "caches"]
        assert (row["ok"], row["found"]) == (False, "no folder that can be written; only weights need one")
        listed = cli("weights", "list")
        assert (listed.code, listed.err) == (0, "")

    def test_a_missing_required_library_is_an_error(self, cli, monkeypatch):
        monkeypatch.setattr(doctor, "_CHECKS", (partial(doctor._library, "PyTorch", "no_such_module", "torch"),))
        ended = cli("doctor")
        assert ended.code == 6
        assert "missing" in ended.out
        assert "pip install --force-reinstall torch" in ended.out


class TestInternalErrors:
    def test_an_internal_error_is_logged_with_its_trace(self, scene, cli, monkeypatch, tmp_path):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        monkeypatch.setattr("page4d.scene.open.build_timeline", lambda *_, **__: 1 / 0)
        ended = cli("inspect-scene", scene)
        (log,) = tmp_path.glob("page4d-error-*.log")
        assert (ended.code, ended.out) == (1, "")
        assert ended.err == (
            "error: internal error: ZeroDivisionError: division by zero\n"
            f"hint:  this is a bug of page4d; please report it with the trace in {log}\n"
        )
        text = log.read_text()
        assert "Traceback (most recent call last)" in text
        assert "open_scene" in text
        assert f"page4d {page4d.__version__}" in text
        assert str(scene) in text

    def test_an_internal_error_that_cannot_be_logged_is_printed(self, scene, cli, monkeypatch):
        monkeypatch.setattr("tempfile.tempdir", "/nowhere")
        monkeypatch.setattr("page4d.scene.open.build_timeline", lambda *_, **__: 1 / 0)
        ended = cli("inspect-scene", scene)
        assert ended.code == 1
        assert "Traceback" in ended.err
        assert "error: internal error: ZeroDivisionError" in ended.err


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 摄像 👍 [red]", "plain é 摄像 👍 [red]"),
        ("two\nlines\r\t", "two\\nlines\\r\\t"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\udce9", "\\udce9"),
        ("abc\u202egpj", "abc\\u202egpj"),
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert console.visible(text) == shown


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (118_000, "118 kB"),
        (999_600, "1 MB"),
        (4.1e9, "4.1 GB"),
        (2.5e12, "2,500.0 GB"),
    ],
)
def test_sizes_are_formatted_with_units(number, text):
    assert human_size(number) == text
