"""Batches in a separate process survive the failure or death of a scene."""

import errno
import os
import signal
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from page4d.batch.jobs import (
    BatchRecord,
    SceneJob,
    SceneOutcome,
    SceneStatus,
    in_processes,
    not_begun,
    outcome_of,
    scene_jobs,
)
from page4d.errors import InputError, InterruptedRunError, Notice, UsageError

SCENES = ("fine", "broken", "killed", "crashed", "fine too")
LIMITED = ("no files", "no disk", "no memory")


def work(job, observer):
    """End as the name of the scene demands. At module level, as it is sent to a process."""
    observer.notice(Notice(f"pid {os.getpid()}"))
    observer.progress(1, 2)
    if job.name == "broken":
        raise InputError("no video", "add one")
    if job.name == "no files":
        raise InputError("'cam01.mp4' is damaged") from OSError(errno.EMFILE, "Too many open files")
    if job.name == "no disk":
        raise OSError(errno.ENOSPC, "No space left on device", "log")
    if job.name == "no memory":
        raise MemoryError
    if job.name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.name == "crashed":
        raise ZeroDivisionError("internal")
    counts = SimpleNamespace(points=7)
    return SimpleNamespace(times=[0.0, 1.0], views=["a"], counts=counts, warnings=["a warning"])


def wait_for_signal(job, observer):
    """Stop at SIGTERM."""

    def stop(number, _):
        raise InterruptedRunError("stopped", "", number)

    signal.signal(signal.SIGTERM, stop)
    observer.progress(0, 1)
    signal.pause()
    Path(job.out).touch()


class RecordingObserver:
    def __init__(self) -> None:
        self.notices: list[str] = []
        self.steps: list[tuple[int, int]] = []

    def notice(self, notice) -> None:
        self.notices.append(notice.text)

    def progress(self, done, total) -> None:
        self.steps.append((done, total))


def wait_for_the_other(job, observer):
    """End when the other scene has begun, too."""
    job.out.mkdir(parents=True)
    while not all((job.out.parent / name).is_dir() for name in ("a", "b")):
        time.sleep(0.01)
    return work(job, observer)


@contextmanager
def interrupted_on_progress(_):
    class Interrupting(RecordingObserver):
        def progress(self, *_) -> None:
            raise InterruptedRunError("Ctrl-C")

    yield Interrupting()


@pytest.mark.usefixtures("forked_processes")
def test_every_scene_runs_whatever_happens_to_the_others(tmp_path):
    jobs, observer = scene_jobs([tmp_path / name for name in SCENES], tmp_path / "out"), RecordingObserver()

    @contextmanager
    def watch(_):
        yield observer

    outcomes: list[SceneOutcome] = []
    in_processes(jobs, work, watch, outcomes.append)
    fine, broken, killed, crashed, last = outcomes
    assert [outcome.status for outcome in (fine, last)] == [SceneStatus.COMPLETE] * 2
    assert (fine.num_times, fine.num_views, fine.num_points, fine.warnings) == (2, 1, 7, ["a warning"])
    assert (broken.exit_code, broken.error, broken.hint) == (3, "no video", "add one")
    assert (killed.exit_code, killed.status) == (137, SceneStatus.FAILED)
    assert killed.error == "the process was ended by SIGKILL, probably out of memory"
    assert (crashed.exit_code, crashed.error) == (1, "internal error: ZeroDivisionError: internal")
    assert "ZeroDivisionError" in crashed.trace
    assert observer.steps == [(1, 2)] * 5
    # One process for all scenes until it dies, then another.
    assert len(set(observer.notices[:3])) == 1
    assert len(set(observer.notices[3:])) == 1
    assert observer.notices[2] != observer.notices[3]


