"""Layers of the architecture: a module imports only from its own package or from packages on lower floors."""

import ast
import re
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = {
    "page4d_cli": 9,
    "page4d.batch": 8,
    "page4d.lab": 8,
    "page4d.run": 7,
    "page4d.viewer": 6,
    "page4d.weights": 6,
    "page4d.evaluation": 5,
    "page4d.exporters": 5,
    "page4d.quality": 5,
    "page4d.rig": 5,
    "page4d.output": 4,
    "page4d.stereo": 4,
    "page4d.keywords": 3,
    "page4d.scene": 3,
    "page4d.formats": 2,
    "page4d.motion": 2,
    "page4d.networks": 2,
    "page4d.options": 2,
    "page4d.records": 2,
    "page4d.geometry": 1,
    "page4d.installation": 1,
    "page4d.io": 1,
    "page4d.plotting": 1,
    "page4d.choices": 0,
    "page4d.conventions": 0,
    "page4d.errors": 0,
    "page4d.signals": 0,
}

ROWS = re.findall(r"^\| ([0-9]+) \| (.+?) \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
"""Floors and rooms in the documentation."""

ENTRY_POINTS = ("page4d", "page4d.__main__")
"""Modules on no floor: the public names, which are imported on first use, and `python -m page4d`."""

BLOCKS = (ast.stmt, ast.ExceptHandler, ast.match_case)
"""Nodes of a syntax tree that may contain imports."""

FILES = sorted([*(ROOT / "page4d").rglob("*.py"), *(ROOT / "page4d_cli").rglob("*.py")])


def package_of(module: str) -> str | None:
    """Return the package of a module that is on a floor; None for entry points and other distributions."""
    parts = module.split(".")
    name = parts[0] if parts[0] == "page4d_cli" else ".".join(parts[:2])
    return name if name in FLOORS else None


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


@cache
def imported_modules(file: Path, at_run_time: bool = False) -> set[str]:
    """Return all modules that a file imports, also inside functions and, unless `at_run_time`, for type checking."""
    modules: set[str] = set()
    nodes: list[ast.AST] = [parsed(file)]
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            modules |= {f"{node.module}", *(f"{node.module}.{alias.name}" for alias in node.names)}
        for_types = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        if not (at_run_time and for_types):
            nodes += [child for child in ast.iter_child_nodes(node) if isinstance(child, BLOCKS)]
    return modules


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_files_import_each_other_in_a_circle_not_even_inside_functions() -> None:
    files = {module_name(file): imported_modules(file, at_run_time=True) for file in FILES}
    try:
        TopologicalSorter({name: imported & set(files) for name, imported in files.items()}).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(error.args[1][::-1]))


def test_a_module_imports_only_from_lower_floors() -> None:
    for file in FILES:
        name, package = module_name(file), package_of(module_name(file))
        if package is None:
            assert name in ENTRY_POINTS, f"{file} is on no floor"
            continue
        others = {(package_of(module), module) for module in imported_modules(file)}
        wrong = [
            module for other, module in others if other not in (None, package) and FLOORS[other] >= FLOORS[package]
        ]
        assert not wrong, f"{name} imports {wrong}"


def test_no_constant_of_a_file_is_assigned_twice() -> None:
    for path in FILES:
        targets = [target for line in ast.parse(path.read_text()).body for target in getattr(line, "targets", ())]
        names = [node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)]
        repeated = {name for name in names if name.isupper() and names.count(name) > 1}
        assert not repeated, path


def test_the_documentation_has_the_floors_of_all_modules() -> None:
    assert {package_of(module_name(file)) for file in FILES} - {None} == set(FLOORS)
    rooms = {(name, int(floor)) for floor, cell in ROWS for name in re.findall(r"`(page4d[a-z0-9_/]*)[^`]*`", cell)}
    assert {(name.rstrip("/").replace("/", "."), floor) for name, floor in rooms} == set(FLOORS.items())


def test_only_the_command_line_prints_and_imports_typer_and_rich() -> None:
    for file in FILES:
        if package_of(module_name(file)) != "page4d_cli":
            assert not {module.split(".")[0] for module in imported_modules(file)} & {"typer", "rich"}, file
            code = file.read_text()
            names = ast.walk(ast.parse(code)) if "print(" in code else ()
            assert "print" not in [node.id for node in names if isinstance(node, ast.Name)], file


FORBIDDEN = (
    ("page4d/networks/layers/*.py", "page4d.geometry", "layers do not depend on cameras"),
    *(
        (f"page4d/lab/training/{name}.py", module, "the training engine imports no training method")
        for name in ("engine", "schedule", "checkpoint", "optimizers", "processes", "logs")
        for module in ("page4d.lab.training.train", "page4d.lab.training.losses", "page4d.lab.pretraining")
    ),
    ("page4d/lab/training/validation.py", "page4d.lab.training.train", "validation imports no supervised training"),
    ("page4d/lab/training/validation.py", "page4d.lab.pretraining", "validation imports no pretraining"),
)
"""Imports that a package does not make within itself, or of a package below: files, module, reason."""


@pytest.mark.parametrize(("files", "module", "reason"), FORBIDDEN)
def test_files_do_not_import(files: str, module: str, reason: str) -> None:
    found = sorted(ROOT.glob(files))
    assert found
    for file in found:
        assert not any(f"{name}.".startswith(f"{module}.") for name in imported_modules(file)), f"{file}: {reason}"
