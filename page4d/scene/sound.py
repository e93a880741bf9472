"""The offset of two recordings by their sound."""

from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

import av
import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from page4d.errors import InputError
from page4d.scene.records import MAX_RATE_ERROR, MIN_RATE_SPAN_S, SYNC_HINT
from page4d.scene.video import is_resource_error, open_container, video_stream

SAMPLE_RATE_HZ = 8000
MIN_SCORE = 15.0
"""Minimum ratio of the correlation peak to the standard deviation of the correlation."""

MAX_SECOND_PEAK = 0.6
"""Relative height of the second correlation peak above which the offset is ambiguous."""

_MAX_DRIFT = 2e-4
"""Difference of the rates of two crystals, of 100 ppm each at most."""

_WINDOW_S, _MAX_WINDOWS, _MIN_WINDOWS = 4.0, 200, 8
"""Windows with offsets of their own: their length, how many are compared, and how many have to be on a line."""

_FADE_S = 0.25
_PEAK_WIDTH_S = 0.005
"""Distance from the highest correlation peak below which values are attributed to that peak."""

_MIN_LOST_S, _MAX_LOST_S = 0.02, 600.0
"""Gaps of time stamps between those by rounding and those by damage: silence, where a recorder lost sound."""

_SOUND_S = 0.005
"""Standard deviation of an offset by sound, which takes 3 ms per metre to either camera."""


@dataclass(frozen=True)
class AudioOffset:
    """Delay of the second video's first frame in seconds, and how distinct the correlation peak is.

    `score` is the peak over the standard deviation. `second_peak` is the height of the second peak relative to the
    first, of all or half of the sound: close to 1 for a hum or a loop. `std_seconds` is from the width of the peak at
    half its height, the unknown distances to what sounds, and the error of the rate. `rate` is that of the second
    video's clock relative to the first one's, with its standard deviation, 0 if no rate is used.
    """

    seconds: float
    score: float
    second_peak: float
    std_seconds: float = 0.0
    rate: float = 1.0
    rate_std: float = 0.0

    @property
    def doubt(self) -> str:
        """Why the offset is not used, empty if it is."""
        if self.score < MIN_SCORE:
            return f"score {self.score:.0f}, need {MIN_SCORE:g}"
        return "several offsets fit, as of a hum, a loop or a drift" if self.second_peak > MAX_SECOND_PEAK else ""


def correlate_audio(first: Path, second: Path) -> AudioOffset:
    """Estimate the time of the second video's first frame relative to that of the first video, and its rate.

    The spectra are whitened to suppress hum, then correlated over all offsets. Where windows of the sound have
    offsets on a line over time, the second track is resampled to the clock of the first one, and compared again.

    Source: Knapp & Carter, "The generalized correlation method for estimation of time delay", 1976 (PHAT weighting).
    """
    (audio_a, start_a), (audio_b, start_b) = _mono(first), _mono(second)
    if min(len(audio_a), len(audio_b)) == 0:
        return AudioOffset(0.0, 0.0, 1.0)
    found = _unambiguous(audio_a, audio_b)
    drift, std, span_s = _drift(audio_a, audio_b, found)
    if std / MAX_RATE_ERROR < abs(drift) <= _MAX_DRIFT:
        rate = 1 / (1 - drift)
        # The nearest samples: a linear interpolation would weaken high frequencies.
        resampled = audio_b[np.rint(np.arange(int((len(audio_b) - 1) * rate)) / rate).astype(np.int64)]
        other = _unambiguous(audio_a, resampled)
        if not other.doubt and other.score > found.score:
            found, drift = replace(other, rate=rate, rate_std=std), 0.0
    # An event at s in the first track is at s - shift in the second; each track has its own offset to the video.
    seconds = found.seconds + start_a - found.rate * start_b
    unknown = float(np.hypot(drift, std)) * span_s / 12**0.5
    return replace(found, seconds=seconds, std_seconds=float(np.hypot(found.std_seconds, unknown)))


def _unambiguous(audio_a: NDArray[np.float64], audio_b: NDArray[np.float64]) -> AudioOffset:
    """Return the offset of the second one of two tracks, with the second peak of all or half of the sound.

    Whole recordings of a loop fit best where they overlap most: either half of the common part has to fit the second
    track at a single offset, too.
    """
    found = _correlated(audio_a, audio_b)
    shift = round(found.seconds * SAMPLE_RATE_HZ)
    common = audio_a[max(shift, 0) : shift + len(audio_b)]
    halves = (_correlated(half, audio_b) for half in np.array_split(common, 2) if len(half))
    clearest = found if found.doubt else max(halves, key=lambda half: half.score, default=found)
    return replace(found, second_peak=max(found.second_peak, clearest.second_peak))


