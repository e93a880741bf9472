"""The time shift between two recordings of one event, from their sound."""

from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE_HZ = 8000
MIN_SCORE = 15.0
"""Peak of the correlation over its standard deviation below which a shift is not believed."""


@dataclass(frozen=True)
class SoundLag:
    """How much later the second video's first frame was taken, and how clear the match is."""

    seconds: float
    score: float


def correlate_sound(first: Path, second: Path) -> SoundLag:
    """Find when the second video's first frame was taken on the clock of the first one's.

    Both tracks are whitened so that a hum cannot win, then correlated over all shifts.

    Source: Knapp & Carter, "The generalized correlation method for estimation of time delay", 1976 (PHAT weighting).
    """
    (sound_a, start_a), (sound_b, start_b) = _mono(first), _mono(second)
    length = len(sound_a) + len(sound_b)
    if min(len(sound_a), len(sound_b)) == 0:
        return SoundLag(0.0, 0.0)
    size = 1 << (length - 1).bit_length()
    cross = np.fft.rfft(sound_a, size) * np.conj(np.fft.rfft(sound_b, size))
    magnitude = np.abs(cross)
    cross /= np.maximum(magnitude, magnitude.max() * 1e-9 + np.finfo(float).tiny)
    correlation = np.fft.irfft(cross, size)
    peak = int(np.argmax(correlation))
    deviation = float(correlation.std())
    shift = peak if peak < size // 2 else peak - size
    score = float(correlation[peak]) / deviation if deviation > 0 else 0.0
    # A sound at s in the first track is at s - shift in the second; each track starts at its own offset to the video.
    return SoundLag(shift / SAMPLE_RATE_HZ + start_a - start_b, score)


def _mono(path: Path) -> tuple[NDArray[np.float64], float]:
    """Decode the first audio track; return samples at `SAMPLE_RATE_HZ` and its start relative to the first frame."""
    parts: list[NDArray[np.float32]] = []
    with av.open(str(path), options={"protocol_whitelist": "file"}) as container:
        stream, video = container.streams.audio[0], container.streams.video[0]
        resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
        starts = [float((s.start_time or 0) * (s.time_base or 0)) for s in (stream, video)]
        for frame in container.decode(stream):
            parts.extend(block.to_ndarray()[0] for block in resampler.resample(frame))
        parts.extend(block.to_ndarray()[0] for block in resampler.resample(None))
    samples = np.concatenate(parts).astype(np.float64) if parts else np.zeros(0)
    return samples - (samples.mean() if len(samples) else 0.0), starts[0] - starts[1]
