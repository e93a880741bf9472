"""Instants and frame pairs: properties for any rates, offsets and gaps."""

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from page4d.errors import InputError, UsageError
from page4d.scene.timeline import Timeline, build_timeline, nearest_frames, timing

RATES = st.sampled_from([12.5, 24000 / 1001, 24, 25, 30000 / 1001, 30, 50, 60000 / 1001, 60, 120])
SLACK = 1.02


@st.composite
def clips(draw: st.DrawFn) -> NDArray[np.float64]:
    """Draw frame times of one view: rate, offset, irregular or rounded time stamps, missing frames."""
    rate, count = draw(RATES), draw(st.integers(1, 90))
    seed = draw(st.integers(0, 2**32 - 1))
    jitter, missing = draw(st.sampled_from([0.0, 0.0, 0.2])), draw(st.sampled_from([0.0, 0.0, 0.1]))
    random = np.random.default_rng(seed)
    times = np.arange(count) / rate + random.uniform(-jitter, jitter, count) / rate
    times = times[(random.random(count) >= missing) | (np.arange(count) == 0)]
    if draw(st.booleans()):
        times = np.round(times, 3)
    return np.unique(times) + draw(st.floats(-1.5, 1.5))


def check(timeline: Timeline, views: list[NDArray[np.float64]]) -> None:
    assert (np.diff(timeline.times) > 0).all()
    for times, indices in zip(views, timeline.indices, strict=True):
        assert len(indices) == len(timeline.times)
        assert 0 <= min(indices) <= max(indices) < len(times)
        assert (np.diff(indices) >= 0).all()
        distances = np.abs(times[:, None] - timeline.times)
        np.testing.assert_array_equal(distances[list(indices), range(len(indices))], distances.min(axis=0))


@settings(deadline=None, max_examples=150)
@given(st.lists(clips(), min_size=1, max_size=4), st.none() | RATES)
def test_every_view_is_paired_with_its_nearest_frame_within_the_tolerance(
    views: list[NDArray[np.float64]], fps: float | None
):
    names = [f"cam{count}" for count in range(len(views))]
    try:
        timeline = build_timeline(names, views, fps=fps)
    except InputError:
        return
    check(timeline, views)
    for times, indices in zip(views, timeline.indices, strict=True):
        usual = np.median(np.diff(times)) if len(times) > 1 else 1 / 25
        for instant, index in zip(timeline.times, indices, strict=True):
            # At most half of the longest period that is not due to a dropped frame.
            assert abs(times[index] - instant) <= 1.5 * usual / 2 * SLACK + 1e-9


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(RATES, st.floats(-0.5, 0.5), st.integers(30, 90)), min_size=1, max_size=5), st.booleans())
def test_constant_rates_are_paired_within_half_a_period_without_loss(
    views: list[tuple[float, float, int]], milliseconds: bool
):
    exact = [offset + np.arange(count) / rate for rate, offset, count in views]
    shown = [np.round(times - times[0], 3) + times[0] for times in exact] if milliseconds else exact
    rounding = 0.001 if milliseconds else 0.0
    first, last = max(times[0] for times in exact), min(times[-1] for times in exact)
    names = [f"cam{count}" for count in range(len(views))]
    slowest = exact[int(np.argmin([rate for rate, _, _ in views]))]
    inside = (slowest >= first + rounding) & (slowest <= last - rounding)
    try:
        timeline = build_timeline(names, shown)
    except InputError:
        assert inside.sum() <= 1
        return
    check(timeline, shown)
    for (rate, _, _), times, indices in zip(views, exact, timeline.indices, strict=True):
        assert np.abs(times[list(indices)] - timeline.times).max() <= 0.5 / rate * SLACK + rounding
    # Either of two equally slow views may determine the instants, which may differ by one at the ends.
    assert len(timeline.times) >= inside.sum() - 1
    assert not any("left out" in notice.text for notice in timeline.notices)


