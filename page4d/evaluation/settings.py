"""Settings of an evaluation with their defaults."""

from typing import Annotated

from pydantic import Field, PositiveInt

from page4d.choices import DepthAlignment
from page4d.conventions import MAX_FPS
from page4d.io.json_records import config_record

DEFAULT_ALIGNMENTS = tuple(kind for kind in DepthAlignment if kind is not DepthAlignment.SCALE_SHIFT_ADAM)
"""All alignments but the published fit by gradient descent, which takes minutes on a long capture."""

_PositiveFinite = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@config_record("evaluation")
class EvaluationSettings:
    """Parameters of an evaluation. Confidence is evaluated under the first alignment.

    `alignments` are by default all but the slow one, of which the first is metric, without any scale, where lengths
    of result and truth are metres. True depth from `max_depth` on is ignored. `threshold` is the distance of the
    F-score (default: 5 cm, or 1 % of the median true depth if the truth is not metric), computed from
    `points_per_instant` random points per direction. `fps` is the frame rate of a truth that does not record it.
    """

    alignments: Annotated[tuple[DepthAlignment, ...], Field(min_length=1)] | None = None
    max_depth: _PositiveFinite | None = None
    threshold: _PositiveFinite | None = None
    points_per_instant: PositiveInt = 5_000
    fps: Annotated[float, Field(gt=0, le=MAX_FPS)] | None = None
    seed: int = 0
