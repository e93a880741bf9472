"""Records of velocities and tracks: of a run, and of each instant."""

from typing import Annotated, Literal

from pydantic import Field

from page4d.formats.maps import MOTION_MAPPING
from page4d.io.json_records import FileModel
from page4d.output.diagnostics import Count

Difference = Literal["central", "forward", "backward", "unknown"]
"""How the velocity of an instant is measured."""

_Part = Annotated[float, Field(ge=0, le=1)]


class InstantMotion(FileModel):
    """Velocities of an instant: how they were measured, and numbers of pixels of all views.

    `pixels` have depth, `known` have a velocity, which is 0 for `still`; `one_view` are those of the others that only
    one view measured. `noise` is that of the pictures of every view; empty where nothing was measured.
    """

    difference: Difference
    pixels: Count
    known: Count
    still: Count
    one_view: Count
    noise: list[float]


class MotionRecord(FileModel):
    """Velocities and tracks of a run (`--motion`): how they were measured and are stored, and how many are known.

    `motion_step` is the velocity of one PNG level, in units of depth per second. `differences` is, per instant,
    whether the velocity is a central difference, a forward or backward one (the first and last instants), or unknown.
    `noise` is the standard deviation of the noise of each view's pictures, in levels of 8 bits. Shares are those of
    pixels with depth: with a known velocity, still, and with a velocity that only one view measured.
    `sigma_factor` multiplies the standard deviations that follow from the flow's noise.
    """

    method: str
    mapping: str = MOTION_MAPPING
    motion_step: float = Field(gt=0.0)
    still_limit_px: float = Field(ge=0.0)
    sigma_factor: float = Field(gt=0.0)
    noise: list[float]
    differences: list[Difference]
    known: _Part
    still: _Part
    one_view: _Part
    clipped: Count = 0
    tracks: Count | None = None
