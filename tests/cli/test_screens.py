"""Screens: tables at several widths against golden captures, help, and progress on a terminal."""

import contextlib
import inspect
import io
import json
import os
import pty
import re
import sys
import termios
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from safetensors.torch import save_file
from typer import BadParameter

from page4d.batch.jobs import BatchRecord, SceneJob, SceneOutcome, SceneStatus
from page4d.errors import Level, Notice
from page4d.evaluation.comparison import compare
from page4d.evaluation.evaluate import measure
from page4d.formats.calibrations import read_calibration
from page4d.lab.benchmark import Measurement
from page4d.lab.public_rigs import Validation
from page4d.lab.training.config import TRAINING_PRESETS
from page4d.lab.training.logs import StepReport
from page4d.lab.training.schedule import Position
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS
from page4d.options import NETWORK_PRESETS, EvaluationSettings
from page4d.output.reader import open_output
from page4d.output.record import AgreementRecord, CameraResidualRecord, FineDepthRecord, NetworkRecord, SceneRecord
from page4d.output.rig_record import PairRecord, PlacedRecord, RegistrationRecord
from page4d.quality.grade import grade
from page4d.quality.record import QualityReport, ViewQuality
from page4d.rig.board_views import BoardCameraRecord, BoardRecord
from page4d.rig.evidence import PixelEvidence
from page4d.run import memory as memory_budget
from page4d.run.memory import Cost, Extent
from page4d.weights.catalogue import CATALOGUE
from page4d.weights.store import save_network
from page4d_cli import console, options, tables
from page4d_cli import progress as progress_display
from page4d_cli import reports as run_report
from page4d_cli.command_line import app
from page4d_cli.commands import benchmark, demo, doctor, evaluate, report, validate
from page4d_cli.commands import export as export_command
from page4d_cli.commands.doctor import Capability
from page4d_cli.tables import Cell, Column, print_fields, print_table
from tests.cli.clips import write_scene, write_video
from tests.cli.emulator import shown
from tests.encoders.recorded import load_recorded
from tests.evaluation.outputs import reconstruct_from_truth
from tests.exporters.capture import Capture, make_capture
from tests.keymaps import recorded_config
from tests.quality.test_quality_grade import GOOD, pair, run_record
from tests.rig.test_register_command import found_in
from tests.weights.hub_server import Repository
from tools import held_out

GOLDEN = Path(__file__).parent / "golden"
VALIDATION = Path(__file__).parents[1] / "golden" / "validation.json"
ROOM = Path(__file__).parents[2] / "samples" / "room"
WIDTHS = (80, 120)
STAGES = ("register", "predict", "refine", "write", "preview", "total")
COMMANDS = sorted(str(command.name) for command in app.registered_commands)
WEIGHTS_COMMANDS = ("weights", "weights list", "weights get", "weights show")

Screen = Callable[[int | None], None]


@pytest.fixture
def screen(monkeypatch) -> Screen:
    """Give both streams a terminal of some width, or none."""

    def give(width: int | None) -> None:
        for module in (console, tables):
            monkeypatch.setattr(module, "columns_of", lambda _: width)

    return give


def masked(text: str) -> str:
    """Replace sizes, seconds and rates, which depend on the machine."""
    text = re.sub(r"[\d.]+ (bytes|kB|MB|GB)\b", "# GB", text)
    return re.sub(r"[\d.]+(e[+-]\d+)? (s|images/s)\b", r"# \2", text)


def without_points(text: str) -> str:
    """Replace numbers of points, which depend on rounding in libraries."""
    return re.sub(r"^(points +(?:about )?)[\d,]+", r"\1#", text, flags=re.MULTILINE)


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("PAGE4D_REGENERATE"):
        path.write_text(text)
    assert text == path.read_text()


def check_width(text: str, width: int) -> None:
    """No line exceeds the terminal, and nothing is truncated."""
    assert "…" not in text
    assert [line for line in text.splitlines() if cell_len(line) > width] == []


ROWS = (
    ("cam01", Cell("cam01.mp4", informs=False), "h264", "0", "the first of all views"),
    ("cam02", Cell("cam02.mp4", informs=False), "h264", "0", "-"),
)
COLUMNS = (
    Column("view"),
    Column("file"),
    Column("codec"),
    Column("dropped", usual="0"),
    Column("remark", wraps=True),
)


