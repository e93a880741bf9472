"""Initial values of tensors that no checkpoint provides: neutral scalars, mask head, seeded memory tokens."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from page4d.errors import UsageError
from page4d.networks.config import NetworkConfig
from page4d.networks.heads.motion import DynamicMask
from page4d.networks.layers.block import INIT_STD

_SEED = 0
_HEAD = "aggregator.dynamic.head."
_MEMORY = r"aggregator\.sparse\.layers\.(\d+)\.memory"


@dataclass(frozen=True, kw_only=True)
class Scalar:
    """A learned scalar, or one per layer, with its initial value."""

    group: str
    """Name of the group in reports."""
    pattern: str
    start: float = 0.0
    part: str
    """The option that adds the scalar to the network."""


_FUSION = "the view x time network"
_SPARSE = "--sparse"

SCALARS: dict[str, Scalar] = {
    **{
        name: Scalar(group="alpha, beta", pattern=rf"aggregator\.dynamic\.{name}", start=1.0, part=_FUSION)
        for name in ("alpha", "beta")
    },
    **{
        name: Scalar(group="lambda", pattern=rf"aggregator\.mask_bias\.{name}", part=_FUSION)
        for name in ("lambda_pose", "lambda_geo", "lambda_pose_t", "lambda_geo_t")
    },
    "lambda_kpt": Scalar(group="lambda_kpt", pattern=r"aggregator\.sparse\.lambda_kpt", part=_SPARSE),
    "sparse_gate": Scalar(group="sparse_gate", pattern=r"aggregator\.sparse\.layers\.\d+\.gate", part=_SPARSE),
    "time_gate": Scalar(group="time_gate", pattern=r"aggregator\.time\.gates", part="--time-encoding"),
}
"""Scalars by their command line name. At the default values the network computes what its checkpoint computes."""


@dataclass(frozen=True, kw_only=True)
class NewTensors:
    """Initialization of tensors without a source; `values` overrides the initial values of scalars."""

    values: Mapping[str, float] = field(default_factory=dict)
    mask_head: bool = False
    """Whether the mask head is initialized rather than filled by a checkpoint."""

    def rule(self, name: str) -> str | None:
        """Return the initialization rule of a tensor, or None if it needs a source."""
        for known, scalar in SCALARS.items():
            if re.fullmatch(scalar.pattern, name) is not None:
                start = self.values.get(known, scalar.start)
                return f"{scalar.group if start == scalar.start else known}: starts at {start:g}"
        if name.startswith(_HEAD) and self.mask_head:
            return "dynamic mask head: untrained, last layer 0"
        return "memory: random" if re.fullmatch(_MEMORY, name) is not None else None

    def check(self, config: NetworkConfig, names: Iterable[str]) -> None:
        """Refuse values of scalars that the network does not have, and values out of range.

        Raises:
            UsageError: naming the scalar.
        """
        names = list(names)
        for known, value in self.values.items():
            if known not in SCALARS:
                raise UsageError(f"--set {known}: unknown scalar", f"choose from {', '.join(SCALARS)}")
            scalar = SCALARS[known]
            if not any(re.fullmatch(scalar.pattern, name) for name in names):
                raise UsageError(f"--set {known}: this network does not have this scalar", f"it needs {scalar.part}")
            limit = math.inf
            if config.mask is not None and scalar.group == "lambda":
                limit = config.mask.lambda_limit
            elif config.sparse is not None and known == "lambda_kpt":
                limit = config.sparse.lambda_limit
            if not abs(value) <= limit:
                raise UsageError(
                    f"--set {known}={value:g} is out of range", f"give a number from -{limit:g} to {limit:g}"
                )

    def tensors(self, config: NetworkConfig, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return initial tensors of these names and shapes, the same in every call."""
        head = _mask_head(config) if any(name.startswith(_HEAD) for name in shapes) else {}
        return {name: head[name] if name in head else self._tensor(name, shape) for name, shape in shapes.items()}

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        for known, scalar in SCALARS.items():
            if re.fullmatch(scalar.pattern, name) is not None:
                return torch.full(shape, self.values.get(known, scalar.start))
        memory = re.fullmatch(_MEMORY, name)
        assert memory is not None, name
        return INIT_STD * torch.randn(shape, generator=torch.Generator().manual_seed(_SEED + int(memory[1])))


def _mask_head(config: NetworkConfig) -> dict[str, Tensor]:
    assert config.mask is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        head = DynamicMask(config.mask, config.encoder.embed_dim).head
    return {_HEAD + name: value.detach() for name, value in head.state_dict().items()}