@pytest.mark.usefixtures("forked_processes")
def test_scenes_run_at_once_in_processes_of_their_own(tmp_path):
    jobs = scene_jobs([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    observers = {job.name: RecordingObserver() for job in jobs}

    @contextmanager
    def watch(job):
        yield observers[job.name]

    outcomes: list[SceneOutcome] = []
    in_processes(jobs, wait_for_the_other, watch, outcomes.append, 2)
    assert {outcome.out for outcome in outcomes} == {str(job.out) for job in jobs}
    assert {outcome.status for outcome in outcomes} == {SceneStatus.COMPLETE}
    assert all(len(observer.notices) == 1 for observer in observers.values())
    assert observers["a"].notices != observers["b"].notices


@pytest.mark.parametrize("number", [1, 2])
def test_an_interruption_stops_all_scenes_and_waits_for_them(number, tmp_path, request):
    if number > 1:  # a single one is spawned, as outside of tests
        request.getfixturevalue("forked_processes")
    jobs = [SceneJob(scene=tmp_path / "scene", out=tmp_path / name) for name in ("a", "b")]
    outcomes: list[SceneOutcome] = []
    with pytest.raises(InterruptedRunError, match="Ctrl-C"):
        in_processes(jobs, wait_for_signal, interrupted_on_progress, outcomes.append, number)
    assert not any(job.out.exists() for job in jobs)
    assert SceneStatus.INTERRUPTED in {outcome.status for outcome in outcomes}


def test_output_folders_are_named_after_scenes(tmp_path):
    jobs = scene_jobs([tmp_path / "a", Path("b/../c")], tmp_path / "out")
    assert [job.out for job in jobs] == [tmp_path / "out" / "a", tmp_path / "out" / "c"]


@pytest.mark.parametrize(
    ("scenes", "words"),
    [
        (("x/take1", "y/take1"), "2 scenes are called 'take1'"),
        (("/",), "'/' has no name"),
        ((__file__, "x"), "not a folder: '"),
    ],
)
def test_scenes_without_distinct_folder_names_are_refused(scenes, words, tmp_path):
    with pytest.raises(UsageError, match=words):
        scene_jobs([Path(scene) for scene in scenes], tmp_path)


def test_an_output_folder_that_is_the_scene_is_refused(tmp_path):
    with pytest.raises(UsageError, match="is the scene itself"):
        scene_jobs([tmp_path / "take1"], tmp_path)


def test_a_batch_record_counts_scenes_without_a_result_and_is_read_back(tmp_path):
    jobs = scene_jobs([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    record = BatchRecord(
        scenes=[not_begun(jobs[0]).model_copy(update={"status": SceneStatus.COMPLETE}), not_begun(jobs[1])]
    )
    assert record.num_failed == 1
    record.write(tmp_path / "out", record.scenes[0])
    assert BatchRecord.model_validate_json((tmp_path / "out" / "batch.json").read_text()) == record


def test_batches_with_one_root_keep_the_outcomes_of_each_other(tmp_path):
    waiting = [not_begun(job) for job in scene_jobs([tmp_path / "takes" / name for name in "abc"], tmp_path)]
    a, b, c = (scene.model_copy(update={"status": SceneStatus.COMPLETE}) for scene in waiting)
    refused = b.model_copy(update={"status": SceneStatus.FAILED})

    def statuses():
        found = BatchRecord.model_validate_json((tmp_path / "batch.json").read_text()).scenes
        return {scene.name: scene.status.value for scene in found}

    BatchRecord(scenes=[waiting[0], refused]).write(tmp_path, refused)
    BatchRecord(scenes=[b, waiting[2]]).write(tmp_path, b)  # which the other batch refused while it ran here
    exists = refused.model_copy(update={"exit_code": 2})
    BatchRecord(scenes=[exists]).write(tmp_path, exists)  # the output of the other batch, which ended before
    BatchRecord(scenes=[a, refused]).write(tmp_path, a)
    assert statuses() == {"a": "complete", "b": "complete", "c": "not begun"}
    (tmp_path / "batch.json").unlink()  # what another machine wrote without a lock
    BatchRecord(scenes=[a, refused]).write(tmp_path, a)
    BatchRecord(scenes=[b, c]).write(tmp_path, c)
    assert statuses() == {"a": "complete", "b": "complete", "c": "complete"}


def test_limits_of_the_system_are_named_in_outcomes(tmp_path):
    outcomes = [
        outcome_of(SceneJob(scene=tmp_path / name, out=tmp_path / "o" / name), work, RecordingObserver())
        for name in LIMITED
    ]
    assert [outcome.exit_code for outcome in outcomes] == [6, 5, 7]
    assert [outcome.status for outcome in outcomes] == [SceneStatus.FAILED] * 3
    assert "too many open files" in outcomes[0].error
    assert "cannot write to 'log': disk full" in outcomes[1].error
    assert not any(outcome.trace for outcome in outcomes)
