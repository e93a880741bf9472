"""Reconstruction: from a scene to a complete output folder, in one call.

The output folder is checked first, for existing results and for input files inside it.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from page4d.choices import ExistingOutput
from page4d.errors import ON_STDERR, Notice, Observer, SilentObserver, UsageError
from page4d.installation import preload_open3d
from page4d.io.atomic import check_folder, claim_output, real_path
from page4d.io.exhaustion import limits_named
from page4d.io.folders import given_path
from page4d.keywords import ReconstructKeywords
from page4d.networks.layers.execution import reproducible
from page4d.options import NetworkOptions, ReconstructSettings, SceneOptions, given_settings, split_options
from page4d.output.layout import OUTPUT_FOLDERS, OUTPUT_NAMES, OutputLayout
from page4d.output.record import RunRecord
from page4d.rig.opening import opened_scene
from page4d.run.chunk_source import OpenChunks, local_chunks
from page4d.run.fingerprint import earlier_registration
from page4d.run.journal import Journal
from page4d.run.plan import RunPlan, plan_run
from page4d.run.predictor import Predictor, predictor_for
from page4d.run.registration import register_for_run
from page4d.run.run import Run
from page4d.run.scene_evidence import SceneEvidence, evidence_in_pictures, in_chosen_world
from page4d.run.state import StateFolder, is_occupied
from page4d.run.state_records import RunState
from page4d.scene.identity import files_of
from page4d.scene.records import Scene
from page4d.weights.loading import BUNDLED_KIND, BUNDLED_NAME


def check_target(out: Path, existing: ExistingOutput, scene: Path | None = None) -> None:
    """Refuse, before any work, an output that is the folder of the scene, cannot be written or holds a result.

    Raises:
        OutputError: if it is a file or cannot be created.
        UsageError: if it is the scene, or holds a result that is neither to be resumed nor overwritten.
    """
    if scene is not None and real_path(out) == real_path(scene):
        raise UsageError(f"⟨out='{out}'⟩ is the scene itself", "give another folder, such as one below it")
    check_folder(out)
    if not is_occupied(out):
        return
    if not (out / "state" / "run.json").is_file():
        raise UsageError(f"'{out}' holds files but no record of a page4d run", "use another folder, or move them")
    if existing is ExistingOutput.REFUSE:
        raise UsageError(
            f"'{out}' already holds a result", "use ⟨existing=resume⟩, ⟨existing=overwrite⟩ or another folder"
        )


def check_inputs_outside(scene: Scene, out: Path) -> None:
    """Refuse an output whose files would overwrite input files.

    Raises:
        UsageError: naming the first such file.
    """
    own = [real_path(out / name) for name in OUTPUT_NAMES]
    sidecars = [paired.frames for view in scene.views for paired in (view.mask, view.depth) if paired is not None]
    read = [path for source in (*(view.source for view in scene.views), *sidecars) for path in files_of(source)]
    for path in (*read, *scene.other_files):
        if any(real_path(path).is_relative_to(folder) for folder in own):
            raise UsageError(f"the output would overwrite the input '{path}'", "use another folder for ⟨out⟩")


@limits_named()
def reconstruct(
    scene: Scene | Path | str,
    predictor: Predictor | None = None,
    *,
    out: Path | str,
    settings: ReconstructSettings | None = None,
    existing: ExistingOutput | str = ExistingOutput.REFUSE,
    observer: Observer | None = ON_STDERR,
    open_chunks: OpenChunks = local_chunks,
    **options: Unpack[ReconstructKeywords],
) -> RunRecord:
    """Reconstruct a scene into an output folder and return the content of its `run.json`.

    Args:
        scene: an open scene, or the folder of one.
        predictor: as `build_predictor` returns it; without one the scene's measured depth or a network is used.
        out: output folder.
        settings: of the run; those of the predictor if None.
        existing: policy for a folder that holds a result: refuse, overwrite or resume. A run is resumed only if
            everything that its bytes depend on is equal; a complete one is returned as it is.
        observer: receives notices and progress; None is silent.
        open_chunks: opens the source of predicted chunks, which does not affect the bytes of the result.
        **options: fields of `SceneOptions` (if `scene` is a folder), `NetworkOptions` (without `predictor`) and
            `ReconstructSettings` by name, such as `calibration`, `weights` and `overlap`.

    Raises:
        UsageError: if options are unknown or contradict each other, or the folder holds another result or the inputs.
        InputError: if a video, image or calibration cannot be used.
        WeightsError: if the weights cannot be used, or the network predicts cameras that are not finite.
        OutputError: if the folder cannot be written.
        CapabilityError: if the system allows no more open files or threads.
        MemoryBudgetError: if not even the smallest chunk fits in memory, or in the memory that the settings allow.
        InterruptedRunError: if a signal ended the run; what is written stays and can be resumed.
    """
    out = given_path(out, "out")
    if existing not in list(ExistingOutput):
        raise UsageError(f"existing is '{existing}'", f"give {', '.join(ExistingOutput)}")
    preload_open3d()
    observer, existing = observer or SilentObserver(), ExistingOutput(existing)
    check_target(out, existing, None if isinstance(scene, Scene) else given_path(scene, "scene"))
    scene, predictor = _opened(scene, predictor, settings, options, observer)
    is_bundled = predictor.record.name == BUNDLED_NAME
    if notice := f"{BUNDLED_NAME} is {BUNDLED_KIND}" if is_bundled else predictor.record.notice:
        observer.notice(Notice(notice))
    check_inputs_outside(scene, out)
    journal = Journal(observer)
    is_resumed = existing is ExistingOutput.RESUME and is_occupied(out)
    earlier = StateFolder(OutputLayout(out, ())).read_run() if is_resumed else None
    evidence = evidence_in_pictures(scene, predictor.settings, journal.progress, journal.notice)
    if evidence.is_pending:
        evidence = _registered(evidence, predictor.settings, out, earlier, journal)
    elif earlier is not None:
        evidence = replace(evidence, given_world=earlier.world)
    else:
        evidence = in_chosen_world(evidence, predictor.settings, journal.notice)
    plan = plan_run(scene, predictor, evidence)
    with reproducible(predictor.device), claim_output(out, OUTPUT_FOLDERS) as folder:
        check_target(folder, existing)  # again: another process may have finished it meanwhile
        return Run(plan, folder, journal, open_chunks).execute(existing)


def plan_scene(
    scene: Path,
    *,
    out: Path,
    settings: ReconstructSettings,
    existing: ExistingOutput,
    observer: Observer,
    **options: Any,
) -> RunPlan:
    """Plan the run of `reconstruct` with the same arguments, without its registration and its check."""
    check_target(out, existing, scene)
    opened, predictor = _opened(scene, None, settings, options, observer)
    return plan_run(opened, predictor)


def _opened(
    scene: Scene | Path | str,
    predictor: Predictor | None,
    settings: ReconstructSettings | None,
    options: Mapping[str, Any],
    observer: Observer,
) -> tuple[Scene, Predictor]:
    """Open a scene, unless it is open, and build its predictor for the settings of the run, unless there is one."""
    kinds = (SceneOptions, NetworkOptions, ReconstructSettings)
    of_scene, of_network, of_run = split_options(options, "reconstruct", *kinds)
    scene = opened_scene(scene, of_scene, observer.progress)
    given = given_settings(settings)
    if predictor is None:
        return scene, predictor_for(scene, NetworkOptions(**of_network), replace(given, **of_run), observer)
    if not hasattr(predictor, "with_settings"):
        raise UsageError(f"predictor is of the type {type(predictor).__name__}", "give one of build_predictor")
    if of_network:
        raise UsageError(f"{', '.join(of_network)} with a predictor", "pass them to build_predictor")
    return scene, predictor.with_settings(replace(predictor.settings if settings is None else given, **of_run))


def _registered(
    evidence: SceneEvidence, settings: ReconstructSettings, out: Path, earlier: RunState | None, journal: Journal
) -> SceneEvidence:
    """Add the registration of the run to continue, or a new one."""
    found = earlier_registration(out, earlier, evidence.scene, settings)
    if found is not None:
        return replace(evidence, registration=found, is_pending=False)
    with journal.timed("register"):
        return register_for_run(evidence, settings, journal.notice)
