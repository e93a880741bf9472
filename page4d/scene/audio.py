"""The time shift between two recordings of one event, from their sound."""

from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from page4d.errors import InputError

SAMPLE_RATE_HZ = 8000
MIN_SCORE = 15.0
"""Peak of the correlation over its standard deviation below which a shift is not believed."""

MAX_RIVAL = 0.6
"""Height of a second peak beside the first above which the shift is ambiguous."""

_FADE_S = 0.25
_PEAK_WIDTH_S = 0.005


@dataclass(frozen=True)
class SoundLag:
    """How much later the second video's first frame was taken, and how clear the match is.

    `rival` is the second best match relative to the best: near 1 for a hum or a loop, which match at many shifts.
    """

    seconds: float
    score: float
    rival: float


def correlate_sound(first: Path, second: Path) -> SoundLag:
    """Find when the second video's first frame was taken on the clock of the first one's.

    Both tracks are whitened so that a hum cannot win, then correlated over all shifts.

    Source: Knapp & Carter, "The generalized correlation method for estimation of time delay", 1976 (PHAT weighting).
    """
    (sound_a, start_a), (sound_b, start_b) = _mono(first), _mono(second)
    length = len(sound_a) + len(sound_b)
    if min(len(sound_a), len(sound_b)) == 0:
        return SoundLag(0.0, 0.0, 1.0)
    size = 1 << (length - 1).bit_length()
    # A hum that is cut off has a click at either end, and whitening would match the clicks: fade them out.
    cross = np.fft.rfft(_faded(sound_a), size) * np.conj(np.fft.rfft(_faded(sound_b), size))
    magnitude = np.abs(cross)
    # The floor is for bands that are empty: measured by the median, for a loud hum must not raise it above the rest.
    cross /= np.maximum(magnitude, np.median(magnitude) * 1e-3 + np.finfo(float).tiny)
    correlation = np.fft.irfft(cross, size)
    peak = int(np.argmax(correlation))
    deviation = float(correlation.std())
    shift = peak if peak < size // 2 else peak - size
    score = float(correlation[peak]) / deviation if deviation > 0 else 0.0
    apart = np.abs((np.arange(size) - peak + size // 2) % size - size // 2) > _PEAK_WIDTH_S * SAMPLE_RATE_HZ
    rival = float(correlation[apart].max(initial=0.0) / correlation[peak]) if deviation > 0 else 1.0
    # A sound at s in the first track is at s - shift in the second; each track starts at its own offset to the video.
    return SoundLag(shift / SAMPLE_RATE_HZ + start_a - start_b, score, rival)


def _faded(sound: NDArray[np.float64]) -> NDArray[np.float64]:
    length = min(round(_FADE_S * SAMPLE_RATE_HZ), len(sound) // 4)
    rise = 0.5 - 0.5 * np.cos(np.pi * (np.arange(length) + 0.5) / max(length, 1))
    faded = sound.copy()
    faded[:length] *= rise
    faded[len(sound) - length :] *= rise[::-1]
    return faded


def _mono(path: Path) -> tuple[NDArray[np.float64], float]:
    """Decode the first audio track; return samples at `SAMPLE_RATE_HZ` and its start relative to the first frame."""
    try:
        parts, start = _decoded(path)
    except FFmpegError as error:
        raise InputError(
            f"the sound of {path.name} cannot be decoded: {error.strerror}", "use --sync FILE or --sync none"
        ) from error
    samples = np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)
    return samples - (samples.mean() if len(samples) else 0.0), start


def _decoded(path: Path) -> tuple[list[NDArray[np.float32]], float]:
    parts: list[NDArray[np.float32]] = []
    with av.open(str(path), options={"protocol_whitelist": "file"}, metadata_errors="replace") as container:
        stream, video = container.streams.audio[0], container.streams.video[0]
        resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
        starts = [float((s.start_time or 0) * (s.time_base or 0)) for s in (stream, video)]
        for frame in container.decode(stream):
            parts.extend(block.to_ndarray()[0] for block in resampler.resample(frame))
        parts.extend(block.to_ndarray()[0] for block in resampler.resample(None))
    return parts, starts[0] - starts[1]
