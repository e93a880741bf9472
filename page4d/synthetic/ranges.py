"""Ranges of the numbers that describe synthetic scenes, checked before anything is rendered."""

from typing import Annotated

from pydantic import Field

MAX_VIEWS = 64
MAX_TIMES = 100_000
MAX_SIDE = 8192

NumViews = Annotated[int, Field(ge=1, le=MAX_VIEWS)]
"""Number of cameras of a rig."""

NumTimes = Annotated[int, Field(ge=1, le=MAX_TIMES)]
"""Number of instants."""

ImageSide = Annotated[int, Field(ge=1, le=MAX_SIDE)]
"""Side of an image in pixels."""

Seed = Annotated[int, Field(ge=0, lt=2**63)]
"""Random seed."""

Spacing = Annotated[float, Field(ge=0, le=180)]
"""Angle between neighbouring cameras in degrees."""
