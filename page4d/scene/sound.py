"""The offset of two recordings by their sound."""

from dataclasses import dataclass, replace
from itertools import chain, pairwise
from pathlib import Path

import av
import numpy as np
from av.error import FFmpegError
from numpy.typing import NDArray

from page4d.errors import InputError
from page4d.scene.records import MAX_RATE_ERROR, MIN_RATE_SPAN_S, SYNC_HINT
from page4d.scene.video import is_resource_error, open_container, video_stream

SAMPLE_RATE_HZ = 8000
MIN_SCORE = 2.0
"""Minimum energy of the correlation near the offset, relative to that of unrelated sound."""

MAX_SECOND_PEAK = 0.5
"""Relative energy of the second correlation peak above which the offset is ambiguous."""

_MAX_DRIFT = 2e-4
"""Difference of the rates of two crystals, of 100 ppm each at most."""

_WINDOW_S, _MAX_WINDOWS, _MIN_WINDOWS = 4.0, 200, 8
"""Windows with offsets of their own: their length, how many are compared, and how many have to be on a line."""

_FADE_S = 0.25
_BLOCK = 40
"""Samples whose energies are added up: 5 ms."""

_NEAR, _SMOOTHING_S, _ROOM_S = 320, 0.01, 0.2
"""Echoes: reach of the highest peak in samples, standard deviation of smoothing, and distance of other offsets."""

_MAX_RATIO, _MIN_COMMON = 1.4, 0.5
"""Highest peak of unrelated sounds over the next one, in power; least share of common energy that is compared."""

_MIN_LOST_S, _MAX_LOST_S = 0.02, 600.0
"""Gaps of time stamps between those by rounding and those by damage: silence, where a recorder lost sound."""

_SOUND_S = 0.005
"""Standard deviation of an offset by sound, which takes 3 ms per metre to either camera."""


@dataclass(frozen=True)
class AudioOffset:
    """Delay of the second video's first frame in seconds, and how distinct the correlation peak is.

    `score` is the energy of the correlation near the offset relative to that of unrelated sound, `second_peak` the
    relative energy of the second offset, of all or half of the sound: close to 1 for a hum or a loop. `std_seconds`
    is from the scatter of high peaks, the unknown distances to what sounds, and the error of the rate. `rate` is that
    of the second video's clock relative to the first one's, with its standard deviation, 0 if no rate is used.
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
            return f"score {self.score:.1f}, need {MIN_SCORE:g}"
        return "several offsets fit, as of a hum, a loop or a drift" if self.second_peak > MAX_SECOND_PEAK else ""


def correlate_audio(first: Path, second: Path) -> AudioOffset:
    """Estimate the time of the second video's first frame relative to that of the first video, and its rate.

    The spectra are whitened to suppress hum, then correlated over all offsets; echoes add energy near one. Where
    windows have offsets on a line over time, the second track is resampled to the first clock, and compared again.

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


def _unambiguous(audio_a: NDArray[np.float32], audio_b: NDArray[np.float32]) -> AudioOffset:
    """Return the offset of the second one of two tracks, with the lower score and the second peak of all or half.

    Whole recordings of a loop fit best where they overlap most, or at their ends: half of the common part has to fit
    the second track at this offset alone, too, and the other half at no other one.
    """
    found = _correlated(audio_a, audio_b)
    if found.doubt:
        return found
    shift = round(found.seconds * SAMPLE_RATE_HZ)
    bounds = np.linspace(max(shift, 0), min(shift + len(audio_b), len(audio_a)), 3).astype(int)
    halves = [(start, _correlated(audio_a[start:end], audio_b)) for start, end in pairwise(bounds) if start < end]
    _, clearest = max(halves, key=lambda half: half[1].score, default=(0, AudioOffset(0.0, 0.0, 1.0)))
    starts_s = [start / SAMPLE_RATE_HZ + half.seconds for start, half in halves if half.score >= MIN_SCORE]
    is_elsewhere = any(abs(start_s - found.seconds) > _ROOM_S for start_s in starts_s)
    second_peak = max(found.second_peak, clearest.second_peak, float(is_elsewhere))
    return replace(found, score=min(found.score, clearest.score), second_peak=second_peak)


def _drift(audio_a: NDArray[np.float32], audio_b: NDArray[np.float32], found: AudioOffset) -> tuple[float, ...]:
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
    distinct = np.array([not one.doubt for one in windows], bool)
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


