"""Python blocks of README.md and docs/, and the notebooks in examples/: they run, and they are correctly typed.

The blocks of a document run in order, in one namespace and one folder with a small calibrated scene `rig` (also as
`capture`, its ground truth as `truth`), a result `out` unless the document writes one, and all weights files that it
names. Those of README.md and the notebooks use `samples/`. A block after the comment `<!-- not run -->` is only
type-checked.
"""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import page4d
from page4d.lab.synthetic.capture import SyntheticCapture
from page4d.lab.synthetic.write import write_capture
from page4d.weights.resolve import bundled_weights
from tests.scene.calibration_writers import RigCamera, write_qualisys, write_toml

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"(?P<skipped><!-- not run -->\s*)?^```python\n(?P<code>.*?)^```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code with the line of the document on which it starts."""

    code: str
    line: int
    is_run: bool


def blocks_of(document: Path) -> list[Block]:
    text = document.read_text(encoding="utf-8")
    if document.suffix == ".ipynb":
        cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        return [Block(code="".join(cell["source"]) + "\n", line=1, is_run=True) for cell in cells]
    return [
        Block(code=match["code"], line=text.count("\n", 0, match.start("code")) + 1, is_run=match["skipped"] is None)
        for match in BLOCK.finditer(text)
    ]


PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.ipynb")))
DOCUMENTS = [path for path in PAGES if blocks_of(path)]

MISSPELT = """
page4d.open_scene("rig", veiws=2)  # type: ignore[call-arg]
page4d.reconstruct("rig", out="out", calibrtion="rig.toml")  # type: ignore[call-arg]
page4d.reconstruct("rig", out="out", stride="two")  # type: ignore[arg-type]
page4d.build_predictor(devise="cpu")  # type: ignore[call-arg]
page4d.register("rig", fokal=900.0)  # type: ignore[call-arg]
page4d.export("out", "usd", "to", instant=range(3))  # type: ignore[call-arg]
"""
"""Each of these is an error of types: mypy reports comments that ignore nothing."""


def name_of(document: Path) -> str:
    return str(document.relative_to(ROOT))


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small synthetic capture with calibration files."""
    folder = tmp_path_factory.mktemp("readme") / "rig"
    capture = SyntheticCapture(seed=1, num_views=2, num_times=4, image_size=(60, 80))
    write_capture(capture, folder)
    cameras = []
    for view, (name, size) in enumerate(zip(capture.view_names, capture.view_sizes, strict=True)):
        pose = capture.cameras.world_to_camera[0, view].double().numpy()
        intrinsics = capture.cameras.intrinsics[0, view].double().numpy()
        cameras.append(
            RigCamera(
                name=name,
                rotation=pose[:3, :3],
                translation=pose[:3, 3],
                intrinsics=intrinsics,
                coefficients=(0.0,) * 4,
                size=size,
            )
        )
    write_qualisys(folder, cameras)
    write_toml(folder, cameras)
    return folder


@pytest.fixture
def workspace(request: pytest.FixtureRequest, rig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Prepare the files that a document names."""
    document: Path = request.param
    code = "\n".join(block.code for block in blocks_of(document))
    (tmp_path / "samples").symlink_to(ROOT / "samples")
    (tmp_path / "examples").mkdir()
    monkeypatch.chdir(tmp_path / "examples" if document.suffix == ".ipynb" else tmp_path)
    monkeypatch.setattr("page4d.rig.evidence.QUICK_SIDE_PX", 320)  # features of the check of a calibration
    shutil.copytree(rig, "rig")
    Path("capture").symlink_to("rig")
    Path("truth").symlink_to("rig/truth")
    for name in set(re.findall(r'"([^"/]+\.safetensors)"', code)):
        Path(name).symlink_to(bundled_weights())
    if '"out' in code and 'out="out"' not in code:
        page4d.reconstruct("rig", out="out", calibration="rig/truth/cameras.json", depth="rig/truth/depth")
    return document


@pytest.mark.slow
@pytest.mark.parametrize("workspace", DOCUMENTS, ids=name_of, indirect=True)
def test_the_python_blocks_of_a_document_run(workspace: Path) -> None:
    namespace: dict[str, object] = {}
    for block in blocks_of(workspace):
        if block.is_run:
            lines = "\n" * (block.line - 1)  # so that tracebacks name the line of the document
            exec(compile(lines + block.code, str(workspace), "exec"), namespace)


@pytest.mark.slow
def test_the_python_blocks_of_all_documents_are_correctly_typed(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is in the extra 'dev'")
    files = []
    for number, document in enumerate(DOCUMENTS):
        files.append(tmp_path / f"document_{number}_{document.stem.lower()}.py")
        files[-1].write_text("\n".join(block.code for block in blocks_of(document)), encoding="utf-8")
    files.append(tmp_path / "misspelt.py")
    files[-1].write_text(f"import page4d\n{MISSPELT}", encoding="utf-8")
    settings = tmp_path / "mypy.ini"  # for speed, large libraries are Any, and page4d itself is not checked
    libraries = "[mypy-torch.*,scipy.*,cv2.*,PIL.*,matplotlib.*,huggingface_hub.*,av.*,IPython.*,rich.*,optype.*]"
    skip = ("follow_imports = skip", "follow_imports_for_stubs = true")
    rules = ("[mypy-page4d.*]", "follow_imports = silent", libraries, *skip)
    settings.write_text("\n".join(("[mypy]", "warn_unused_ignores = true", *rules)))
    cache = ("--cache-dir", str(ROOT / ".pytest_cache" / "types"))
    command = [sys.executable, "-m", "mypy", "--config-file", str(settings), *cache, *map(str, files)]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_blocks_are_found_with_their_lines(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    first, second = "```python\nimport page4d\n```", "```python\nx = 1\ny = 2\n```"
    document.write_text(f"# Title\n\n{first}\n\n```bash\nls\n```\n<!-- not run -->\n\n{second}\n")
    assert blocks_of(document) == [
        Block(code="import page4d\n", line=4, is_run=True),
        Block(code="x = 1\ny = 2\n", line=13, is_run=False),
    ]
