"""`page4d calibrate`: lenses and cameras of a rig from a calibration board in its videos."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
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
from page4d.rig.board_corners import CELLS, Corners, Footage, find_boards, sightings_of
from page4d.rig.board_views import FILM, FILM_HINT, BoardCalibration, BoardEvidence, BoardViews
from page4d.rig.floor import read_floor_points
from page4d.rig.lens import lenses_of
from page4d.rig.opening import opened_scene
from page4d.rig.records import Array, of_stage
from page4d.scene.calibration import paired_names
from page4d.scene.open import open_scene as open_folder
from page4d.scene.records import Clock, Scene
from page4d.scene.timeline import PAIRING_SLACK, nearest_frames, timing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MAX_PICTURES = 240
"""Pictures per view that are searched: pairs of neighbouring instants of a longer capture."""

_MAX_PAIRINGS = 3
"""Times that instants are paired again by the clocks that the board gives."""

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
    search = BoardSearch(scene, board, settings, observer)
    sizes, clocks = [view.source.size for view in scene.views], np.zeros(scene.num_views)
    try:
        for left in range(_MAX_PAIRINGS, -1, -1):
            # Clocks that do not settle are wrong: then the stated ones count, and views that they do not fit do not.
            evidence = search.evidence(clocks if left else 0 * clocks, can_pair=left > 0)
            views = BoardViews(scene.view_names, sizes, evidence, settings.lens_model, given, settings.up)
            if not views.shifts.any():
                break
            clocks = clocks + views.shifts
        return views.result()
    except InputError as error:
        if error.marked_hint is not FILM_HINT or not any("⟨calibration=" in one.marked_text for one in scene.notices):
            raise
        known = "give ⟨intrinsics=FILE⟩ with the calibration in the folder, whose lenses then stay"
        raise InputError(error.marked_message, f"{known}; or {FILM}; or give ⟨lenses⟩") from error


class BoardSearch:
    """A board in pictures of a scene and in footage for lenses alone, each of which is searched once."""

    def __init__(self, scene: Scene, board: Board, settings: CalibrateSettings, observer: Observer) -> None:
        self.scene, self.board, self.progress = scene, board, observer.progress
        instants, lies = searched_instants(scene.num_times), settings.floor_at
        if isinstance(lies, int):
            if lies >= scene.num_times:
                raise UsageError(
                    f"⟨floor_at={lies}⟩: the scene has {counted(scene.num_times, 'instant')}",
                    f"give an instant from 0 to {scene.num_times - 1}",
                )
            instants = sorted({*instants, lies})
        self.floor = read_floor_points(lies) if isinstance(lies, Path) else lies
        self.instants, self.lenses = instants, _lens_footage(scene, settings.lenses) if settings.lenses else {}
        self.found: dict[tuple[int, int], Corners | None] = {}

    def evidence(self, clocks: Float[Array, " V"], *, can_pair: bool) -> BoardEvidence:
        """Return sightings in the frames that are nearest to the instants if views are `clocks` seconds early.

        Raises:
            InputError: if a frame cannot be decoded.
        """
        instants = self.scene.times[self.instants]
        footage, taken = [*self.lenses.values()], []
        for place, (view, clock) in enumerate(zip(self.scene.views, clocks, strict=True)):
            times = _exposures(view.clock, view.source.frame_times) - clock
            frames = nearest_frames(times, instants) if clock else np.array(view.indices)[self.instants]
            footage.insert(place, (view.source, frames.tolist()))
            taken.append(times[frames])
        corners = self._corners(footage)
        shared, alone, first = [], [], len(instants)
        periods = [1 / (timing(view.source.frame_times).fps or np.inf) for view in self.scene.views]
        for index, period in enumerate(periods):
            own = sightings_of(index, corners[index], taken[index], 0, instants - taken[index])
            shared += [one for one in own if not clocks[index] or abs(one.later) <= PAIRING_SLACK / 2 * period]
        for (index, (source, shown)), found in zip(self.lenses.items(), corners[len(periods) :], strict=True):
            alone += sightings_of(index, found, source.frame_times[shown], first, np.zeros(len(shown)))
            first += len(shown)
        floor = self.instants.index(self.floor) if isinstance(self.floor, int) else self.floor
        given = periods if can_pair else ()
        return BoardEvidence(
            board=self.board, shared=shared, alone=alone, instants=instants, floor=floor, clocks=clocks, periods=given
        )

    def _corners(self, footage: Sequence[Footage]) -> list[list[Corners | None]]:
        keys = [[(place, frame) for frame in frames] for place, (_, frames) in enumerate(footage)]
        missing = [sorted({*own} - {*self.found}) for own in keys]
        if any(missing):
            searched = [
                (source, [frame for _, frame in own]) for (source, _), own in zip(footage, missing, strict=True)
            ]
            board, found = find_boards(
                self.board, searched, of_stage(self.progress, "calibrating: search for the board")
            )
            self.board = self.board if self.found else board
            self.found |= zip(chain(*missing), chain(*found), strict=True)
        return [[self.found[key] for key in own] for own in keys]


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
    shown = {index: (view, by_name[view.name]) for index, view in enumerate(scene.views) if view.name in by_name}
    for view, source in shown.values():
        if source.size != view.source.size:
            (height, width), (own_height, own_width) = source.size, view.source.size
            raise UsageError(
                f"⟨lenses⟩: {view.name} has {width}x{height} pixels, in the scene {own_width}x{own_height}",
                "film the board for the lens with the settings of the capture",
            )
    if not shown:
        raise UsageError(
            f"⟨lenses⟩: no video of '{folder}' has the name of a view", f"the views are {listed(scene.view_names)}"
        )
    return {index: (source, searched_instants(len(source.frame_times))) for index, (_, source) in shown.items()}


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
