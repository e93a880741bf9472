"""The floors: a module imports only from strictly lower floors or from its own package."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

FLOORS = {
    "page4d_cli": 9,
    "page4d.pretraining": 8,
    "page4d.training": 7,
    "page4d.batch": 7,
    "page4d.benchmark": 7,
    "page4d.inference": 6,
    "page4d.refinement": 5,
    "page4d.profiling": 5,
    "page4d.weights": 5,
    "page4d.evaluation": 4,
    "page4d.models": 4,
    "page4d.encoders": 3,
    "page4d.export": 3,
    "page4d.synthetic": 3,
    "page4d.scene": 2,
    "page4d.predictions": 2,
    "page4d.ground_truth": 2,
    "page4d.layers": 2,
    "page4d.geometry": 1,
    "page4d.io": 1,
    "page4d.plotting": 1,
    "page4d.conventions": 0,
    "page4d.errors": 0,
}

FILES = sorted([*(ROOT / "page4d").rglob("*.py"), *(ROOT / "page4d_cli").rglob("*.py")])


def package_of(module: str) -> str | None:
    """Return the package on a floor that a module belongs to; None for the root package, which holds the version."""
    parts = module.split(".")
    name = parts[0] if parts[0] == "page4d_cli" else ".".join(parts[:2])
    return name if name in FLOORS else None


def imported_modules(file: Path) -> set[str]:
    """Return every module that a file imports, also inside functions and for type checking."""
    modules = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            modules.add(node.module or "")
    return modules


def module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_a_module_imports_only_from_lower_floors(file: Path) -> None:
    own = package_of(module_name(file))
    if own is None:
        assert module_name(file) == "page4d", f"{file} stands on no floor"
        return
    for module in imported_modules(file):
        other = package_of(module)
        if other is not None and other != own:
            assert FLOORS[other] < FLOORS[own], f"{module_name(file)} imports {module}"


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_only_the_command_line_prints_or_knows_typer_and_rich(file: Path) -> None:
    if package_of(module_name(file)) == "page4d_cli":
        return
    assert not {module.split(".")[0] for module in imported_modules(file)} & {"typer", "rich"}
    calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    assert "print" not in [call.id for call in calls if isinstance(call, ast.Name)]


def test_layers_know_no_cameras() -> None:
    for file in (ROOT / "page4d" / "layers").glob("*.py"):
        assert not any(module.startswith("page4d.geometry") for module in imported_modules(file)), file
