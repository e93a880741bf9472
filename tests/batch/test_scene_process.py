"""A batch survives whatever happens to one of its scenes."""

import os
import signal
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from page4d.batch.jobs import SceneJob, scene_jobs
from page4d.batch.outcome import BatchRecord, SceneStatus, not_begun
from page4d.batch.process import in_a_process
from page4d.errors import InputError, InterruptedRunError, UsageError
from page4d.scene.records import Notice

SCENES = ("fine", "broken", "killed", "crashed", "fine too")


def do(job, observer):
    """Work that ends as the scene's name says; module level, because it is sent to a process."""
    observer.notice(Notice(f"pid {os.getpid()}"))
    observer.progress(1, 2)
    if job.name == "broken":
        raise InputError("no video in it", "put one there")
    if job.name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.name == "crashed":
        raise ZeroDivisionError("of ours")
    counts = SimpleNamespace(points=7)
    return SimpleNamespace(times=[0.0, 1.0], views=["a"], counts=counts, warnings=["careful"])


def wait_for_signal(job, observer):
    """Work that stops when it is told to."""

    def stop(number, _):
        raise InterruptedRunError("stopped", "", number)

    signal.signal(signal.SIGTERM, stop)
    observer.progress(0, 1)
    signal.pause()
    Path(job.out).touch()


class Heard:
    def __init__(self) -> None:
        self.notices: list[str] = []
        self.steps: list[tuple[int, int]] = []

    def notice(self, notice) -> None:
        self.notices.append(notice.text)

    def progress(self, done, total) -> None:
        self.steps.append((done, total))


@contextmanager
def interrupted_on_progress(_):
    class Impatient(Heard):
        def progress(self, *_) -> None:
            raise InterruptedRunError("Ctrl-C")

    yield Impatient()


def test_every_scene_has_its_turn_and_its_own_end(tmp_path):
    jobs, heard = scene_jobs([tmp_path / name for name in SCENES], tmp_path / "out"), Heard()

    @contextmanager
    def watch(_):
        yield heard

    fine, broken, killed, crashed, last = in_a_process(jobs, do, watch)
    assert [outcome.status for outcome in (fine, last)] == [SceneStatus.COMPLETE] * 2
    assert (fine.num_times, fine.num_views, fine.num_points, fine.warnings) == (2, 1, 7, ["careful"])
    assert (broken.exit_code, broken.error, broken.hint) == (3, "no video in it", "put one there")
    assert (killed.exit_code, killed.status) == (137, SceneStatus.FAILED)
    assert killed.error == "its process was ended by SIGKILL, probably for want of memory"
    assert (crashed.exit_code, crashed.error) == (1, "internal error: ZeroDivisionError: of ours")
    assert "ZeroDivisionError" in crashed.trace
    assert heard.steps == [(1, 2)] * 5
    # One process for all scenes, but for those after a death.
    assert len(set(heard.notices[:3])) == 1
    assert len(set(heard.notices[3:])) == 1
    assert heard.notices[2] != heard.notices[3]


def test_an_interruption_is_passed_on_and_waited_for(tmp_path):
    job = SceneJob(scene=tmp_path / "scene", out=tmp_path / "done")
    with pytest.raises(InterruptedRunError, match="Ctrl-C"):
        list(in_a_process([job], wait_for_signal, interrupted_on_progress))
    assert not job.out.exists()


def test_results_are_named_after_scenes(tmp_path):
    jobs = scene_jobs([tmp_path / "a", Path("b/../c")], tmp_path / "out")
    assert [job.out for job in jobs] == [tmp_path / "out" / "a", tmp_path / "out" / "c"]


@pytest.mark.parametrize(
    ("scenes", "said"), [(("x/take1", "y/take1"), "2 scenes are called 'take1'"), (("/",), "'/' has no name")]
)
def test_names_that_cannot_be_folders_are_refused(scenes, said, tmp_path):
    with pytest.raises(UsageError, match=said):
        scene_jobs([Path(scene) for scene in scenes], tmp_path)


def test_a_result_in_its_own_scene_is_refused(tmp_path):
    with pytest.raises(UsageError, match="would lie in the scene itself"):
        scene_jobs([tmp_path / "take1"], tmp_path)


def test_a_record_counts_what_has_no_result_and_is_written(tmp_path):
    jobs = scene_jobs([tmp_path / "a", tmp_path / "b"], tmp_path / "out")
    record = BatchRecord(
        scenes=[not_begun(jobs[0]).model_copy(update={"status": SceneStatus.COMPLETE}), not_begun(jobs[1])]
    )
    assert record.num_failed == 1
    record.write(tmp_path / "out")
    assert BatchRecord.model_validate_json((tmp_path / "out" / "batch.json").read_text()) == record
