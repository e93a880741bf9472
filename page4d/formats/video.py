"""Writer of H.264 videos."""

from fractions import Fraction
from typing import BinaryIO

import av
import numpy as np
from av.container import OutputContainer
from av.video.stream import VideoStream
from jaxtyping import UInt8

_ITU_601 = 6
_LIMITED_RANGE = 1


class VideoFile:
    """MP4 writer, single-threaded and without time stamps in its headers, so that its output is reproducible."""

    def __init__(
        self, file: BinaryIO, image_size: tuple[int, int], fps: float, quality_crf: int, preset: str = "slow"
    ) -> None:
        rate = Fraction(fps).limit_denominator(1001)
        self._container: OutputContainer = av.open(file, "w", format="mp4", container_options={"fflags": "+bitexact"})
        self._stream: VideoStream = self._container.add_stream("libx264", rate=rate)
        self._stream.height, self._stream.width = image_size
        self._stream.pix_fmt = "yuv420p"
        self._stream.time_base = self._stream.codec_context.time_base = 1 / rate
        self._stream.codec_context.thread_count = 1
        self._stream.codec_context.colorspace = _ITU_601
        self._stream.codec_context.color_range = _LIMITED_RANGE
        self._stream.options = {"crf": str(quality_crf), "preset": preset, "flags": "+bitexact"}
        self._count = 0

    def __enter__(self) -> "VideoFile":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                for packet in self._stream.encode(None):
                    self._container.mux(packet)
        finally:
            self._container.close()

    def add(self, image: UInt8[np.ndarray, "H W 3"]) -> None:
        """Append one RGB frame."""
        frame = av.VideoFrame.from_ndarray(image, format="rgb24").reformat(
            format="yuv420p", dst_colorspace=_ITU_601, dst_color_range=_LIMITED_RANGE
        )
        frame.pts, frame.time_base = self._count, self._stream.codec_context.time_base
        self._count += 1
        for packet in self._stream.encode(frame):
            self._container.mux(packet)
