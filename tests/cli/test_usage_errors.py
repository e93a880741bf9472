"""Command lines that cannot be parsed, and options in errors of Python and the command line."""

import pickle
import shutil
from pathlib import Path

import pytest

import page4d
from page4d.errors import in_python
from page4d.options import in_options
from tests.exporters.capture import make_capture

ROOM = Path(__file__).parents[2] / "samples" / "room"


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("reconstrut", "No such command 'reconstrut'", "did you mean reconstruct, report? 'page4d --help' lists"),
        ("--bogus", "No such option: --bogus", "'page4d --help' lists the commands"),
        ("reconstruct", "Missing argument 'SCENE'", ""),
        ("reconstruct a --ouput x", "No such option: --ouput", "did you mean --out"),
        ("reconstruct a --out", "Option '--out' requires an argument", ""),
        ("reconstruct a --out x --json=3", "Option '--json' does not take a value", ""),
        ("reconstruct a --out x --size abc", "Invalid value for '--size': 'abc' should be a valid integer", ""),
        ("reconstruct a --out x --overlap -1", "Invalid value for '--overlap': '-1' should be greater than or", ""),
        (
            "reconstruct a --out x --precision fp23",
            "Invalid value for '--precision': 'fp23' is",
            "did you mean fp32? ",
        ),
        ("reconstruct a --out x --register poeple", "Invalid value for '--register'", "did you mean people? 'page4d"),
        ("weights show da3_bsae", "no checkpoint is called 'da3_bsae'", "did you mean da3-base? choose from"),
        ("inspect-shapes --model MV-Tinny", "no network is called 'MV-Tinny'", "did you mean mv-tiny? choose from"),
        (
            "pretrain x --out y --encoder vit-m18",
            "no encoder is called 'vit-m18'",
            "did you mean vit-s16? choose from",
        ),
        ("train --out x --preset dmeo", "no training preset is called 'dmeo'", "did you mean demo? choose from"),
        (f"inspect-scene {ROOM} --views Cam1,cam02", "--views: no view is called 'Cam1'", "did you mean cam01? "),
        (f"inspect-scene {ROOM} --sync adio", "sync file 'adio' does not exist", "did you mean audio? give a file"),
        (f"inspect-scene {ROOM.parent / 'rom'}", "scene folder '", "did you mean room? give the folder"),
        (f"inspect-scene {ROOM} --masks {ROOM / 'thruth'}", "masks folder '", "did you mean truth? give a folder"),
        ("reconstruct a --out x --frames 1-2", "Invalid value for '--frames': '1-2' is not of the form A:B", ""),
        (
            "reconstruct a --out x --frames 0:9:3",
            "Invalid value for '--frames': '0:9:3' is not of the form A:B; --stride",
            "",
        ),
        ("train", "Missing option '--out'", "'page4d train --help' lists the options"),
        ("doctor extra", "Got unexpected extra argument", "'page4d doctor --help' lists the options"),
        (f"doctor {'x ' * 500}", "Got unexpected extra argument", ""),
        (f"inspect-scene {'x' * 5000}", "'xxx", ""),
        (f"reconstruct a --out x --frames {'x' * 5000}", "Invalid value for '--frames'", ""),
        (f"inspect-shapes --{'x' * 5000}", "No such option: --xxx", ""),
    ],
)
def test_usage_errors_have_two_short_lines_and_code_2(line, message, hint, cli) -> None:
    ended = cli(*line.split())
    assert (ended.code, ended.out) == (2, "")
    first, second = ended.err.splitlines()
    assert first.startswith(f"error: {message}")
    assert second.startswith(f"hint:  {hint}")
    assert max(len(first), len(second)) < 250


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A scene, its run, a damaged ground truth, and a folder for outputs."""
    folder = tmp_path_factory.mktemp("mistakes")
    capture = make_capture(folder, size=(30, 40))
    truth, state = folder / "truth", capture.folder / "state"
    truth.mkdir()
    state.mkdir(exist_ok=True)
    (state / "run.json").write_text("{}")
    shutil.copy(capture.folder / "cameras.json", truth)
    (truth / "capture.json").write_text("{}")
    return {"scene": capture.scene, "result": capture.folder, "truth": truth, "new": folder / "new"}


MISTAKES = """\
mesh_voxel: reconstruct(scene, out=new, mesh_voxel=0.1)
    reconstruct {scene} --out {new} --mesh-voxel 0.1