@settings(deadline=None, max_examples=100)
@given(
    st.none() | st.integers(-50, 50), st.none() | st.integers(-50, 50), st.integers(1, 7), st.none() | st.just(24.0)
)
def test_frames_and_stride_select_like_a_slice(start: int | None, stop: int | None, stride: int, fps: float | None):
    views = [np.arange(40) / 30, 0.01 + np.arange(40) / 30]
    whole = build_timeline(["a", "b"], views, fps=fps)
    expected = whole.times[slice(start, stop, stride)]
    if len(expected) == 0:
        with pytest.raises(UsageError, match="selects nothing"):
            build_timeline(["a", "b"], views, fps=fps, frames=(start, stop), stride=stride)
        return
    cut = build_timeline(["a", "b"], views, fps=fps, frames=(start, stop), stride=stride)
    np.testing.assert_array_equal(cut.times, expected)
    assert cut.indices == tuple(indices[slice(start, stop, stride)] for indices in whole.indices)


def test_instants_of_dropped_frames_are_left_out_and_counted():
    steady = np.arange(30) / 30
    gappy = np.delete(steady, [7, 8, 20])
    for fps in (None, 30):
        timeline = build_timeline(["a", "b"], [steady, gappy], fps=fps)
        np.testing.assert_allclose(timeline.times, gappy)
        assert timeline.indices[0] == tuple(np.flatnonzero(~np.isin(np.arange(30), [7, 8, 20])))
        assert timeline.indices[1] == tuple(range(27))
        assert [notice.text for notice in timeline.notices] == [
            "3 instants left out: b has no frame within half a frame period (first at 0.233 s)"
        ]


def test_dropped_frames_of_the_view_that_determines_the_instants_are_reported_if_another_view_has_them():
    times = np.arange(30) / 30
    own, both = np.delete(times, [5, 6, 20]), np.delete(times, 20)
    texts = [notice.text for notice in build_timeline(["a", "b"], [own, both]).notices]
    assert texts == ["2 instants left out: a has no frame within half a frame period (first at 0.167 s)"]
    for changes in ({"stride": 2}, {"frames": (6, None)}):
        texts = [notice.text for notice in build_timeline(["a", "b"], [own, both], **changes).notices]
        assert not any("left out: a" in text for text in texts)
    far = np.r_[own, own + 1e9]
    assert not build_timeline(["a", "b"], [far, far]).notices


def test_timing_counts_dropped_and_duplicated_frames():
    steady = timing(np.arange(31) / 30)
    assert (round(steady.fps, 6), steady.num_frames, steady.dropped, steady.duplicated) == (30, 31, 0, 0)
    assert steady.duration_s == pytest.approx(31 / 30)
    assert timing(np.delete(np.arange(31) / 30, [4, 5, 9])).dropped == 3
    assert timing(np.delete(np.arange(9) / 30, 4)).dropped == 1
    assert timing(np.delete(np.arange(60) / 30, range(1, 60, 4))).is_variable
    assert timing(np.sort(np.r_[np.arange(31) / 30, 10 / 30 + 0.001])).duplicated == 1
    irregular = timing(np.cumsum(np.where(np.arange(40) % 3, 1 / 30, 1 / 20)))
    assert irregular.is_variable
    assert irregular.dropped == 0
    assert timing(np.zeros(1)).fps == 0


@pytest.mark.parametrize("fps", [24, 25, 30000 / 1001, 30, 50, 60000 / 1001, 60, 120])
def test_whole_milliseconds_do_not_bias_the_rate(fps: float):
    rounded = timing(np.round(np.arange(240) / fps, 3))
    assert rounded.fps == pytest.approx(fps, rel=5e-4)
    assert not rounded.is_variable
    views = [np.arange(240) / fps, np.round(np.arange(240) / fps, 3)]
    assert not [notice for notice in build_timeline(["mp4", "mkv"], views).notices if "others" in notice.text]


