"""Evidence of the cameras of a scene in its pixels, and the instants at which it is sought.

Instants are runs of consecutive ones, of the whole capture if needed.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from jaxtyping import Float

from page4d.options import MAX_REGISTRATION_INSTANTS, RegisterSettings
from page4d.rig import texture, texture_pairs
from page4d.rig.camera_motion import ViewMotion, measure_camera_motion
from page4d.rig.edges import ViewEdges
from page4d.rig.epipolar import RelativePose
from page4d.rig.floor import read_floor_points
from page4d.rig.learned import MAX_SIDE_PX, QUICK_FEATURES, TEXTURE_MODEL, learned_method, texture_kinds
from page4d.rig.lens import lenses_of
from page4d.rig.people.keypoints import detect_people
from page4d.rig.records import Array, Evidence, Lens, Pair, PairPose, StageProgress, ViewPeople, no_progress, of_stage
from page4d.rig.samples import ViewSample, sample_views, with_content
from page4d.rig.texture import Descriptors, TextureMatches, TextureMethod, ViewTexture
from page4d.scene.content import Area
from page4d.scene.image_file import Image
from page4d.scene.records import Scene
from page4d.scene.timeline import build_timeline

MAX_RATE_HZ = 30.0
"""Within a run, instants closer than this show nearly the same pose."""

RUN_LENGTH = 20
"""Instants of a run: enough for tracklets, and for several runs of different poses."""

_SLACK = 0.9
"""Rates of real cameras vary: 59.94 Hz is 60 Hz."""


def choose_instants(times: Float[Array, " T"], max_instants: int = MAX_REGISTRATION_INSTANTS) -> tuple[int, ...]:
    """Return the increasing indices of at most `max_instants` of some increasing times in seconds.

    Every n-th instant, so that consecutive ones are at least about 1 / `MAX_RATE_HZ` apart; of a longer capture, runs
    of `RUN_LENGTH` such instants that are spread evenly from the first to the last.
    """
    if len(times) == 0 or max_instants < 1:
        return ()
    step = 1
    if len(times) > 1:
        interval = float(np.median(np.diff(times)))
        step = max(1, int(np.floor(1 / (MAX_RATE_HZ * interval) / _SLACK))) if interval > 0 else 1
    every = np.arange(0, len(times), step)
    if len(every) <= max_instants:
        return tuple(every.tolist())
    num_runs = max(max_instants // RUN_LENGTH, 1)
    length = max_instants // num_runs
    starts = np.linspace(0, len(every) - length, num_runs).round().astype(int)
    chosen = np.unique(np.concatenate([np.arange(start, start + length) for start in starts]))
    return tuple(every[chosen].tolist())


MIN_SPAN = 100
"""Instants below which the whole capture is used: at 60 Hz the 50 of every second frame, which suffice."""


def with_all_instants(scene: Scene, min_span: int = MIN_SPAN) -> Scene:
    """Return the scene at all instants from its first to its last, whatever its stride and rate.

    Where these are fewer than `min_span`, at all instants of the capture. Masks and measured depth, which are paired
    with the instants of the run, are left out if instants are added.
    """
    times = [view.clock.to_common(view.source.frame_times) for view in scene.views]
    timeline = build_timeline(scene.view_names, times)
    period = float(np.median(np.diff(timeline.times))) if len(timeline.times) > 1 else 0.0
    first, last = scene.times[0] - period / 2, scene.times[-1] + period / 2
    kept = np.flatnonzero((timeline.times >= first) & (timeline.times <= last))
    if len(kept) < min_span:
        kept = np.arange(len(timeline.times))
    if len(kept) <= scene.num_times:
        return scene
    views = tuple(
        replace(view, indices=tuple(indices[index] for index in kept), mask=None, depth=None)
        for view, indices in zip(scene.views, timeline.indices, strict=True)
    )
    return replace(scene, views=views, times=timeline.times[kept])


_DEFAULTS = RegisterSettings()


class PixelEvidence:
    """Motion, lenses and people of the views of a scene, once, on first access.

    Lenses are those of `settings`, and so are the number of instants and the points on the floor. `progress` receives
    the steps of a measurement.

    Raises:
        InputError: if the table of points on the floor is unusable.
    """

    def __init__(
        self, scene: Scene, settings: RegisterSettings = _DEFAULTS, progress: StageProgress = no_progress
    ) -> None:
        self.scene, self.settings, self.progress = scene, settings, progress
        self.floor = None if settings.floor_at is None else read_floor_points(settings.floor_at)

    def whole(self, min_span: int = MIN_SPAN) -> "PixelEvidence":
        """Return the evidence of all instants of a short or sparse run, as `with_all_instants` chooses them."""
        scene = with_all_instants(self.scene, min_span)
        return self if scene is self.scene else PixelEvidence(scene, self.settings, self.progress)

    def of_views(self, views: Sequence[int]) -> "PixelEvidence":
        """Return the evidence of some views; options and files name lenses of all views."""
        scene = replace(self.scene, views=tuple(self.scene.views[view] for view in views))
        part = PixelEvidence(scene, self.settings, self.progress)
        part.lenses = tuple(self.lenses[view] for view in views)
        if "samples" in vars(self):
            part.samples = tuple(self.samples[view] for view in views)
        return part

    @cached_property
    def samples(self) -> tuple[ViewSample, ...]:
        """A few pictures of every view."""
        return sample_views(self.scene, of_stage(self.progress, "measuring: pictures"))

    @property
    def obstacles(self) -> dict[str, str]:
        """Why views are no evidence, by name; those that are have none."""
        return {sample.view: sample.obstacle for sample in self.samples if sample.obstacle}

    @cached_property
    def motions(self) -> tuple[ViewMotion, ...]:
        """Motion of the cameras."""
        return measure_camera_motion(self.scene, self.samples)

    @cached_property
    def lenses(self) -> tuple[Lens, ...]:
        """Lenses of the views.

        Raises:
            UsageError: if `focal` is invalid.
            InputError: if the file of `intrinsics` is unusable.
        """
        return lenses_of(self.scene, self.settings.focal, self.settings.intrinsics)

    @cached_property
    def instants(self) -> tuple[int, ...]:
        """Instants at which people and texture are sought."""
        return choose_instants(self.scene.times, self.settings.max_instants)

    @cached_property
    def people(self) -> tuple[ViewPeople, ...]:
        """People of the views at these instants; nobody where pictures are no evidence.

        Raises:
            CapabilityError: if the pose model was not fetched, or cannot run on this platform.
            InputError: if a frame cannot be decoded.
        """
        scene, step = with_content(self.scene, self.samples), of_stage(self.progress, "detecting: people")
        found = detect_people(scene, self.instants, self.lenses, step)
        unseen = {place for place, sample in enumerate(self.samples) if sample.obstacle or sample.is_frozen}
        return tuple(() if place in unseen else people for place, people in enumerate(found))

    @cached_property
    def edges(self) -> tuple[ViewEdges, ...]:
        """Straight edges of the views."""
        views = with_content(self.scene, self.samples).views
        return tuple(ViewEdges(view, one.instants) for view, one in zip(views, self.samples, strict=True))

    @cached_property
    def textures(self) -> tuple["TextureSource", ...]:
        """Texture by every method whose model is present, in the order in which they are tried."""
        return tuple(TextureSource(self, kind) for kind in texture_kinds())


MIN_ALIKE = 10
"""Fewest mutually nearest learned features, by a wide ratio test, of views whose texture is matched: views that show
the same have 13 and more, others up to 8."""

MORE_INSTANTS, MAX_DENSE_VIEWS = 8, 5
"""Instants of which placed views that are alone, or have few common matches, are matched, and the number of views up
to which they are: over the choice of instants, rotations of `tabletop` from two have errors of 1.4 degrees (mean;
largest 2.5), from eight 0.8 (1.4). Larger rigs take longest, and each of their views is in several pairs."""

FEW_NEAR = (10, 250)
"""Fewest matches of two instants near epipolar lines from which eight may have the 40 that are needed, and number
from which two suffice: of a rendered rig, a pair with fewer is 4 degrees wrong from two, 1.6 from six; on `treadmill`
one of 310 gains nothing."""


QUICK_INSTANTS, QUICK_SIDE_PX = 2, 1024
"""Instants and size for a comparison with given cameras, which needs fewer matches than registration. Where learned
features are compared next, which find more, RootSIFT has one instant of the size that they have in registration."""


@dataclass(frozen=True)
class TextureSource:
    """Texture of the views of a scene by one method, extracted and matched once, where it is first needed.

    A quick source is for comparisons with given cameras.
    """

    pixels: PixelEvidence
    kind: Evidence
    is_quick: bool = False
    seconds: dict[str, float] = field(default_factory=dict)
    matched: dict[Pair, TextureMatches] = field(default_factory=dict)
    dense: dict[int, ViewTexture] = field(default_factory=dict)

    @cached_property
    def method(self) -> TextureMethod:
        """The method, whose model is present."""
        if self.kind is Evidence.LEARNED:
            return learned_method(is_quick=self.is_quick)
        if not self.is_quick:
            return texture.ROOT_SIFT
        instants, side = (1, MAX_SIDE_PX) if TEXTURE_MODEL.are_present else (QUICK_INSTANTS, QUICK_SIDE_PX)
        return replace(texture.ROOT_SIFT, max_instants=instants, max_side_px=side)

    @cached_property
    def views(self) -> tuple[ViewTexture, ...]:
        """Features of the views where they carry a picture.

        Raises:
            InputError: if a frame cannot be decoded.
        """
        return self._extracted(self.pixels, self.method)

    def _extracted(
        self, pixels: PixelEvidence, method: TextureMethod, *known: ViewTexture
    ) -> tuple[ViewTexture, ...]:
        begin = time.perf_counter()
        step = of_stage(pixels.progress, f"detecting: {self.kind}")
        scene = with_content(pixels.scene, pixels.samples)
        found = texture.extract_texture(scene, self.pixels.instants, pixels.lenses, method, step, known)
        self.seconds[self.kind.value] = self.seconds.get(self.kind.value, 0.0) + time.perf_counter() - begin
        return found

    def mirrored(self, view: int) -> "TextureSource":
        """Return the source with the features of the flipped pictures of a view, at their places in these."""

        def detect(pixels: Image, allowed: Area | None) -> tuple[Array, Descriptors]:
            area = None if allowed is None else allowed[:, ::-1]
            return self.method.detect(np.ascontiguousarray(pixels[:, ::-1]), area)

        (features,) = self._extracted(self.pixels.of_views([view]), replace(self.method, detect=detect))
        found = TextureSource(self.pixels, self.kind, self.is_quick, self.seconds)
        vars(found)["views"] = (*self.views[:view], features, *self.views[view + 1 :])
        return found

    @property
    def is_extracted(self) -> bool:
        """Whether there are features already."""
        return "views" in vars(self)

    def affinity(self) -> Float[Array, "V V"]:
        """Return the common texture of all pairs of views; 0 where matching is costly and has no prospect."""
        lenses = self.pixels.lenses
        if not (self.is_quick and self.kind is Evidence.LEARNED):
            return texture.common_texture(self.views, lenses)
        counts = texture.common_texture(self.views, lenses, QUICK_FEATURES, texture.WIDE_RATIO)
        return np.where(counts > MIN_ALIKE, counts, 0.0)

    def matches(self, views: Pair, lenses: tuple[Lens, Lens]) -> TextureMatches:
        """Return the matches of a pair of views."""
        if views not in self.matched:
            first, second = (self.views[view] for view in views)
            self.matched[views] = texture.match_textures(first, second, lenses, self.method)
        return self.matched[views].through(lenses, self.method.tolerance(lenses))

    def near(
        self, views: Pair, lenses: tuple[Lens, Lens], pose: RelativePose, *, are_alone: bool = False
    ) -> TextureMatches:
        """Return the matches near the epipolar lines of a pose.

        Learned features are matched without it. In small rigs they are those of more instants, for views that
        `are_alone` and pairs of which few matches fit.
        """
        if self.kind is not Evidence.LEARNED:
            first, second = (self.views[view] for view in views)
            return texture.match_near(first, second, lenses, pose, texture_pairs.GUIDE_BAND)
        found = self.matches(views, lenses)
        count = found.num_distinct(found.inliers(pose, texture_pairs.FIT_TOLERANCE))
        if len(self.pixels.lenses) > MAX_DENSE_VIEWS or not (are_alone or FEW_NEAR[0] <= count < FEW_NEAR[1]):
            return found
        more = replace(self.method, max_instants=MORE_INSTANTS)
        for view in {*views} - self.dense.keys():
            (self.dense[view],) = self._extracted(self.pixels.of_views([view]), more, self.views[view])
        return texture.match_textures(self.dense[views[0]], self.dense[views[1]], lenses, self.method)

    def registered(
        self, views: Pair, lenses: tuple[Lens, Lens], before: PairPose | None = None, *, is_rough: bool = False
    ) -> PairPose:
        """Return the pose of a pair of views, with the reason if it is refused."""
        matches, seed = self.matches(views, lenses), self.pixels.settings.seed
        return texture_pairs.register_texture_pair(
            matches, views, seed, self.method, before=before, is_rough=is_rough
        )

    def pair(self, views: Pair, lenses: tuple[Lens, Lens], pose: RelativePose | None = None) -> PairPose | None:
        """Return the best pose of a pair of views, or a given one, None unless texture determines it.

        A best pose is sought among more matches than those that a given one is compared with.
        """
        matches, seed = self.matches(views, lenses), self.pixels.settings.seed
        if pose is None and self.finer is not None and texture_pairs.may_be_determined(matches, seed):
            matches = self.finer.matches(views, lenses)
        return texture_pairs.determined_pair(matches, views, self.kind, seed, pose)

    @cached_property
    def finer(self) -> "TextureSource | None":
        """The source of best poses, if it is another one."""
        is_quick = self.is_quick and self.kind is Evidence.LEARNED
        return TextureSource(self.pixels, self.kind) if is_quick else None
