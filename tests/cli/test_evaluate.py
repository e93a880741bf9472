"""`page4d evaluate` on the sample: tables, JSON, plots and errors."""

import io
import json
import os
import shutil
from contextlib import redirect_stdout
from pathlib import Path

import cv2
import numpy as np
import pytest

import page4d
from page4d.evaluation.comparison import compare
from page4d_cli.app import run
from tests.evaluation.outputs import reconstruct_from_truth

ROOM = Path(__file__).parents[2] / "samples" / "room"
PLOTTED = ("--points-per-instant", 300, "--max-depth", 6, "--align", "scale", "--align", "median")
PLOTS = ["cameras_from_above.png", "depth_errors.png", "errors_over_time.png", "sparsification.png"]


@pytest.fixture(scope="module")
def result(tmp_path_factory) -> Path:
    """Two instants of the sample, reconstructed from its ground truth."""
    folder = tmp_path_factory.mktemp("evaluate")
    return reconstruct_from_truth(ROOM, folder / "out", "--frames", "0:2", "--size", 320)


@pytest.fixture(scope="module")
def plotted(result, tmp_path_factory) -> tuple[str, Path]:
    """The printed report with plots, and their folder."""
    folder, printed = tmp_path_factory.mktemp("evaluate") / "new" / "plots", io.StringIO()
    with redirect_stdout(printed):
        assert run([*map(str, ("evaluate", result, ROOM, *PLOTTED, "--plots", folder))]) == 0
    return printed.getvalue(), folder


@pytest.fixture
def evaluate(cli, result):
    def call(*arguments: object, out: Path = result, truth: Path = ROOM):
        return cli("evaluate", out, truth, "--points-per-instant", 300, *arguments)

    return call


def test_the_sample_against_itself_is_perfect(evaluate, result) -> None:
    ended = evaluate("--align", "scale", "--json")
    assert ended.code == 0, ended.err
    document = json.loads(ended.out)
    (depth,) = document["depth"]["results"]
    assert depth["overall"] == {
        "pixels": 2 * 4 * 240 * 320,
        **dict.fromkeys(("abs_rel", "sq_rel", "rmse", "log_rmse"), 0.0),
        **dict.fromkeys(("delta1", "delta2", "delta3"), 1.0),
    }
    assert document["cameras"]["overall"]["ate"] < 1e-9
    assert document["cameras"]["pairs"]["auc"] == {"3": 1.0, "5": 1.0, "15": 1.0, "30": 1.0}
    assert document["points"]["overall"]["f_score"] == 1.0
    assert document["masks"]["overall"]["jm"] == 1.0
    assert document["match"]["preprocess"] == "native"
    settings = {"alignments": ("scale",), "points_per_instant": 300}
    assert json.loads(json.dumps(page4d.evaluate(result, ROOM, **settings).document())) == document


def test_tables_have_all_headings_and_plots_are_written(plotted) -> None:
    text, folder = plotted
    lines = text.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines if line.split()}
    headings = ["AbsRel", "delta", "RMSE", "ATE", "rotation", "focal", "accuracy", "complete-", "F-score", "JM"]
    assert all(heading in text for heading in headings)
    assert len(rows["cam01"]) == len(headings)
    assert rows["overall"][:2] == ["0.0000", "100.0"]
    assert {"scale", "median"} <= rows.keys()
    assert rows["RTA,"] == ["signed", *["100.0"] * 4]
    assert "note        the true cameras are static: RPE is the motion of the predicted ones" in lines
    assert max(len(line) for line in lines if not line.startswith(("note", "plot", "/"))) <= 100
    assert sorted(path.name for path in folder.iterdir()) == PLOTS
    assert sorted(Path(line.split()[-1]).name for line in lines if line.startswith("plot")) == PLOTS
    for name in PLOTS:
        picture = cv2.imread(str(folder / name))
        assert picture is not None, name
        assert len(np.unique(picture.astype(int) @ (1, 256, 65536))) > 20, name


def test_plots_are_replaced_only_with_overwrite_and_are_reproducible_byte_for_byte(
    plotted, evaluate, tmp_path
) -> None:
    (tmp_path / "sparsification.png").write_bytes(b"mine")
    refused = evaluate(*PLOTTED, "--plots", tmp_path)
    assert (refused.code, refused.out) == (2, "")
    assert f"'{tmp_path / 'sparsification.png'}' already exists" in refused.err
    assert (tmp_path / "sparsification.png").read_bytes() == b"mine"
    replaced = evaluate(*PLOTTED, "--plots", tmp_path, "--overwrite", "--quiet")
    assert (replaced.code, replaced.out, replaced.err) == (0, "", "")
    first, second = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (plotted[1], tmp_path))
    assert first == second
    assert sorted(first) == PLOTS
    assert all(b"tEXt" not in data and b"tIME" not in data for data in first.values())


PNG_BOMB = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (60_000).to_bytes(4, "big") * 2 + b"\x10\0\0\0\0"


DEPTH = "depth/cam02/000001.png"
EIGHT_BITS = cv2.imencode(".png", np.zeros((240, 320), np.uint8))[1].tobytes()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cameras.json", None, "there is neither cameras.json nor truth/cameras.json"),
        ("cameras.json", b"{}", "it has neither the key 'views' nor 'cameras'"),
        ("capture.json", b"{}", "has no options.fps"),
        ("capture.json", b'{"options": {"fps": 0}}', "options.fps is 0"),
        ("capture.json", b'{"options": {"fps": 1%b}}' % (b"0" * 400), "options.fps is 1000"),
        (DEPTH, b"no", "is damaged"),
        (DEPTH, EIGHT_BITS, "is uint8 (240, 320), not uint16 (240, 320)"),
        (DEPTH, PNG_BOMB, "has 60000x60000 pixels"),
        (DEPTH, os.mkfifo, "it is not a regular file"),
        (DEPTH, lambda file: file.symlink_to("/dev/zero"), "it is not a regular file"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_an_invalid_ground_truth_is_reported_with_a_hint(name, content, message, evaluate, tmp_path) -> None:
    truth = tmp_path / "truth"
    shutil.copytree(ROOM / "truth", truth)
    (truth / name).unlink()
    if callable(content):
        content(truth / name)
    elif content is not None:
        (truth / name).write_bytes(content)
    ended = evaluate(truth=truth)
    assert (ended.code, ended.out) == (3, "")
    assert message in ended.err
    assert ended.err.splitlines()[-1].startswith("hint:")


@pytest.mark.parametrize("value", [0, -1, 10**400])
def test_a_rate_in_the_settings_that_no_run_has_is_ignored(value, result, tmp_path) -> None:
    truth = Path(shutil.copytree(ROOM / "truth", tmp_path / "truth", copy_function=os.link))
    (truth / "capture.json").unlink()
    out = Path(shutil.copytree(result, tmp_path / "out", copy_function=os.link))
    record = json.loads((out / "run.json").read_text())
    for key in ("image_fps", "stride"):
        (out / "run.json").unlink()
        (out / "run.json").write_text(json.dumps(record | {"settings": {**record["settings"], key: value}}))
        assert compare(out, truth).instants


def test_a_plot_that_cannot_be_written_costs_no_result(evaluate, tmp_path, file_size_limit) -> None:
    expected = evaluate(*PLOTTED[2:])
    with file_size_limit(1000):
        ended = evaluate(*PLOTTED[2:], "--plots", tmp_path / "plots")
    assert (ended.code, "the file is larger than this process may write" in ended.err) == (5, True)
    assert ended.out == expected.out