def test_views_without_common_instant_are_refused():
    with pytest.raises(InputError, match="the videos do not overlap in time after their clock offsets are applied"):
        build_timeline(["a", "b"], [np.arange(30) / 30, 2 + np.arange(30) / 30])
    with pytest.raises(InputError, match="there is no instant at which every view has a frame"):
        build_timeline(["a", "b"], [np.array([0.0, 0.04, 3, 3.04, 3.08]), np.array([1.0, 1.04, 1.08, 1.12])])


@pytest.mark.parametrize("selected", [{"frames": (3, 12)}, {"stride": 9}, {"fps": 15.0, "frames": (2, None)}])
def test_the_common_span_that_is_reported_is_not_that_of_selected_instants(selected: dict[str, Any]):
    times = [np.arange(60) / 30, 0.5 + np.arange(31) / 30]
    span = "0.50-1.50 s (16 frames)" if "fps" in selected else "0.50-1.50 s (31 frames)"
    assert f"common span {span}; b starts last" in build_timeline(["a", "b"], times, **selected).notices[0].text


def test_the_common_span_is_reported():
    timeline = build_timeline(["a", "b"], [np.arange(60) / 30, 0.5 + np.arange(30) / 30])
    assert (len(timeline.times), timeline.times[0], timeline.times[-1]) == (30, 0.5, pytest.approx(44 / 30))
    assert timeline.notices[0].text == "common span 0.50-1.47 s (30 frames); b starts last, b ends first"


def test_a_single_frame_gives_one_instant():
    timeline = build_timeline(["a", "b"], [np.zeros(1), np.arange(9) / 30])
    assert timeline.indices == ((0,), (0,))
    assert [notice.text for notice in timeline.notices if "motion" in notice.text] == [
        "1 instant: motion cannot be estimated"
    ]


def test_different_rates_are_reported_once():
    timeline = build_timeline(["slow", "fast"], [np.arange(30) / 30, np.arange(60) / 60])
    assert timeline.notices[0].text == "slow is 30 fps, others 60; pairing by time, one frame in 2"
    assert timeline.indices[1] == tuple(range(0, 60, 2))
    repeated = build_timeline(["slow", "fast"], [np.arange(30) / 30, np.arange(60) / 60], fps=60)
    assert repeated.notices[0].text == "fps=60 exceeds the frame rate of slow: frames are repeated"
    assert len(repeated.times) == 59


@pytest.mark.parametrize("fps", [1e9, 1e300])
def test_an_excessive_rate_is_refused_before_allocation(fps: float):
    with pytest.raises(UsageError, match="the limit is 100,000") as refused:
        build_timeline(["a"], [np.arange(30) / 30], fps=fps)
    assert refused.value.hint.startswith("give stride, fps or frames, or raise max_frames")


def test_the_number_of_frames_is_limited():
    with pytest.raises(UsageError, match="30 frames; the limit is 29"):
        build_timeline(["a"], [np.arange(30) / 30], max_frames=29)
    assert len(build_timeline(["a"], [np.arange(30) / 30], stride=2, max_frames=15).times) == 15


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 1000), min_size=1, max_size=40, unique=True),
    st.lists(st.integers(-10, 1010), max_size=20),
)
def test_the_nearest_frame_is_found_and_in_a_tie_the_earlier(given_times: list[int], wanted: list[int]):
    times = np.sort(np.array(given_times, dtype=np.float64))
    found = nearest_frames(times, np.array(wanted, dtype=np.float64))
    assert found.tolist() == [int(np.abs(times - instant).argmin()) for instant in wanted]


@pytest.mark.parametrize("gaps", [[0.03, 5.0], [5.0, 0.03], [0.03, 0.03, 5.0, 7.0], [0.0, 0.03], [0.0]])
def test_the_frame_rate_is_finite_for_any_pauses(gaps: list[float]):
    times = np.cumsum([0.0, *gaps])
    with warnings.catch_warnings(action="error"):
        found = timing(times)
    assert 1 / 5 <= found.fps <= 34
    assert build_timeline(["a", "b"], [times, times]).indices[0]