class TestTables:
    def test_columns_without_information_are_left_out_on_a_terminal(self, screen, capsys) -> None:
        screen(80)
        print_table(COLUMNS, ROWS, "rig")
        assert capsys.readouterr().out.splitlines() == [
            "rig",
            "view   codec  remark",
            "-----  -----  ----------------------",
            "cam01  h264   the first of all views",
            "cam02  h264   -",
            "",
        ]

    def test_one_cell_with_information_keeps_its_column(self, screen, capsys) -> None:
        screen(80)
        print_table(COLUMNS, [("cam03", "left.mp4", "h264", "2", ""), *ROWS])
        assert capsys.readouterr().out.split()[:4] == ["view", "file", "codec", "dropped"]

    def test_elsewhere_all_columns_are_printed_on_one_line_per_row(self, capsys, monkeypatch) -> None:
        monkeypatch.delenv("COLUMNS", raising=False)
        print_table(COLUMNS, ROWS, "rig")
        out = capsys.readouterr().out
        assert out.splitlines()[3] == "cam01  cam01.mp4  h264   0        the first of all views"
        assert "\x1b" not in out

    def test_elsewhere_tables_obey_columns_but_messages_do_not(self, capsys, monkeypatch) -> None:
        monkeypatch.setenv("COLUMNS", "32")
        print_table(COLUMNS, ROWS)
        print_fields([("remark", "the first of all the views of this rig")])
        console.print_message("a message of several words that is longer than the line")
        captured = capsys.readouterr()
        assert captured.out.splitlines()[2:4] == ["cam01  h264   the first of all", "              views"]
        assert captured.out.splitlines()[6:] == ["remark  the first of all the", "        views of this rig"]
        assert captured.err == "a message of several words that is longer than the line\n"

    def test_prose_is_wrapped_before_a_table_is_divided(self, screen, capsys) -> None:
        screen(32)
        print_table(COLUMNS, ROWS)
        assert capsys.readouterr().out.splitlines()[2:4] == ["cam01  h264   the first of all", "              views"]

    def test_a_table_that_does_not_fit_becomes_blocks(self, screen, capsys) -> None:
        screen(24)
        print_table(COLUMNS, ["LEFT", *ROWS])
        assert capsys.readouterr().out.splitlines() == [
            "LEFT",
            "cam01",
            "  codec   h264",
            "  remark  the first of",
            "          all views",
            "cam02",
            "  codec  h264",
            "",
        ]

    def test_a_long_name_does_not_divide_the_table_of_the_others(self, screen, capsys) -> None:
        screen(40)
        print_table([Column("view"), Column("size")], [("x" * 64, "640x480"), ("cam02", "640x480")])
        assert capsys.readouterr().out.splitlines()[2:5] == ["x" * 64, f"{'':31}  640x480", f"{'cam02':31}  640x480"]

    @pytest.mark.parametrize("width", [1, 20, 40, 60, 80, 200])
    def test_names_are_complete_at_any_width(self, width, screen, capsys) -> None:
        names = ["摄像机一", "[bold]", ":smile:", "x" * 64, "two\nlines\x1b[31m", "Kamera ü", ""]
        screen(width)
        print_table([Column("view"), Column("size", True)], [(name, "640x480") for name in names], "名字 [red]")
        print_fields([("views", ", ".join(names))])
        out = capsys.readouterr().out
        for name in ("摄像机一", "[bold]", ":smile:", "x" * 64, "[red]"):
            assert name in out
        assert "\x1b[31m" not in out

    def test_wide_characters_take_two_columns(self, screen, capsys) -> None:
        screen(80)
        print_table([Column("view"), Column("size")], [("摄像机", "a"), ("cam", "b")])
        assert capsys.readouterr().out.splitlines()[1:4] == ["------  ----", "摄像机  a", "cam     b"]

    def test_a_table_without_rows_has_its_headings(self, screen, capsys) -> None:
        screen(80)
        print_table(COLUMNS, [])
        assert capsys.readouterr().out.splitlines()[0] == "view"

    def test_the_width_is_that_of_the_terminal_or_of_columns(self, monkeypatch) -> None:
        first, second = pty.openpty()
        termios.tcsetwinsize(first, (24, 91))
        with os.fdopen(second, "w") as terminal, os.fdopen(first):
            monkeypatch.delenv("COLUMNS", raising=False)
            assert console.columns_of(terminal) == 91
            termios.tcsetwinsize(first, (0, 0))
            assert console.columns_of(terminal) == 80
            monkeypatch.setenv("COLUMNS", "47")
            assert console.columns_of(terminal) == 47
            assert console.columns_of(io.StringIO()) is None


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory):
    """The evaluation of two instants of the sample, reconstructed from its ground truth."""
    out = reconstruct_from_truth(ROOM, tmp_path_factory.mktemp("screens") / "out", "--frames", "0:2", "--size", 80)
    return measure(compare(out, ROOM), EvaluationSettings(points_per_instant=300))


