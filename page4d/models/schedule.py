"""Attention schedules: the axes of [B, T, V, N, C] tokens that attend to each other in each step of a layer."""

from enum import StrEnum

from jaxtyping import Shaped
from torch import Tensor


class Step(StrEnum):
    """The set of tokens that attend to each other in one block."""

    FRAME = "frame"
    """One image."""

    VIEW = "view"
    """All views of one instant."""

    TIME = "time"
    """All instants of one view."""

    GLOBAL = "global"
    """All images."""

    CROSS = "cross"
    """All images of the same instant or of the same view."""

    @property
    def across_views(self) -> bool:
        """Whether tokens of different views interact; such a step is the second half of a layer's output."""
        return self in (Step.VIEW, Step.GLOBAL, Step.CROSS)


Schedule = tuple[Step, Step]
"""The two steps of every layer in order: one within views and one across views."""

TIME_VIEW: Schedule = (Step.TIME, Step.VIEW)
FRAME_GLOBAL: Schedule = (Step.FRAME, Step.GLOBAL)
FRAME_CROSS: Schedule = (Step.FRAME, Step.CROSS)
"""Weights of global attention, restricted to rows and columns of the grid of images."""


def images_together(step: Step, num_times: int, num_views: int) -> int:
    """Return the number of images in one sequence."""
    return {Step.FRAME: 1, Step.VIEW: num_views, Step.TIME: num_times}.get(step, num_times * num_views)


def neighbours(step: Step, num_times: int, num_views: int) -> list[list[int]] | None:
    """Return the images of the sequence that each image attends to, or None for all of them."""
    if step is not Step.CROSS:
        return None
    return [
        [other for other in range(num_times * num_views) if other // num_views == time or other % num_views == view]
        for time in range(num_times)
        for view in range(num_views)
    ]


def merge(values: Shaped[Tensor, "B T V N *rest"], step: Step) -> Shaped[Tensor, "G L *rest"]:
    """Merge the tokens that attend to each other: G sequences of L tokens."""
    if step is Step.TIME:
        values = values.transpose(1, 2)  # [B, V, T, N, ...]
    num_merged = {Step.FRAME: 1, Step.VIEW: 2, Step.TIME: 2, Step.GLOBAL: 3, Step.CROSS: 3}[step]
    length = values.shape[4 - num_merged : 4].numel()
    return values.reshape(-1, length, *values.shape[4:])


def split(
    merged: Shaped[Tensor, "G L *rest"], step: Step, shape: tuple[int, int, int, int]
) -> Shaped[Tensor, "B T V N *rest"]:
    """Invert `merge`; `shape` is [B, T, V, N]."""
    batch, times, views, tokens = shape
    if step is Step.TIME:
        return merged.reshape(batch, views, times, tokens, *merged.shape[2:]).transpose(1, 2)
    return merged.reshape(*shape, *merged.shape[2:])
