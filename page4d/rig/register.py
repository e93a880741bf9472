"""Registration of the static views of a scene: which evidence is used, the cameras, and their record."""

import time
from collections.abc import Callable

from page4d.choices import Registration
from page4d.errors import Notice
from page4d.options import in_options
from page4d.output.rig_record import RegistrationRecord
from page4d.rig.assembly import Assembly
from page4d.rig.checks import refuse_unconfirmed
from page4d.rig.evidence import PixelEvidence
from page4d.rig.people.model import POSE_MODEL, is_fetched
from page4d.rig.records import RigRegistration

NO_POSE_MODEL = f"body keypoints are not used: '{POSE_MODEL.command}' fetches the model"


def register_rig(evidence: PixelEvidence, notify: Callable[[Notice], None]) -> RigRegistration:
    """Register the views of a scene, all of them static, from the evidence that its settings name.

    Calibrated cameras are kept, and the others are placed in their world. The result depends only on the scene and
    the settings.

    Raises:
        UsageError: if `focal` is invalid.
        InputError: if a frame cannot be decoded, or the file of `intrinsics` is unusable.
    """
    assembly = assembled(evidence)
    # Features, matches and networks refer to the evidence: they would stay in memory until cycles are collected.
    vars(evidence).pop("textures", None)
    for note in assembly.notes:
        notify(Notice(note))
    asked = evidence.settings.register
    lacks_model = asked in (Registration.AUTO, Registration.PEOPLE) and assembly.people is None
    cameras, found = assembly.placed()
    height = assembly.person_height
    record = RegistrationRecord(
        asked=asked,
        pairs=assembly.pair_records(),
        cameras=cameras,
        num_instants=assembly.num_instants,
        person_height=height and height[0],
        person_height_std=height and height[1],
        notes=[*([NO_POSE_MODEL] if lacks_model else []), *map(in_options, assembly.notes)],
        seconds={stage: round(seconds, 3) for stage, seconds in assembly.seconds.items()},
    )
    return RigRegistration(record=record, cameras=found)


def assembled(evidence: PixelEvidence) -> Assembly:
    """Register the pairs of views of a scene and place their cameras.

    Where people place all views in loops of accepted pairs, texture is extracted by one method and only with known
    focal lengths, to be matched near epipolar lines. Elsewhere it is extracted with unknown focal lengths only where
    people place some views, edges show all focal lengths, or the settings request texture.
    """
    settings, start = evidence.settings, time.perf_counter()
    uses_people = settings.register in (Registration.AUTO, Registration.PEOPLE) and is_fetched()
    people = evidence.people if uses_people else None
    detected = time.perf_counter()
    textures = evidence.textures if settings.register in (Registration.AUTO, Registration.TEXTURE) else ()
    assembly = Assembly(
        names=evidence.scene.view_names,
        known={place: view.camera for place, view in enumerate(evidence.scene.views) if view.camera is not None},
        lenses=list(evidence.lenses),
        people=people,
        texture=textures,
        texture_alone=settings.register is Registration.TEXTURE,
        edges=evidence.edges if settings.register is not Registration.PEOPLE else (),
        num_instants=len(evidence.instants),
        seed=settings.seed,
        progress=evidence.progress,
    )
    assembly.run()
    refuse_unconfirmed(assembly)
    extraction = {kind: seconds for source in textures for kind, seconds in source.seconds.items()}
    duration = time.perf_counter() - detected - sum(extraction.values())
    assembly.seconds |= {"keypoints": detected - start} | extraction | {"pairs and adjustment": duration}
    return assembly
