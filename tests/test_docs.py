"""Documentation: paths, links, pictures and options that it names exist, and every page is linked from README.md."""

import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest
import typer
from typer.main import get_command

import page4d
from page4d.choices import SyncMode
from page4d.errors import Page4DError
from page4d.options import in_options
from page4d.output.rig_record import Evidence
from page4d_cli.command_line import app

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
MAX_README_LINES = 200
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [README, ROOT / "CHANGELOG.md", ROOT / "samples" / "README.md", *PAGES]
CURRENT = [document for document in DOCUMENTS if document.name != "CHANGELOG.md"]
"""Documents of this version; the changelog names files and options of earlier ones."""

_CODE = re.compile(r"^```.*?^```|`[^`]+`", re.MULTILINE | re.DOTALL)
_PATH = re.compile(r"(?<![\w./<*-])(?:page4d|page4d_cli|tests|tools|docs|samples)/[\w./-]*")
_MODULE = re.compile(r"(?<![\w./-])page4d(?:\.\w+)+")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
_TOOL_OPTIONS = {
    "Slurm": "nodes ntasks ntasks-per-node gpus-per-node nodelist exclude",
    "Ray": "head port block address generate",
    "torchrun": "nproc-per-node",
    "pip": "constraint editable",
    "tools/ablation.py, tools/held_out.py, tools/compare_speed.py": "samples scenes table run",
    "nerfstudio": "data center-method auto-scale-poses load-3 depth-unit-scale-factor",
    "trainers of Gaussians": "port expname configs quiet eval configpath duration model source",
    "COLMAP, gsplat": "import image database data",
}
"""Options of other programs in the examples."""


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


def code_of(document: Path) -> list[str]:
    """Return the code blocks and spans of a document."""
    return _CODE.findall(document.read_text(encoding="utf-8"))


def anchors_of(document: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(encoding="utf-8"), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@cache
def options_of_all_commands() -> set[str]:
    command = get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    groups = [one for one in command.commands.values() if isinstance(one, typer.core.TyperGroup)]
    commands = [command, *command.commands.values(), *(one for group in groups for one in group.commands.values())]
    parameters = [parameter for one in commands for parameter in one.params]
    names = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}
    return names | {"--help"}


@pytest.mark.parametrize("document", CURRENT, ids=name_of)
def test_every_repository_path_exists(document: Path) -> None:
    named = {path.rstrip(".") for code in code_of(document) if "<" not in code for path in _PATH.findall(code)}
    assert not sorted(path for path in named if not (ROOT / path).exists())


@pytest.mark.parametrize("document", CURRENT, ids=name_of)
def test_every_dotted_name_is_a_module_or_public(document: Path) -> None:
    names = {name for code in code_of(document) for name in _MODULE.findall(code)}
    for name in names:
        first = name.split(".")[1]
        module = ROOT / "page4d" / first
        assert first in page4d.__all__ or module.is_dir() or module.with_suffix(".py").is_file(), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_every_relative_link_and_picture_resolves(document: Path) -> None:
    for target in _LINK.findall(document.read_text(encoding="utf-8")):
        path, _, anchor = unquote(target).partition("#")
        if re.match(r"[a-z]+:", path):
            continue
        linked = (document.parent / path).resolve() if path else document
        assert linked.is_relative_to(ROOT), target
        assert linked.exists(), target
        if anchor:
            assert anchor in anchors_of(linked), target


@pytest.mark.parametrize("document", CURRENT, ids=name_of)
def test_every_option_exists(document: Path) -> None:
    named = {option for code in code_of(document) for option in _OPTION.findall(code)}
    others = {f"--{name}" for names in _TOOL_OPTIONS.values() for name in names.split()}
    assert not sorted(named - options_of_all_commands() - others)


def test_every_option_in_a_message_exists() -> None:
    texts = [file.read_text() for folder in ("page4d", "page4d_cli") for file in (ROOT / folder).rglob("*.py")]
    named = {mark for text in texts for mark in re.findall(r"⟨[a-z_0-9]+(?:=[^⟩{]+)?⟩", text)}
    assert len(named) > 100
    assert not {option for mark in named if (option := in_options(mark).split()[0]) not in options_of_all_commands()}


def test_what_has_a_name_is_described() -> None:
    """Commands anywhere, modes of clocks, kinds of evidence, and classes of errors with their exit codes."""
    command = get_command(app)
    assert isinstance(command, typer.core.TyperGroup)
    code = "\n".join(block for document in CURRENT for block in code_of(document))
    assert not [name for name in command.commands if f"page4d {name}" not in code]
    clocks = (ROOT / "docs" / "real_rigs.md").read_text()
    assert not [mode for mode in SyncMode if f"--sync {mode}" not in clocks]
    formats = (ROOT / "docs" / "formats.md").read_text()
    assert not [kind for kind in Evidence if f"`{kind}`" not in formats]
    rows = re.findall(r"^\| ([\d, ]+) \| .+ \| `(\w+Error)` \|$", formats, re.MULTILINE)
    described = {name: codes.split(", ") for codes, name in rows}
    classes = {kind.__name__: str(kind.exit_code) for kind in Page4DError.__subclasses__() if kind.exit_code != 1}
    assert described.keys() == classes.keys()
    assert not [name for name, code in classes.items() if code not in described[name]]


def test_every_page_is_linked_from_the_readme() -> None:
    links = {link.partition("#")[0] for link in _LINK.findall(README.read_text(encoding="utf-8"))}
    assert PAGES
    assert not [name_of(page) for page in PAGES if name_of(page) not in links]


def test_the_readme_is_short() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= MAX_README_LINES


def test_the_changelog_begins_with_the_version_and_the_citation_names_the_newest_release() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text()
    newest = re.search(r"^## (\S+)", changes, re.MULTILINE)
    assert newest[1] == page4d.__version__
    version, date = re.findall(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)$", changes, re.MULTILINE)[0]
    citation = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {version}\n" in citation
    assert f'\ndate-released: "{date}"\n' in citation
