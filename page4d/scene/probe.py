"""Probing of video files: time stamps, upright size, colour and damage, and notices about what was found."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from av.video.reformatter import Interpolation
from numpy.typing import NDArray

from page4d.errors import InputError, Level, Notice, counted, listed
from page4d.io.input_files import DEFAULT_MAX_MEGAPIXELS, check_pixels, check_regular_file
from page4d.scene import video
from page4d.scene.image_file import Orientation, display_matrix, orientation_of
from page4d.scene.packing import MOSAIC, check_halves, check_side_data, comparison_size, is_mosaic
from page4d.scene.timeline import timing
from page4d.scene.video import PacketExtent, TimeCode, VideoSource

_HDR_TRANSFERS = {16: "PQ", 18: "HLG"}
_ALPHA_FORMATS = ("yuva", "gbrap", "rgba", "argb", "bgra", "abgr", "ya8", "ya16")
_MAX_PIXEL_ASPECT = 4.0
"""Beyond any anamorphic format; the widest in use is 2:1."""

_FIELD_ORDERS = (2, 3, 4, 5)
"""FFmpeg's AVFieldOrder of interlaced video."""


def upright(name: str, frame: Any) -> tuple[Orientation | None, list[Notice]]:
    """Return the orientation in which video players show a frame, None if its display matrix is no quarter turn."""
    matrix = display_matrix(frame)
    if matrix is None:
        return Orientation(), []
    orientation = orientation_of(matrix)
    if orientation is None:
        a, b, c, d = matrix
        rotates = (a, b) != (0, 0) and abs(a - d) + abs(b + c) <= 0.01 * (abs(a) + abs(b))
        kind = f"a rotation of {math.degrees(math.atan2(b, a)):.0f} degrees" if rotates else "its display matrix"
        return None, [Notice(f"{name}: {kind} is not applied (not a multiple of 90 degrees)")]
    turn = f"rotated {orientation.clockwise_deg} degrees clockwise" if orientation.clockwise_deg else ""
    if orientation.is_mirrored:
        done = " and ".join(filter(None, ("mirrored left to right", turn)))
        text = f"{name}: {done}, as its display matrix states; if writing is reversed, record without mirroring"
        return orientation, [Notice(text)]
    return orientation, [Notice(f"{name}: {turn}", Level.INFO)] if turn else []


def square_pixels(name: str, frame: Any, pixel_aspect: float) -> tuple[tuple[int, int], list[Notice]]:
    """Return the stored (height, width) with square pixels."""
    height, width = frame.height, frame.width
    if abs(pixel_aspect - 1) <= 1e-3:
        return (height, width), []
    if not 1 / _MAX_PIXEL_ASPECT <= pixel_aspect <= _MAX_PIXEL_ASPECT:
        return (height, width), [Notice(f"{name}: a pixel aspect of {pixel_aspect:.4g}:1 is implausible and ignored")]
    width = max(round(width * pixel_aspect), 1)
    text = f"{name}: pixels are {pixel_aspect:.4g}:1, frames are resampled to square ({width}x{height})"
    return (height, width), [Notice(text)]


def _content_notices(name: str, frame: Any, stream: Any) -> list[Notice]:
    """Return notices about interlacing, colour and alpha."""
    notices = []
    # PyAV 17 does not have the order of fields.
    if frame.interlaced_frame or int(getattr(stream.codec_context, "field_order", 0)) in _FIELD_ORDERS:
        hint = "deinterlace it first, for example: ffmpeg -i IN -vf bwdif OUT.mp4"
        notices.append(Notice(f"{name}: interlaced, moving edges are comb-shaped; {hint}"))
    transfer = _HDR_TRANSFERS.get(int(frame.color_trc))
    if transfer:
        notices.append(Notice(f"{name}: HDR ({transfer}); converted to SDR without tone mapping"))
    # FFmpeg's native VP8 and VP9 decoders discard alpha silently.
    if stream.metadata.get("alpha_mode") == "1" or frame.format.name.startswith(_ALPHA_FORMATS):
        notices.append(Notice(f"{name}: alpha ignored"))
    return notices


def _stream_notice(path: Path, container: Any, is_footage: bool) -> list[Notice]:
    """Return a notice if a file has more than one video stream."""
    contexts = [stream.codec_context for stream in video.video_streams(container, path, is_footage=is_footage)]
    if len(contexts) < 2:
        return []
    # PyAV has no context for unknown codecs.
    texts = [f"{each.name} {each.width}x{each.height}" if each else "unknown 0x0" for each in contexts]
    return [Notice(f"{path.name} has {len(contexts)} video streams ({listed(texts)}); {texts[0]} is used")]


_MIN_RATE, _MAX_RATE = 1e-4, 1e5
"""Bounds of plausible frame rates, from time lapses to high-speed cameras."""

_MAX_SPAN_S = 1e9
"""Upper bound on the duration of a recording: 31 years."""


