"""Time offset between two recordings by correlation of their audio tracks."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from page4d.errors import InputError
from page4d.scene.container import is_resource_error, open_container, video_stream

SAMPLE_RATE_HZ = 8000
MIN_SCORE = 15.0
"""Minimum ratio of the correlation peak to the standard deviation of the correlation."""

MAX_SECOND_PEAK = 0.6
"""Relative height of the second correlation peak above which the offset is ambiguous."""

_FADE_S = 0.25
_PEAK_WIDTH_S = 0.005
"""Distance from the highest correlation peak below which values are attributed to that peak."""


@dataclass(frozen=True)
class AudioOffset:
    """Delay of the second video's first frame in seconds, and how distinct the correlation peak is.

    `score` is the peak over the standard deviation. `second_peak` is the height of the second peak relative to the
    first: close to 1 for a hum or a loop.
    """

    seconds: float
    score: float
    second_peak: float


def correlate_audio(first: Path, second: Path) -> AudioOffset:
    """Estimate the time of the second video's first frame relative to that of the first video.

    The spectra are whitened to suppress hum, then correlated over all offsets.

    Source: Knapp & Carter, "The generalized correlation method for estimation of time delay", 1976 (PHAT weighting).
    """
    (audio_a, start_a), (audio_b, start_b) = _mono(first), _mono(second)
    length = len(audio_a) + len(audio_b)
    if min(len(audio_a), len(audio_b)) == 0:
        return AudioOffset(0.0, 0.0, 1.0)
    size = 1 << (length - 1).bit_length()
    # Truncation creates clicks at both ends, which whitening would match: fade in and out.
    cross = np.fft.rfft(_faded(audio_a), size) * np.conj(np.fft.rfft(_faded(audio_b), size))
    magnitude = np.abs(cross)
    # Floor for empty bands, relative to the median, which a loud hum does not raise.
    cross /= np.maximum(magnitude, np.median(magnitude) * 1e-3 + np.finfo(float).tiny)
    correlation = np.fft.irfft(cross, size)
    peak = int(np.argmax(correlation))
    deviation = float(correlation.std())
    shift = peak if peak < size // 2 else peak - size
    score = float(correlation[peak]) / deviation if deviation > 0 else 0.0
    apart = np.abs((np.arange(size) - peak + size // 2) % size - size // 2) > _PEAK_WIDTH_S * SAMPLE_RATE_HZ
    second_peak = float(correlation[apart].max(initial=0.0) / correlation[peak]) if deviation > 0 else 1.0
    # An event at s in the first track is at s - shift in the second; each track has its own offset to the video.
    return AudioOffset(shift / SAMPLE_RATE_HZ + start_a - start_b, score, second_peak)


def _faded(audio: NDArray[np.float64]) -> NDArray[np.float64]:
    length = min(round(_FADE_S * SAMPLE_RATE_HZ), len(audio) // 4)
    rise = 0.5 - 0.5 * np.cos(np.pi * (np.arange(length) + 0.5) / max(length, 1))
    faded = audio.copy()
    faded[:length] *= rise
    faded[len(audio) - length :] *= rise[::-1]
    return faded


def _mono(path: Path) -> tuple[NDArray[np.float64], float]:
    """Decode the first audio track at `SAMPLE_RATE_HZ`; return it with its start time relative to the first frame."""
    with open_container(path) as container:
        try:
            parts, start = _decoded(container, path)
        except FFmpegError as error:
            if is_resource_error(error):
                raise
            raise InputError(
                f"the audio track of {path.name} cannot be decoded: {error.strerror}",
                "use --sync FILE or --sync none",
            ) from error
    # Damaged floating-point audio has values that are not finite: they count as silence.
    samples = np.nan_to_num(np.concatenate(parts).astype(np.float64) if parts else np.zeros(0), posinf=0, neginf=0)
    return samples - (samples.mean() if len(samples) else 0.0), start


def _decoded(container: Any, path: Path) -> tuple[list[NDArray[np.float32]], float]:
    parts: list[NDArray[np.float32]] = []
    stream, video = container.streams.audio[0], video_stream(container, path)
    resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
    starts = [float((s.start_time or 0) * (s.time_base or 0)) for s in (stream, video)]
    for frame in container.decode(stream):
        parts.extend(block.to_ndarray()[0] for block in resampler.resample(frame))
    parts.extend(block.to_ndarray()[0] for block in resampler.resample(None))
    return parts, starts[0] - starts[1]
