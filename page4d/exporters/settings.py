"""Options of an export with their defaults, once for command line and Python."""

import math
from pathlib import Path
from typing import Annotated

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveInt

from page4d.choices import ImageFormat, Pinhole, PointLayer, UpAxis
from page4d.errors import UsageError
from page4d.io.json_records import config_record

MAX_IMAGE_SIDE = 16_384
"""A picture of this side takes 0.8 GB in memory; OpenCV warps pictures of up to 32,767 px."""

_PositiveFinite = Annotated[float, Field(gt=0, lt=math.inf)]


@config_record("export options")
class ExportSettings:
    """What is exported, and how; None means what the format needs.

    `scene` is the folder of the run's videos. `instants` is (start, stop, step) and `views` are names; `hold_out` are
    views for testing. `max_points` limits the points (0: all; the scope is the format's), `voxel` (in units of the
    run, 0: off) thins clouds. `image_size` is the long side of pictures, `pinhole_focal` the focal length of
    `common`, both in pixels. `scale` multiplies all lengths; None chooses it for formats that need a certain size.
    `text` writes text instead of binary files, `split` one file per instant, `animated` all instants in one file;
    `per_instant` writes a model per instant.
    """

    scene: Path | None = None
    instants: tuple[int | None, int | None, PositiveInt] = (None, None, 1)
    views: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    hold_out: tuple[str, ...] = ()
    per_instant: bool = False
    max_points: Annotated[NonNegativeInt, Field(lt=2**31)] | None = None
    voxel: Annotated[NonNegativeFloat, Field(lt=1e12)] = 0.0
    min_confidence: Annotated[float, Field(ge=0, le=1)] = 0.0
    only: PointLayer = PointLayer.ALL
    seed: Annotated[NonNegativeInt, Field(lt=2**63)] = 0
    images: bool = True
    image_format: ImageFormat | None = None
    image_size: Annotated[int, Field(ge=8, le=MAX_IMAGE_SIDE)] | None = None
    pinhole: Pinhole | None = None
    pinhole_focal: _PositiveFinite | None = None
    up: UpAxis = UpAxis.AUTO
    scale: Annotated[float, Field(ge=1e-9, le=1e9)] | None = None
    text: bool = False
    split: bool = False
    animated: bool = False

    def __post_init__(self) -> None:
        if self.pinhole_focal is not None and self.pinhole not in (None, Pinhole.COMMON):
            raise UsageError(
                f"--pinhole-focal with --pinhole {self.pinhole}",
                "give --pinhole common, or leave the focal length out",
            )
        if not self.images and self.scene is not None:
            raise UsageError("--scene and --no-images contradict each other", "give one of them")
