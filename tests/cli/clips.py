"""Tiny clips and folders with one defect each, made with PyAV, OpenCV and a few patched bytes."""

import json
import os
import struct
import wave
import zlib
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from numpy.typing import NDArray

from tests.scene import clip_writers

FRAMES = 4
SIZE = (48, 64)
FPS = 12
SOUND_RATE = 8000


def picture(index: int, size: tuple[int, int] = SIZE, seed: int = 0) -> NDArray[np.uint8]:
    """Return a smooth picture that differs between frames and, by `seed`, between views."""
    height, width = size
    y, x = np.mgrid[:height, :width] / max(size)
    phases = np.array([0.0, 2.0, 4.0]) + 0.4 * index + seed
    waves = np.sin(7 * x[..., None] + phases) * np.cos(5 * y[..., None] + 0.7 * phases)
    return np.rint(127.5 + 110 * waves).astype(np.uint8)


def noise(index: int, size: tuple[int, int], seed: int = 0) -> NDArray[np.uint8]:
    """Return an incompressible picture, for files that are large enough to be truncated."""
    return np.random.default_rng((seed, index)).integers(0, 256, (*size, 3), dtype=np.uint8)


def write_video(
    path: Path,
    frames: int = FRAMES,
    *,
    size: tuple[int, int] = SIZE,
    fps: int = FPS,
    pts: Sequence[int] | None = None,
    ticks: int = FPS,
    gop: int = 12,
    seed: int = 0,
    noisy: bool = False,
    options: dict[str, str] | None = None,
    **settings: Any,
) -> Path:
    """Encode a clip; `pts` are in units of 1 / `ticks` s (default: frame numbers), sound is mono at 8 kHz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = ((noise if noisy else picture)(index, size, seed) for index in range(frames))
    clock = {} if pts is None else {"ticks": pts, "time_base": Fraction(1, ticks)}
    options = {"g": str(gop), **(options or {})}
    return clip_writers.write_video(
        path, images, rate=fps, options=options, sound_rate=SOUND_RATE, **clock, **settings
    )


def write_scene(folder: Path, names: Iterable[str] = ("cam01", "cam02"), **options: object) -> Path:
    """Write a valid scene with a different clip per view."""
    for seed, name in enumerate(names):
        write_video(folder / f"{name}.mp4", seed=seed, **options)
    return folder


def write_image_folder(folder: Path, frames: int = FRAMES, size: tuple[int, int] = SIZE, seed: int = 0) -> Path:
    """Write numbered images `000000.png`, `000001.png`, ..."""
    folder.mkdir(parents=True)
    for index in range(frames):
        cv2.imwrite(str(folder / f"{index:06d}.png"), picture(index, size, seed))
    return folder


def write_depth(folder: Path, frames: int = FRAMES) -> None:
    """Write numbered depth maps of about 2 m."""
    folder.mkdir(parents=True)
    for index in range(frames):
        cv2.imwrite(str(folder / f"{index:06d}.png"), np.full(SIZE, 2000 + index, np.uint16))


def rig(*names: str, step: float = 1.0, width: int = SIZE[1], scale: str | None = "metric", **changes: object) -> str:
    """Return a `cameras.json` of parallel cameras at distances of `step`; `changes` apply to the last one."""
    cameras: dict[str, dict[str, object]] = {}
    for place, name in enumerate(names):
        pose = np.eye(4)
        pose[0, 3] = step * place
        intrinsics = [[60.0, 0, width / 2], [0, 60, SIZE[0] / 2], [0, 0, 1]]
        cameras[name] = {
            "world_to_camera": pose.tolist(),
            "intrinsics": intrinsics,
            "width": width,
            "height": SIZE[0],
        }
    cameras[names[-1]].update(changes)
    return json.dumps({"pixel_center": 0.5, "cameras": cameras} | ({} if scale is None else {"scale": scale}))


def truncate(path: Path, share: float) -> Path:
    """Truncate a file to a share of its size."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    return path


def truncated_faststart(path: Path) -> Path:
    """Write a video with an intact index at the front and truncated frames."""
    write_video(path, 24, noisy=True, muxer_options={"movflags": "faststart"})
    return truncate(path, 0.5)


