"""A stream of random choices that is the same on every machine and with every version of Python."""

import math
import random
from collections.abc import Sequence
from typing import TypeVar

Vector = tuple[float, float, float]
T = TypeVar("T")


class Dice:
    """Random choices for one purpose within one seed: other purposes draw from other streams.

    Only `random()` is drawn from the generator, because that is what Python promises never to change.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        self._draw = random.Random(f"{seed} {purpose}").random  # noqa: S311 - scenes, not secrets

    def between(self, low: float, high: float) -> float:
        """Draw evenly from an interval."""
        return low + (high - low) * self._draw()

    def log_between(self, low: float, high: float) -> float:
        """Draw from an interval so that each doubling is as likely as the next."""
        return math.exp(self.between(math.log(low), math.log(high)))

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self._draw() < probability

    def below(self, count: int) -> int:
        """Draw one of 0, 1, ... count - 1."""
        return int(self._draw() * count)

    def pick(self, choices: Sequence[T]) -> T:
        """Draw one of the choices."""
        return choices[self.below(len(choices))]

    def sign(self) -> float:
        """Draw -1 or 1."""
        return 1.0 if self._draw() < 0.5 else -1.0

    def angle(self) -> float:
        """Draw an angle in radians."""
        return self.between(-math.pi, math.pi)

    def normal(self) -> float:
        """Draw from the standard normal distribution (Box & Muller, 1958)."""
        return math.sqrt(-2 * math.log(1 - self._draw())) * math.cos(2 * math.pi * self._draw())

    def direction(self) -> Vector:
        """Draw a unit vector evenly."""
        z, angle = self.between(-1, 1), self.angle()
        level = math.sqrt(1 - z * z)
        return (level * math.cos(angle), z, level * math.sin(angle))