def probe_video(
    path: Path,
    *,
    max_megapixels: float,
    allow_damaged: bool = False,
    is_footage: bool = True,
    name: str = "",
    label: str = "",
) -> VideoSource:
    """Read a video's time stamps and properties; decodes one frame, or all frames if `allow_damaged`.

    Halves of the first frame are compared if it `is_footage`, not a mask or depth map. `name` and `label` are those
    of the view and of the file in messages, by default the stem and name of the file.

    Raises:
        InputError: if the file is not a complete, decodable video of one pinhole camera.
    """
    check_regular_file(path)
    name, label = name or path.stem, label or path.name
    with video.open_container(path) as container:
        stream = video.video_stream(container, path, is_footage=is_footage)
        context, is_avi = stream.codec_context, container.format.name == "avi"
        check_pixels(path.name, context.width, context.height, max_megapixels)
        shown, ends_early = _shown_packets(path, container, stream)
        _check_order(path, shown, float(stream.time_base), is_stream=container.format.name in {"mpegts", "mpeg"})
        first, is_clean = video.first_frame(path, is_footage=is_footage)
        if (ends_early and not allow_damaged) or not shown:
            raise video.damage_error(path)
        check_side_data(path.name, first)
        turn, turn_notices = upright(name, first)
        orientation = turn or Orientation()
        # FFmpeg derives the pixel aspect of the stream from the matrix, whether or not that is applied.
        aspect = float((stream if turn else context).sample_aspect_ratio or 1.0)
        square, aspect_notices = square_pixels(name, first, aspect)
        check_pixels(path.name, square[1], square[0], max_megapixels)
        size = orientation.size(square)
        if is_footage and (small := comparison_size(size)):
            height, width = orientation.size(small)
            stored = first.reformat(width=width, height=height, format="gray", interpolation=Interpolation.AREA)
            check_halves(label, orientation.apply(stored.to_ndarray()))
        notices = [*aspect_notices, *turn_notices, *_stream_notice(path, container, is_footage)]
        notices += _content_notices(name, first, stream)
        if first.format.name.startswith("gray") and is_mosaic(first.reformat(format="gray16le").to_ndarray()):
            notices.append(Notice(f"{name}: {MOSAIC}"))
        rate = float(stream.guessed_rate or stream.average_rate or 25)
        time_base = float(stream.time_base)
        pts, times, is_timed = _frame_times(shown, rate, time_base, is_avi=is_avi)
        if times[-1] > _MAX_SPAN_S:
            raise InputError(
                f"{path.name} has implausible time stamps: its frames span {times[-1]:.3g} s",
                "convert or record it again",
            )
        notices += _timing_notices(name, times, len(shown) - len(times), None if is_timed else rate)
        key_pts = [packet.pts for packet in shown if packet.is_key and packet.pts is not None]
        num_early = next((place for place, packet in enumerate(shown) if packet.is_key), 0)
        num_early = 0 if is_avi else num_early  # not all recorders mark key frames
        if pts is not None:
            first_key = key_pts[0] if key_pts and not is_clean else first.pts
            begin = None if first.pts is None else min(first.pts, first_key)
            if context.name == "mpeg4" and key_pts:  # its decoder paints gray, without an error, what it lacks
                begin = key_pts[0]
            num_early = 0 if begin is None else int(np.searchsorted(pts, begin))
            pts = pts[num_early:]
        if num_early == len(times):
            raise video.damage_error(path)
        if num_early:
            text = f"{name}: {counted(num_early, 'frame')} left out: the recording begins between two key frames"
            notices.append(Notice(text))
        source = VideoSource(
            path=path,
            label=label,
            codec=context.name,
            size=size,
            frame_times=times[num_early:],
            pts=pts,
            positions=np.arange(len(times) - num_early, dtype=np.int64),
            decoded=np.arange(len(times) - num_early, dtype=np.int64),
            key_pts=np.array(key_pts, dtype=np.int64),
            is_timed=is_timed,
            starts_late=num_early > 0,
            is_footage=is_footage,
            orientation=orientation,
            bit_depth=first.format.components[0].bits,
            has_audio=bool(container.streams.audio),
            timecode=_timecode(path, container, stream),
            start_s=0.0 if pts is None else int(pts[0]) * time_base - float(times[num_early]),
            tolerates_damage=allow_damaged,
            notices=tuple(notices),
        )
    return _without_damage(source, num_early) if allow_damaged else source


class _Packet(NamedTuple):
    pts: int | None
    dts: int | None
    is_key: bool


def _shown_packets(path: Path, container: Any, stream: Any) -> tuple[list[_Packet], bool]:
    """Return the packets that are displayed, and whether the file ends early."""
    extent = PacketExtent(path, container, stream)
    # Only these fields are kept: the packets of a long recording would not fit into memory.
    packets = [(p.pts, p.dts, p.is_keyframe, p.is_discard, p.is_corrupt) for p in extent.packets() if p.size]
    declared = video.declared_length(container, stream) - video.empty_frames(
        container, [packet[1] for packet in packets]
    )
    ends_early = any(corrupt for *_, corrupt in packets) or 0 < len(packets) < declared or extent.is_cut()
    return [_Packet(*fields) for *fields, discarded, _ in packets if not discarded], ends_early


_MAX_BACK_S = 0.1
"""Seconds by which decoding times may go back: recorders write them in order, but for errors of rounding."""