def _drift(audio_a: NDArray[np.float64], audio_b: NDArray[np.float64], found: AudioOffset) -> tuple[float, ...]:
    """Return by how much offsets of windows grow per second, its standard deviation, and the span of the windows.

    Zeros if too few windows have a distinct offset near one line.
    """
    from scipy.stats import siegelslopes

    common_s = min(len(audio_a), len(audio_b)) / SAMPLE_RATE_HZ
    if common_s < MIN_RATE_SPAN_S + _WINDOW_S:
        return 0.0, 0.0, 0.0
    shift_s = _correlated(audio_a, audio_b, _MAX_DRIFT * common_s).seconds if found.doubt else found.seconds
    shift, reach, size = (round(one * SAMPLE_RATE_HZ) for one in (shift_s, _MAX_DRIFT * common_s, _WINDOW_S))
    low, high = max(0, shift + reach), min(len(audio_a), len(audio_b) + shift - reach) - size
    starts = np.linspace(low, high, max(min((high - low) // size + 1, _MAX_WINDOWS), 0)).astype(int)
    pairs = ((audio_a[start:][:size], audio_b[start - shift - reach :][: size + 2 * reach]) for start in starts)
    windows = [_correlated(*pair) for pair in pairs]
    distinct = np.array([one.second_peak <= MAX_SECOND_PEAK for one in windows], bool)
    times, offsets = starts[distinct] / SAMPLE_RATE_HZ, np.array([one.seconds for one in windows])[distinct]
    if len(times) < _MIN_WINDOWS:
        return 0.0, 0.0, 0.0
    slope, offset = siegelslopes(offsets, times)
    near = np.abs(offsets - offset - slope * times) <= _SOUND_S
    times, offsets = times[near], offsets[near]
    if len(times) < max(_MIN_WINDOWS, len(near) / 2) or np.ptp(times) < MIN_RATE_SPAN_S:
        return 0.0, 0.0, 0.0
    (drift, _), covariance = np.polyfit(times, offsets, 1, cov=True)
    # What sounds may move: the halves of the windows then have other slopes.
    halves = np.array_split(np.arange(len(times)), 2)
    apart = max(abs(np.polyfit(times[half], offsets[half], 1)[0] - drift) for half in halves)
    return float(drift), float(max(np.sqrt(covariance[0, 0]), apart)), float(np.ptp(times))


def _correlated(audio_a: NDArray[np.float64], audio_b: NDArray[np.float64], spread_s: float = 0.0) -> AudioOffset:
    """Return the offset of the second one of two tracks, of the energy of the correlation over a spread by drift."""
    size = 1 << (len(audio_a) + len(audio_b) - 2).bit_length()
    # Truncation creates clicks at both ends, which whitening would match: fade in and out.
    cross = np.fft.rfft(_faded(audio_a), size) * np.conj(np.fft.rfft(_faded(audio_b), size))
    magnitude = np.abs(cross)
    # Floor for empty bands, relative to the median, which a loud hum does not raise.
    cross /= np.maximum(magnitude, np.median(magnitude) * 1e-3 + np.finfo(float).tiny)
    correlation = np.fft.irfft(cross, size)
    if spread_s > 0:
        from scipy.ndimage import uniform_filter1d

        correlation = uniform_filter1d(np.square(correlation), round(spread_s * SAMPLE_RATE_HZ), mode="wrap")
    peak = int(np.argmax(correlation))
    deviation = float(correlation.std())
    shift = peak if peak < len(audio_a) else peak - size
    score = float(correlation[peak]) / deviation if deviation > 0 else 0.0
    apart = np.abs((np.arange(size) - peak + size // 2) % size - size // 2) > _PEAK_WIDTH_S * SAMPLE_RATE_HZ
    second_peak = float(correlation[apart].max(initial=0.0) / correlation[peak]) if deviation > 0 else 1.0
    around = np.roll(correlation, size // 2 - peak) >= correlation[peak] / 2
    width = int(np.argmin(around[size // 2 :])) + int(np.argmin(around[size // 2 :: -1])) - 1
    std_seconds = float(np.hypot(width / 2 / SAMPLE_RATE_HZ, _SOUND_S))
    return AudioOffset(shift / SAMPLE_RATE_HZ, score, second_peak, std_seconds)


def _faded(audio: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.signal.windows import tukey

    return audio * tukey(len(audio), min(2 * _FADE_S * SAMPLE_RATE_HZ / len(audio), 0.5))


def _mono(path: Path) -> tuple[NDArray[np.float64], float]:
    """Decode the first audio track at `SAMPLE_RATE_HZ`; return it with its start time relative to the first frame."""
    parts: list[NDArray[np.float32]] = []
    with open_container(path) as container:
        stream, video = container.streams.audio[0], video_stream(container, path)
        start, of_video = (float((one.start_time or 0) * (one.time_base or 0)) for one in (stream, video))
        resampler = av.AudioResampler(format="flt", layout="mono", rate=SAMPLE_RATE_HZ)
        end_s = start
        try:
            for frame in chain(container.decode(stream), [None]):
                for block in resampler.resample(frame):
                    lost_s = 0.0 if block.time is None else block.time - end_s
                    if (_MIN_LOST_S if parts else 0.0) < lost_s < _MAX_LOST_S:  # first, what the decoder skips
                        parts.append(np.zeros(round(lost_s * SAMPLE_RATE_HZ), np.float32))
                        end_s += lost_s
                    parts.append(block.to_ndarray()[0])
                    end_s += block.samples / SAMPLE_RATE_HZ
        except FFmpegError as error:
            if is_resource_error(error):
                raise
            raise InputError(
                f"the audio track of {path.name} cannot be decoded: {error.strerror}", SYNC_HINT
            ) from error
    # Damaged floating-point audio has values that are not finite: they count as silence.
    samples = np.nan_to_num(np.concatenate(parts).astype(np.float64) if parts else np.zeros(0), posinf=0, neginf=0)
    return samples - (samples.mean() if len(samples) else 0.0), start - of_video
