"""Every option of a run has the same effect from Python as from the command line, and the documented one."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import cache
from itertools import count
from pathlib import Path
from signal import SIGINT
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np
import pytest

import page4d
from page4d.errors import InputError, InterruptedRunError, MemoryBudgetError, Page4DError, UsageError
from page4d.io.atomic import file_sha256
from page4d.networks.config_parts import MatchConfig
from page4d.options import NetworkOptions, PointOptions, ReconstructSettings, SceneOptions, option_name
from page4d.weights.loading import load
from page4d.weights.store import save_network
from page4d_cli.app import run
from tests.cli.clips import rig, write_depth, write_image_folder, write_scene
from tests.run.test_network_predictor import TINY, without_zeros

pytestmark = pytest.mark.usefixtures("constant_forecast", "few_steps")

Options = dict[str, Any]


class Effect(Enum):
    """Difference between a run with an option and one without."""

    BYTES = "other bytes, another fingerprint"
    FINGERPRINT = "the same bytes, another fingerprint"
    NONE = "the same bytes, the same fingerprint"
    PREVIEW = "additional preview pictures, otherwise none"


@dataclass(frozen=True)
class Case:
    """A field with a value other than its default, and the options of both runs that are compared."""

    field: str
    value: Any
    effect: Effect = Effect.BYTES
    base: str = "plain"


PLAIN: Options = {
    "weights": "net.safetensors",
    "long_side": 28,
    "chunk": 2,
    "overlap": 1,
    "frames": (0, 2),
    "refine": False,
    "preview": False,
    "register": "network",
    "check_calibration": False,
}


def plain(*without: str, **options: Any) -> Options:
    """Return the plain options without some and with others."""
    return {**{name: value for name, value in PLAIN.items() if name not in without}, **options}


BASES: dict[str, Options] = {
    "plain": plain(),
    "registered": plain("register"),
    "checked": plain("check_calibration", calibration="rig.json"),
    "images": plain(scene="images"),
    "all instants": plain("frames"),
    "one chunk": plain("chunk"),
    "two chunks": plain(frames=(0, 3)),
    "two calibrated chunks": plain(frames=(0, 3), calibration="rig.json"),
    "one image": plain("long_side", "weights", untrained=True, preset="mv-tiny", frames=(0, 1), views=1),
    "meshed": plain(mesh=True),
    "with motion": plain(motion=True, calibration="rig.json"),
    "thinned": plain(points={"max_points": 100}),
    "untrained": plain("weights", untrained=True, preset="mv-tiny"),
    "bundled": plain("weights", frames=(0, 1)),
    "calibrated": plain(calibration="rig.json"),
    "upright": plain(calibration="upright_rig.json", world="upright"),
    "bundled, calibrated": plain("weights", frames=(0, 1), calibration="rig.json"),
    "calibrated without unit": plain(calibration="rig_without_unit.json"),
    "calibrated at another size": plain(calibration="larger_rig.json", calibration_resize="crop-center"),
    "three calibrated": plain("register", scene="three", calibration="three.json"),
    "masked": plain(masks="masks"),
    "measured depth": plain("weights", calibration="rig.json", depth="depth"),
}

SCENE_CASES = (
    Case("views", 1),
    Case("views", ("cam02",)),
    Case("sync", "clocks.json"),
    Case("fps", 6.0),
    Case("image_fps", 10.0, base="images"),
    Case("stride", 2, base="all instants"),
    Case("frames", (1, 3)),
    Case("max_frames", 5, Effect.NONE),
    Case("calibration", "rig.json"),
    Case("calibration_unit", "cm", base="calibrated without unit"),
    Case("calibration_match", "order", base="calibrated"),
    Case("calibration_resize", "scale", base="calibrated at another size"),
    Case("again", ("cam03",), base="three calibrated"),
    Case("masks", "masks"),
    Case("mask_meaning", "keep", base="masked"),
    Case("depth", "depth", base="bundled, calibrated"),
    Case("depth_levels", 500.0, base="measured depth"),
    Case("allow_damaged", True, Effect.FINGERPRINT),
    Case("max_megapixels", 32.0, Effect.NONE),
)
NETWORK_CASES = (
    Case("weights", "net.safetensors", base="bundled"),
    Case("sha256", "that of the file", Effect.NONE),
    Case("untrained", True, base="bundled"),
    Case("preset", "mv-small", base="untrained"),
    Case("device", "cpu", Effect.NONE),
    Case("precision", "bf16"),
)
RUN_CASES = (
    Case("long_side", 42),
    Case("depth_size", 60, base="calibrated"),
    Case("preprocess", "vggt-crop", base="one image"),
    Case("chunk", 3, base="two chunks"),
    Case("overlap", 0, base="two calibrated chunks"),
    Case("memory_bytes", "8GB", Effect.NONE),
    Case("poses", "predicted", base="calibrated"),
    Case("camera_motion", "static"),
    Case("register", "network", Effect.FINGERPRINT, base="registered"),
    Case("focal", "60", Effect.FINGERPRINT, base="registered"),
    Case("intrinsics", "rig.json", Effect.FINGERPRINT, base="registered"),
    Case("scale_from", "cam01-cam02=1.25m"),
    Case("world", "first-camera", base="calibrated"),
    Case("up", "y", base="upright"),
    Case("floor_at", "floor.csv", base="upright"),
    Case("check_calibration", False, Effect.NONE, base="checked"),
    Case("refine", True),
    Case("fuse", False),
    Case("bodies", False, Effect.NONE, base="calibrated"),
    Case("points", {"min_confidence": 0.6}),
    Case("layers", True, base="calibrated"),
    Case("mesh", True),
    Case("mesh_voxel", 0.5, base="meshed"),
    Case("motion", True),
    Case("motion_size", 40, base="with motion"),
    Case("tracks", 20, base="with motion"),
    Case("tracks2d", "tracks2d", base="with motion"),
    Case("preview", True, Effect.PREVIEW),
    Case("strict_seams", True, Effect.NONE, base="one chunk"),
    Case("seed", 1, base="untrained"),
    Case("seed", 1, base="thinned"),
)
POINT_CASES = (
    Case("min_confidence", 0.6),
    Case("min_views", 2),
    Case("edge_angle_deg", 20.0),
    Case("voxel_size", 0.5),
    Case("outliers", True),
    Case("normals", True),
    Case("max_points", 100),
)
CASES = (*SCENE_CASES, *NETWORK_CASES, *RUN_CASES, *POINT_CASES)


def command_line(options: Options) -> list[str]:
    """Return the options of the command line for fields of settings."""
    words: list[str] = []
    for name, value in options.items():
        option = option_name(name)
        match value:
            case dict():
                words += command_line(value)
            case bool():
                words.append(f"--{option}" if value else f"--no-{option}")
            case (int(start), int(stop)):
                words += [f"--{option}", f"{start}:{stop}"]
            case tuple():
                words += [f"--{option}", ",".join(value)]
            case _:
                words += [f"--{option}", str(value)]
    return words


@dataclass(frozen=True)
class Result:
    """Content of an output folder."""

    settings: Options
    network: Options
    fingerprint: Options
    files: dict[str, bytes]

    @staticmethod
    def of(out: Path) -> "Result":
        record = json.loads((out / "run.json").read_text())
        files = [path for path in sorted(out.rglob("*")) if path.is_file() and path.name[0] != "."]
        return Result(
            settings=record["settings"],
            network=record["network"],
            fingerprint=json.loads((out / "state" / "run.json").read_text())["fingerprint"],
            files={
                str(path.relative_to(out)): path.read_bytes()
                for path in files
                if path.name != "run.json" and "state" not in path.parts
            },
        )

    def without_preview(self) -> dict[str, bytes]:
        return {name: data for name, data in self.files.items() if not name.startswith("preview/")}


def from_python(options: Options, out: Path) -> None:
    options = dict(options)
    page4d.reconstruct(options.pop("scene", "videos"), out=out, **options)


def from_command_line(options: Options, out: Path) -> None:
    options = dict(options)
    words = ["reconstruct", options.pop("scene", "videos"), "--out", str(out), "--quiet"]
    if code := run([*words, *command_line(options)]):
        raise InterruptedRunError("", "", code - 128)


def begun_with(options: Options, call: Callable[[Options, Path], None]) -> tuple[object, ...]:
    """Return the folder of the scene and the records of options with which a run begins, without its remainder."""
    found: list[tuple[object, ...]] = []

    def begin(scene: SimpleNamespace, *records: object) -> None:
        found.append((Path(scene.folder), scene.options, *records[:2]))
        raise InterruptedRunError("begun", "", SIGINT)

    with pytest.MonkeyPatch.context() as patched:
        opened = lambda folder, options, _: SimpleNamespace(folder=folder, options=SceneOptions(**options))  # noqa: E731
        patched.setattr("page4d.run.reconstruct.opened_scene", opened)
        patched.setattr("page4d.run.reconstruct.predictor_for", begin)
        with pytest.raises(InterruptedRunError) as ended:
            call(options, Path("begun"))
    assert ended.value.exit_code == 128 + SIGINT
    return found[0]


Runs = Callable[[Options, Callable[[Options, Path], None]], Result]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Write the inputs of all cases, and run each set of options once."""
    folder = tmp_path_factory.mktemp("settings")
    results: dict[str, Result] = {}
    numbers = count()

    def result(options: Options, call: Callable[[Options, Path], None]) -> Result:
        key = f"{call.__name__} {options}"
        if key not in results:
            out = folder / "out" / str(next(numbers))
            call(options, out)
            results[key] = Result.of(out)
        return results[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setattr("page4d.run.predictor.load", cache(load))
        write_inputs()
        yield result


def write_inputs() -> None:
    write_scene(Path("videos"))
    write_scene(Path("three"), ("cam01", "cam02", "cam03"))
    Path("three.json").write_text(rig("cam01", "cam02", "cam03"))
    for seed, name in enumerate(("cam01", "cam02")):
        write_image_folder(Path("images", name), seed=seed)
        write_depth(Path("depth", name))
        Path("masks", name).mkdir(parents=True)
        for index in range(4):
            cv2.imwrite(f"masks/{name}/{index:06d}.png", mask())
    Path("tracks2d").mkdir()
    np.savez("tracks2d/cam01.npz", tracks=np.full((2, 4, 2), 20.0), visibles=np.ones((2, 4), bool))
    Path("clocks.json").write_text('{"cam02": {"offset_s": 0.0833333}}')
    for name, changes in (("rig", {}), ("rig_without_unit", {"scale": None}), ("larger_rig", {"width": 72})):
        Path(f"{name}.json").write_text(rig("cam02", "cam01", step=-1, **changes))  # in reverse order
    upright = json.loads(Path("rig.json").read_text()) | {"up": "-y"}
    Path("upright_rig.json").write_text(json.dumps(upright))
    marks = (
        "p,cam02,39.5,39",
        "p,cam01,24.5,39",
        "q,cam02,32,32",
        "q,cam01,24.5,32",
        "r,cam02,50,36",
        "r,cam01,38,36",
    )
    Path("floor.csv").write_text("\n".join(("point,view,x,y", *marks)))
    network = without_zeros(replace(TINY, matches=MatchConfig(dim=8, hidden=8), known_cameras=True))
    save_network(network, Path("net.safetensors"), {"licence": "CC0-1.0", "description": "test network"})


def mask() -> np.ndarray:
    image = np.zeros((48, 64), np.uint8)
    image[10:30, 10:40] = 255
    return image


@pytest.mark.parametrize(
    ("record", "cases"),
    [
        (SceneOptions, SCENE_CASES),
        (NetworkOptions, NETWORK_CASES),
        (ReconstructSettings, RUN_CASES),
        (PointOptions, POINT_CASES),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_every_field_has_a_case(record: type, cases: tuple[Case, ...]) -> None:
    assert {case.field for case in cases} == {field.name for field in fields(record)}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.field}={case.value}, {case.base}")
def test_an_option_has_the_same_effect_from_python_and_from_the_command_line(case: Case, runs: Runs) -> None:
    base = BASES[case.base]
    if case in POINT_CASES:
        options = {**base, "points": {**base.get("points", {}), case.field: case.value}}
    else:
        options = {**base, case.field: case.value}
    if case.field == "sha256":
        options["sha256"] = file_sha256(Path(options["weights"]))
    assert begun_with(options, from_python) == begun_with(options, from_command_line)
    result, other = runs(options, from_python), runs(base, from_python)
    assert (result.settings != other.settings) == (case not in NETWORK_CASES)
    assert (result.fingerprint != other.fingerprint) == (case.effect in (Effect.BYTES, Effect.FINGERPRINT))
    assert (result.without_preview() != other.without_preview()) == (case.effect is Effect.BYTES)
    assert (result.files.keys() != result.without_preview().keys()) == (case.effect is Effect.PREVIEW)


@pytest.mark.usefixtures("runs")
@pytest.mark.parametrize(
    ("options", "error"),
    [
        (plain(max_frames=1), UsageError),
        (plain(max_megapixels=0.001), InputError),
        (plain(memory_bytes="1MB"), MemoryBudgetError),
        (plain("weights", frames=(0, 3), strict_seams=True), InputError),
    ],
    ids=lambda value: list(value)[-1] if isinstance(value, dict) else "",
)
def test_a_limit_ends_a_run_from_python_and_from_the_command_line(
    options: Options, error: type[Page4DError], tmp_path: Path
) -> None:
    with pytest.raises(error):
        from_python(options, tmp_path / "python")
    words = ["reconstruct", "videos", "--out", str(tmp_path / "command"), *command_line(options)]
    assert run(words) == error.exit_code


def test_a_run_from_the_command_line_has_the_bytes_of_one_from_python(runs: Runs) -> None:
    options = {**BASES["with motion"], "layers": True, "mesh": True, "tracks": 20}
    assert runs(options, from_command_line) == runs(options, from_python)


def test_a_run_in_steps_equals_a_run_in_one_call(runs: Runs) -> None:
    def in_steps(options: Options, out: Path) -> None:
        options = dict(options)
        frames, weights = options.pop("frames"), options.pop("weights")
        scene = page4d.open_scene("videos", frames=frames)
        predictor = page4d.build_predictor(weights, settings=ReconstructSettings(**options))
        page4d.reconstruct(scene, predictor, out=out)

    assert runs(PLAIN, in_steps) == runs(PLAIN, from_python)


def test_options_of_a_run_replace_those_of_its_settings_and_of_its_predictor(runs: Runs) -> None:
    def from_settings(options: Options, out: Path) -> None:
        settings = ReconstructSettings(long_side=28, overlap=2, preview=False, refine=True, seed=7)
        page4d.reconstruct("videos", out=out, settings=settings, **options)

    def from_predictor(options: Options, out: Path) -> None:
        options = dict(options)
        frames, weights = options.pop("frames"), options.pop("weights")
        predictor = page4d.build_predictor(weights, settings=ReconstructSettings(refine=True, chunk=7))
        page4d.reconstruct(page4d.open_scene("videos", frames=frames), predictor, out=out, **options)

    seeded = plain("weights", untrained=True, preset="mv-tiny", seed=1)
    assert runs(seeded, from_settings) == runs(seeded, from_python)
    assert runs(PLAIN, from_predictor) == runs(PLAIN, from_python)


@pytest.mark.usefixtures("runs")
def test_options_that_do_not_apply_are_refused(tmp_path: Path) -> None:
    scene = page4d.open_scene("videos")
    predictor = page4d.build_predictor("net.safetensors")
    for call, message in (
        (lambda: page4d.reconstruct(scene, predictor, out=tmp_path, chunks=3), "no option is called 'chunks'"),
        (lambda: page4d.reconstruct(scene, predictor, out=tmp_path, views=1), "views with a scene that is open"),
        (lambda: page4d.reconstruct(scene, predictor, out=tmp_path, device="cpu"), "device with a predictor"),
        (lambda: page4d.reconstruct(scene, out=tmp_path, chunk=2, overlap=2), "chunk=2 with overlap=2"),
        (lambda: page4d.build_predictor("net.safetensors", untrained=True), "contradict each other"),
    ):
        with pytest.raises(UsageError, match=message):
            call()
