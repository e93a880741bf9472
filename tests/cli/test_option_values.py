"""Values of options in Python, in files of configuration, and in weights."""

import json
import re
from pathlib import Path

import pytest

from page4d.errors import UsageError, WeightsError
from page4d.networks.ood import OODLimits
from page4d.options import EvaluationSettings, PointOptions, ReconstructSettings, SceneOptions
from page4d.run.reconstruct import reconstruct
from page4d.weights.loading import load
from page4d_cli.app import run
from tests.cli.clips import write_image_folder

NAN, INF = float("nan"), float("inf")


@pytest.fixture
def scene(tmp_path) -> Path:
    """Two image folders; the name of one could be read as a number."""
    for seed, name in enumerate(("1_0", "cam02")):
        write_image_folder(tmp_path / "scene" / name, seed=seed)
    return tmp_path / "scene"


def test_a_name_that_resembles_a_number_selects_its_view(scene: Path, capfd):
    assert run(["inspect-scene", str(scene), "--views", "1_0", "--json"]) == 0
    assert '"view": "1_0"' in capfd.readouterr().out


@pytest.mark.parametrize(
    ("settings", "field", "values"),
    [
        (SceneOptions, "fps", (0.0, NAN, INF, 1e300)),
        (SceneOptions, "image_fps", (-1.0,)),
        (SceneOptions, "stride", (0,)),
        (SceneOptions, "max_frames", (0,)),
        (SceneOptions, "depth_levels", (0.0,)),
        (SceneOptions, "max_megapixels", (NAN,)),
        (SceneOptions, "views", (0, -1, ())),
        (ReconstructSettings, "long_side", (10**7,)),
        (EvaluationSettings, "fps", (-1.0, 0.0, INF, NAN)),
        (EvaluationSettings, "max_depth", (-1.0, 0.0, INF, NAN)),
        (PointOptions, "min_confidence", (1.5, NAN)),
        (PointOptions, "edge_angle_deg", (0.0,)),
        (PointOptions, "voxel_size", (-1.0,)),
        (PointOptions, "max_points", (-1,)),
    ],
)
def test_settings_are_bounded_in_python_too(settings: type, field: str, values: tuple[object, ...]):
    for value in values:
        with pytest.raises(UsageError, match=re.escape(f": {field} is {value}")):
            settings(**{field: value})


def test_python_takes_paths_as_objects_or_text_and_names_other_values(scene: Path, tmp_path):
    assert SceneOptions(sync=scene / "clocks.json").sync == str(scene / "clocks.json")
    with pytest.raises(WeightsError, match="do not exist"):
        load(str(tmp_path / "nothing.safetensors"), "cpu")
    with pytest.raises(UsageError, match="existing is 'replace'"):
        reconstruct(scene, out=tmp_path / "out", existing="replace")
    with pytest.raises(UsageError, match="seed is too large"):
        ReconstructSettings(seed=10**5000)
    with pytest.raises(UsageError, match="memory_bytes is 1000"):
        ReconstructSettings(memory_bytes=10**400)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "text",
    ['{"limits": {"depth": 1%s}}' % ("0" * 400), "[" * 100_000, '{"limits": {"depth": NaN}}', "9" * 5000],
    ids=["overflow", "nested", "nan", "digits"],
)
def test_hostile_domains_of_weights_are_weights_errors(text: str):
    with pytest.raises(WeightsError, match="domain is damaged"):
        OODLimits.from_json(text)


def configured(content: str, folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "run.toml").write_text(content)
    return folder / "run.toml"


def test_a_file_has_the_options_of_the_command_line_which_wins(scene: Path, tmp_path, cli):
    write_image_folder(tmp_path / "rig" / "masks" / "cam02", seed=3)
    file = configured(
        'views = ["1_0", "cam02"]\nmasks = "masks"\nframes = "0:2"\nmax_frames = 9\nfps = 12.5\n', tmp_path / "rig"
    )
    written = ("--views", "1_0,cam02", "--masks", tmp_path / "rig" / "masks", "--frames", "0:2", "--fps", 12.5)
    expected = cli("inspect-scene", scene, *written, "--json")
    assert expected.code == 0
    assert '"masked": true' in expected.out
    assert cli("inspect-scene", scene, "--config", file, "--json") == expected
    ended = cli("inspect-scene", scene, "--json", "--views", "cam02", "--config", file)
    assert '"view": "1_0"' not in ended.out