mesh_voxel=0.1 without mesh; pass mesh=True too
--mesh-voxel 0.1 without --mesh; pass --mesh too

None: reconstruct(scene, out=result)
    reconstruct {scene} --out {result}
'{result}' already holds a result; use existing='resume', existing='overwrite' or another folder
'{result}' already holds a result; use --resume, --overwrite or another folder

calibration_unit: open_scene(scene, calibration_unit='mm')
    inspect-scene {scene} --calibration-unit mm
calibration_unit without calibration; pass the calibration file too
--calibration-unit without --calibration; pass the calibration file too

views: open_scene(scene, views=9)
    inspect-scene {scene} --views 9
views=9, but '{scene}' has 4 videos: cam01, cam02, cam03, cam04; pass views=4
--views 9, but '{scene}' has 4 videos: cam01, cam02, cam03, cam04; pass --views 4

focal: register(scene, focal='cam9=50')
    register {scene} --out {new}.json --focal cam9=50
focal='cam9=50': no view is called 'cam9'; did you mean cam04? choose from cam01, cam02, cam03, cam04
--focal cam9=50: no view is called 'cam9'; did you mean cam04? choose from cam01, cam02, cam03, cam04

None: evaluate(result, truth)
    evaluate {result} {truth}
'{truth}/capture.json' has no options.fps; restore it, or remove it and pass fps
'{truth}/capture.json' has no options.fps; restore it, or remove it and pass --fps

None: export(result, 'colmap', new)
    export {result} --format colmap --to {new}
colmap needs the pictures; give scene=FOLDER with cam01/, cam02/, cam03/, ... (4 in all), or images=False
colmap needs the pictures; give --scene FOLDER with cam01/, cam02/, cam03/, ... (4 in all), or --no-images

text: export(result, 'npz', new, text=True)
    export {result} --format npz --to {new} --text
npz takes no text; leave it out; these formats take it: colmap
npz takes no --text; leave it out; these formats take it: colmap
"""


@pytest.mark.parametrize("mistake", MISTAKES.split("\n\n"), ids=lambda text: text.split("(")[0])
def test_python_and_the_command_line_name_options_as_they_take_them(mistake, places, cli) -> None:
    call, line, python, command = mistake.format(**places).splitlines()
    option, call = call.split(": ")
    with pytest.raises(page4d.Page4DError) as caught:
        eval(f"page4d.{call}", {"page4d": page4d, **places})
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value))):
        assert (f"{error}; {error.hint}", str(error.option), error.args) == (python, option, (error.message,))
    assert "; ".join(part[7:] for part in cli(*line.split()).err.splitlines()[-2:]) == command


@pytest.mark.parametrize(
    ("marked", "keyword", "words"),
    [
        ("⟨instants=0:300⟩ ⟨frames=2:4⟩", "instants=range(0, 300) frames=(2, 4)", "--instants 0:300 --frames 2:4"),
        ("⟨views=a,b⟩ ⟨hold_out=a⟩", "views=['a', 'b'] hold_out=['a']", "--views a,b --hold-out a"),
        ("⟨refine=False⟩ ⟨motion=True⟩", "refine=False motion=True", "--no-refine --motion"),
        ("⟨weights=FILE⟩ ⟨sync=none⟩", "weights=FILE sync='none'", "--weights FILE --sync none"),
    ],
)
def test_values_of_options_in_messages(marked, keyword, words) -> None:
    assert (in_python(marked), in_options(marked)) == (keyword, words)
    assert (in_python(keyword), in_options(words)) == (keyword, words)


def test_a_control_character_in_an_option_is_escaped(cli) -> None:
    assert "\x1b" not in cli("reconstruct", "--\x1b[31mred").err


def test_help_without_arguments_has_code_2_as_nothing_was_done(cli) -> None:
    ended = cli()
    assert (ended.code, ended.err) == (2, "")
    assert ended.out == cli("--help").out


def test_a_variable_that_is_no_width_changes_nothing(monkeypatch, cli) -> None:
    def screens() -> list[object]:
        return [cli("export", "--list"), cli("doctor", "extra"), cli("doctor", "--help")]

    monkeypatch.delenv("COLUMNS", raising=False)
    expected = screens()
    assert "nerfstudio" in expected[0].out
    for given in ("", "0", "-5", "wide", "9" * 5000):
        monkeypatch.setenv("COLUMNS", given)
        assert screens() == expected, given