@pytest.fixture(scope="module")
def capture(tmp_path_factory) -> Capture:
    """A small capture with its run."""
    return make_capture(tmp_path_factory.mktemp("capture"), size=(48, 64))


@pytest.fixture
def rig(tmp_path) -> Path:
    """Views with offsets, dropped frames and a name that differs from the file."""
    folder = write_scene(tmp_path / "rig", ["front left", "right"])
    write_video(folder / "top.mp4", 30, pts=[n if n < 20 else n + 2 for n in range(30)])
    (folder / "sync.json").write_text('{"right": {"offset_s": 0.083333333, "rate": 1.001}}')
    (folder / "notes.txt").write_text("notes")
    return folder


@pytest.mark.parametrize("width", WIDTHS)
class TestGoldenScreens:
    @pytest.fixture(autouse=True)
    def _screen(self, width, screen, tmp_path, monkeypatch) -> None:
        screen(width)
        monkeypatch.chdir(tmp_path)

    def check(self, name: str, width: int, text: str, *, fits: bool = True) -> None:
        if fits:
            check_width(text, width)
        check_golden(f"{name}_{width}", text)

    def test_golden_inspect_scene(self, width, cli) -> None:
        self.check("inspect_scene_room", width, cli("inspect-scene", ROOM).out)
        calibrated = cli("inspect-scene", ROOM, "--calibration", ROOM / "truth" / "cameras.json")
        self.check("inspect_scene_calibrated", width, calibrated.out)

    def test_golden_inspect_scene_of_a_rig_with_clocks(self, width, rig, cli) -> None:
        self.check("inspect_scene_clocks", width, cli("inspect-scene", rig).out)

    def test_golden_plan(self, width, cli, monkeypatch) -> None:
        monkeypatch.setattr("page4d.run.time._read", lambda _: None)  # other tests may have made runs
        chosen = ("--dry-run", "--size", 56, "--chunk", 8, "--overlap", 2)
        self.check("plan", width, masked(cli("reconstruct", ROOM, "--out", "out", *chosen).out))

    def test_golden_result(self, width, cli) -> None:
        chosen = ("--untrained", "--preset", "mv-tiny", "--size", 28, "--no-preview", "--frames", "0:2")
        ended = cli("reconstruct", write_scene(Path("rig")), "--out", "out", *chosen)
        check_width(ended.err, width)
        out = re.sub(r"^(time +).*", r"\1# s", ended.out, flags=re.MULTILINE)
        self.check("result", width, masked(out), fits=False)
        check_width(out.partition("next step")[0], width)

    def test_golden_graded_result(self, width, capsys) -> None:
        """People place all views but one, and most of the time is that of registration."""
        cameras = [
            PlacedRecord(
                view=f"cam{index}", placed=not reason, source=source, focal=900, focal_source="exif", reason=reason
            )
            for index, (source, reason) in enumerate(
                (("evidence", ""), ("evidence", ""), ("network", "best score 0.21"))
            )
        ]
        scored = {"views": ("cam0", "cam1"), "evidence": "people", "score": 0.61, "control": 0.2, "num_instants": 90}
        advice = "the clock of cam2 may be wrong: try --sync people or --sync FILE first, or give --calibration"
        pairs = [PairRecord(**scored, accepted=True)]
        record = run_record(
            registration=RegistrationRecord(asked="auto", cameras=cameras, pairs=pairs, advice=advice),
            fine_depth=FineDepthRecord(reason="pictures of 1 of 3 pairs of registered views do not refine depth"),
            scene=SceneRecord(name="phones", calibration="registered from people (2 of 3 views)"),
            settings={"preview": True, "poses": "input", "calibration": None, "sync": "auto"},
            timings=dict(zip(STAGES, (130.0, 44.0, 51.0, 0.4, 12.0, 120.0), strict=True)),
            device="cpu",
        )
        found = grade(replace(GOOD, photo_gain=0.01), (), record, "my phones")
        job = SceneJob(scene=Path("my phones"), out=Path("out"))
        run_report.report_run(record, job, 251.0, found)
        short = capsys.readouterr().out
        check_width(short.partition("next step")[0], width)
        self.check("graded", width, short, fits=False)
        run_report.report_run(record, job, 251.0, found, verbose=True)
        assert "pairs of views" in capsys.readouterr().out.replace(short, "")
        assert "pairs of views" not in short
        demo_network = NetworkRecord(name="mv-demo", trained=True, notice="a demo: pass --weights da3-base")
        of_demo = record.model_copy(update={"network": demo_network})
        for letter in (None, grade(replace(GOOD, photo_gain=0.01), (), of_demo)):
            run_report.report_run(of_demo, job, 251.0, letter)
            assert capsys.readouterr().out.count("--weights") == 1

    def test_golden_registration(self, width, cli, monkeypatch) -> None:
        monkeypatch.setattr("page4d.run.registration.register_rig", found_in)
        monkeypatch.setattr("page4d.run.registration.is_fetched", lambda: True)
        monkeypatch.setattr("page4d.run.registration.model_sha256", lambda: "0" * 64)
        monkeypatch.setattr(PixelEvidence, "motions", ())
        write_scene(Path("my rig"), ["cam01", "cam02", "cam03"])
        ended = cli("register", "my rig", "--out", "cameras.json")
        check_width(ended.err + ended.out.partition("next step")[0], width)
        self.check("registration", width, ended.err + ended.out, fits=False)
        assert cli("register", "my rig", "--out", "cameras.json", "--overwrite", "--verbose").out.startswith(
            "pairs of"
        )

    def test_golden_calibration_from_a_board(self, width, cli, monkeypatch) -> None:
        seen = {
            "num_pictures": 118,
            "num_together": 96,
            "coverage": 0.83,
            "tilt_deg": (3.0, 52.0),
            "residual_px": 0.16,
        }
        lens = {"focal": 912.4, "focal_std": 0.0012, "terms": ("k1", "k2", "p1", "p2")}
        cameras = [
            BoardCameraRecord(view="cam01", placed=True, **seen, **lens),
            BoardCameraRecord(view="cam02", placed=True, **seen, **lens, clock_s=0.021, clock_std_s=0.002),
            BoardCameraRecord(
                view="cam03",
                placed=False,
                num_pictures=0,
                num_together=0,
                coverage=0.0,
                reason="the board is not found in its pictures",
            ),
        ]
        board = "charuco:7x5,30mm,22mm,4x4_50"
        found = SimpleNamespace(
            record=BoardRecord(board=board, lens_model="brown-conrady", num_instants=200, cameras=cameras),
            calibration=read_calibration(ROOM / "truth" / "cameras.json"),
        )
        monkeypatch.setattr("page4d.run.calibration.calibrate", lambda *_, **__: found)
        write_scene(Path("my rig"), ["cam01", "cam02", "cam03"])
        ended = cli("calibrate", "my rig", "--out", "rig.toml", "--board", board)
        check_width(ended.err + ended.out.partition("next step")[0], width)
        self.check("calibration", width, ended.err + ended.out, fits=False)

    def test_golden_validation(self, width, capsys) -> None:
        for one in json.loads(VALIDATION.read_text()):
            validate._print(Validation.model_validate(one))
        self.check("validation", width, capsys.readouterr().out)

    def test_golden_residuals(self, width, capsys) -> None:
        residual = {"rotation_deg": 1.25, "distance": 0.031, "share": 0.02, "focal_percent": -1.5}
        cameras = [CameraResidualRecord(view=name, **residual) for name in ("cam01", "a longer name", "cam03")]
        run_report._report_agreement(AgreementRecord(cameras=cameras, at_fault="cam03"), "m")
        self.check("residuals", width, capsys.readouterr().out)

    def test_golden_batch(self, width, capsys) -> None:
        done = {"seconds": 12.34, "num_times": 24, "num_views": 4, "num_points": 1_234_567, "warnings": ["a", "b"]}
        scenes = [
            SceneOutcome(scene="takes/a", out="results/a", status=SceneStatus.COMPLETE, **done),
            SceneOutcome(
                scene="takes/b",
                out="results/b",
                status=SceneStatus.FAILED,
                exit_code=3,
                error="cam01.mp4 breaks off after frame 17 of 90; the recording or copy did not finish",
            ),
            SceneOutcome(scene="takes/c", out="results/c", status=SceneStatus.NOT_BEGUN),
        ]
        run_report.report_batch(BatchRecord(scenes=scenes))
        self.check("batch", width, capsys.readouterr().out)

    def test_golden_evaluation(self, width, evaluation, capsys) -> None:
        evaluate._report(evaluation)
        text = capsys.readouterr().out.replace(evaluation.out, "OUT").replace(evaluation.truth, "TRUTH")
        # The order of measured depth is near random, of either sign by the rounding of the processor.
        self.check("evaluate", width, re.sub(r"\d", "9", text).replace("normalized -", "normalized "))

    def test_golden_report(self, width, capsys) -> None:
        names = ("cam0", "cam1", "a longer name")
        pairs = tuple(pair(one, other, 0.01) for one, other in permutations(names, 2))
        overall = replace(GOOD, photo_gain=0.01, contradicted=0.1)
        views = tuple(
            ViewQuality(
                view=name,
                with_depth=1.0,
                confirmed=0.8,
                contradicted=0.05,
                single=0.15,
                regions=((0.5, 0.75, None),) * 3,
                confidence=0.42,
                residual_px=None if name == "cam1" else 1.234,
                photo_gain=-0.012,
                flicker=0.0034,
            )
            for name in names
        )
        report._print(
            QualityReport(
                out="takes/a/out",
                scene="takes/a",
                num_times=100,
                instants=tuple(range(24)),
                views=views,
                pairs=pairs,
                overall=overall,
                grade=grade(overall, pairs, run_record()),
                notes=("measured at 24 of 100 instants",),
            )
        )
        self.check("report", width, re.sub(r"\d", "9", capsys.readouterr().out))

    def test_golden_doctor(self, width, capsys, monkeypatch) -> None:
        found = [
            Capability("Python 3.11+", True, "3.11.7", needed=True),
            Capability(
                "video (PyAV)", False, "No module named 'av'", "pip install --force-reinstall av", needed=True
            ),
            Capability("video decoders", True, "h264, hevc, vp9, av1, prores, mpeg4, mjpeg"),
            Capability(
                *("Open3D", False, "Open3D cannot start: system library libEGL.so.1 is missing"),
                "sudo apt-get install libusb-1.0-0 libegl1 libgl1",
            ),
        ]
        doctor._print(found)
        doctor._print(found[:1])
        monkeypatch.setattr(memory_budget, "total_bytes", lambda _: 64 * 10**9)
        seconds = {"da3-base": 12.3, "da3-giant": 108.4}
        monkeypatch.setattr("page4d.run.time.checkpoint_seconds", lambda name, _: seconds[name])
        doctor._print_checkpoints(doctor._checkpoints())
        self.check("doctor", width, capsys.readouterr().out)

    def test_golden_weights(self, width, hub, cli) -> None:
        self.check("weights_list", width, cli("weights", "list").out)
        self.check("weights_show", width, cli("weights", "show", "da3-base").out)
        assert hub.requests == []

    def test_golden_fetched_weights(self, width, hub, tmp_path, cli) -> None:
        path, entry = tmp_path / "tiny.safetensors", CATALOGUE["da3-base"]
        save_network(build_network(PRESETS["mv-tiny"]), path, {"licence": "as published", "description": "tiny"})
        hub.repositories[entry.repository] = Repository({entry.file: path.read_bytes()})
        ended = cli("weights", "get", "da3-base")
        text = re.sub(r"127.0.0.1:\d+", "HUB", ended.err + ended.out).replace(str(tmp_path), "/path/to")
        text = re.sub(r"\d+:\d\d:\d\d", "0:00:00", re.sub(r"\b[0-9a-f]{64}\b", "SHA-256", masked(text)))
        self.check("weights_get", width, text, fits=False)

    def test_golden_synthesized_capture(self, width, cli) -> None:
        small = ("--views", 2, "--frames", 2, "--size", "48x32", "--supersample", 1)
        self.check("synthesize", width, masked(cli("synthesize", "--out", "room", *small).out))

    def test_golden_page_of_the_viewer(self, width, capture, cli) -> None:
        self.check("view", width, masked(cli("view", capture.folder, "--html", "page.html").out))

    def test_golden_export_list(self, width, cli, monkeypatch) -> None:
        monkeypatch.setattr(export_command, "is_installed", lambda extra: extra == "usd")
        monkeypatch.setattr(sys, "executable", "python3")
        self.check("export_list", width, cli("export", "--list").out)

    def test_golden_export(self, width, capture, tmp_path, cli) -> None:
        chosen = ("--format", "nerfstudio", "--hold-out", "cam02", "--pinhole", "common", "--max-points", 5000)
        ended = cli("export", capture.folder, *chosen, "--scene", capture.scene, "--to", "dir")
        check_width(ended.out.partition("next step")[0], width)
        shown = without_points(masked(ended.out.replace(str(tmp_path), "/path/to")))
        self.check("export", width, shown, fits=False)

    def test_golden_export_plan(self, width, capture, cli) -> None:
        chosen = ("--format", "colmap,glb", "--scale", 2, "--min-confidence", 0.5, "--instants", "1:")
        ended = cli("export", capture.folder, *chosen, "--scene", capture.scene, "--to", "dir", "--dry-run")
        self.check("export_plan", width, without_points(masked(ended.out)))

    def test_golden_inspect_shapes(self, width, cli) -> None:
        self.check("inspect_shapes", width, cli("inspect-shapes", "--model", "mv-tiny").out)

    def test_golden_benchmark(self, width, capsys) -> None:
        extents = [Extent(times=times, views=4, size=(64, 96)) for times in (1, 16)]
        first = Measurement(
            extent=extents[0], tflop=0.02, predicted_bytes=5e6, actual=Cost(4e6, 0.125), refinement=0.5
        )
        second = Measurement(extent=extents[1], tflop=0.3, predicted_bytes=5e9, actual=None)
        benchmark._print([first, second], "mv-demo on cpu", refine=True)
        self.check("benchmark", width, capsys.readouterr().out)

    @pytest.mark.parametrize("command", ["train", "pretrain"])
    def test_golden_training(self, width, cli, monkeypatch, command) -> None:
        steps = {"step": 120, "samples": 960, "seconds": 59.6, "samples_per_second": 16.1, "eta_s": 3661.0}
        losses = {"total": 0.812} | (
            {"depth": 0.214, "rotation": 0.051, "translation": 0.33} if command == "train" else {}
        )
        report = StepReport(**steps, rate=0.5, stage=0, gradient_norm=1.0, skipped=2, losses=losses)
        figures = {"arc": {"network": {"abs_rel": 0.118, "rotation_deg": 1.25, "direction_deg": 2.5, "focal": 0.031}}}

        def run(request, observer, _):
            observer.message("200 scenes are rendered for evaluation")
            observer.evaluation(120, figures)
            observer.step(report)
            position, file = Position(step=1000, samples=8000, seconds=600.0), request.out / "weights.safetensors"
            return SimpleNamespace(position=position, weights=file, encoder=file, loss=0.8)

        monkeypatch.setattr(f"page4d.lab.{command}ing.{command}.{command}", run)
        monkeypatch.setattr(progress_display, "_INTERVAL_S", 0.0)
        ended = cli(command, *(["videos"] if command == "pretrain" else []), "--out", "run", "--until-seconds", 600)
        self.check(command, width, re.sub(r"\b0:00:\d\d", "0:00:00", ended.err) + ended.out)

    def test_golden_conversion(self, width, cli) -> None:
        save_file(load_recorded("vggt_c", ".").part("weights/"), "vggt.safetensors")
        Path("network.json").write_text(recorded_config("vggt_c").to_json())
        chosen = ("--config", "network.json", "--to", "page4d-mv", "--dtype", "fp16")
        ended = cli("convert-weights", "vggt.safetensors", *chosen, "--out", "mv.safetensors")
        self.check("conversion", width, re.sub(r"\b0:00:\d\d", "0:00:00", ended.err) + ended.out)

    def test_golden_demo(self, width, cli, monkeypatch, evaluation) -> None:
        """The result is one of the ground truth; results of networks have screens above."""
        job = SceneJob(scene=ROOM, out=Path("demo_out"))
        record = open_output(evaluation.out).run
        monkeypatch.setattr(demo, "reconstruct", lambda **_: run_report.report_run(record, job, 60.0))
        monkeypatch.setattr(demo, "evaluate", lambda **_: evaluate._report(evaluation))
        ended = cli("demo", "room")
        text = without_points(masked(ended.err + ended.out)).replace(str(ROOM.parents[1]), "PAGE4D")
        text = text.replace(evaluation.out, "OUT").replace(evaluation.truth, "TRUTH")
        text = re.sub(r"^(time +).*", r"\1# s", text, flags=re.MULTILINE)  # a dear stage is named
        self.check("demo", width, re.sub(r"\d", "9", text).replace("normalized -", "normalized "), fits=False)

    def test_golden_held_out(self, width, capsys) -> None:
        metrics = dict.fromkeys(held_out.COLUMNS, 0.1234) | {"ordering": None}
        names = ("network", "network, known cameras", "constant depth at the mean of the training set")
        held_out.show({"arc": dict.fromkeys(names, metrics)}, 1)
        self.check("held_out", width, capsys.readouterr().out)


