"""Registration of a static rig from evidence in pixels: body keypoints and texture."""

import time
from collections.abc import Callable
from functools import cache, partial

from page4d.choices import Registration
from page4d.errors import Notice
from page4d.options import RegisterSettings
from page4d.rig.assemble import Assembly, TexturePair
from page4d.rig.instants import choose_instants
from page4d.rig.lens import lenses_of
from page4d.rig.people.detect import detect_people
from page4d.rig.people.model import is_fetched
from page4d.rig.records import Lens, PairPose, RigRegistration, ViewPeople
from page4d.rig.texture import ViewTexture, extract_texture
from page4d.rig.texture_pairs import register_texture_pair
from page4d.scene.records import Scene

StageProgress = Callable[[int, int, str], None]
"""Receives the steps done of a stage, all its steps, and its name, such as "registering: keypoints cam02"."""

NO_POSE_MODEL = "body keypoints are not used: 'page4d weights get people' fetches the model"


def register_rig(
    scene: Scene, settings: RegisterSettings, notify: Callable[[Notice], None], progress: StageProgress
) -> RigRegistration:
    """Register the views of a scene, all of them static, from the evidence that `settings.register` names.

    `progress` receives the steps done of a stage, all its steps, and its name. The result depends only on the scene
    and the settings. Texture is extracted only where people do not place all views in loops of accepted pairs, and
    with unknown focal lengths only where people place some views, or `settings.register` requests texture.

    Raises:
        UsageError: if `settings.focal` is invalid.
        InputError: if a frame cannot be decoded, or `settings.intrinsics` is unusable.
    """
    seconds: dict[str, float] = {}
    notes: list[str] = []
    lenses = lenses_of(scene, settings.focal, settings.intrinsics)
    instants = choose_instants(scene.times, settings.max_instants)
    start = time.perf_counter()
    people: tuple[ViewPeople, ...] | None = None
    if settings.register in (Registration.AUTO, Registration.PEOPLE):
        if is_fetched():
            people = detect_people(scene, instants, lenses, partial(_report, progress, "registering: keypoints"))
        else:
            notes.append(NO_POSE_MODEL)
    seconds["keypoints"] = time.perf_counter() - start
    start = time.perf_counter()
    texture: TexturePair | None = None
    if settings.register in (Registration.AUTO, Registration.TEXTURE):

        @cache
        def views() -> tuple[ViewTexture, ...]:
            begin = time.perf_counter()
            found = extract_texture(scene, instants, lenses, partial(_report, progress, "registering: texture"))
            seconds["texture"] = time.perf_counter() - begin
            return found

        def texture(pair: tuple[int, int], both: tuple[Lens, Lens]) -> PairPose:
            first, second = (views()[view] for view in pair)
            return register_texture_pair(first, second, both, pair, settings.seed)

    start = time.perf_counter()
    assembly = Assembly(
        names=scene.view_names,
        lenses=list(lenses),
        people=people,
        texture=texture,
        assumes_one_focal=settings.register is Registration.TEXTURE,
        num_instants=len(instants),
        seed=settings.seed,
        progress=progress,
    )
    assembly.run()
    seconds["pairs and adjustment"] = time.perf_counter() - start - seconds.get("texture", 0.0)
    for note in assembly.notes:
        notify(Notice(note))
    return RigRegistration(
        views=assembly.views(),
        pairs=tuple(assembly.pairs.values()),
        num_instants=len(instants),
        person_height=assembly.person_height,
        notes=(*notes, *assembly.notes),
        seconds=seconds,
    )


def _report(progress: StageProgress, stage: str, done: int, total: int) -> None:
    progress(done, total, stage)
