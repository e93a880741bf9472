"""Assembly of a static rig from evidence in pixels: body keypoints, texture and straight edges.

Pairs, graph and adjustment are repeated for an unknown focal length.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations

import numpy as np
from jaxtyping import Float

from page4d.rig import graph
from page4d.rig.adjust import TEXTURE_SIGMA, Adjustment, Observations, adjust, merge_tracks
from page4d.rig.edges import SLACK_RAD, Directions, ViewEdges, in_order, shared_directions
from page4d.rig.epipolar import RelativePose, pose_of, relative_pose_of
from page4d.rig.evidence import TextureSource
from page4d.rig.graph import Placement
from page4d.rig.length import person_height
from page4d.rig.people.keypoints import ideal_people
from page4d.rig.people.pairs import common_people
from page4d.rig.people.pose import MIN_FIT, register_people_pair, share_of_people
from page4d.rig.records import (
    Array,
    Evidence,
    Lens,
    Pair,
    PairPose,
    StageProgress,
    ViewPeople,
    direction_angle_deg,
    extent_of,
    no_progress,
    rotation_angle_deg,
)
from page4d.rig.texture import TextureMatches, TextureMethod
from page4d.rig.texture_pairs import GUIDE_BAND, guided_pair
from page4d.scene.records import ViewCamera

_DIRECTION_TURN_DEG = 5.0
"""Angle between the directions of edges in two views, under the relative rotation of their cameras, up to which they
are the same: right pairs of rooms have up to 3 degrees, wrong ones of 6.6 and 10.4 degrees, on walls whose patterns
repeat, 6.5 and 10.2. Others that share the vertical are so close in one case of ten."""

_DIRECTION_RESIDUAL = 1.5
"""Ratio of the residual of a camera with and without directions of edges beyond which these do not fit the evidence:
on `treadmill` it is up to 1.2."""

_DIRECTION_SIGMA = 3.0
"""Change of a rotation by directions of edges, in standard deviations of other evidence and of edges, beyond which
edges are not orthogonal: on `treadmill` it is up to 1.6, on simulated rigs in rooms with slanted walls 3.8 to 11."""

_ROUNDS = 8
"""Most rounds of pairs and adjustment for unknown lenses: a start value that is 50 % too large takes six."""

_SAME_FOCAL = 0.02
"""Change of the log focal length below which pairs are not registered again."""

_START_TOLERANCE = 3.0
"""Factor on the limits of contradictions while the focal length is the start value: a focal length that is 40 % wrong
turns right pairs by 10 to 20 degrees."""

_TEXTURE_LIMIT_DEG = 15.0
"""Difference in rotation between a texture pair and the rig from people beyond which the texture pair is refused."""

_GUIDE_LIMITS: tuple[float, ...] = (GUIDE_BAND, 0.01, 0.004)
"""Sampson errors in focal lengths up to which matches near epipolar lines are used, round by round."""

_GUIDE_TURN_DEG = 5.0
"""Change of rotation between two cameras beyond which all are kept: placed ones are 2.3 wrong at most."""

_TEXTURE_RANGE_DEG = 75.0
"""Angle between the optical axes of placed views beyond which texture is not tried: matches are right up to 55
degrees, and wrong ones of a static background repeat at every instant."""

_CHOSEN_BY_TEXTURE = 16
"""Views from which on the pairs to try are those with many matches of a few features."""

FOCAL_LIMIT = 0.1
"""Relative standard deviation of an estimated focal length that is reported."""

_SUFFICIENT_LINKS = 2
"""Accepted pairs from people of every view from which on texture is not tried: their loops confirm each other.
Pairs from texture in addition change the errors of four cameras little, and take most of the time."""

_K1_LIMIT = 0.05
_SIGNIFICANT = 3.0
"""Standard deviation of k1 above which distortion is not determined, and the multiple of it that k1 must exceed."""

UNFIT = "people in both views do not fit its texture"
"""Why a texture pair is refused that has no other fault."""

_NOWHERE = Placement(views=(), world_to_camera=np.zeros((0, 4, 4)), pairs=())


@dataclass(kw_only=True)
class Assembly:
    """Views with cameras or reasons, and all pairs that were tried, from people and texture.

    With `texture_alone` unknown focal lengths are sought from texture alone, first as one, with `shares_focal`;
    otherwise people, or straight edges as `started` ones, must determine them before texture. `bent` are the views
    whose distortion is estimated, too. `former` are the pairs of the last round. Cameras of `placement` count as soon
    as there is an `adjustment` of them.

    Views with `known` cameras keep these, and the others are placed in their world.
    """

    names: tuple[str, ...]
    lenses: list[Lens]
    people: tuple[ViewPeople, ...] | None
    num_instants: int
    texture: Sequence[TextureSource] = ()
    edges: Sequence[ViewEdges] = ()
    texture_alone: bool = False
    shares_focal: bool = False
    started: set[int] = field(default_factory=set)
    bent: set[int] = field(default_factory=set)
    known: Mapping[int, ViewCamera] = field(default_factory=dict)
    seed: int = 0
    progress: StageProgress = no_progress
    pairs: dict[tuple[Pair, Evidence], PairPose] = field(default_factory=dict)
    former: dict[tuple[Pair, Evidence], PairPose] = field(default_factory=dict)
    placement: Placement = _NOWHERE
    adjustment: Adjustment | None = None
    reasons: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Bring the known cameras into a world about their mean position, whose unit is their extent, if any."""
        given = {view: camera.world_to_camera.double().numpy() for view, camera in self.known.items()}
        centers = np.stack([-pose[:3, :3].T @ pose[:3, 3] for pose in given.values()]) if given else np.zeros((1, 3))
        self.center = centers.mean(0)
        self.unit = extent_of(centers) or 1.0
        self.known_poses = {view: in_world(pose, self.center, 1 / self.unit) for view, pose in given.items()}

    def run(self) -> None:
        """Register pairs, place the cameras of the largest part and adjust them."""
        self._start_from_edges()
        self.shares_focal = self.texture_alone and not self._has_starts()
        self._iterate()
        if self.shares_focal and self._has_own_focals():
            self._iterate()
        if self._bends():
            self._iterate()
        self._guide()

    def _iterate(self) -> None:
        """Register pairs and adjust cameras until unknown focal lengths change no more."""
        for number in range(_ROUNDS):
            first = number == 0 and not all(lens.is_known for lens in self.lenses)
            tolerance = _START_TOLERANCE if first else 1.0
            self.former = self.pairs
            self.pairs = {key: pair for key, pair in self.pairs.items() if key[1] is Evidence.PEOPLE}
            self._register_people()
            self._solve(tolerance)
            if self.texture_applies() and not self._people_suffice():
                self._register_texture(tolerance)
            found = self.adjustment
            if found is None or number == _ROUNDS - 1:
                break
            is_unchecked = first and any(pair.evidence is not Evidence.PEOPLE for pair in self.accepted())
            if self.lens_change(found) < _SAME_FOCAL and not is_unchecked:
                break
            self._set_lenses(found)

    def _start_from_edges(self) -> None:
        """Start from the focal lengths that straight edges show, of other views from the mean of whole pictures."""
        found: dict[int, Lens] = {}
        unknown = [view for view, lens in enumerate(self.lenses) if not lens.is_known] if self.edges else []
        for done, view in enumerate(unknown):
            self.progress(done, len(unknown), "detecting: straight edges")
            lens = self.lenses[view]
            if (start := self.edges[view].start(lens) if lens.is_centered else lens) is not None:
                found[view] = start
        whole = [lens for lens in found.values() if lens.is_centered] or [*found.values()]
        relative = [lens.focal / max(lens.image_size) for lens in whole]
        for view in unknown if found else ():
            lens = self.lenses[view]
            others = lens.with_focal(max(lens.image_size) * float(np.mean(relative)))
            self.lenses[view] = found.get(view, replace(lens, intrinsics=others))
        self.started |= found.keys()

    def _directions(self, found: Adjustment) -> dict[int, Directions]:
        """Return directions of edges that fit the rotations of cameras, by row, and focal lengths of `lenses`.

        Rotations are those of pairs or, if they fit more views, the adjusted ones. Not of views with known lenses
        and texture alone, which is more accurate.
        """
        seen: dict[int, Directions] = {}
        of_people = {view for pair in self.placement.pairs if pair.evidence is Evidence.PEOPLE for view in pair.views}
        for row, view in enumerate(self.placement.views if self.edges else ()):
            lens, change = self.lenses[view], 0.0
            if lens.is_known and view not in of_people:
                continue
            if view not in self.started:
                lens, change = self.lens(view, found), float(found.log_focal[row])
            if (own := self.edges[view].directions(lens)) is not None:
                seen[row] = replace(own, log_focal=own.log_focal + change)
        cameras = (self.placement.world_to_camera, found.world_to_camera)
        of_rotations = [dict(enumerate(poses[:, :3, :3])) for poses in cameras]
        return max((shared_directions(seen, turns, _DIRECTION_TURN_DEG) for turns in of_rotations), key=len)

    def _along_edges(self, pair: PairPose) -> PairPose:
        """Let a texture pair need a loop if the directions of edges are not the same under its rotation.

        The pattern of a wall may repeat, so that matches of another period fit a wrong pose. A right pair is affected
        where the views see edges along different directions.
        """
        is_open = pair.is_accepted and bool(self.edges) and not self.known.keys() >= {*pair.views}
        if not (is_open and all(self._has_focal(view) for view in pair.views)):
            return pair
        first, second = (self.edges[view].directions(self.lenses[view]) for view in pair.views)
        if first is None or second is None:
            return pair
        turn = in_order(second, pose_of(pair).rotation @ first.rotation)[1]
        if turn <= _DIRECTION_TURN_DEG:
            return pair
        return replace(pair, reason=f"{turn:.0f} degrees from straight edges, without a loop", needs_loop=True)

    def lens_change(self, found: Adjustment) -> float:
        """Return the largest change of magnification: of a focal length, or of k1 half a focal length off axis."""
        before = [self.lenses[view].estimated_k1 for view in self.placement.views]
        return float(np.abs([found.log_focal, (found.k1 - before) / 4]).max())

    def _has_own_focals(self) -> bool:
        """Adjust a focal length for every view, from the common one; return whether pairs are to be found again."""
        if self.adjustment is None:
            return False
        self._set_lenses(self.adjustment)
        self.shares_focal = False
        self.placement = replace(self.placement, world_to_camera=self.adjustment.world_to_camera)
        self.adjustment = self.adjusted(self.tracks())
        if self.adjustment is None or self.lens_change(self.adjustment) < _SAME_FOCAL:
            return False
        self._set_lenses(self.adjustment)
        return True

    def _bends(self) -> bool:
        """Adjust the distortion of the views of unknown lenses that show one; return whether there are any."""
        unknown = {view for view in self.placement.views if not self.lenses[view].is_known}
        if self.adjustment is None or not unknown:
            return False
        tracks = self.tracks()
        found = self.adjusted(tracks, bent=unknown)
        if found is None:
            return False
        shown = (found.k1_std < _K1_LIMIT) & (np.abs(found.k1) > _SIGNIFICANT * found.k1_std)
        self.bent = unknown & {view for view, is_shown in zip(self.placement.views, shown, strict=True) if is_shown}
        if not self.bent or (found := self.adjusted(tracks)) is None:
            return False
        self.adjustment = found
        self._set_lenses(found)
        return True

    def _register_people(self) -> None:
        if self.people is None:
            return
        affinity = common_people(self.people, self.num_instants)
        known = [pair for pair, evidence in self.pairs if evidence is Evidence.PEOPLE]
        wanted = tuple(known) or graph.choose_pairs(affinity)
        while wanted:
            for done, (first, second) in enumerate(wanted):
                self.progress(done, len(wanted), "registering: pairs from people")
                found = register_people_pair(
                    ideal_people(self.people[first], self.lenses[first]),
                    ideal_people(self.people[second], self.lenses[second]),
                    (self.lenses[first], self.lenses[second]),
                    (first, second),
                    self.num_instants,
                    self.seed,
                    self.pairs.get(((first, second), Evidence.PEOPLE)),
                )
                self.pairs[(first, second), Evidence.PEOPLE] = self._with_known_pose(found)
            tried = {pair for pair, evidence in self.pairs if evidence is Evidence.PEOPLE}
            wanted = graph.choose_links(affinity, tried, [pair.views for pair in self.accepted()])

    def _with_known_pose(self, pair: PairPose) -> PairPose:
        """Give a pair of known cameras their relative pose, unless its evidence shows another."""
        if not _may_hold(pair, self.known_poses):
            return pair
        pose = relative_pose_of(*(self.known_poses[view] for view in pair.views))
        if pose is None:
            return replace(pair, reason="the calibrated cameras are at one point", needs_loop=False)
        turn = float(rotation_angle_deg(pose.rotation, pose_of(pair).rotation))
        bend = float(direction_angle_deg(pose.direction, pose_of(pair).direction))
        if turn > graph.ROTATION_LIMIT_DEG or bend > graph.DIRECTION_LIMIT_DEG:
            differs = f"{turn:.0f} degrees in rotation and {bend:.0f} in direction from the calibration"
            return replace(pair, reason=differs, needs_loop=False, contradicts_known=True)
        return replace(pair, rotation=pose.rotation, direction=pose.direction)

    def _fitting(self, pair: PairPose) -> PairPose:
        """Refuse a texture pair that people in both views contradict."""
        is_open = pair.is_accepted or pair.needs_loop
        share = self.share_of_people(pair.views, pose_of(pair)) if is_open else None
        if share is None or share >= MIN_FIT:
            return pair
        return replace(pair, reason=f"{pair.reason}, and {UNFIT}" if pair.reason else UNFIT, needs_loop=False)

    def _has_focal(self, view: int) -> bool:
        """Return whether a focal length is known or shown by edges."""
        return self.lenses[view].is_known or view in self.started

    def _has_starts(self) -> bool:
        """Return whether all focal lengths are."""
        return all(map(self._has_focal, range(len(self.lenses))))

    def texture_applies(self) -> bool:
        """Return whether there is texture, with focal lengths that are known, estimated, or assumed."""
        has_focal = self.adjustment is not None or self._has_starts()
        return bool(self.texture) and (has_focal or self.texture_alone)

    def _people_suffice(self) -> bool:
        """Return whether people place all views, each in loops of pairs of which none contradicts the others."""
        if self.people is None or self.adjustment is None or not self._is_whole():
            return False
        linked = [view for pair in self.placement.pairs for view in pair.views]
        links = np.bincount(linked, minlength=len(self.names))
        return int(links.min()) >= _SUFFICIENT_LINKS and float(self.adjustment.evidence_std.max()) <= FOCAL_LIMIT

    def _is_whole(self) -> bool:
        """Return whether all views are placed, by pairs of which none contradicts the others."""
        is_free = self.adjustment is not None and not self.placement.dropped
        return is_free and len(self.placement.views) == len(self.names)

    def _register_texture(self, tolerance: float) -> None:
        """Add pairs from texture, by one method after the other until all views are placed."""
        is_large = len(self.names) >= _CHOSEN_BY_TEXTURE
        affinity = self.texture[-1].affinity() if is_large else np.ones((len(self.names),) * 2)
        wanted = [pair for pair in graph.choose_pairs(affinity) if self._axis_angle_deg(pair) < _TEXTURE_RANGE_DEG]
        from_people, is_rough = self.cameras(), tolerance > 1.0
        for source in self.texture:
            for done, (first, second) in enumerate(wanted):
                self.progress(done, len(wanted), "registering: pairs from texture")
                lenses = self.lenses[first], self.lenses[second]
                before = self.former.get(((first, second), source.kind))
                found = source.registered((first, second), lenses, before=before, is_rough=is_rough)
                if not is_rough:
                    found = self._fitting(found)
                found = self._along_edges(_agreeing(self._with_known_pose(found), from_people))
                self.pairs[found.key] = found
            for found in graph.confirmed(list(self.pairs.values())):
                self.pairs[found.key] = found
            self._solve(tolerance)
            if self._is_whole():
                return

    def _guide(self) -> None:
        """Match the texture of placed views near the epipolar lines of the rig, and adjust people and texture again.

        Of two views only matches of learned texture, at more instants, within their tolerance of a pose that it gave:
        no other view confirms them. Not for unknown lenses: their focal lengths follow the errors of matches that few
        pairs of views share, on `sports3` by 3 %.
        """
        before, first = self.adjustment, self.placement
        if before is None or not all(lens.is_known for lens in self.lenses):
            return
        # By every method whose features were extracted, else by the last one.
        sources = [source for source in self.texture if source.is_extracted] or self.texture[-1:]
        are_alone, limits = len(first.views) == 2, _GUIDE_LIMITS
        if are_alone:
            kinds, limits = {pair.evidence for pair in first.pairs} & {Evidence.LEARNED}, (0.0, 0.0)
            sources = [source for source in sources if source.kind in kinds]
        if not sources:
            return
        sought: list[tuple[Pair, TextureMethod, TextureMatches]] = []
        near = self._near_pairs()
        for done, pair in enumerate(near):
            self.progress(done, len(near), "registering: matches near epipolar lines")
            if (pose := self.relative_pose(pair)) is None:
                continue
            both = self.lenses[pair[0]], self.lenses[pair[1]]
            sought += [(pair, one.method, one.near(pair, both, pose, are_alone=are_alone)) for one in sources]
        if not sought:
            return
        for limit in limits:
            found = [
                guided_pair(matches, pose, pair, method, limit)
                for pair, method, matches in sought
                if (pose := self.relative_pose(pair)) is not None
            ]
            guided = {one.key: one for one in found if one.is_accepted}
            self.placement = replace(
                first,
                pairs=(*(one for one in first.pairs if one.key not in guided), *guided.values()),
                dropped=tuple(one for one in first.dropped if one.key not in guided),
                world_to_camera=self.adjustment.world_to_camera if self.adjustment else first.world_to_camera,
            )
            self.adjustment = self.adjusted(self.tracks(), max(limit / 4, TEXTURE_SIGMA))
            if not guided or self.adjustment is None or turns_deg(before, self.adjustment).max() > _GUIDE_TURN_DEG:
                self.placement, self.adjustment = first, before
                return
        self.pairs |= guided

    def _near_pairs(self) -> list[Pair]:
        """Return pairs of placed views whose texture may match: of large rigs, each view with the nearest ones."""
        affinity = np.zeros((len(self.names),) * 2)
        for pair in combinations(sorted(self.cameras()), 2):
            affinity[pair] = max(1 - self._axis_angle_deg(pair) / _TEXTURE_RANGE_DEG, 0.0)
        return list(graph.choose_pairs(affinity))

    def share_of_people(self, pair: Pair, pose: RelativePose | None) -> float | None:
        """Return the share of the joints in two views that fit a pose, if people agree on any."""
        first, second = (self.lenses[view] for view in pair)
        return share_of_people(self.pairs.get((pair, Evidence.PEOPLE)), pose, (first, second))

    def relative_pose(self, pair: Pair) -> RelativePose | None:
        """Return the relative pose of two placed views, if they are apart."""
        cameras = self.cameras()
        return relative_pose_of(cameras[pair[0]], cameras[pair[1]])

    def _axis_angle_deg(self, pair: Pair) -> float:
        """Return the angle between the optical axes of two views; 0 unless both are placed."""
        axes = [camera[2, :3] for view, camera in self.cameras().items() if view in pair]
        return float(direction_angle_deg(*axes)) if len(axes) == 2 else 0.0

    @property
    def directed(self) -> set[int]:
        """Views that are not refused, and whose cameras edges correct."""
        rows = () if self.adjustment is None else self.adjustment.directed
        return {self.placement.views[row] for row in rows} - self.reasons.keys()

    def accepted(self) -> list[PairPose]:
        """Return the accepted pairs."""
        return [pair for pair in self.pairs.values() if pair.is_accepted]

    def cameras(self) -> dict[int, Float[Array, "4 4"]]:
        """Return `world_to_camera` of the views that are placed."""
        found = dict(self.known_poses)
        if self.adjustment is not None:
            found |= zip(self.placement.views, self.adjustment.world_to_camera, strict=True)
        return {view: camera for view, camera in found.items() if view not in self.reasons}

    def parts(self) -> tuple[tuple[int, ...], ...]:
        """Return the parts of the rig that accepted pairs connect, the main one first."""
        return graph.main_parts(len(self.names), self.accepted(), [*self.known])

    def _solve(self, tolerance: float) -> None:
        self.placement, self.adjustment = _NOWHERE, None
        part = self.parts()[0]
        if len(part) < 2 or self.known.keys() >= {*part}:
            return
        self.placement = graph.place(part, self.accepted(), self.lenses, tolerance, self.known_poses)
        if len(self.placement.views) >= 2 and not self.known.keys() >= {*self.placement.views}:
            self.adjustment = self.adjusted(self.tracks())

    def tracks(self) -> Observations:
        """Return the observations of the pairs in use."""
        return merge_tracks(self.placement.pairs, self.num_instants)

    def adjusted(
        self, tracks: Observations, texture_sigma: float = TEXTURE_SIGMA, bent: Collection[int] | None = None
    ) -> Adjustment | None:
        """Adjust the cameras of the placement to observations, with the directions of edges where these fit."""
        row = {view: index for index, view in enumerate(self.placement.views)}
        tracks = replace(tracks, view=np.array([row[int(view)] for view in tracks.view], np.int64))
        lenses = [self.lenses[view] for view in self.placement.views]
        unknown = np.array([not lens.is_known for lens in lenses])
        groups = np.where(unknown, 0 if self.shares_focal else np.cumsum(unknown) - 1, -1)
        fixed = [row[view] for view in self.known] or [0]
        poses = self.placement.world_to_camera
        k1 = {row[view]: self.lenses[view].estimated_k1 for view in bent or self.bent if view in row}
        adjusted = partial(adjust, k1=k1, fixed=fixed, texture_sigma=texture_sigma)
        found = adjusted(poses, lenses, tracks, groups)
        if found is None or not (directions := self._directions(found)):
            return found
        better = adjusted(poses, lenses, tracks, groups, directions=directions)
        if better is None:
            return found
        residuals = [(self.residual(view, one) for one in (found, better)) for view in self.placement.views]
        fits = all(
            before is None or (after is not None and after <= _DIRECTION_RESIDUAL * before)
            for before, after in residuals
        )
        std_deg = np.hypot(found.rotation_std_deg(of_evidence=True), np.degrees(np.sqrt(2) * SLACK_RAD))
        return better if fits and (turns_deg(found, better) <= _DIRECTION_SIGMA * std_deg).all() else found

    def _set_lenses(self, found: Adjustment) -> None:
        """Take the estimated lenses; views that are not placed take the mean focal length of the others."""
        unknown = [not self.lenses[view].is_known for view in self.placement.views]
        factor = float(np.exp(found.log_focal[unknown].mean())) if any(unknown) else 1.0
        for view, lens in enumerate(self.lenses):
            if view in self.placement.views:
                self.lenses[view] = self.lens(view, found)
            elif not lens.is_known:
                self.lenses[view] = replace(lens, intrinsics=lens.with_focal(factor * lens.focal))

    def lens(self, view: int, found: Adjustment) -> Lens:
        """Return the adjusted lens of a placed view."""
        lens, row = self.lenses[view], self.placement.views.index(view)
        return lens if lens.is_known else lens.estimated(found.intrinsics[row], float(found.k1[row]))

    @property
    def person_height(self) -> tuple[float, float] | None:
        """Median height of the people in units of the rig, and its relative standard deviation, if they are known."""
        found = None if self.adjustment is None else person_height(self.adjustment.points, self.adjustment.tracks)
        return None if found is None else (self.unit * found[0], found[1])

    def residual(self, view: int, found: Adjustment) -> float | None:
        """Return the median reprojection error of a placed view in px."""
        seen = found.tracks.view == self.placement.views.index(view)
        return float(np.median(found.residual_px[seen])) if seen.any() else None


