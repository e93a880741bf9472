"""Profiles of networks: output shape, parameters and FLOPs per stage, and memory of a forward pass."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from typing import Generic, TypeVar

from torch import nn

from page4d.networks.profile.meta import MetaRun

_BYTES_PER_NUMBER = 4

NetworkT = TypeVar("NetworkT", bound=nn.Module)


@dataclass(frozen=True, kw_only=True)
class ProfileStage:
    """One stage with its output shape, symbolic and numeric; `flops` counts a multiply-add as two."""

    part: str
    name: str
    symbolic: tuple[str, ...]
    shape: tuple[int, ...]
    parameters: int = 0
    flops: int = 0

    @property
    def num_bytes(self) -> int:
        """Size of the output in float32."""
        return prod(self.shape) * _BYTES_PER_NUMBER


@dataclass(frozen=True, kw_only=True)
class Profile:
    """All stages of a network for one input size, in float32."""

    symbols: dict[str, int]
    stages: tuple[ProfileStage, ...]
    parameters: int
    computed_bytes: int
    """Peak memory of the inputs and everything computed from them."""
    peak_part: str
    """The part of the network that runs at the peak, or has ended before it; empty if none has."""

    @property
    def flops(self) -> int:
        """FLOPs of linear layers, convolutions, attention and matching; norms and activations are not counted."""
        return sum(stage.flops for stage in self.stages)

    @property
    def activation_bytes(self) -> int:
        """Sum of the output sizes of all stages; they are not all in memory at the same time."""
        return sum(stage.num_bytes for stage in self.stages)

    @property
    def weight_bytes(self) -> int:
        """Size of the parameters."""
        return self.parameters * _BYTES_PER_NUMBER

    @property
    def peak_bytes(self) -> int:
        """Peak memory of all tensors, without temporary buffers of kernels and overhead of the allocator."""
        return self.weight_bytes + self.computed_bytes


@dataclass(frozen=True, kw_only=True)
class ProfileBuilder(Generic[NetworkT]):
    """A network, its run on the meta device and the lengths of its axes."""

    network: NetworkT
    run: MetaRun
    symbols: dict[str, int]

    def stage(self, part: str, name: str, symbolic: str, *modules: str, parameters: int = 0) -> ProfileStage:
        """Return a stage with the parameters and FLOPs of the named modules."""
        axes = tuple(symbolic.split())
        return ProfileStage(
            part=part,
            name=name,
            symbolic=axes,
            shape=tuple(axis_length(axis, self.symbols) for axis in axes),
            parameters=parameters + sum(num_parameters(self.network.get_submodule(module)) for module in modules),
            flops=self.run.flops_below(*modules),
        )

    def profile(self, stages: Iterable[ProfileStage]) -> Profile:
        """Return the profile of these stages, with the memory of the run."""
        return Profile(
            symbols=self.symbols,
            stages=tuple(stages),
            parameters=num_parameters(self.network),
            computed_bytes=self.run.peak,
            peak_part=self.run.peak_in.partition(".")[0],
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
