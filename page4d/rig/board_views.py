"""Cameras of views that show a calibration board: which of them it determines, and how accurately."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float

from page4d.choices import LensModel, UpAxis
from page4d.conventions import Scale
from page4d.errors import InputError, Level, Notice, counted, listed
from page4d.formats.camera_model import CalibratedCamera, Calibration, check_lens
from page4d.geometry.distortion import Distortion
from page4d.io.json_records import FileModel
from page4d.output.rig_record import Name, WorldRecord
from page4d.rig.adjust import RESIDUAL_LIMIT
from page4d.rig.board import Board
from page4d.rig.board_corners import Sighting, coverage, sheared, spread, without_skew
from page4d.rig.board_rig import (
    MIN_COMMON,
    SIGNIFICANT,
    STEPS,
    TERMS,
    BoardAdjustment,
    State,
    board_poses,
    calibrate_lens,
    lens_matrix,
    locate_board,
    place_rig,
)
from page4d.rig.floor import FloorPoints, Vertical
from page4d.rig.lens import START_FOCAL
from page4d.rig.records import Array, Lens, RigCamera
from page4d.rig.survey import floor_world

_CHOSEN = 60
"""Pictures per view from which lenses and cameras are estimated; more of them change little."""

_TOGETHER = 2.0
"""Preference of pictures at whose instant another view shows the board, too."""

MIN_PICTURES = 4
"""Pictures of the board per view below which no lens is estimated; three are the minimum of the method."""

FOCAL_LIMIT = 0.01
"""Relative standard deviation of a focal length from which on it is not determined."""

_CLOCK_SIGNIFICANT, _CLOCK_LEAST_S, _CLOCK_MOST_S = 3.0, 0.005, 0.15
"""Standard deviations, and seconds, from which the difference of a clock is reported, and seconds to which the motion
between frames bridges it: with 0.25 s cameras are 2 to 3 px wrong, with 0.3 s of a board that rests and moves 75."""


class BoardCameraRecord(FileModel):
    """The camera of a view from a board: whether it is placed, or why not, and what its lens is determined from.

    `num_pictures` show the board, `num_together` of them while another view does; `coverage` is the share of cells of
    the picture with corners, `tilt_deg` the range of angles between the board and the picture. `focal_std` is
    relative. `clock_s` is how much earlier than its time a frame was taken, relative to the first placed view, if
    that is significant.
    """

    view: Name
    placed: bool
    num_pictures: int
    num_together: int
    coverage: float
    tilt_deg: tuple[float, float] | None = None
    residual_px: float | None = None
    focal: float | None = None
    focal_std: float | None = None
    terms: tuple[str, ...] = ()
    clock_s: float | None = None
    clock_std_s: float | None = None
    reason: str = ""


class BoardRecord(FileModel):
    """What a calibration from a board found: the board, the number of searched instants, and the cameras.

    `lens_model` is None where given lenses are of several models.
    """

    board: str
    lens_model: LensModel | None
    num_instants: int
    cameras: list[BoardCameraRecord]
    world: WorldRecord | None = None

    @property
    def num_placed(self) -> int:
        """Number of placed cameras."""
        return sum(camera.placed for camera in self.cameras)

    @property
    def notices(self) -> tuple[Notice, ...]:
        """Cameras that are not placed, and clocks that differ, as warnings."""
        left = [f"{camera.view}: {camera.reason}" for camera in self.cameras if not camera.placed]
        late = [
            f"{camera.view} is {1000 * abs(camera.clock_s):.0f} ms {'early' if camera.clock_s > 0 else 'late'} "
            f"(+-{1000 * (camera.clock_std_s or 0):.1g})"
            for camera in self.cameras
            if camera.clock_s is not None
        ]
        texts = []
        if left:
            texts.append(f"cameras of {len(left)} of {len(self.cameras)} views are not placed ({'; '.join(left)})")
        if late:
            texts.append(f"the views are not synchronous: {listed(late)}; state the offsets by ⟨sync=FILE⟩")
        return tuple(Notice(text, Level.WARNING) for text in texts)


@dataclass(frozen=True, kw_only=True)
class BoardCalibration:
    """Lenses and cameras of a rig from a board, in metres, in the world of the first placed camera or an upright one.

    `calibration` has the placed cameras. For the V views of the scene, `sizes` are (height, width), and `corners`
    the x, y and error in px of the corners that were used.
    """

    record: BoardRecord
    calibration: Calibration
    sizes: tuple[tuple[int, int], ...]
    corners: tuple[Float[Array, "n 3"], ...]


@dataclass(frozen=True, kw_only=True)
class BoardEvidence:
    """The board as it is printed, its sightings at instants of a scene and, after these, in footage for lenses alone.

    `floor` is the number of its pose on the floor, or points there, if they are named. Frames are paired as if views
    are `clocks` seconds early; `periods` are those of frames, none if these cannot be paired again.
    """

    board: Board
    shared: list[Sighting]
    alone: list[Sighting]
    instants: Float[Array, " T"]
    floor: int | FloorPoints | None = None
    clocks: Float[Array, " V"] | float = 0.0
    periods: Sequence[float] = ()


@dataclass
class BoardViews:
    """Views of some sizes (height, width) with sightings of a board, which determine their cameras.

    `given` lenses stay. `up` is the axis that points up in a world that stands on the board, z by default. `shifts`
    are the changes of clocks by which other frames show views at the instants: 0 where the frames are the right ones.

    Raises:
        InputError: if no lens is determined.
    """

    names: Sequence[str]
    sizes: Sequence[tuple[int, int]]
    evidence: BoardEvidence
    model: LensModel = LensModel.BROWN_CONRADY
    given: Sequence[Lens] | None = None
    up: UpAxis = UpAxis.AUTO

    def __post_init__(self) -> None:
        views = range(len(self.names))
        self.board, self.models = self.evidence.board, [self.model for _ in views]
        self.lenses = np.zeros((len(views), 4 + len(TERMS[self.model])))
        self.terms: dict[int, tuple[str, ...]] = {}
        self.shared, self.alone = self._chosen(self.evidence.shared), self._chosen(self.evidence.alone)
        unseen = {*views} - {one.view for one in self.shared}
        self.reasons = dict.fromkeys(unseen, "the board is not found in its pictures")
        if self.given is None:
            self._estimate_lenses()
        else:
            self._take_lenses(self.given)
        self._check_seen()
        self._place()

    def _chosen(self, sightings: Sequence[Sighting]) -> list[Sighting]:
        """Choose poses of the board that differ in the pictures of some view, preferably those that several show."""
        weight = {
            pose: _TOGETHER if count > 1 else 1.0 for pose, count in Counter(one.pose for one in sightings).items()
        }
        weighted, poses = [replace(one, sharpness=one.sharpness * weight[one.pose]) for one in sightings], set()
        for view, size in enumerate(self.sizes):
            own = [one for one in weighted if one.view == view]
            poses |= {one.pose for one in spread(self.board, own, _CHOSEN, size)}
        return [one for one in sightings if one.pose in poses]

    def _take_lenses(self, found: Sequence[Lens]) -> None:
        """Take known lenses, each as it is; their skew is taken out of the pixels."""
        known = [() if lens.distortion is None else lens.distortion.coefficients for lens in found]
        self.lenses = np.zeros((len(found), 4 + max(5, *map(len, known))))
        for view, (lens, coefficients) in enumerate(zip(found, known, strict=True)):
            self.models[view] = LensModel.BROWN_CONRADY if lens.distortion is None else lens.distortion.model
            self.lenses[view, :4] = lens.intrinsics[[0, 1, 0, 1], [0, 1, 2, 2]]
            self.lenses[view, 4 : 4 + len(coefficients)] = coefficients
            names = (*TERMS[self.models[view]], "k4", "k5", "k6")
            self.terms[view] = tuple(term for term, value in zip(names, coefficients, strict=False) if value)
        self.shared = [without_skew(one, found[one.view]) for one in self.shared]

    def _estimate_lenses(self) -> None:
        for view, size in enumerate(self.sizes):
            # The priors of a lens that remains unknown must be finite.
            self.lenses[view, :4] = [START_FOCAL * max(size)] * 2 + [size[1] / 2, size[0] / 2]
            if view in self.reasons:
                continue
            own = [one for one in (*self.shared, *self.alone) if one.view == view]
            found = calibrate_lens(self.board, self.models[view], own, size) if len(own) >= MIN_PICTURES else None
            if found is None:
                self.reasons[view] = f"the board is found in {len(own)} of its pictures, {MIN_PICTURES} are needed"
                continue
            self.lenses[view], self.terms[view] = found

    def _check_seen(self) -> None:
        if not self.shared:
            where = " of the scene, only in those for lenses" if self.alone else ""
            hint = "check ⟨board⟩: a chessboard is given by its inner corners, others by squares or markers"
            raise InputError(f"the board {self.board} is found in no picture{where}", FILM_HINT if where else hint)
        if len(self.reasons) == len(self.names):
            reasons = listed(sorted(set(self.reasons.values())))
            raise InputError(f"the board {self.board} determines no lens: {reasons}", FILM_HINT)

    def _place(self) -> None:
        """Adjust the cameras, without those that do not fit, unless their instants are to be paired again."""
        while True:
            self._adjust()
            if self.shifts.any() and self.evidence.periods:
                return
            excess = {view: self._residual(view) / RESIDUAL_LIMIT / self.state.lenses[view, 0] for view in self.part}
            worst = max(excess, key=lambda view: excess[view])
            if excess[worst] > 1 and len(self.part) > 1:
                reason = f"it does not fit the others (median residual {self._residual(worst):.1f} px): {_UNFIT}"
            elif self.shifts.any():
                worst = int(np.argmax(np.abs(self.shifts)))
                reason = f"its clock does not settle: {1000 * self.shifts[worst]:+.0f} ms"
            else:
                return
            self.reasons[worst] = reason

    def _far(self, clocks: Float[Array, " V"], deviations: Float[Array, " V"] | float = 0.0) -> Float[Array, " V"]:
        """Return clocks that are significant and too large for the motion between frames, else 0."""
        most = np.clip(self.evidence.periods or _CLOCK_MOST_S, _CLOCK_LEAST_S, _CLOCK_MOST_S)
        return np.where(np.abs(clocks) > np.maximum(most, _CLOCK_SIGNIFICANT * deviations), clocks, 0.0)

    def result(self) -> BoardCalibration:
        """Describe the cameras.

        Raises:
            InputError: if fewer than two cameras are determined, or the lens of a single view is not.
        """
        self._add_terms()
        lens_std, self.clock_std = self.problem.deviations(self.state)
        self.focal_std = lens_std[:, :2].max(1) / self.state.lenses[:, 0]
        for view in self.part if self.given is None else ():
            self._judge_lens(view)
        return self._described()

    def _adjust(self) -> None:
        """Adjust the largest part of the views that see the board together."""
        usable = [one for one in self.shared if one.view not in self.reasons]
        instants = self.evidence.instants if self.evidence.periods else None
        placed, kept, left = place_rig(self.board, self.models, self.lenses, usable, instants)
        self.part, self.shifts = sorted({one.view for one in kept}), self._far(placed.clocks)
        if self.shifts.any():
            return
        for view, count in left.items():
            own, others = ({one.pose for one in usable if (one.view == view) is its} for its in (True, False))
            together = counted(len(own & others), "instant")
            reason = f"it shows the board with others at {together}, and agrees with one at {count}: {_UNFIT}"
            if len(own & others) < MIN_COMMON:
                reason = f"it shows the board together with another view at {together}, {MIN_COMMON} are needed"
            self.reasons.setdefault(view, reason if own & others else _NEVER)
        first, boards = len(placed.boards), [placed.boards]
        for one in [one for one in self.alone if one.view in self.part and self.given is None]:
            if poses := board_poses(self.board, self.models[one.view], self.lenses[one.view], one):
                pose, numbers = poses[0]
                # Footage for lenses has a clock of its own.
                kept.append(replace(one, pose=first, numbers=numbers, velocity=0.0, acceleration=0.0))
                boards.append(np.linalg.inv(placed.cameras[one.view])[None] @ pose)
                first += 1
        placed = replace(placed, boards=np.concatenate(boards))
        self.problem, self.state = self._fitted(self.terms, kept, placed)
        self.errors, self.shifts = self.problem.errors(self.state), self._far(self.state.clocks)
        if self.shifts.any():
            self.shifts = self._far(self.state.clocks, self.problem.deviations(self.state)[1])

    def _fitted(
        self, terms: Mapping[int, tuple[str, ...]], sightings: Sequence[Sighting], start: State
    ) -> tuple[BoardAdjustment, State]:
        """Adjust views together, their lenses with these terms, the first ones of their model."""
        free = np.zeros(self.lenses.shape, bool)
        for view in self.part if self.given is None else []:
            free[view, : 4 + len(terms[view])] = True
        moves = np.array([view in self.part[1:] for view in range(len(self.names))])
        problem = BoardAdjustment(self.board, self.models, sightings, free, moves, self.sizes)
        return problem, problem.fit(start)

    def _add_terms(self) -> None:
        """Add terms of distortion that are significant in the adjustment of all views.

        The pictures of one view hardly separate them from poses of the board, which other views determine. Left out,
        they change focal lengths and cameras of all views by several standard deviations.
        """
        for count in STEPS[self.model] if self.given is None else ():
            terms, old = TERMS[self.model][:count], {view: len(self.terms[view]) for view in self.part}
            new = {view: terms for view in self.part if old[view] < len(terms)}
            if not new:
                continue
            trial, state = self._fitted(self.terms | new, self.problem.sightings, self.state)
            is_large = np.abs(state.lenses) > SIGNIFICANT * trial.deviations(state)[0]
            found = {view: terms for view in new if is_large[view, 4 + old[view] :].any()}
            if found:
                self.terms |= found
                self.problem, self.state = self._fitted(self.terms, self.problem.sightings, self.state)
        self.errors = self.problem.errors(self.state)

    def _residual(self, view: int) -> float:
        return float(np.median(self.errors[self.problem.view == view]))

    def _judge_lens(self, view: int) -> None:
        """Refuse a lens whose focal length is not determined, or that no camera has."""
        lens, deviation = self._lens(view), self.focal_std[view]
        if deviation > FOCAL_LIMIT:
            low, high = self._tilts(view)
            pictures = len({one.pose for one in self.problem.sightings if one.view == view})
            self.reasons[view] = (
                f"focal length not determined: {lens.intrinsics[0, 0]:.0f} px +-{100 * deviation:.2g} % "
                f"from {pictures} pictures, tilts {low:.0f}-{high:.0f} deg"
            )
            return
        try:
            check_lens(torch.from_numpy(lens.intrinsics), lens.image_size, lens.distortion)
        except InputError as error:
            self.reasons[view] = f"its lens is not plausible: {error.marked_message}"

    def _lens(self, view: int) -> Lens:
        if self.given is not None:
            return self.given[view]
        lens = self.state.lenses[view]
        found = Distortion(model=self.models[view], coefficients=tuple(float(value) for value in lens[4:]))
        return Lens(
            intrinsics=lens_matrix(lens), image_size=self.sizes[view], distortion=None if found.is_identity else found
        )

    def _described(self) -> BoardCalibration:
        placed = [view for view in self.part if view not in self.reasons]
        needed = min(2, len(self.names))
        if len(placed) < needed:
            left = dict.fromkeys(placed, "no other view is left that shows the board with it")
            reasons = [f"{self.names[view]}: {one[view]}" for one in (self.reasons, left) for view in sorted(one)]
            hint = _CLOCK_HINT if any("its clock" in reason for reason in reasons) else FILM_HINT
            raise InputError(f"the board determines too few cameras: {'; '.join(reasons)}", hint)
        views, standing = range(len(self.names)), self._standing(placed)
        world = np.linalg.inv(self.state.cameras[placed[0]] if standing is None else np.array(standing.transform))
        cameras = tuple(
            CalibratedCamera(
                name=self.names[view],
                image_size=lens.image_size,
                intrinsics=torch.from_numpy(lens.intrinsics),
                world_to_camera=torch.from_numpy(self.state.cameras[view] @ world),
                distortion=lens.distortion,
            )
            for view, lens in zip(placed, map(self._lens, placed), strict=True)
        )
        record = BoardRecord(
            board=str(self.board),
            lens_model=self.models[0] if len(set(self.models)) == 1 else None,
            num_instants=len(self.evidence.instants),
            cameras=[self._record(view) for view in views],
            world=standing,
        )
        return BoardCalibration(
            record=record,
            calibration=Calibration(
                path=Path("calibration"), scale=Scale.METRIC, cameras=cameras, up=standing.up if standing else None
            ),
            sizes=tuple(self.sizes),
            corners=tuple(map(self._corners, views)),
        )

    def _standing(self, placed: Sequence[int]) -> WorldRecord | None:
        """Return the upright world on the board at the instant that is named, or on the points that are, if any.

        Raises:
            InputError: if no placed camera shows the board at that instant, or the points determine no floor.
        """
        if self.evidence.floor is None:
            return None
        cameras = self.state.cameras[placed]
        if isinstance(self.evidence.floor, FloorPoints):
            rig = {
                self.names[view]: RigCamera(lens=self._lens(view), world_to_camera=pose)
                for view, pose in zip(placed, cameras, strict=True)
            }
            return floor_world(self.evidence.floor, rig, self.up, is_metric=True)
        own = [one for one in self.evidence.shared if one.pose == self.evidence.floor and one.view in placed]
        if self.given is not None:
            own = [without_skew(one, self.given[one.view]) for one in own]
        found = locate_board(self.board, self.models, self.state, own, self.sizes)
        if found is None:
            raise InputError(
                "no placed camera shows the board at the instant of ⟨floor_at⟩",
                "give an instant at which the board lies on the floor, in view of a camera",
            )
        pose, covariance = found
        # The cameras are above the floor: in the board's frame, their heights have the sign of the upward normal.
        heights = np.linalg.inv(cameras @ pose)[:, 2, 3]
        normal = pose[:3, 2] * (1 if np.median(heights) > 0 else -1)
        tilt, height = np.trace(covariance[:2, :2]), covariance[5, 5]
        vertical = Vertical(
            up=normal,
            std_deg=float(np.degrees(np.sqrt(tilt))),
            floor=float(normal @ pose[:3, 3]),
            floor_std=float(np.sqrt(height)),
        )
        return vertical.world(cameras, self.up)

    def _corners(self, view: int) -> Float[Array, "n 3"]:
        """Return the pixels of the corners of a view in its picture, and their errors."""
        own = self.problem.view == view
        pixels = self.problem.pixels[own]
        pixels = pixels if self.given is None else sheared(pixels, self.given[view], 1)
        return np.column_stack([pixels, self.errors[own]])

    def _record(self, view: int) -> BoardCameraRecord:
        found = [one for one in self.evidence.shared if one.view == view]
        others = {one.pose for one in self.evidence.shared if one.view != view}
        alone = [one for one in self.evidence.alone if one.view == view]
        used = bool((self.problem.view == view).any())
        clock_s, clock_std_s = self._clock(view) if used else (None, None)
        return BoardCameraRecord(
            view=self.names[view],
            placed=view not in self.reasons,
            num_pictures=len(found) + len(alone),
            num_together=sum(one.pose in others for one in found),
            coverage=coverage([*found, *alone], self.sizes[view]),
            tilt_deg=self._tilts(view) if used else None,
            residual_px=self._residual(view) if used else None,
            focal=float(np.sqrt(self.state.lenses[view, :2].prod())) if used else None,
            focal_std=float(self.focal_std[view]) if used and self.given is None else None,
            terms=self.terms.get(view, ()),
            clock_s=clock_s,
            clock_std_s=clock_std_s,
            reason=self.reasons.get(view, ""),
        )

    def _tilts(self, view: int) -> tuple[float, float]:
        """Return the range of angles between the board and the picture in degrees, without a tenth at either end."""
        poses = sorted({one.pose for one in self.problem.sightings if one.view == view})
        cosines = np.abs((self.state.cameras[view] @ self.state.boards[poses])[:, 2, 2])
        low, high = np.percentile(np.degrees(np.arccos(np.clip(cosines, 0, 1))), [10, 90])
        return float(low), float(high)

    def _clock(self, view: int) -> tuple[float, float] | tuple[None, None]:
        """Return how much earlier than its time a frame was taken, and its deviation, if significant.

        In seconds, relative to the first placed view.
        """
        first = min(view for view in range(len(self.names)) if view not in self.reasons)
        clocks = self.evidence.clocks + self.state.clocks
        clock = float(clocks[view] - clocks[first])
        deviation = float(np.hypot(self.clock_std[view], self.clock_std[first]))
        is_significant = abs(clock) > max(_CLOCK_LEAST_S, _CLOCK_SIGNIFICANT * deviation)
        return (clock, deviation) if is_significant else (None, None)


FILM = (
    "film the board near and far, in all parts of the pictures and tilted by 30 degrees and more, in view of two "
    "cameras at once"
)
FILM_HINT = f"{FILM}; or give ⟨lenses⟩ or ⟨intrinsics⟩"
_NEVER = "no other view shows the board at the same instants"
_UNFIT = "the camera moves, or its clock is wrong"
_CLOCK_HINT = "state the offsets of the clocks (⟨sync=FILE⟩, or ⟨sync=audio⟩ measures them), and film on tripods"
