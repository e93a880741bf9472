"""`page4d calibrate`: lenses and cameras of a rig from a calibration board in its videos."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np
from jaxtyping import Float
from scipy.ndimage import median_filter

from page4d.errors import ON_STDERR, InputError, Observer, SilentObserver, UsageError, counted, listed
from page4d.formats.maps import write_png
from page4d.io.exhaustion import limits_named
from page4d.io.folders import given_path
from page4d.keywords import CalibrateKeywords
from page4d.options import CalibrateSettings, SceneOptions, split_options
from page4d.plotting.charts import draw_figure, short_name
from page4d.rig.board import Board, board_of
from page4d.rig.board_corners import CELLS, Footage, find_boards, sightings_of
from page4d.rig.board_views import FILM, FILM_HINT, BoardCalibration, BoardEvidence, BoardViews
from page4d.rig.floor import read_floor_points
from page4d.rig.lens import lenses_of
from page4d.rig.opening import opened_scene
from page4d.rig.records import Array, of_stage
from page4d.scene.calibration import paired_names
from page4d.scene.open import open_scene as open_folder
from page4d.scene.records import Clock, Scene

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_PICTURES = 240
"""Pictures per view that are searched: pairs of neighbouring instants of a longer capture."""

_SMOOTHED = 9
"""Frames over which time stamps are smoothed: those of `caliscope_a` are late by up to 15 ms, one in six."""

_PANEL, _HEAD = 480, 60
_WORST_PX = 2.0
"""Error of the last colour of the picture of the corners."""


@limits_named()
def calibrate(
    scene: Scene | Path | str,
    *,
    settings: CalibrateSettings | None = None,
    observer: Observer | None = ON_STDERR,
    **options: Unpack[CalibrateKeywords],
) -> BoardCalibration:
    """Determine the lenses and cameras of a static rig from a calibration board that is moved in front of it.

    Args:
        scene: an open scene, or the folder of one.
        settings: of the calibration; `board` has no default.
        observer: receives notices and progress; None is silent.
        **options: fields of `SceneOptions` (if `scene` is a folder) and of `CalibrateSettings` by name, such as
            `board="charuco:7x5,30mm,22mm,4x4_50"`.

    Raises:
        UsageError: if options are unknown or do not fit the scene.
        InputError: if a video or file cannot be used, or the board determines no camera.
    """
    of_scene, of_settings = split_options(options, "calibrate", SceneOptions, CalibrateSettings)
    settings = replace(settings, **of_settings) if settings is not None else CalibrateSettings(**of_settings)
    observer = observer or SilentObserver()
    board = board_of(settings.board, None if isinstance(scene, Scene) else given_path(scene, "scene"))
    scene = opened_scene(scene, of_scene, observer.progress)
    scene.options.check_resize(settings.intrinsics)
    given = None
    if settings.intrinsics is not None:
        given = lenses_of(scene, intrinsics=settings.intrinsics, notify=observer.notice)
    evidence = board_evidence(scene, board, settings, observer)
    sizes = [view.source.size for view in scene.views]
    try:
        return BoardViews(scene.view_names, sizes, evidence, settings.lens_model, given, settings.up).result()
    except InputError as error:
        if error.marked_hint is not FILM_HINT or not any("⟨calibration=" in one.marked_text for one in scene.notices):
            raise
        known = "give ⟨intrinsics=FILE⟩ with the calibration in the folder, whose lenses then stay"
        raise InputError(error.marked_message, f"{known}; or {FILM}; or give ⟨lenses⟩") from error


def board_evidence(scene: Scene, board: Board, settings: CalibrateSettings, observer: Observer) -> BoardEvidence:
    """Search the board in a scene, and in the footage of lenses."""
    instants = searched_instants(scene.num_times)
    lies = settings.floor_at
    points = read_floor_points(lies) if isinstance(lies, Path) else None
    if isinstance(lies, int):
        if lies >= scene.num_times:
            raise UsageError(
                f"⟨floor_at={lies}⟩: the scene has {counted(scene.num_times, 'instant')}",
                f"give an instant from 0 to {scene.num_times - 1}",
            )
        instants = sorted({*instants, lies})
    footage: list[Footage] = [(view.source, [view.indices[i] for i in instants]) for view in scene.views]
    lenses = {} if settings.lenses is None else _lens_footage(scene, settings.lenses)
    board, found = find_boards(
        board, [*footage, *lenses.values()], of_stage(observer.progress, "calibrating: search for the board")
    )
    shared = []
    for view, one in enumerate(scene.views):
        taken = _exposures(one.clock, one.source.frame_times)[footage[view][1]]
        later = scene.times[instants] - taken
        shared += sightings_of(view, found[view], taken, range(len(instants)), later)
    alone, first = [], len(instants)
    for (view, (source, frames)), pictures in zip(lenses.items(), found[scene.num_views :], strict=True):
        alone += sightings_of(view, pictures, source.frame_times[frames], range(first, first + len(frames)))
        first += len(frames)
    floor = instants.index(lies) if isinstance(lies, int) else points
    return BoardEvidence(board=board, shared=shared, alone=alone, num_instants=len(instants), floor=floor)


def _exposures(clock: Clock, frame_times: Float[Array, " F"]) -> Float[Array, " F"]:
    """Return the common times of frames without the delays of single ones in tables of time stamps."""
    steady = replace(clock, frame_times=()).to_common(frame_times)
    return steady + median_filter(clock.to_common(frame_times) - steady, _SMOOTHED, mode="nearest")


def searched_instants(num_times: int) -> list[int]:
    """Return all instants, or pairs of neighbours spread over a longer capture."""
    if num_times <= MAX_PICTURES:
        return list(range(num_times))
    starts = np.linspace(0, num_times - 2, MAX_PICTURES // 2).round().astype(int)
    return sorted({*starts.tolist(), *(starts + 1).tolist()})


def _lens_footage(scene: Scene, folder: Path) -> dict[int, Footage]:
    """Return the videos of a folder that have the names of views, or contain them, each on its own clock.

    Raises:
        UsageError: if none has, or their size is another one.
    """
    found = open_folder(folder, replace(SceneOptions(), sync="none"))
    by_name = {view.name: view.source for view in found.views}
    if not by_name.keys() & {*scene.view_names}:
        by_name = {name: by_name[each] for name, each in paired_names(scene.view_names, [*by_name]).items()}
    footage: dict[int, Footage] = {}
    for index, view in enumerate(scene.views):
        source = by_name.get(view.name)
        if source is None:
            continue
        if source.size != view.source.size:
            (height, width), (own_height, own_width) = source.size, view.source.size
            raise UsageError(
                f"⟨lenses⟩: {view.name} has {width}x{height} pixels, in the scene {own_width}x{own_height}",
                "film the board for the lens with the settings of the capture",
            )
        footage[index] = source, searched_instants(len(source.frame_times))
    if not footage:
        raise UsageError(
            f"⟨lenses⟩: no video of '{folder}' has the name of a view", f"the views are {listed(scene.view_names)}"
        )
    return footage


def draw_corners(found: BoardCalibration, path: Path) -> None:
    """Write a picture of the corners in every view, coloured by their errors.

    Raises:
        OutputError: if it cannot be written.
    """
    columns = min(len(found.sizes), 4)
    rows = -(-len(found.sizes) // columns)

    def paint(figure: "Figure") -> None:
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(found.sizes) :]:
            axes.set_axis_off()
        views = zip(grid.flat, found.record.cameras, found.corners, found.sizes, strict=False)
        for axes, camera, corners, (height, width) in views:
            error = "" if camera.residual_px is None else f", {camera.residual_px:.2f} px"
            text = f"{camera.num_pictures} pictures, {100 * camera.coverage:.0f} % covered{error}"
            axes.set_title(f"{short_name(camera.view)}\n{text}", loc="left", fontsize=9.5, parse_math=False)
            axes.scatter(corners[:, 0], corners[:, 1], s=5, c=corners[:, 2], cmap="inferno_r", vmin=0, vmax=_WORST_PX)
            axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal", xticklabels=[], yticklabels=[])
            axes.set_xticks(np.linspace(0, width, CELLS + 1))
            axes.set_yticks(np.linspace(0, height, max(round(CELLS * height / width), 1) + 1))
            axes.grid(visible=True)

    tallest = max(height / width for height, width in found.sizes)
    write_png(path, draw_figure((_PANEL * columns, rows * (round(_PANEL * tallest) + _HEAD)), paint))