def without_moov(path: Path) -> Path:
    """Write a video without the index at its end, as after a power failure."""
    write_video(path, 24, noisy=True)
    data = path.read_bytes()
    path.write_bytes(data[: data.index(b"moov") - 4])
    return path


def flipped_bytes(path: Path) -> Path:
    """Write a video with one corrupted packet in the middle."""
    write_video(path, 24, gop=24)
    with av.open(str(path)) as clip:
        packets = [(packet.pos, packet.size) for packet in clip.demux(video=0) if packet.size]
    data = bytearray(path.read_bytes())
    begin, size = packets[10]
    data[begin + 4 : begin + size] = bytes((byte ^ 0xFF) for byte in data[begin + 4 : begin + size])
    path.write_bytes(data)
    return path


def replace_fourcc(path: Path, fourcc: bytes) -> Path:
    """Write an MP4 whose track declares another codec."""
    write_video(path)
    data = path.read_bytes()
    at = data.index(b"avc1", data.index(b"stsd"))
    path.write_bytes(data[:at] + fourcc + data[at + 4 :])
    return path


def huge_header(path: Path, side: int = 16000) -> Path:
    """Write a motion JPEG whose headers declare `side` x `side` pixels."""
    write_video(path, 2, codec="mjpeg", pixel_format="yuvj420p", muxer="avi")
    data = path.read_bytes()
    avi, strf = data.index(b"avih") + 8 + 32, data.index(b"strf") + 8 + 4
    data = bytearray(data)
    data[avi : avi + 8] = struct.pack("<II", side, side)
    data[strf : strf + 8] = struct.pack("<ii", side, side)
    start = 0
    while (start := data.find(b"\xff\xc0", start)) >= 0:
        data[start + 5 : start + 9] = struct.pack(">HH", side, side)
        start += 9
    path.write_bytes(data)
    return path


def latin1_metadata(path: Path) -> Path:
    """Write a valid clip whose metadata are not UTF-8, as of an older camera."""
    write_video(path)
    path.write_bytes(path.read_bytes().replace(b"VideoHandler", b"Kamera S\xfcd 1"))
    return path


def damaged_sound(path: Path, seed: int = 0) -> Path:
    """Write intact frames with corrupted audio packets."""
    write_video(path, 12, seed=seed, sound=sound_track(1.0))
    with av.open(str(path)) as clip:
        packets = [(packet.pos, packet.size) for packet in clip.demux(audio=0) if packet.size]
    data = bytearray(path.read_bytes())
    for begin, size in packets:
        data[begin : begin + size] = b"\xff" * size
    path.write_bytes(data)
    return path


def changing_size(path: Path) -> Path:
    """Write two recordings of different image sizes in one H.264 stream."""
    parts = []
    for number, size in enumerate([(48, 64), (96, 128)]):
        part = path.with_name(f"part{number}.h264")
        write_video(part, size=size, muxer="h264")
        parts.append(part.read_bytes())
        part.unlink()
    path.write_bytes(b"".join(parts))
    return path


def audio_only(path: Path) -> Path:
    """Write an MP4 with audio only."""
    with av.open(str(path), "w") as out:
        stream = out.add_stream("aac", rate=SOUND_RATE, layout="mono")
        clip_writers.write_sound(out, stream, sound_track(0.5), rate=SOUND_RATE)
    return path


def sound_track(seconds: float, seed: int = 0) -> NDArray[np.float32]:
    """Return white noise at 8 kHz; tracks of equal seed correlate, others do not."""
    return (0.3 * np.random.default_rng(seed).standard_normal(int(seconds * SOUND_RATE))).astype(np.float32)


def wave_file(path: Path) -> Path:
    """Write a WAV file under the name of a video."""
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(SOUND_RATE)
        out.writeframes(b"\0\0" * 800)
    return path


def png_bomb(path: Path, side: int = 60000) -> Path:
    """Write a PNG of a few hundred bytes that decodes to gigapixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)
    pixels = zlib.compress(b"\0" * 100_000, 9)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b""))
    return path


def fifo(path: Path) -> Path:
    """Create a named pipe without a writer."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path
