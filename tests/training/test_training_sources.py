"""Samples follow from their numbers, from the renderer and from folders, and arrive in order from workers."""

import itertools
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from page4d.errors import CapabilityError, InputError
from page4d.geometry.camera import project, world_points
from page4d.geometry.transforms import transform_points
from page4d.lab.synthetic.capture import SceneRequest, SyntheticCapture
from page4d.lab.synthetic.write import write_capture
from page4d.lab.training.data import CaptureSource, CurriculumStep, SyntheticSource, feed_batches, plan_step
from page4d.lab.training.schedule import Position, after
from tests.forks import forked
from tests.training.training_runs import SIZE, TINY

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def capture(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("capture") / "room"
    write_capture(
        SyntheticCapture(seed=3, num_views=3, num_times=7, image_size=(48, 64), spacing_deg=12),
        folder,
        truth_stride=2,
    )
    return folder


def request(num_times: int = 2, num_views: int = 2, size: tuple[int, int] = (24, 32)) -> SceneRequest:
    return SceneRequest(num_times=num_times, num_views=num_views, image_size=size)


def test_a_synthetic_sample_is_independent_of_its_batch():
    source = SyntheticSource(5)
    both, one = source.read([8, 9], request(1), CPU), source.read([9], request(1), CPU)
    torch.testing.assert_close(both.depth[1:], one.depth)
    assert (both.images[1:] - one.images).abs().mean() < 0.01
    assert not torch.equal(both.images[0], both.images[1])
    assert not torch.equal(SyntheticSource(6).read([9], request(1), CPU).images, one.images)


def test_windows_of_a_capture_are_consistent(capture):
    """Depth of the first view, projected into the others, agrees with theirs."""
    truth = CaptureSource(capture, 0).read(range(6), request(2, 3, (48, 56)), CPU)
    assert truth.images.shape == (6, 2, 3, 3, 48, 56)
    points = world_points(truth.depth, truth.cameras)[:, :, :1].expand(6, 2, 3, 48, 56, 3)
    pixels, depth = project(transform_points(truth.cameras.world_to_camera, points), truth.cameras.intrinsics)
    column, row = pixels.floor().long().unbind(-1)
    inside = (column >= 0) & (column < 56) & (row >= 0) & (row < 48) & (depth > 0) & (truth.depth[:, :, :1] > 0)
    place = (row.clamp(0, 47) * 56 + column.clamp(0, 55)).flatten(3)
    seen = truth.depth.flatten(3).gather(3, place).reshape(truth.depth.shape)
    inside &= seen > 0
    error = ((depth - seen).abs() / seen)[:, :, 1:][inside[:, :, 1:]]
    assert len(error) > 1000
    assert error.median() < 0.05


def test_windows_follow_from_the_sample_number_and_differ(capture):
    truth = CaptureSource(capture, 0).read(range(12), request(), CPU)
    assert torch.equal(truth.images, CaptureSource(capture, 0).read(range(12), request(), CPU).images)
    assert (truth.times.diff(dim=1) > 0).all()
    assert len({tuple(row.tolist()) for row in truth.times}) > 2
    assert len({tuple(pose.flatten().tolist()) for pose in truth.cameras.world_to_camera[:, 0, 0]}) == 3


def test_a_small_capture_provides_all_its_instants_and_views(capture):
    assert CaptureSource(capture, 0).read([0], request(9, 9), CPU).images.shape[:3] == (1, 4, 3)


def test_a_folder_without_truth_is_refused(tmp_path):
    with pytest.raises(InputError, match="no ground truth"):
        CaptureSource(tmp_path, 0)


def test_a_capture_without_depth_is_refused(capture, tmp_path):
    (tmp_path / "truth").mkdir()
    (tmp_path / "truth" / "cameras.json").write_bytes((capture / "truth" / "cameras.json").read_bytes())
    with pytest.raises(InputError, match="no depth for cam01, cam02, cam03"):
        CaptureSource(tmp_path, 0)


def some_steps() -> Iterator[CurriculumStep]:
    position = Position()
    for _ in range(3):
        step = plan_step(TINY, position)
        position = after(position, step)
        yield step


@pytest.mark.usefixtures("forked_processes")
def test_workers_render_the_same_steps_in_order_and_end_with_the_feed():
    batches = {workers: [] for workers in (0, 2)}
    for workers, found in batches.items():
        with closing(feed_batches([SyntheticSource(0)], some_steps(), range(1), CPU, workers)) as feed:
            found += [(step, truths[0]) for step, truths in feed]
    for (step, truth), (other_step, other) in zip(batches[0], batches[2], strict=True):
        assert step == other_step
        assert truth.images.shape[-2:] == SIZE
        assert torch.equal(truth.depth > 0, other.depth > 0)
        torch.testing.assert_close(truth.images, other.images)
        torch.testing.assert_close(truth.cameras.world_to_camera, other.cameras.world_to_camera, rtol=0, atol=0)
    assert not multiprocessing.active_children()


class Unreadable:
    """A source whose files are damaged."""

    def read(self, *_: object) -> None:
        raise InputError("'video.mp4' is damaged", "pass allow_damaged")


@pytest.mark.usefixtures("forked_processes")
def test_an_error_in_a_worker_keeps_its_hint():
    feed = feed_batches([Unreadable()], some_steps(), range(1), CPU, 1)
    with closing(feed), pytest.raises(InputError, match="is damaged") as raised:
        next(feed)
    assert raised.value.hint == "pass allow_damaged"
    assert not multiprocessing.active_children()


class Ending:
    """A source whose process is ended from outside."""

    def read(self, *_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.usefixtures("forked_processes")
def test_a_worker_that_is_killed_is_no_internal_error(monkeypatch):
    monkeypatch.setattr(_MultiProcessingDataLoaderIter._try_get_data, "__defaults__", (0.1,))  # 5 s between checks
    feed = feed_batches([Ending()], some_steps(), range(1), CPU, 1)
    with closing(feed), pytest.raises(CapabilityError, match="a process that renders batches was ended") as raised:
        next(feed)
    assert "fewer workers" in raised.value.hint


def feed_until_killed(interrupted: Path) -> None:
    """Print the number of a rendering worker, and more steps once it is interrupted."""
    steps = (plan_step(TINY, Position(step=number, samples=number)) for number in itertools.count())
    feed = feed_batches([SyntheticSource(0)], steps, range(1), CPU, 1)
    next(feed)  # the worker has started
    print(*(worker.pid for worker in multiprocessing.active_children()), flush=True)
    while not interrupted.exists():
        time.sleep(0.02)
    for _ in range(4):
        next(feed)
    print("more steps", flush=True)
    time.sleep(600)


def test_workers_ignore_interrupts_and_end_with_their_parent(tmp_path):
    parent = forked(tmp_path, feed_until_killed, tmp_path / "interrupted")
    worker = int(parent.line(0))
    os.kill(worker, signal.SIGINT)
    (tmp_path / "interrupted").touch()
    assert parent.line(1) == "more steps"
    parent.ended(signal.SIGKILL)
    until = time.monotonic() + 60
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < until
        time.sleep(0.02)