def _check_order(path: Path, shown: Sequence[_Packet], time_base: float, *, is_stream: bool) -> None:
    """Refuse decoding times that go back, which would mix frames of different times."""
    times = np.array([packet.dts for packet in shown if packet.dts is not None], dtype=np.float64) * time_base
    if (np.maximum.accumulate(times) - times).max(initial=0.0) > _MAX_BACK_S:
        raise InputError(
            f"{path.name}: time stamps go back, as in recordings that were joined to one file",
            # FFmpeg joins the times of transport and program streams; of others it would squeeze the second part.
            "give it new time stamps: ffmpeg -i IN -c copy OUT.mp4"
            if is_stream
            else "give one of the joined recordings",
        )


def _frame_times(
    shown: Sequence[_Packet], rate: float, time_base: float, *, is_avi: bool
) -> tuple[NDArray[np.int64] | None, NDArray[np.float64], bool]:
    """Return the time stamps, the time of each frame in seconds from the first, and whether the file contains them.

    AVI has decoding times only: frames are displayed at these times, in display order.
    """
    pts = [packet.pts for packet in shown if packet.pts is not None]
    dts = [packet.dts for packet in shown if packet.dts is not None]
    if not is_avi and len(pts) == len(shown):
        stamps = np.unique(np.array(pts, dtype=np.int64))
        # The difference of two 64-bit stamps needs an unsigned integer.
        return stamps, (stamps - stamps[0]).view(np.uint64) * time_base, True
    if is_avi and len(set(dts)) == len(shown):
        ticks = np.sort(np.array(dts, dtype=np.int64))
        return None, (ticks - ticks[0]) * time_base, True
    return None, np.arange(len(shown)) / rate, is_avi


def _without_damage(source: VideoSource, num_early: int) -> VideoSource:
    """Keep only the intact frames, of which `num_early` precede the source, and add a notice with their number."""
    scan = video.scan_for_damage(source.path, is_timed=source.pts is not None)
    num_intact = int(scan.intact.sum())
    if num_intact == 0:
        raise video.no_intact_frame_error(source.path)
    lost = max(scan.expected, len(source.frame_times)) - num_intact
    if lost == 0 and num_intact == len(source.frame_times) and not scan.ends_early:
        return source
    video.check_decoding_memory(source.path)
    problem = "is damaged" if lost or not scan.ends_early else "ends early"
    used = "1 intact frame is used" if num_intact == 1 else f"{num_intact} intact frames are used"
    notice = Notice(f"{source.label} {problem}: {used}" + (f", {lost} left out" if lost else ""))
    if source.pts is None:
        kept = scan.places - num_early
        is_kept = scan.intact & (kept >= 0) & (kept < len(source.frame_times))
        kept, decoded = kept[is_kept], np.flatnonzero(is_kept)
    else:
        intact_pts = [pts for pts, intact in zip(scan.pts, scan.intact, strict=True) if intact and pts is not None]
        kept = decoded = np.flatnonzero(np.isin(source.pts, intact_pts))
    return replace(
        source,
        pts=None if source.pts is None else source.pts[kept],
        positions=source.positions[kept],
        decoded=decoded,
        frame_times=source.frame_times[kept],
        notices=(*source.notices, notice),
    )


def first_picture(path: Path) -> NDArray[np.uint8]:
    """Decode the first frame of a video, upright [H, W, 3].

    Raises:
        InputError: if it cannot be decoded, or has more than `DEFAULT_MAX_MEGAPIXELS` million pixels.
    """
    with video.open_container(path) as container:
        context = video.video_stream(container, path).codec_context
        check_pixels(path.name, context.width, context.height, DEFAULT_MAX_MEGAPIXELS)
    frame, _ = video.first_frame(path)
    orientation, _ = upright(path.stem, frame)
    return (orientation or Orientation()).apply(frame.to_ndarray(format="rgb24"))


def _timing_notices(name: str, times: NDArray[np.float64], repeated: int, assumed_rate: float | None) -> list[Notice]:
    if assumed_rate is not None:
        return [Notice(f"{name}: no time stamps; assuming {assumed_rate:g} fps")]
    notices = []
    if repeated:
        text = f"{name}: {counted(repeated, 'frame')} left out, with the time stamp of another frame"
        notices.append(Notice(text))
    rate = timing(times).fps
    if rate and not _MIN_RATE <= rate <= _MAX_RATE:
        notices.append(Notice(f"{name}: time stamps give {rate:.3g} frames per second, which is implausible"))
    return notices


def _timecode(path: Path, container: Any, stream: Any) -> TimeCode | None:
    name = container.format.name
    for metadata in (stream.metadata, container.metadata, *(other.metadata for other in container.streams)):
        # Matroska writes the key in capitals.
        codes = [str(value) for key, value in metadata.items() if key.lower() == "timecode"]
        if codes:
            rate = video.timecode_rate(path) if name.startswith("mov") else None
            is_stated = rate is not None or name == "mxf"  # whose time codes count at the edit rate
            return TimeCode(codes[0], rate or float(stream.guessed_rate or stream.average_rate or 25), is_stated)
    return None
