"""What the options of `page4d reconstruct` ask for, done: one scene, its plan, or a batch, here or on a cluster."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from page4d_cli import console
from page4d_cli.interrupts import stops_cleanly
from page4d_cli.predictor import NetworkChoice, choose_predictor
from page4d_cli.run_report import report_batch, report_plan, report_run

if TYPE_CHECKING:
    from page4d.batch.jobs import SceneJob
    from page4d.batch.outcome import SceneOutcome
    from page4d.batch.process import Watch
    from page4d.export.run_record import RunRecord
    from page4d.inference.chunk_source import OpenChunks
    from page4d.inference.output_policy import ExistingOutput
    from page4d.inference.predictor import Predictor
    from page4d.inference.progress import Observer
    from page4d.inference.settings import ReconstructSettings
    from page4d.scene.open import SceneOptions
    from page4d.scene.records import Scene


@dataclass(frozen=True, kw_only=True)
class Request:
    """Everything that the options say of a scene, the same for all of a batch; it can be sent to other processes."""

    scene_options: "SceneOptions"
    settings: "ReconstructSettings"
    choice: NetworkChoice
    existing: "ExistingOutput"


@dataclass(frozen=True, kw_only=True)
class Show:
    """What is printed."""

    as_json: bool
    verbosity: console.Verbosity


def run_one(request: Request, job: "SceneJob", show: Show, distributed: str | None) -> None:
    """Reconstruct a scene, its chunks on a cluster if one is named, and print what was written."""
    with console.observed_run(show.verbosity) as observer:
        if distributed is None:
            record = run_scene(request, job, observer)
        else:
            from page4d.batch.ray_cluster import cluster_chunks, joined_cluster, parse_distributed

            with joined_cluster(parse_distributed(distributed)) as ray:
                make_predictor = partial(_predictor, request.choice)
                record = run_scene(request, job, observer, partial(cluster_chunks, ray, make_predictor))
    if show.as_json:
        console.print_json({"out": str(job.out), **record.model_dump(mode="json")})
    elif not show.verbosity.quiet:
        preview = job.out / "preview" / "contact_sheet.png"
        report_run(record, job.out, preview if request.settings.preview else job.out / "points")


def run_scene(
    request: Request, job: "SceneJob", observer: "Observer", open_chunks: "OpenChunks | None" = None
) -> "RunRecord":
    """Reconstruct a scene and return what `run.json` records."""
    from page4d.inference import reconstruct as pipeline
    from page4d.inference.chunk_source import local_chunks
    from page4d.inference.settings import describe_settings
    from page4d.scene.open import open_scene
    from page4d.scene.records import Notice

    _check_target(request, job)
    scene = open_scene(job.scene, request.scene_options)
    predictor, network = choose_predictor(scene, request.choice)
    if network.notice:
        observer.notice(Notice(network.notice))
    return pipeline.reconstruct(
        scene,
        predictor,
        network,
        job.out,
        request.settings,
        command=describe_settings(request.scene_options, request.settings),
        existing=request.existing,
        observer=observer,
        open_chunks=open_chunks or local_chunks,
    )


def plan_scene(request: Request, job: "SceneJob", show: Show) -> None:
    """Print what a run would do."""
    from page4d.inference.plan import plan_run
    from page4d.scene.open import open_scene

    _check_target(request, job)
    scene = open_scene(job.scene, request.scene_options)
    predictor, network = choose_predictor(scene, request.choice)
    tell = partial(console.print_notice, verbosity=show.verbosity)
    plan = plan_run(scene, request.settings, predictor, network, tell)
    for notice in (*scene.notices, *plan.notices):
        tell(notice)
    report_plan(scene, network, plan, job.out, as_json=show.as_json)


def run_batch(
    request: Request, jobs: list["SceneJob"], root: Path, show: Show, distributed: str | None, *, dry_run: bool
) -> None:
    """Reconstruct scene after scene, or all that a cluster has room for at once, and print how they ended.

    Raises:
        BatchError: if a scene failed.
        InterruptedRunError: if a signal ended the batch.
    """
    from page4d.batch.outcome import BatchRecord, SceneStatus, not_begun
    from page4d.errors import BatchError, InterruptedRunError
    from page4d.io.atomic import check_can_be_made

    if dry_run:
        for job in jobs:
            plan_scene(request, job, show)
        return
    check_can_be_made(root)
    ended = {job.name: not_begun(job) for job in jobs}
    record, stopped = BatchRecord(scenes=list(ended.values())), None
    try:
        for outcome in _outcomes(request, jobs, show, distributed):
            ended[Path(outcome.out).name] = outcome
            record = BatchRecord(scenes=list(ended.values()))
            record.write(root)
            if outcome.status is SceneStatus.FAILED:
                console.print_error(f"{Path(outcome.scene).name}: {outcome.error}", outcome.hint)
    except InterruptedRunError as error:
        stopped = error
    if show.as_json:
        console.print_json({"out": str(root), **record.model_dump(mode="json")})
    elif not show.verbosity.quiet:
        report_batch(record)
    if stopped is not None:
        done = f"{len(jobs) - record.num_failed} of {len(jobs)} scenes"
        raise InterruptedRunError(
            f"interrupted after {done}", "continue with --resume", stopped.exit_code - 128
        ) from stopped
    if record.num_failed:
        raise BatchError(
            f"{record.num_failed} of {len(jobs)} scenes failed",
            f"see '{root / 'batch.json'}'; --resume tries them again",
        )


def _outcomes(
    request: Request, jobs: list["SceneJob"], show: Show, distributed: str | None
) -> Iterator["SceneOutcome"]:
    if distributed is None:
        from page4d.batch.process import in_a_process

        yield from in_a_process(jobs, partial(_until_stopped, request), _watch(jobs, show))
        return
    from page4d.batch.ray_cluster import joined_cluster, on_cluster, parse_distributed

    with joined_cluster(parse_distributed(distributed)) as ray:
        device = request.choice.device
        gpu = device.startswith("cuda") or (device == "auto" and ray.cluster_resources().get("GPU", 0) > 0)
        for number, outcome in enumerate(on_cluster(ray, jobs, partial(run_scene, request), gpu=gpu), start=1):
            _say(f"[{number}/{len(jobs)}] {Path(outcome.scene).name}: {outcome.status}", show)
            yield outcome


def _watch(jobs: list["SceneJob"], show: Show) -> "Watch":
    @contextmanager
    def watch(job: "SceneJob") -> Iterator["Observer"]:
        _say(f"[{jobs.index(job) + 1}/{len(jobs)}] {job.scene}", show)
        with console.observed_run(show.verbosity) as observer:
            yield observer

    return watch


def _say(text: str, show: Show) -> None:
    from page4d.scene.records import Level, Notice

    console.print_notice(Notice(text, Level.STEP), show.verbosity)


def _until_stopped(request: Request, job: "SceneJob", observer: "Observer") -> "RunRecord":
    """Reconstruct a scene; a signal ends it between two files."""
    with stops_cleanly():
        return run_scene(request, job, observer)


def _predictor(choice: NetworkChoice, scene: "Scene") -> "Predictor":
    return choose_predictor(scene, choice)[0]


def _check_target(request: Request, job: "SceneJob") -> None:
    from page4d.errors import UsageError
    from page4d.inference.output_policy import check_target

    if job.out.resolve() == job.scene.resolve():
        raise UsageError(f"--out '{job.out}' is the scene itself", "give another folder, such as one below it")
    check_target(job.out, request.existing)
