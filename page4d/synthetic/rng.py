"""Portable random number generator: the same stream on every machine and with every version of Python."""

import math
import random
from collections.abc import Sequence
from typing import TypeVar

Vector = tuple[float, float, float]
T = TypeVar("T")


class Rng:
    """Generator with one independent stream per pair of seed and purpose.

    Every draw derives from `random.Random.random()`, whose sequence Python guarantees not to change.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        self._draw = random.Random(f"{seed} {purpose}").random  # noqa: S311 - scenes, not secrets

    def uniform(self, low: float, high: float) -> float:
        """Draw from the uniform distribution over an interval."""
        return low + (high - low) * self._draw()

    def log_uniform(self, low: float, high: float) -> float:
        """Draw from the log-uniform distribution over an interval."""
        return math.exp(self.uniform(math.log(low), math.log(high)))

    def chance(self, probability: float) -> bool:
        """Return True with the given probability."""
        return self._draw() < probability

    def integer(self, count: int) -> int:
        """Draw an integer from 0 to `count` - 1."""
        return int(self._draw() * count)

    def choice(self, choices: Sequence[T]) -> T:
        """Draw one element of a sequence."""
        return choices[self.integer(len(choices))]

    def sign(self) -> float:
        """Draw -1 or 1."""
        return 1.0 if self._draw() < 0.5 else -1.0

    def angle(self) -> float:
        """Draw an angle from -pi to pi."""
        return self.uniform(-math.pi, math.pi)

    def normal(self) -> float:
        """Draw from the standard normal distribution (Box & Muller, 1958)."""
        return math.sqrt(-2 * math.log(1 - self._draw())) * math.cos(2 * math.pi * self._draw())

    def direction(self) -> Vector:
        """Draw a unit vector, uniformly over the sphere."""
        z, angle = self.uniform(-1, 1), self.angle()
        level = math.sqrt(1 - z * z)
        return (level * math.cos(angle), z, level * math.sin(angle))