def turns_deg(before: Adjustment, after: Adjustment) -> Float[Array, "V V"]:
    """Return the changes of rotation between every two cameras."""
    turns = (found.world_to_camera[:, :3, :3] for found in (before, after))
    relative = [turn[:, None] @ np.swapaxes(turn, 1, 2)[None] for turn in turns]
    return rotation_angle_deg(*relative)


def in_world(pose: Float[Array, "4 4"], origin: Float[Array, " 3"], factor: float) -> Float[Array, "4 4"]:
    """Return a camera in the world with another origin and a unit that is smaller by a factor."""
    moved = pose.copy()
    moved[:3, 3] = factor * (pose[:3, 3] + pose[:3, :3] @ origin)
    return moved


def _agreeing(pair: PairPose, cameras: Mapping[int, Float[Array, "4 4"]]) -> PairPose:
    """Refuse a texture pair that contradicts cameras from people."""
    if not _may_hold(pair, cameras):
        return pair
    first, second = (cameras[view][:3, :3] for view in pair.views)
    difference = float(rotation_angle_deg(second @ first.T, pose_of(pair).rotation))
    if difference <= _TEXTURE_LIMIT_DEG:
        return pair
    return replace(pair, reason=f"{difference:.0f} degrees from the rig from people", needs_loop=False)


def _may_hold(pair: PairPose, cameras: Mapping[int, Float[Array, "4 4"]]) -> bool:
    """Return whether a pair of views that have cameras is not refused."""
    return (pair.is_accepted or pair.needs_loop) and cameras.keys() >= {*pair.views}
