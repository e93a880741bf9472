"""Commands that install the optional parts of page4d, in hints and in the documentation."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from page4d.errors import CapabilityError
from page4d.installation import EXTRAS, install_command, require_extra

ROOT = Path(__file__).parents[1]


def test_the_extras_are_those_of_the_project():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    own = {name: given for name, given in declared.items() if name not in ("test", "dev")}
    assert own == {name: [extra.requirement] for name, extra in EXTRAS.items()}
    assert declared["test"][0] == f"page4d[{','.join(sorted(EXTRAS))}]"


def test_the_command_names_the_running_python_and_packages_of_the_index(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/my tools/bin/python")
    command = install_command("ray")
    assert command == "'/my tools/bin/python' -m pip install 'ray>=2.52,<3'"
    assert shlex.split(command)[-1] == "ray>=2.52,<3"


def test_no_document_installs_page4d_from_an_index():
    files = [*ROOT.glob("docs/*.md"), ROOT / "README.md", ROOT / "samples" / "README.md"]
    assert [str(file) for file in files if re.search(r"install ['\"]?page4d", file.read_text())] == []


def test_the_reason_why_a_package_cannot_be_imported(monkeypatch, tmp_path):
    (tmp_path / "viser.py").write_text("import viser_needs_this")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "viser", raising=False)
    with pytest.raises(
        CapabilityError, match=r"viser, which cannot be imported: No module named 'viser_needs_this'$"
    ) as caught:
        require_extra("viewer", "the viewer")
    assert caught.value.hint == install_command("viewer")


def test_pip_accepts_the_command():
    words = shlex.split(install_command("viewer"))
    done = subprocess.run([*words, "--dry-run", "--no-index"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 or "No matching distribution" in done.stderr, done.stderr
