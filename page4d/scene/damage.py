"""What is wrong with a damaged video, found by decoding it to its end."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from page4d.errors import InputError
from page4d.scene.container import DECODER_DAMAGE, left_out, open_container, stated_length, video_stream


def damage_error(path: Path) -> InputError:
    """Decode a damaged video to its end and say exactly what is wrong with it."""
    found = scan(path)
    good = int(found.good.sum())
    if good == 0:
        return InputError(f"{path.name} has no whole frame", "record or copy it again, or leave it out with --views")
    remedy = f"use --allow-damaged to use the {good} good frames"
    if found.bad_packets == 0 or found.ends_early:
        return InputError(f"{path.name} breaks off after frame {good - 1} of {max(found.expected, good)}", remedy)
    packets = "1 damaged packet" if found.bad_packets == 1 else f"{found.bad_packets} damaged packets"
    at = f" at {found.first_bad_s:.2f} s" if found.first_bad_s is not None else ""
    concealed = int((~found.good).sum())
    frames = "1 frame" if concealed == 1 else f"{concealed} frames"
    return InputError(f"{path.name} has {packets}{at}, {frames} concealed", remedy)


@dataclass(frozen=True)
class Scan:
    """What a full decode finds: per decoded frame its time stamp and whether it is whole."""

    pts: list[int | None]
    good: NDArray[np.bool_]
    bad_packets: int
    first_bad_s: float | None
    expected: int
    ends_early: bool


def scan(path: Path) -> Scan:
    """Decode a whole video without stopping at damage."""
    pts: list[int | None] = []
    dts: list[int | None] = []
    good: list[bool] = []
    bad_packets, first_bad_s, last_packet_bad = 0, None, False
    with open_container(path) as container:
        stream = video_stream(container, path)
        start = float((stream.start_time or 0) * stream.time_base)
        expected = stated_length(container, stream)
        for packet in container.demux(stream):
            if packet.size:
                dts.append(packet.dts)
                last_packet_bad = bool(packet.is_corrupt)
            try:
                frames = packet.decode()
            except DECODER_DAMAGE:
                bad_packets += 1
                if first_bad_s is None and packet.pts is not None:
                    first_bad_s = float(packet.pts * stream.time_base) - start
                continue
            pts.extend(frame.pts for frame in frames)
            good.extend(not (frame.is_corrupt or packet.is_corrupt) for frame in frames)
        expected = max(expected - left_out(container, dts), 0)
    ends_early = last_packet_bad or (expected > 0 and len(pts) + bad_packets < expected)
    return Scan(pts, np.array(good, dtype=bool), bad_packets, first_bad_s, expected or len(pts), ends_early)
