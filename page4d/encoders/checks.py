"""Field types and cross-field checks that encoder configurations share."""

from typing import Annotated

from pydantic import Field

from page4d.errors import UsageError

DropPathRate = Annotated[float, Field(ge=0, lt=1)]
"""Stochastic depth rate of the last block in training; the rate grows linearly from 0 in the first block."""


def check_multiple(name: str, number: int, divisor_name: str, divisor: int) -> None:
    """Refuse a number that is not a multiple of another one.

    Raises:
        UsageError: naming both.
    """
    if number % divisor:
        raise UsageError(
            f"encoder: {name} {number} is not a multiple of {divisor_name} ({divisor})", "choose a multiple"
        )


def check_stages(**fields: tuple[int, ...]) -> None:
    """Refuse tuples without exactly one number per stage.

    Raises:
        UsageError: naming all fields with their lengths.
    """
    lengths = {name: len(numbers) for name, numbers in fields.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        found = ", ".join(f"{length} {name}" for name, length in lengths.items())
        raise UsageError(f"encoder: {found}", "give one number per stage in each of them")


def check_level(level: int | None, num_stages: int) -> None:
    """Refuse a level that does not exist.

    Raises:
        UsageError: naming it.
    """
    if level is not None and level >= num_stages:
        raise UsageError(f"encoder: level {level} of {num_stages} stages", f"use 0 to {num_stages - 1}, or null")
