"""`page4d reconstruct`: from scenes to point clouds, depth maps and camera trajectories.

It runs one scene, prints its plan, or runs a batch, in this process or on a cluster.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import PositiveInt

from page4d.choices import ExistingOutput, Registration
from page4d.errors import (
    BatchError,
    InterruptedRunError,
    Level,
    Notice,
    Observer,
    Page4DError,
    UsageError,
    human_size,
)
from page4d.installation import preload_open3d
from page4d.io.atomic import check_folder
from page4d.options import OUTPUT, NetworkOptions, Option, ReconstructSettings, SceneOptions
from page4d_cli import console, options
from page4d_cli.console import Verbosity
from page4d_cli.progress import SceneProgress, count, displayed_progress, observed_run, scenes_at_once
from page4d_cli.reports import report_batch, report_plan, report_run
from page4d_cli.stopping import stops_cleanly

if TYPE_CHECKING:
    from page4d.batch.jobs import Report, SceneJob, SceneOutcome, Watch
    from page4d.output.record import RunRecord
    from page4d.quality.record import Grade
    from page4d.run.chunk_source import OpenChunks
    from page4d.run.predictor import Predictor
    from page4d.scene.records import Scene


@dataclass(frozen=True, kw_only=True)
class Request:
    """Options of a run, the same for all scenes of a batch; it can be sent to other processes."""

    scene: SceneOptions
    network: NetworkOptions
    settings: ReconstructSettings
    existing: ExistingOutput

    @property
    def named(self) -> dict[str, Any]:
        """All settings of a run, by their names in Python."""
        return {**vars(self.scene), **vars(self.network), "settings": self.settings, "existing": self.existing}

    def predictor(self, scene: "Scene") -> "Predictor":
        """Build the predictor of a scene."""
        from page4d.run.predictor import predictor_for

        return predictor_for(scene, self.network, self.settings)


@dataclass(frozen=True)
class Place:
    """Where scenes run: `jobs` at once on this machine, or on a Ray cluster."""

    jobs: int
    distributed: str | None

    def shared(self, request: Request) -> Request:
        """Return the request of each of several scenes at once, which share the memory."""
        if self.jobs == 1:
            return request
        from page4d.run.memory import usable_bytes
        from page4d.weights.loading import choose_device

        whole = request.settings.memory_bytes or usable_bytes(choose_device(request.network.device))
        return replace(request, settings=replace(request.settings, memory_bytes=whole // self.jobs))


def run_one(request: Request, job: "SceneJob", show: Verbosity, distributed: str | None) -> None:
    """Reconstruct a scene, with its chunks on a cluster if one is named, and print the result."""
    begin = time.monotonic()
    _fetch_weights(request, [job], show)
    with observed_run(show) as observer:
        if distributed is None:
            record = run_scene(request, job, observer)
        else:
            from page4d.batch.ray import cluster_chunks
            from page4d.batch.ray_connection import joined_cluster, parse_distributed

            with joined_cluster(parse_distributed(distributed), observer.notice) as ray:
                record = run_scene(request, job, observer, partial(cluster_chunks, ray, request.predictor))
    if show.as_json:
        console.print_json({"out": str(job.out), **record.model_dump(mode="json")})
    elif not show.quiet:
        grade = _graded(record, job)
        report_run(record, job, time.monotonic() - begin, grade, verbose=show.verbose)


def _graded(record: "RunRecord", job: "SceneJob") -> "Grade | None":
    """Grade a result with previews; None, with a warning, if its pictures cannot be read any more."""
    from page4d.quality.measure import FEW_INSTANTS
    from page4d.quality.page import inspect

    if not record.settings["preview"]:
        return None
    try:
        with displayed_progress("grade", count("instant")) as progress:
            return inspect(job.out, job.scene, progress.update, FEW_INSTANTS).report.grade
    except Page4DError as error:
        console.print_notice(Notice(f"the result is not graded: {error.marked_message}"), Verbosity())
        return None


def run_scene(
    request: Request, job: "SceneJob", observer: "Observer", open_chunks: "OpenChunks | None" = None
) -> "RunRecord":
    """Reconstruct a scene and return the content of its `run.json`."""
    preload_open3d()  # while torch and the network load
    from page4d.run.chunk_source import local_chunks
    from page4d.run.reconstruct import reconstruct

    return reconstruct(
        job.scene, out=job.out, observer=observer, open_chunks=open_chunks or local_chunks, **request.named
    )


def show_plan(request: Request, job: "SceneJob", show: Verbosity) -> dict[str, Any]:
    """Return the plan of a run as a document, and print it unless results are JSON."""
    _fetch_weights(request, [job], show)
    preload_open3d()  # while torch and the network load
    from page4d.run.reconstruct import plan_scene

    with observed_run(show, "plan") as observer:
        plan = plan_scene(job.scene, out=job.out, observer=observer, **request.named)
    for notice in (*plan.scene.notices, *plan.notices):
        console.print_notice(notice, show)
    return report_plan(plan, job.out, as_json=show.as_json)


def run_batch(request: Request, jobs: list["SceneJob"], root: Path, show: Verbosity, where: Place) -> None:
    """Reconstruct scenes in processes of this machine, or in parallel on a cluster, and print their outcomes.

    Raises:
        BatchError: if a scene failed.
        InterruptedRunError: if a signal ended the batch.
    """
    from page4d.batch.jobs import BatchRecord, SceneStatus, not_begun

    check_folder(root)
    _fetch_weights(request, [], show)
    ended = {job.name: not_begun(job) for job in jobs}
    record, stopped = BatchRecord(scenes=list(ended.values())), None

    def report(outcome: "SceneOutcome") -> None:
        nonlocal record
        ended[outcome.name] = outcome
        record = BatchRecord(scenes=list(ended.values()))
        record.write(root, outcome)
        is_stopped_alone = outcome.status is SceneStatus.INTERRUPTED and stop.number is None
        if is_stopped_alone or outcome.status is SceneStatus.FAILED:
            console.print_error(f"{Path(outcome.scene).name}: {outcome.error}", outcome.hint)

    try:
        with stops_cleanly() as stop:
            _run_all(request, jobs, show, where, report)
    except InterruptedRunError as error:
        stopped = error
    if show.as_json:
        console.print_json({"out": str(root), **record.model_dump(mode="json")})
    elif not show.quiet:
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


def _run_all(request: Request, jobs: list["SceneJob"], show: Verbosity, where: Place, report: "Report") -> None:
    if where.distributed is None:
        from page4d.batch.jobs import in_processes

        request = where.shared(request)
        if where.jobs > 1:
            share = human_size(request.settings.memory_bytes or 0)
            _print_step(f"{where.jobs} scenes at once, each within {share} of memory", show)
        with _watch(jobs, show, where.jobs) as watch:
            in_processes(jobs, partial(_until_stopped, request), watch, report, where.jobs)
        return
    from page4d.batch.ray import on_cluster
    from page4d.batch.ray_connection import joined_cluster, parse_distributed

    with joined_cluster(parse_distributed(where.distributed), partial(console.print_notice, verbosity=show)) as ray:
        device = request.network.device
        gpu = device.startswith("cuda") or (device == "auto" and ray.cluster_resources().get("GPU", 0) > 0)
        for number, outcome in enumerate(on_cluster(ray, jobs, partial(run_scene, request), gpu=gpu), start=1):
            _print_step(f"[{number}/{len(jobs)}] {Path(outcome.scene).name}: {outcome.status}", show)
            report(outcome)


@contextmanager
def _watch(jobs: list["SceneJob"], show: Verbosity, number: int) -> Iterator["Watch"]:
    """Show the progress of the scene that runs or, of several at once, that of all."""
    texts = {job.name: f"[{place}/{len(jobs)}] {job.scene}" for place, job in enumerate(jobs, start=1)}

    @contextmanager
    def alone(job: "SceneJob") -> Iterator["Observer"]:
        _print_step(texts[job.name], show)
        with observed_run(show) as observer:
            yield observer

    if number == 1:
        yield alone
        return
    shares = dict.fromkeys(texts, 0.0)
    with displayed_progress("reconstruct", scenes_at_once, quiet=show.quiet) as display:

        @contextmanager
        def among_others(job: "SceneJob") -> Iterator["Observer"]:
            console.print_notice(Notice(texts[job.name], Level.STEP), show, display.console)
            yield SceneProgress(show, display, job.name, shares)

        yield among_others


def _print_step(text: str, show: Verbosity) -> None:
    console.print_notice(Notice(text, Level.STEP), show)


def _until_stopped(request: Request, job: "SceneJob", observer: "Observer") -> "RunRecord":
    """Reconstruct a scene; a signal stops it between two files."""
    with stops_cleanly():
        return run_scene(request, job, observer)


def _fetch_weights(request: Request, jobs: list["SceneJob"], show: Verbosity) -> None:
    """Fetch and convert named weights, and the pose model, after what would refuse the run at once."""
    network, takes_people = request.network, request.settings.register is Registration.PEOPLE
    if network.weights is None and not takes_people:
        return
    from page4d.run.reconstruct import check_target
    from page4d_cli.progress import fetched_model, fetched_weights

    for job in jobs:
        check_target(job.out, request.existing, job.scene)
        if not job.scene.is_dir():
            return  # opening the scene reports it
    if network.weights is not None:
        fetched_weights(network.weights, network.sha256, show)
    if takes_people:
        fetched_model("people", show)


BATCH = "Several scenes, several devices"


@options.command
def reconstruct(
    scenes: Annotated[
        list[Path], typer.Argument(metavar="SCENE", help="Folders of synchronized videos or image folders.")
    ],
    out: Annotated[
        Path,
        Option("Output folder; with several scenes, one folder per scene below it.", metavar="FOLDER", also="-o"),
    ],
    scene: SceneOptions,
    network: NetworkOptions,
    settings: ReconstructSettings,
    overwrite: Annotated[bool, Option("Replace an existing result.", OUTPUT)] = False,
    resume: Annotated[bool, Option("Continue an interrupted run.", OUTPUT)] = False,
    dry_run: Annotated[bool, Option("Print the plan and exit.", OUTPUT)] = False,
    batch: Annotated[
        bool,
        Option(
            "Run a single scene as a batch: result in FOLDER/<scene name>, summary in FOLDER/batch.json.",
            BATCH,
            expert=True,
        ),
    ] = False,
    distributed: Annotated[
        str | None,
        Option(
            "Run several scenes, or the chunks of one, on a Ray cluster; ray: that of RAY_ADDRESS, or of `ray start` "
            "on this machine.",
            BATCH,
            "ray[://HOST:PORT]",
        ),
    ] = None,
    jobs: Annotated[
        PositiveInt, Option("Scenes reconstructed at once, in a share of the memory each.", BATCH, "N")
    ] = 1,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
    verbose: options.Verbose = False,
) -> None:
    """Reconstruct synchronized videos: points, depth and cameras."""
    from page4d.batch.jobs import SceneJob, scene_jobs
    from page4d.scene.sidecars import fit_any_scene

    if jobs > 1 and (distributed is not None or len(scenes) == 1):
        other = (
            "one scene" if distributed is None else "--distributed, whose cluster decides how many scenes run at once"
        )
        raise UsageError(f"--jobs {jobs} with {other}", "leave it out")

    given = {"depth": scene.depth, "masks": scene.masks, "tracks2d": settings.tracks2d}
    of_one_scene = [name for name, folder in given.items() if folder is not None]
    if len(scenes) > 1 and scene.masks is not None and all(fit_any_scene(scene.masks, one) for one in scenes):
        of_one_scene.remove("masks")
    if len(scenes) > 1 and of_one_scene:
        name = of_one_scene[0]
        raise UsageError(f"⟨{name}⟩ of one scene with {len(scenes)} scenes", "reconstruct each with its own")
    if overwrite and resume:
        raise UsageError("--overwrite and --resume contradict each other", "give one of them")
    existing = ExistingOutput.OVERWRITE if overwrite else ExistingOutput.RESUME if resume else ExistingOutput.REFUSE
    request = Request(scene=scene, network=network, settings=settings, existing=existing)
    show = Verbosity(quiet=quiet, verbose=verbose, as_json=as_json)
    with stops_cleanly():
        is_batch = len(scenes) > 1 or batch
        chosen = scene_jobs(scenes, out) if is_batch else [SceneJob(scene=scenes[0], out=out)]
        if dry_run:
            plans = [show_plan(request, job, show) for job in chosen]
            if as_json:
                console.print_json(plans if is_batch else plans[0])
        elif is_batch:
            run_batch(request, chosen, out, show, Place(jobs, distributed))
        else:
            run_one(request, chosen[0], show, distributed)