class TestHelp:
    @pytest.mark.parametrize("width", [60, 80, 120])
    @pytest.mark.parametrize("command", ["", *COMMANDS, *WEIGHTS_COMMANDS])
    def test_help_fits_the_terminal(self, command, width, monkeypatch, cli) -> None:
        monkeypatch.setenv("COLUMNS", str(width))
        lines = cli(*command.split(), "--help").out.splitlines()
        assert [line for line in lines if cell_len(line) > width or "None" in line] == []
        assert len(lines) <= (150 if width >= 80 else 200)

    @pytest.mark.parametrize("command", COMMANDS)
    def test_everyday_options_are_in_the_help_and_all_in_the_help_of_experts(self, command, cli) -> None:
        known = next(known for known in app.registered_commands if known.name == command)
        everyday, every = cli(command, "--help").out, cli(command, "--help-all")
        assert cli(command, "-h").out == everyday
        assert (every.code == 0) == bool(known.callback.experts)
        for name, parameter in inspect.signature(known.callback).parameters.items():
            described = parameter.annotation.__metadata__[-1]
            shown = [described.metavar or "", *(getattr(described, "param_decls", None) or ())]
            for text in (part for word in shown for part in word.split("/--no")):
                assert (f" {text}" in everyday) or name in known.callback.experts
                assert every.code or f" {text}" in every.out

    def test_the_help_of_the_application_has_one_line_per_command(self, cli) -> None:
        out = cli("--help").out
        headings = ("Reconstruct and look:", "Cameras:", "Exchange:", "Networks:", "Laboratory:")
        assert [line for line in out.splitlines() if line in headings] == list(headings)
        for command in (*COMMANDS, "weights"):
            assert sum(line.startswith(f"  {command} ") for line in out.splitlines()) == 1


