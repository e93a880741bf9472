"""The public names of the package, and the images of a scene."""

import ast
import inspect
import pydoc
import re
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest
import torch

import page4d
from page4d.errors import ON_STDERR, Level, Notice, StderrObserver, UsageError
from page4d.evaluation.record import Evaluation
from page4d.exporters.export import Exported
from page4d.output.reader import Output
from page4d.quality.record import QualityReport
from page4d.rig.records import RigRegistration
from page4d.scene.batches import open_batches
from tests.quality.test_quality_grade import run_record

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "samples" / "room"
TAKE_OBSERVERS = (page4d.reconstruct, page4d.register, page4d.calibrate, page4d.build_predictor, page4d.load)


def python(code: str, *options: str) -> str:
    """Run code in a new process and return its output."""
    command = [sys.executable, *options, *(["-c", code] if code else [])]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def names_for_type_checkers() -> dict[str, str]:
    """Return the names that `page4d/__init__.py` imports for type checkers, with their modules."""
    (block,) = [
        node
        for node in ast.parse((ROOT / "page4d" / "__init__.py").read_text()).body
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    assert len(imports) == len(block.body)
    return {alias.name: str(node.module) for node in imports for alias in node.names}


@pytest.mark.parametrize("name", page4d.__all__)
def test_every_public_name_resolves_to_a_documented_object(name: str) -> None:
    value = getattr(page4d, name)
    if name != "__version__":
        assert value is getattr(import_module(value.__module__), name)
        assert value.__doc__


def test_dir_lists_exactly_the_public_names() -> None:
    assert dir(page4d) == sorted(page4d.__all__)


def test_public_names_and_their_types_are_imported_from_the_same_modules() -> None:
    assert names_for_type_checkers() == page4d._MODULES
    assert set(page4d.__all__) == {*page4d._MODULES, "__version__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'page4d' has no attribute 'reconstrukt'"):
        _ = page4d.reconstrukt


def test_importing_the_package_imports_neither_torch_nor_pydantic() -> None:
    """Nor does reading the catalogue of weights import torch."""
    code = "import sys, page4d; print([name for name in ('torch', 'pydantic', 'numpy') if name in sys.modules])\n"
    assert python(code + "import page4d.weights.catalogue; print('torch' in sys.modules)") == "[]\nFalse\n"


def test_help_of_the_package_lists_the_public_names() -> None:
    text = pydoc.plain(pydoc.render_doc(page4d))
    assert all(name in text for name in (*page4d._MODULES, page4d.__version__))


def test_the_package_is_executable() -> None:
    assert python("", "-m", "page4d", "--version") == f"page4d {page4d.__version__}\n"


def test_images_of_a_scene_equal_those_of_a_batch_reader() -> None:
    scene = page4d.open_scene(SAMPLE, frames=(0, 4))
    images = scene.images(long_side=70, multiple=14)
    height, width = images.shape[-2:]
    assert images.shape == (1, 4, 4, 3, height, width)
    assert max(height, width) == 70
    assert 0 <= float(images.min()) < float(images.max()) <= 1
    with open_batches(scene, 70, 14) as reader:
        assert torch.equal(images, reader.read(0, 4).images)


def test_default_images_suit_networks_of_all_patch_sizes() -> None:
    images = page4d.open_scene(SAMPLE, frames=(0, 1), views=1).images()
    assert max(images.shape[-2:]) == 504
    assert all(side % 56 == 0 for side in images.shape[-2:])


def test_instants_may_be_given_in_any_order_and_repeated() -> None:
    scene = page4d.open_scene(SAMPLE, views=2, frames=range(6))
    every = scene.images(long_side=56)
    times = [4, 1, 4, 0]
    assert torch.equal(scene.images(times=times, long_side=56), every[:, times])
    assert torch.equal(scene.images(times=range(2, 4), long_side=56), every[:, 2:4])


@pytest.mark.parametrize(
    ("times", "message"),
    [([0, 6], "no instant 6"), ([-1], "no instant -1"), ([], "no instants"), ([True, False], "no instant True")],
)
def test_instants_that_do_not_exist_are_refused(times: list[int], message: str) -> None:
    scene = page4d.open_scene(SAMPLE, views=1, frames=(0, 6))
    with pytest.raises(UsageError, match=message) as refused:
        scene.images(times=times)
    assert refused.value.hint == "the scene has instants 0 to 5"
    with pytest.raises(UsageError, match="multiple is -14"):
        scene.images(multiple=-14)


@pytest.mark.parametrize(
    ("function", "arguments", "found"),
    [
        ("open_scene", {"folder": ""}, "scene is empty"),
        ("open_scene", {"folder": None}, "scene is of the type NoneType"),
        ("open_scene", {"folder": SAMPLE, "frames": range(0, 4, 2)}, "scene options: frames is range(0, 4, 2)"),
        ("open_output", {"folder": [SAMPLE]}, "folder is of the type list"),
        ("evaluate", {"out": 3, "truth": SAMPLE}, "folder is of the type int"),
        ("ReconstructSettings", {"chunk": True}, "settings: chunk is True"),
        ("build_predictor", {"settings": {"refine": False}}, "settings is of the type dict"),
        ("reconstruct", {"scene": SAMPLE, "out": "o", "predictor": "da3-base"}, "predictor is of the type str"),
        ("reconstruct", {"scene": SAMPLE, "out": 3}, "out is of the type int"),
        (
            "reconstruct",
            {"scene": SAMPLE, "out": "o", "predictor": "p", "settings": {}},
            "settings is of the type dict",
        ),
    ],
)
def test_arguments_of_another_type_are_refused(function: str, arguments: dict[str, object], found: str) -> None:
    with pytest.raises(UsageError) as refused:
        getattr(page4d, function)(**arguments)
    assert refused.value.message == found


def test_results_are_shown_in_one_line() -> None:
    scene = page4d.open_scene(SAMPLE, frames=(0, 4))
    assert repr(scene) == "<Scene 'room': 4 views, 4 instants, not calibrated>"
    assert re.fullmatch(
        r"<RunRecord of '.*': 3 views, \d+ instants?, [\d,]+ points, unit (metre|arbitrary)>", str(run_record())
    )
    assert all("__repr__" in vars(kind) for kind in (Evaluation, Exported, Output, QualityReport, RigRegistration))


def test_notices_and_progress_go_to_stderr_at_intervals(capsys, monkeypatch) -> None:
    clock = iter((0.0, 1.0, 2.0, 16.9, 17.1, 17.2, 18.0, 18.1))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    observer = StderrObserver()
    observer.notice(Notice("a step", Level.STEP))
    observer.notice(Notice("not shown", Level.INFO))
    observer.notice(Notice("⟨mesh_voxel=0.1⟩ without ⟨mesh⟩"))
    observer.progress(3, 24)
    observer.progress(24, 96, "detecting: people")
    observer.progress(24, 24)
    shown = ["a step", "warning: mesh_voxel=0.1 without mesh", "detecting: people 25%", "24/24 instants"]
    assert capsys.readouterr().err.splitlines() == [f"page4d: {line}" for line in shown]
    defaults = [inspect.signature(one).parameters["observer"].default for one in TAKE_OBSERVERS]
    assert defaults == [ON_STDERR] * len(TAKE_OBSERVERS)
