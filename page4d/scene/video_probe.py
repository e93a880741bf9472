"""Probing of video files: time stamps, upright size, colour and damage."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError
from page4d.scene.container import (
    damage_error,
    declared_length,
    decode_stream,
    empty_frames,
    no_intact_frame_error,
    open_container,
    scan_for_damage,
    video_stream,
)
from page4d.scene.files import check_pixels, check_regular_file
from page4d.scene.records import Level, Notice
from page4d.scene.video import VideoSource

_HDR_TRANSFERS = {16: "PQ", 18: "HLG"}
_QUARTER_TURN_DEG = 90


def probe_video(path: Path, *, max_megapixels: float, allow_damaged: bool = False) -> VideoSource:
    """Read a video's time stamps and properties; decodes one frame, or all frames if `allow_damaged`.

    Raises:
        InputError: if the file is not a complete, decodable video.
    """
    check_regular_file(path)
    header = _read_header(path, max_megapixels)
    first = _first_frame(path)
    if header.ends_early and not allow_damaged:
        raise damage_error(path)
    size, turns, pixel_notices = _upright_size(path, first, header.pixel_aspect)
    notices = (*pixel_notices, *_color_notices(path, first, header.has_alpha))
    pts, times, is_timed = _frame_times(header)
    if not is_timed:
        notices = (*notices, Notice(f"{path.stem}: no time stamps; assuming {header.rate:g} fps"))
    source = VideoSource(
        path=path,
        codec=header.codec,
        size=size,
        frame_times=times,
        pts=pts,
        positions=np.arange(len(times), dtype=np.int64),
        key_pts=np.array(header.key_pts, dtype=np.int64),
        is_timed=is_timed,
        quarter_turns=turns,
        bit_depth=first.format.components[0].bits,
        has_audio=header.has_audio,
        timecode=header.timecode,
        tolerates_damage=allow_damaged,
        notices=notices,
    )
    return _without_damage(source) if allow_damaged else source


@dataclass(frozen=True, kw_only=True)
class _Header:
    """Properties from demultiplexing alone; the lists contain the time stamps of each displayed packet."""

    container: str
    codec: str
    pixel_aspect: float
    rate: float
    time_base: float
    shown_pts: list[int | None]
    shown_dts: list[int | None]
    key_pts: list[int]
    ends_early: bool
    has_audio: bool
    has_alpha: bool
    timecode: str | None


def _read_header(path: Path, max_megapixels: float) -> _Header:
    with open_container(path) as container:
        stream = video_stream(container, path)
        context = stream.codec_context
        check_pixels(path.name, context.width, context.height, max_megapixels)
        # Only these fields are kept: the packets of a long recording would not fit into memory.
        packets = [
            (p.pts, p.dts, p.is_keyframe, p.is_discard, p.is_corrupt) for p in container.demux(stream) if p.size
        ]
        declared = declared_length(container, stream) - empty_frames(container, [packet[1] for packet in packets])
        shown = [(pts, dts, key) for pts, dts, key, discarded, _ in packets if not discarded]
        return _Header(
            container=container.format.name,
            codec=context.name,
            pixel_aspect=float(stream.sample_aspect_ratio or 1.0),
            rate=float(stream.guessed_rate or stream.average_rate or 25),
            time_base=float(stream.time_base),
            shown_pts=[pts for pts, _, _ in shown],
            shown_dts=[dts for _, dts, _ in shown],
            key_pts=[pts for pts, _, key in shown if key and pts is not None],
            ends_early=any(corrupt for *_, corrupt in packets) or 0 < len(packets) < declared,
            has_audio=bool(container.streams.audio),
            # FFmpeg's native VP8 and VP9 decoders discard alpha silently.
            has_alpha=stream.metadata.get("alpha_mode") == "1",
            timecode=_timecode(container, stream),
        )


def _frame_times(header: _Header) -> tuple[NDArray[np.int64] | None, NDArray[np.float64], bool]:
    """Return the time stamps, the time of each frame in seconds from the first, and whether the file contains them.

    AVI has decoding times only: frames are displayed at these times, in display order.
    """
    pts, dts = ([stamp for stamp in given if stamp is not None] for given in (header.shown_pts, header.shown_dts))
    if header.container != "avi" and len(pts) == len(header.shown_pts):
        stamps = np.unique(np.array(pts, dtype=np.int64))
        return stamps, (stamps - stamps[0]) * header.time_base, True
    if header.container == "avi" and len(set(dts)) == len(header.shown_dts):
        ticks = np.sort(np.array(dts, dtype=np.int64))
        return None, (ticks - ticks[0]) * header.time_base, True
    return None, np.arange(len(header.shown_pts)) / header.rate, header.container == "avi"


def _without_damage(source: VideoSource) -> VideoSource:
    """Keep only the frames that a full decode finds intact, and add a notice with their number."""
    scan = scan_for_damage(source.path)
    num_intact = int(scan.intact.sum())
    if num_intact == 0:
        raise no_intact_frame_error(source.path)
    lost = max(scan.expected, len(source.frame_times)) - num_intact
    if lost == 0 and num_intact == len(source.frame_times):
        return source
    notice = Notice(f"{source.label} is damaged: {num_intact} intact frames are used, {lost} left out")
    if source.pts is None:
        kept = np.flatnonzero(scan.intact)
    else:
        intact_pts = {pts for pts, intact in zip(scan.pts, scan.intact, strict=True) if intact}
        kept = np.array([index for index, pts in enumerate(source.pts) if int(pts) in intact_pts], dtype=np.int64)
    return replace(
        source,
        pts=None if source.pts is None else source.pts[kept],
        positions=source.positions[kept],
        frame_times=source.frame_times[kept],
        notices=(*source.notices, notice),
    )


def _first_frame(path: Path) -> Any:
    with open_container(path) as container:
        for _, frame, _ in decode_stream(container, video_stream(container, path)):
            if frame is not None:
                return frame
    raise InputError(f"{path.name} has no frame that can be decoded", "record or copy it again")


def _upright_size(path: Path, frame: Any, pixel_aspect: float) -> tuple[tuple[int, int], int, list[Notice]]:
    """Return (height, width) with square pixels and upright, the number of quarter turns, and notices."""
    notices = []
    height, width = frame.height, frame.width
    if abs(pixel_aspect - 1) > 1e-3:
        width = round(width * pixel_aspect)
        notices.append(
            Notice(f"{path.stem}: pixels are {pixel_aspect:.4g}:1, frames are resampled to square ({width}x{height})")
        )
    turns, remainder = divmod(round(frame.rotation) % 360, _QUARTER_TURN_DEG)
    if remainder:
        notices.append(
            Notice(f"{path.stem}: a rotation of {frame.rotation} degrees is not applied (not a multiple of 90)")
        )
    elif turns:
        clockwise = 360 - turns * _QUARTER_TURN_DEG
        notices.append(Notice(f"{path.stem}: rotated {clockwise} degrees clockwise", Level.INFO))
    return ((width, height) if turns % 2 else (height, width)), turns, notices


def _color_notices(path: Path, frame: Any, has_alpha: bool) -> list[Notice]:
    notices = []
    transfer = _HDR_TRANSFERS.get(int(frame.color_trc))
    if transfer:
        notices.append(Notice(f"{path.stem}: HDR ({transfer}); converted to SDR without tone mapping"))
    layout = frame.format.name
    if has_alpha or layout.startswith(("yuva", "gbrap", "rgba", "argb", "bgra", "abgr", "ya8", "ya16")):
        notices.append(Notice(f"{path.stem}: alpha ignored"))
    return notices


def _timecode(container: Any, stream: Any) -> str | None:
    for metadata in (stream.metadata, container.metadata, *(other.metadata for other in container.streams)):
        # Matroska writes the key in capitals.
        codes = [str(value) for key, value in metadata.items() if key.lower() == "timecode"]
        if codes:
            return codes[0]
    return None
