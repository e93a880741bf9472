"""Too little memory and too many threads or open files are errors of the machine, not of a video."""

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import av
import numpy as np
import pytest
from av.error import BlockingIOError as AgainError
from av.error import FFmpegError, InvalidDataError
from av.error import MemoryError as NoMemoryError

from page4d.errors import InputError
from page4d.scene import video as container
from page4d.scene.probe import probe_video
from page4d.scene.sound import correlate_audio
from tests.scene.clip_writers import write_counter_clip, write_video

SWEEP = """
import json, os, resource, sys
from pathlib import Path
import av.subtitles.stream
from page4d.scene.probe import probe_video

path = Path(sys.argv[1])
source = probe_video(path, max_megapixels=64)


def read():
    with source.open() as reader:
        return sum(1 for _ in reader.read(range(len(source.frame_times))))


def probe(allow_damaged):
    found = probe_video(path, max_megapixels=64, allow_damaged=allow_damaged)
    assert not found.notices, found.notices
    return len(found.frame_times)


def outcome(task, kind, limit):
    receiver, sender = os.pipe()
    if os.fork() == 0:
        try:
            resource.setrlimit(kind, (limit, limit))
            text = str(task())
        except BaseException as error:
            names = [entry.__name__ for entry in type(error).__mro__]
            text = next(name for name in names if name in ("MemoryError", "OSError", "Exception"))
            text += f" {getattr(error, 'errno', None)} {error}"
        os.write(sender, text.encode())
        os._exit(0)
    os.close(sender)
    text = os.read(receiver, 1000).decode()
    os.close(receiver)
    os.wait()
    return text


used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
tasks = {"probe": lambda: probe(False), "scan": lambda: probe(True), "read": read}
found = {
    name: [outcome(task, resource.RLIMIT_AS, used + (megabytes << 20)) for megabytes in (5, 40, 70, 9000)]
    for name, task in tasks.items()
}
found["files"] = [outcome(tasks["probe"], resource.RLIMIT_NOFILE, 3)]
print(json.dumps(found))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="address space is read from /proc")
def test_limits_of_the_process_are_not_blamed_on_the_video(tmp_path: Path):
    noise = np.random.default_rng(0).integers(0, 256, (4, 68, 120, 3), dtype=np.uint8)
    frames = [image.repeat(16, axis=0).repeat(16, axis=1) for image in noise]
    path = write_video(tmp_path / "a.mp4", frames)
    run = subprocess.run([sys.executable, "-c", SWEEP, path], capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(run.stdout)
    for name in ("probe", "scan", "read"):
        assert found[name][-1] == "4"
        assert set(map(kind_of, found[name])) <= {"complete", "machine"}, found[name]
    assert "machine" in {kind_of(text) for texts in found.values() for text in texts}
    assert found["files"][0].startswith(f"OSError {errno.EMFILE}")


def kind_of(text: str) -> str:
    machine = ("MemoryError", f"OSError {errno.EAGAIN}", f"OSError {errno.ENOMEM}")
    return "complete" if text == "4" else "machine" if text.startswith(machine) else "other"


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "memory_is_scarce", lambda: True)


def refuse_second_decode(error: type[FFmpegError], code: int) -> Callable[..., Any]:
    """Return a demultiplexer whose second packet fails to decode."""
    original = container.PacketExtent.packets

    class Failing:
        def __init__(self, packet: Any) -> None:
            self._packet = packet

        def __getattr__(self, name: str) -> Any:
            return getattr(self._packet, name)

        def decode(self) -> Any:
            raise error(code, "failed")

    def packets(extent: Any) -> Any:
        for count, packet in enumerate(original(extent)):
            yield Failing(packet) if count == 1 else packet

    return packets


def test_frames_lost_to_the_machine_are_not_left_out_as_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_counter_clip(tmp_path / "a.mp4", 6)
    monkeypatch.setattr(container.PacketExtent, "packets", refuse_second_decode(AgainError, errno.EAGAIN))
    with pytest.raises(BlockingIOError):
        probe_video(path, max_megapixels=64, allow_damaged=True)
    monkeypatch.setattr(container.PacketExtent, "packets", refuse_second_decode(InvalidDataError, 1094995529))
    assert probe_video(path, max_megapixels=64, allow_damaged=True).notices


@pytest.mark.usefixtures("scarce")
def test_damage_is_not_reported_while_memory_is_scarce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_counter_clip(tmp_path / "a.mp4", 6)
    monkeypatch.setattr(container.PacketExtent, "packets", refuse_second_decode(InvalidDataError, 1094995529))
    with pytest.raises(MemoryError, match=r"too little memory to decode a\.mp4"):
        probe_video(path, max_megapixels=64, allow_damaged=True)
    with pytest.raises(MemoryError):
        container.damage_error(path)


def test_a_file_that_requests_absurd_memory_is_to_blame(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_counter_clip(tmp_path / "a.mp4", 6)

    monkeypatch.setattr(av, "open", Mock(side_effect=NoMemoryError(errno.ENOMEM, "Cannot allocate memory")))
    with pytest.raises(InputError, match=r"a\.mp4"):
        probe_video(path, max_megapixels=64)
    monkeypatch.setattr(container, "memory_is_scarce", lambda: True)
    with pytest.raises(MemoryError):
        probe_video(path, max_megapixels=64)
    with pytest.raises(MemoryError):
        correlate_audio(path, path)
