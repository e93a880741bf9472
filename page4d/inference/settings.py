"""The settings of a reconstruction, apart from the scene's and the network's own."""

import json
from dataclasses import asdict, dataclass, field

from pydantic import JsonValue

from page4d.errors import UsageError
from page4d.export.points import PointOptions
from page4d.geometry.preprocess import Preprocess
from page4d.inference.motion import CameraMotion
from page4d.inference.world import Poses
from page4d.scene.open import SceneOptions

DEFAULT_OVERLAP = 2


@dataclass(frozen=True, kw_only=True)
class ReconstructSettings:
    """What a run does. `long_side` are network pixels; None leaves them to the predictor, or to `preprocess`.

    `chunk` instants are predicted together, neighbours share `overlap`; without a `chunk` as many as are good and fit
    into `memory_bytes`, or without these into what is free. A run that is continued keeps its plan. `poses` matters
    only with a calibration, `camera_motion` only for predicted cameras. `scale_from` is a known distance such as
    `cam01-cam02=1.25m`.
    With `refine` cameras and depth are made to agree with the matches that a network found between images.
    With `strict_seams` a chunk that does not fit the one before ends the run.
    """

    long_side: int | None = None
    preprocess: Preprocess = Preprocess.NATIVE
    chunk: int | None = None
    overlap: int = DEFAULT_OVERLAP
    memory_bytes: int | None = None
    poses: Poses = Poses.INPUT
    camera_motion: CameraMotion = CameraMotion.AUTO
    scale_from: str | None = None
    refine: bool = True
    points: PointOptions = field(default_factory=PointOptions)
    preview: bool = True
    strict_seams: bool = False

    def __post_init__(self) -> None:
        if self.long_side is not None and self.long_side < 8:
            raise UsageError(f"--size {self.long_side} is too small", "give at least 8 pixels")
        if self.long_side is not None and self.preprocess is not Preprocess.NATIVE:
            raise UsageError(
                f"--size {self.long_side} with --preprocess {self.preprocess}, which has a size of its own",
                "give one of them",
            )
        is_short = self.chunk is not None and (self.chunk < 1 or self.overlap > self.chunk // 2)
        if self.overlap < 0 or is_short:
            raise UsageError(
                f"--chunk {'auto' if self.chunk is None else self.chunk} with --overlap {self.overlap}",
                "give a chunk of at least 1 and at least twice the overlap",
            )


def describe_settings(scene: SceneOptions, settings: ReconstructSettings) -> dict[str, JsonValue]:
    """Turn all settings into what `run.json` records, by their names on the command line where they have one."""
    document: dict[str, JsonValue] = {}
    for record in (scene, settings):
        document.update(json.loads(json.dumps(asdict(record), default=str)))
    return document