class TestOptions:
    def test_help_and_errors_name_the_same_presets(self, cli, tmp_path) -> None:
        assert " or ".join(", ".join(PRESETS).rsplit(", ", 1)) == NETWORK_PRESETS
        for command in ("reconstruct", "benchmark", "train", "inspect-shapes"):
            shows_all = ("--help-all",) if command == "reconstruct" else ("--help",)
            assert "mv-twins" in cli(command, *shows_all).out
        ended = cli("reconstruct", ROOM, "--out", tmp_path / "out", "--untrained", "--preset", "demo")
        assert ended.err.startswith(
            "error: no network is called 'demo'\nhint:  did you mean mv-demo? choose from mv-tiny, "
        )
        ended = cli("train", "--out", tmp_path / "out", "--preset", "mv-demo")
        names = ", ".join(TRAINING_PRESETS)
        assert (
            ended.err
            == f"error: no training preset is called 'mv-demo'\nhint:  did you mean demo? choose from {names}\n"
        )
        assert " or ".join(names.rsplit(", ", 1)) in " ".join(cli("train", "--help").out.split())

    def test_sizes_mean_the_same_everywhere(self) -> None:
        assert options.parse_size("320x240") == (240, 320)
        assert options.parse_size("320", square=True) == (320, 320)
        with pytest.raises(BadParameter, match=r"'320' is not of the form WxH$"):
            options.parse_size("320")
        with pytest.raises(BadParameter, match="is not of the form WxH or N"):
            options.parse_size("x240", square=True)


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class TestRemainingTime:
    @pytest.fixture
    def clock(self, monkeypatch) -> FakeClock:
        clock = FakeClock()
        monkeypatch.setattr("rich.console.monotonic", clock)
        return clock

    def times(self, clock: FakeClock, *steps: tuple[float, int | None], total: int) -> str:
        """Return the times that are shown after updates, each some seconds after the last, or after a wait."""
        progress = progress_display.ProgressDisplay(
            "run", progress_display.count("instant"), quiet=True, on_terminal=False
        )
        for seconds, done in steps:
            clock.now += seconds
            if done is not None:
                progress.update(done, total)
        return " ".join(progress._parts()[1:])

    def test_it_follows_the_measured_rate(self, clock) -> None:
        steps = [(5, 0), (60, 8), (10, 16), (4, None), (26, 24), (100, None)]
        shown = [self.times(clock, *steps[:number], total=32) for number in range(2, 7)]
        # Preparations and the first chunk take longer than the others.
        assert shown == [
            "0:01:05",
            *(f"{at} left" for at in ("0:01:15 0:00:20", "0:01:19 0:00:16", "0:01:45 0:00:20")),
            "0:03:25",
        ]

    def test_what_an_interrupted_run_did_does_not_count(self, clock) -> None:
        assert self.times(clock, (0, 16), (30, 18), (10, 20), total=24) == "0:00:40 0:00:20 left"


