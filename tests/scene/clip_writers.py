"""Clips and image folders with the frame number encoded in each frame, written by PyAV, Pillow and numpy."""

import json
import pickle
import struct
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import wraps
from hashlib import sha256
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray
from PIL import Image

Pixels = NDArray[Any]

NTSC = Fraction(30000, 1001)
COUNTER_BITS = (3, 4)
"""Rows and columns of the black and white blocks that encode a frame number."""

LIMITED, FULL = 1, 2
"""Luma ranges in FFmpeg."""

BT709, BT601 = 1, 6
"""Colour matrices in FFmpeg."""

_LUMA_WEIGHTS = {BT709: (0.2126, 0.0722), BT601: (0.299, 0.114)}


def counter_image(number: int, size: tuple[int, int] = (48, 64)) -> Pixels:
    """Encode `number` as blocks, the lowest bit at the top left; `size` is (height, width)."""
    rows, columns = COUNTER_BITS
    bits = number >> np.arange(rows * columns).reshape(rows, columns) & 1
    y, x = (np.arange(side) * count // side for side, count in zip(size, COUNTER_BITS, strict=True))
    return np.repeat((bits[y][:, x] * 255).astype(np.uint8)[..., None], 3, axis=2)


def read_counter(image: Pixels) -> int:
    """Decode the number from an image [H, W, 3] of any size with values up to 1.

    Raises:
        ValueError: if a block is neither black nor white.
    """
    rows, columns = COUNTER_BITS
    height, width = image.shape[:2]
    y = ((np.arange(rows) + 0.5) * height / rows).astype(int)
    x = ((np.arange(columns) + 0.5) * width / columns).astype(int)
    middles = np.stack([image[y + dy][:, x + dx].mean(axis=-1) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]).mean(
        axis=0
    )
    if np.abs(middles - 0.5).min() < 0.25:
        raise ValueError(f"the blocks are neither black nor white: {np.round(middles, 2).tolist()}")
    return int(((middles > 0.5).reshape(-1) << np.arange(rows * columns)).sum())


def counter_clip(numbers: Iterable[int], size: tuple[int, int] = (48, 64)) -> list[Pixels]:
    """Return one image per number."""
    return [counter_image(number, size) for number in numbers]


def _encoded_once(write: Callable[..., Path]) -> Callable[..., Path]:
    """Keep the files of equal frames and settings."""
    files: dict[bytes, bytes] = {}

    @wraps(write)
    def written(path: Path, frames: Iterable[Pixels], **settings: Any) -> Path:
        frames = list(frames)
        key = sha256(pickle.dumps((path.suffix, frames, settings))).digest()
        if key in files:
            path.write_bytes(files[key])
        else:
            files[key] = write(path, frames, **settings).read_bytes()
        return path

    return written


@_encoded_once
def write_video(
    path: Path,
    frames: Iterable[Pixels],
    *,
    rate: Fraction | int = 30,
    ticks: Sequence[int] | None = None,
    time_base: Fraction | None = None,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    given_as: str = "rgb24",
    options: dict[str, str] | None = None,
    muxer: str | None = None,
    muxer_options: dict[str, str] | None = None,
    tags: tuple[int, int] | None = None,
    transfer: int | None = None,
    pixel_aspect: Fraction | None = None,
    metadata: dict[str, str] | None = None,
    sound: Pixels | None = None,
    sound_start_s: float = 0.0,
    sound_codec: str = "aac",
    sound_rate: int = 48000,
) -> Path:
    """Encode frames at a constant rate, or at `ticks` of `time_base`; `tags` are the colour matrix and range.

    `transfer` is the transfer function of footage in BT.2020.
    """
    fast = {"libx264": {"preset": "ultrafast", "crf": "12"}, "libx265": {"preset": "ultrafast", "crf": "12"}}
    quiet = {"x265-params": "log-level=none"} if codec == "libx265" else {}
    base = time_base or 1 / Fraction(rate)
    with av.open(str(path), "w", format=muxer, options=muxer_options or {}) as container:
        container.metadata.update(metadata or {})
        stream: Any = None
        speaker: Any = (
            container.add_stream(sound_codec, rate=sound_rate, layout="mono") if sound is not None else None
        )
        for count, pixels in enumerate(frames):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format=given_as)
            if stream is None:
                stream = container.add_stream(
                    codec, rate=Fraction(rate), options={**fast.get(codec, {}), **quiet, **(options or {})}
                )
                stream.width, stream.height, stream.pix_fmt = frame.width, frame.height, pixel_format
                stream.codec_context.time_base = base
                stream.codec_context.thread_count = 1
                stream.metadata.update(metadata or {})
                if tags is not None:
                    stream.codec_context.colorspace, stream.codec_context.color_range = tags
                if transfer is not None:
                    stream.codec_context.color_primaries, stream.codec_context.color_trc = 9, transfer
                    stream.codec_context.colorspace = 9
                if pixel_aspect is not None:
                    stream.codec_context.sample_aspect_ratio = pixel_aspect
            if tags is not None:
                frame.colorspace, frame.color_range = tags
            frame.pts, frame.time_base = (count if ticks is None else ticks[count]), base
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if speaker is not None and sound is not None:
            write_sound(container, speaker, sound, sound_start_s, sound_rate)
    return path