def test_flags_and_outputs_are_read_from_a_file(scene: Path, tmp_path, cli):
    lines = 'untrained=true\npreset="mv-tiny"\nout="out"\nsize=28\nchunk="auto"\nmemory="20GB"\ndry-run=true\n'
    ended = cli("reconstruct", scene, "--config", configured(lines, tmp_path / "rig"), "--chunk", "4", "--json")
    assert ended.code == 0
    plan = json.loads(ended.out)
    assert plan["out"] == str(tmp_path / "rig" / "out")
    assert (plan["network"], max(plan["network_sizes"][0]), plan["chunks"]) == ("page4d-mv", 28, [[0, 4, 0]])
    assert plan["memory_bytes"] == 20 * 10**9


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("chunks = 3", "has an unknown option 'chunks'", "did you mean chunk? 'page4d reconstruct --help'"),
        ("no_refine = true", "has an unknown option 'no_refine'", "did you mean"),
        ("config = 'x.toml'", "has an unknown option 'config'", ""),
        ("[points]\nvoxel = 1", "has an unknown option 'points'", "did you mean"),
        ("size = 'big'", "size: 'big' should be a valid integer", ""),
        ("size = true", "size: true and false are not values of it", ""),
        ("mesh = 1", "mesh: true or false is expected", ""),
        ("frames = '1-2'", "frames: '1-2' is not of the form A:B", ""),
        ("precision = 'fp1'", "precision: 'fp1' is not one of 'auto', 'fp32'", ""),
        ("memory = 20", "memory: --memory 20 is not an amount of memory", "give auto or such as 20GB"),
        ("size = 2026-01-01", "size: text, a number or a list of them is expected", ""),
        ("size = ", "is not TOML: line 1", "write one option per line"),
        ("max-points = 5\nmax_points = 7", "has the option 'max_points' twice", "remove one of the lines"),
        ("masks = ''", "masks: the value is empty", ""),
        ("calibration = []", "calibration: the value is empty", ""),
    ],
)  # fmt: skip
def test_a_fault_of_a_file_is_named_with_its_key(line: str, message: str, hint: str, scene: Path, tmp_path, cli):
    file = configured(line, tmp_path / "rig")
    ended = cli("reconstruct", scene, "--out", tmp_path / "out", "--untrained", "--config", file)
    assert (ended.code, ended.out) == (2, "")
    first, second = ended.err.splitlines()
    assert first.startswith(f"error: '{file}'")
    assert message in first
    assert hint in second
    assert not (tmp_path / "out").exists()


def test_a_path_of_a_file_is_never_that_of_the_working_folder(scene: Path, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sync.json").write_text('{"views": {}}')
    ended = cli("inspect-scene", scene, "--config", configured("sync = 'sync.json'", tmp_path / "rig"))
    assert (ended.code, "/rig/sync.json' does not exist" in ended.err) == (2, True)


@pytest.mark.parametrize("place", ["", "rig"])
@pytest.mark.parametrize(("name", "stays"), [("none", True), ("audio", True), ("v1.5", True), ("a/b", False)])
def test_a_name_that_a_folder_has_too_stays_a_name(place, name, stays, scene: Path, tmp_path, cli, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / place / name).mkdir(parents=True)
    ended = cli("inspect-scene", scene, "--config", configured(f"sync = '{name}'", tmp_path / "rig"))
    assert ended.err.startswith(("error: b", f"error: sync file '{tmp_path}/rig/a/b'")) is not stays


def test_a_file_of_any_suffix_is_that_of_the_configuration(scene: Path, tmp_path, cli):
    (tmp_path / "rig").mkdir()
    (tmp_path / "rig" / "corners.png").touch()
    lines = "board = 'chessboard:6x5,2.5mm'\nout = 'rig.toml'\nreport = 'corners.png'"
    ended = cli("calibrate", scene, "--config", configured(lines, tmp_path / "rig"))
    assert (ended.code, "/rig/corners.png' already exists" in ended.err) == (2, True)


def test_a_file_that_cannot_be_read_is_an_error_of_input(scene: Path, tmp_path, cli):
    ended = cli("inspect-scene", scene, "--config", tmp_path / "missing.toml")
    assert (ended.code, ended.out) == (3, "")
    assert "missing.toml' cannot be read: it does not exist" in ended.err