def read_until_closed(terminal: int) -> Iterator[bytes]:
    """Yield what is written to a terminal until its other end is closed."""
    with contextlib.suppress(OSError):
        while part := os.read(terminal, 4096):
            yield part


class TestProgress:
    @pytest.fixture
    def on_terminal(self, monkeypatch) -> Callable[[Callable[[], None], int], str]:
        """Run a function with a terminal as stderr, and return what it wrote there."""

        def call(body: Callable[[], None], width: int = 80) -> str:
            first, second = pty.openpty()
            termios.tcsetwinsize(first, (24, width))
            for name in ("COLUMNS", "NO_COLOR", "LINES"):
                monkeypatch.delenv(name, raising=False)
            parts: list[bytes] = []
            reader = threading.Thread(target=lambda: parts.extend(read_until_closed(first)))
            reader.start()
            with os.fdopen(second, "w", encoding="utf-8") as terminal, monkeypatch.context() as patched:
                patched.setattr(sys, "stderr", terminal)
                body()
            reader.join(timeout=10)
            os.close(first)
            return b"".join(parts).decode()

        monkeypatch.setenv("TERM", "xterm-256color")
        return call

    def run(self) -> None:
        with progress_display.observed_run(console.Verbosity()) as observer:
            observer.notice(Notice("the first warning"))
            observer.progress(0, 2)
            observer.notice(Notice("a warning of several words that is longer than the line and therefore wrapped"))
            warnings.warn("a library's warning", stacklevel=1)
            observer.progress(1, 2)
            observer.notice(Notice("a step", Level.STEP))
            observer.progress(2, 2)

    @pytest.mark.filterwarnings("default")
    def test_warnings_appear_above_the_line(self, on_terminal, monkeypatch) -> None:
        monkeypatch.setattr(warnings, "showwarning", lambda message, *_: print(message, file=sys.stderr))
        lines = shown(on_terminal(self.run), 80)
        assert [line.rstrip() for line in lines[:-1]] == [
            "warning: the first warning",
            "warning: a warning of several words that is longer than the line and therefore",
            "         wrapped",
            "a library's warning",
            "a step",
        ]
        assert re.fullmatch(r"\s+reconstruct ━+ 2/2 instants  0:00:0\d", lines[-1])

    def test_nothing_remains_of_a_run_that_did_not_begin(self, on_terminal) -> None:
        def fail() -> None:
            with progress_display.observed_run(console.Verbosity()):
                pass

        text = on_terminal(fail)
        assert "reconstruct" in text, "a spinner is shown from the beginning"
        assert shown(text, 80) == []

    def test_quiet_shows_only_warnings(self, on_terminal) -> None:
        def quiet() -> None:
            with progress_display.observed_run(console.Verbosity(quiet=True)) as observer:
                observer.progress(0, 2)
                observer.notice(Notice("a warning"))
                observer.progress(2, 2)

        assert shown(on_terminal(quiet), 80) == ["warning: a warning"]

    @pytest.mark.filterwarnings("ignore:a library")
    @pytest.mark.parametrize("term", ["dumb", "unknown"])
    def test_a_terminal_without_cursor_gets_plain_lines(self, term, on_terminal, monkeypatch) -> None:
        monkeypatch.setenv("TERM", term)
        text = on_terminal(self.run)
        assert "\x1b[" not in text.replace("\x1b[0m", "").replace("\x1b[33m", "")
        assert re.search(r"^reconstruct: 2/2 instants, 0:00:0\d\r$", text, re.MULTILINE)

    def test_elsewhere_it_prints_few_plain_lines(self, capsys, monkeypatch) -> None:
        monkeypatch.setenv("FORCE_COLOR", "1")
        with progress_display.displayed_progress("evaluate", progress_display.count("instant")) as progress:
            for done in range(101):
                progress.update(done, 100)
        assert re.fullmatch(r"evaluate: 100/100 instants, 0:00:0\d\n", capsys.readouterr().err)

    @pytest.mark.parametrize(
        ("width", "has_label", "has_bar"), [(30, False, False), (45, True, False), (80, True, True)]
    )
    def test_a_narrow_line_has_fewer_parts(self, width, has_label, has_bar, on_terminal, monkeypatch) -> None:
        def begin() -> None:
            monkeypatch.setenv("COLUMNS", str(width))  # rich asks the real streams for theirs
            with progress_display.observed_run(console.Verbosity()) as observer:
                observer.progress(0, 24)

        (line,) = shown(on_terminal(begin, width), width)
        assert len(line) <= width
        assert line.endswith("0/24 instants  0:00:00")
        assert ("reconstruct" in line, "━━━" in line) == (has_label, has_bar)

    def test_one_instant_is_counted_as_one(self) -> None:
        assert progress_display.count("instant")(0, 1) == "0/1 instant"
        assert progress_display.sizes(1_000_000, 4_100_000_000) == "1 MB of 4.1 GB"