def write_sound(container: Any, stream: Any, sound: Pixels, start_s: float = 0.0, rate: int = 48000) -> None:
    """Encode mono samples into an open file, but for blocks with NaN: a gap of its time stamps."""
    block = 1024
    for start in range(0, len(sound), block):
        part = sound[start : start + block].astype(np.float32)[None]
        if np.isnan(part).any():
            continue
        frame = av.AudioFrame.from_ndarray(part, format="fltp", layout="mono")
        frame.sample_rate, frame.time_base = rate, Fraction(1, rate)
        frame.pts = start + round(start_s * rate)
        container.mux(stream.encode(frame))
    container.mux(stream.encode(None))


def write_counter_clip(path: Path, count: int, *, size: tuple[int, int] = (48, 64), **settings: Any) -> Path:
    """Encode a clip whose frames are numbered from 0; `settings` are those of `write_video`."""
    return write_video(path, counter_clip(range(count), size), **settings)


def set_rotation(path: Path, degrees: int) -> None:
    """Set the clockwise display rotation of an MP4, as phones do."""
    cosine, sine = {90: (0, 1), 180: (-1, 0), 270: (0, -1)}[degrees]
    set_display_matrix(path, (cosine, sine, -sine, cosine))


def set_display_matrix(path: Path, matrix: tuple[float, float, float, float]) -> None:
    """Set the display matrix a, b, c, d of an MP4: the stored pixel (x, y) is shown at (a x + c y, b x + d y)."""
    content = bytearray(path.read_bytes())
    matrix_at = content.index(b"tkhd") + 44
    a, b, c, d = (round(value * (1 << 16)) for value in matrix)
    content[matrix_at : matrix_at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(content)


def cut_by_edit_list(path: Path, first: int, count: int, rate: Fraction | int, delay: int = 0) -> None:
    """Trim a video to `count` frames from `first` on by its edit list, as phones do.

    `delay` is the number of frames by which the existing edit list starts late (for B-frames).
    """
    content = bytearray(path.read_bytes())
    header = content.index(b"mvhd") + 4
    movie_scale = struct.unpack_from(">I", content, header + 12)[0]
    media_scale = struct.unpack_from(">I", content, content.index(b"mdhd") + 4 + 12)[0]
    entry = content.index(b"elst") + 12
    duration, media_time = (
        round(count / Fraction(rate) * movie_scale),
        round((first + delay) / Fraction(rate) * media_scale),
    )
    struct.pack_into(">Ii", content, entry, duration, media_time)
    path.write_bytes(content)


def copy_video(source: Path, target: Path, **settings: Any) -> Path:
    """Copy the packets of a video into another container unchanged."""
    with av.open(str(source)) as given, av.open(str(target), "w", **settings) as taken:
        streams = {stream.index: taken.add_stream_from_template(stream) for stream in given.streams.video}
        for packet in given.demux(video=0):
            if packet.dts is not None:
                packet.stream = streams[packet.stream.index]
                taken.mux(packet)
    return target


def to_ycbcr(rgb: Sequence[float], tags: tuple[int, int], depth: int = 8) -> tuple[int, int, int]:
    """Convert one colour in [0, 255] to code values.

    Source: ITU-R BT.601-7 and BT.709-6, section on digital representation.
    """
    matrix, color_range = tags
    red_weight, blue_weight = _LUMA_WEIGHTS[matrix]
    red, green, blue = (value / 255 for value in rgb)
    luma = red_weight * red + (1 - red_weight - blue_weight) * green + blue_weight * blue
    chroma = (blue - luma) / (2 - 2 * blue_weight), (red - luma) / (2 - 2 * red_weight)
    peak = (1 << depth) - 1
    unit = 1 << (depth - 8)
    if color_range == FULL:
        return round(luma * peak), *(round(value * peak + 128 * unit) for value in chroma)
    return round((219 * luma + 16) * unit), *(round((224 * value + 128) * unit) for value in chroma)


def flat_ycbcr(
    colors: Sequence[Sequence[float]], tags: tuple[int, int], size: tuple[int, int], sampling: str = "yuv444p"
) -> Pixels:
    """Return a planar image of vertical stripes, one per colour, in the layout of PyAV for `yuv444p` or `yuv420p`."""
    height, width = size
    stripe = np.arange(width) * len(colors) // width
    codes = np.array([to_ycbcr(color, tags) for color in colors], dtype=np.uint8)[stripe]
    planes = np.repeat(codes.T[:, None], height, axis=1)
    if sampling == "yuv444p":
        return np.ascontiguousarray(planes)
    chroma = planes[1:, ::2, ::2].reshape(-1, width)
    return np.ascontiguousarray(np.concatenate([planes[0], chroma]))


def write_images(folder: Path, images: dict[str, Pixels]) -> Path:
    """Write images by file name."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, pixels in images.items():
        Image.fromarray(pixels).save(folder / name)
    return folder


def write_sync(folder: Path, clocks: dict[str, tuple[float, float]]) -> Path:
    """Write `sync.json` with an offset and a rate per view."""
    views = {name: {"offset_s": offset, "rate": rate} for name, (offset, rate) in clocks.items()}
    path = folder / "sync.json"
    path.write_text(json.dumps({"views": views}))
    return path
