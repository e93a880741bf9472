"""What a profile through a network says: the shape, parameters and work of every stage, and the memory of a pass."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

from torch import nn

from page4d.profiling.meta_run import MetaRun

_BYTES_A_NUMBER = 4

NetworkT = TypeVar("NetworkT", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class ProfileStage:
    """One stage: what leaves it, axis by axis. `flops` counts a multiplication and an addition as two."""

    part: str
    name: str
    symbolic: tuple[str, ...]
    shape: tuple[int, ...]
    parameters: int = 0
    flops: int = 0

    @property
    def num_bytes(self) -> int:
        """Size of what leaves the stage, in float32."""
        return prod(self.shape) * _BYTES_A_NUMBER


@dataclass(frozen=True, kw_only=True)
class Profile:
    """All stages of a network for one size of input, in float32."""

    symbols: dict[str, int]
    stages: tuple[ProfileStage, ...]
    parameters: int
    computed_bytes: int
    """The most that images, conditioning and everything computed from them hold at once."""
    busiest: str
    """The part of the network that runs when they do."""

    @property
    def flops(self) -> int:
        """Work of linear layers, convolutions, attention and matches; norms and activations are not counted."""
        return sum(stage.flops for stage in self.stages)

    @property
    def activation_bytes(self) -> int:
        """Size of what leaves the stages, added up; not all of it is held at once."""
        return sum(stage.num_bytes for stage in self.stages)

    @property
    def weight_bytes(self) -> int:
        """Size of the parameters."""
        return self.parameters * _BYTES_A_NUMBER

    @property
    def peak_bytes(self) -> int:
        """The most memory that tensors hold at once, without what a kernel or the allocator takes for itself."""
        return self.weight_bytes + self.computed_bytes


@dataclass(frozen=True, kw_only=True)
class ProfileBuilder(Generic[NetworkT]):
    """A network, what was seen of it, and the lengths of its axes."""

    network: NetworkT
    run: MetaRun
    symbols: dict[str, int]

    def stage(self, part: str, name: str, symbolic: str, *modules: str, parameters: int = 0) -> ProfileStage:
        """Return a stage with the parameters and the work of some modules."""
        axes = tuple(symbolic.split())
        return ProfileStage(
            part=part,
            name=name,
            symbolic=axes,
            shape=tuple(axis_length(axis, self.symbols) for axis in axes),
            parameters=parameters + sum(num_parameters(self.network.get_submodule(module)) for module in modules),
            flops=self.run.work(*modules),
        )

    def profile(self, stages: Iterable[ProfileStage]) -> Profile:
        """Return the profile through these stages, with the memory that was seen."""
        return Profile(
            symbols=self.symbols,
            stages=tuple(stages),
            parameters=num_parameters(self.network),
            computed_bytes=self.run.peak_bytes,
            busiest=self.run.peak_in.partition(".")[0],
        )


def axis_length(axis: str, symbols: dict[str, int]) -> int:
    """Return the length of an axis such as `1+R+P`, `B*T` or `H/2`."""
    return sum(prod(_factor(factor, symbols) for factor in term.split("*")) for term in axis.split("+"))


def _factor(text: str, symbols: dict[str, int]) -> int:
    name, _, divisor = text.partition("/")
    return (int(name) if name.isdecimal() else symbols[name]) // int(divisor or 1)


def num_parameters(module: nn.Module) -> int:
    """Count the parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())