def _correlated(audio_a: NDArray[np.float32], audio_b: NDArray[np.float32], spread_s: float = 0.0) -> AudioOffset:
    """Return the offset of the second one of two tracks, of the energy of the correlation over a spread by drift."""
    from scipy import fft
    from scipy.ndimage import gaussian_filter1d

    counts = [-(-len(audio) // _BLOCK) for audio in (audio_a, audio_b)]
    blocks = fft.next_fast_len(sum(counts), real=True)
    spectra, loudness = [], []
    for audio in (audio_a, audio_b):
        # Truncation creates clicks at both ends, which whitening would match: fade in and out.
        spectrum = fft.rfft(_faded(audio), blocks * _BLOCK)
        magnitude = np.abs(spectrum)
        # Floor for empty bands, relative to the median, which a loud hum does not raise.
        spectrum /= np.maximum(magnitude, np.median(magnitude) * 0.03 + np.finfo(np.float32).tiny)
        loudness.append(_energies(fft.irfft(spectrum, blocks * _BLOCK)))
        spectra.append(spectrum)
    correlation = fft.irfft(spectra[0] * np.conj(spectra[1]), blocks * _BLOCK)
    # What unrelated sounds that are as loud at these times have on average.
    chance = fft.irfft(fft.rfft(loudness[0]) * np.conj(fft.rfft(loudness[1])), blocks)
    width = max(_SMOOTHING_S, spread_s / 12**0.5) * SAMPLE_RATE_HZ / _BLOCK
    energy, chance = (gaussian_filter1d(one, width, mode="wrap") for one in (_energies(correlation), chance))
    lags = (np.arange(blocks) + counts[1]) % blocks - counts[1]
    common = _common(loudness[0], counts, lags) * _common(loudness[1], counts[::-1], -lags)
    excess = np.where(np.minimum(common, chance) > 0, energy - chance, 0.0)
    peak = int(np.argmax(excess))
    if not excess[peak] > 0:
        return AudioOffset(0.0, 0.0, 1.0)
    # A loop fits as well where less of the sound is common.
    shares = excess / np.maximum(common, common[peak] * _MIN_COMMON)
    apart = np.abs(lags - lags[peak]) * _BLOCK > _ROOM_S * SAMPLE_RATE_HZ
    near = np.arange(-_NEAR, _NEAR + _BLOCK) + lags[peak] * _BLOCK
    values = correlation.take(near, mode="wrap")
    highest, shift = values.max(), near[np.argmax(values)]
    similar = near[values >= highest / 2] - shift
    # A single clap has no more energy than two unrelated ones have, but a single peak where echoes are weak.
    correlation[(shift + np.arange(-_BLOCK, _BLOCK + 1)) % len(correlation)] = 0
    ratio = np.square(highest / max(correlation.max(), np.finfo(np.float32).tiny))
    return AudioOffset(
        seconds=int(shift) / SAMPLE_RATE_HZ,
        score=float(max(energy[peak] / chance[peak], ratio / _MAX_RATIO)),
        second_peak=float(shares[apart].max(initial=0.0) / shares[peak]),
        std_seconds=float(np.hypot(np.sqrt(np.mean(np.square(similar))) / SAMPLE_RATE_HZ, _SOUND_S)),
    )


def _energies(audio: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.asarray(np.square(audio).reshape(-1, _BLOCK).sum(1, dtype=float))


def _common(energies: NDArray[np.float64], counts: list[int], lags: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the energy of those blocks of a track that another one covers at each lag."""
    total = np.append(0.0, np.cumsum(energies[: counts[0]]))
    first, end = np.clip([lags, lags + counts[1]], 0, counts[0])
    return np.asarray(total[end] - total[first])


def _faded(audio: NDArray[np.float32]) -> NDArray[np.float32]:
    from scipy.signal.windows import tukey

    return audio * tukey(len(audio), min(2 * _FADE_S * SAMPLE_RATE_HZ / len(audio), 0.5)).astype(np.float32)


def _mono(path: Path) -> tuple[NDArray[np.float32], float]:
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
    samples = np.nan_to_num(np.concatenate(parts) if parts else np.zeros(0, np.float32), posinf=0, neginf=0)
    return samples - (samples.mean() if len(samples) else 0.0), start - of_video
