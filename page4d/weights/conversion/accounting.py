"""Tensor accounting of a conversion: the origin of every network tensor, the destination of every source tensor.

Key maps, from tensor names of published checkpoints to those of page4d, are data.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from page4d.errors import WeightsError
from page4d.weights.store import TensorSpec


@dataclass(frozen=True)
class Rule:
    """Rename names that match `pattern` in full to `target`, a template of `re`; None drops them on purpose."""

    pattern: str
    target: str | None
    title: str = ""
    """Name in reports; by default the part of the network."""
    adapt: Callable[..., Tensor] | None = None
    """Makes a derived tensor of the source, and of its companion if it has one."""
    companion: str | None = None
    """A second tensor of the source, of the same shape, which is the second argument of `adapt`; it has no row."""
    constant: tuple[float, ...] | None = None
    """Values that a dropped tensor must have, because they are built in."""


KeyMap = tuple[Rule, ...]
"""Rules in order of priority: the first match applies."""


def dpt_rules(head: str, source: str | None = None) -> KeyMap:
    """Return the rules of a dense head in the names of the public VGGT code.

    `source` is a pattern of the head's name in the checkpoint, where it differs.
    """
    name = head if source is None else source
    levels = [Rule(rf"{name}\.scratch\.layer{k}_rn\.(.*)", rf"{head}.adapters.{k - 1}.\1") for k in range(1, 5)]
    return (
        Rule(rf"{name}\.resize_layers\.(.*)", rf"{head}.resizes.\1"),
        *levels,
        *fusion_rules(name, head),
        Rule(rf"{name}\.scratch\.output_conv1\.(.*)", rf"{head}.fused_conv.\1"),
        Rule(rf"{name}\.scratch\.output_conv2\.0\.(.*)", rf"{head}.out_conv1.\1"),
        Rule(rf"{name}\.scratch\.output_conv2\.2\.(.*)", rf"{head}.out_conv2.\1"),
        Rule(rf"{name}\.((?:norm|projects)\..*)", rf"{head}.\1"),
    )


def fusion_rules(source: str, target: str, suffix: str = "") -> KeyMap:
    """Return the rules of a chain of fusions; `suffix` ends the names of the chain's units."""
    return tuple(
        Rule(rf"{source}\.scratch\.refinenet{k}{suffix}\.{theirs}(.*)", rf"{target}.fusions.{k - 1}.{ours}\1")
        for k in range(1, 5)
        for theirs, ours in (("resConfUnit1", "skip_unit"), ("resConfUnit2", "unit"), ("out_conv", "out_conv"))
    )


UNCHANGED: KeyMap = (Rule(r"(.*)", r"\1"),)
"""A file that page4d wrote."""


class Tag(StrEnum):
    """Origin of a network tensor, or dropped."""

    COPIED = "copied"
    DERIVED = "derived"
    NEW = "new"
    DROPPED = "dropped"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One tensor of the network, or one that is dropped, and the title and effect of the rule that applied."""

    tag: Tag
    rule: str
    origin: str
    """Title of the source's family; `page4d` for new tensors."""
    source: str | None
    target: str | None
    shape: tuple[int, ...]
    """Shape in the network; of a dropped tensor, in the source."""
    companion: str | None = None
    adapt: Callable[..., Tensor] | None = None
    constant: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class SourceStage:
    """Mapping of the tensors of one source to the network."""

    origin: str
    keys: KeyMap
    steps: Mapping[str, str] = field(default_factory=dict)
    """Steps of the network's schedule by their name in the key map, such as `time` for `frame`."""


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A tensor initialized with the values of another one of the same network."""

    rule: str
    target: str
    """Name of the tensor that is copied."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """All rows of a conversion: every network tensor and every source tensor has one."""

    rows: tuple[Row, ...]

    def targets(self) -> dict[str, Row]:
        """Return the rows of the network tensors by name."""
        return {row.target: row for row in self.rows if row.target is not None}

    def count(self, tag: Tag, origin: str | None = None) -> int:
        """Count the rows with a tag, of one source or of all."""
        return sum(row.tag is tag and origin in (None, row.origin) for row in self.rows)

    def num_used(self) -> int:
        """Count the distinct source tensors that the network uses."""
        used = [row for row in self.rows if row.target]
        return len({(row.origin, name) for row in used for name in (row.source, row.companion) if name})

    def by_rule(self) -> list[tuple[str, str, Tag, int]]:
        """Return (origin, rule, tag, number of tensors) in the order of appearance."""
        counts = Counter((row.origin, row.rule, row.tag) for row in self.rows)
        return [(*key, number) for key, number in counts.items()]


def build_account(
    stages: Sequence[tuple[SourceStage, Mapping[str, TensorSpec]]],
    network: Mapping[str, tuple[int, ...]],
    new: Mapping[str, str],
    copies: Mapping[str, Copy],
) -> Account:
    """Apply the rules of each stage to its source tensors, and require that they fill the network exactly.

    `network` holds the shapes of all tensors. Tensors without a source are among `copies`, or in `new`, which maps
    names to initialization rules.

    Raises:
        WeightsError: naming the first tensor that no rule matches, that has a wrong shape or type, that is missing,
            or that two source tensors would fill.
    """
    rows: list[Row] = []
    filled: dict[str, str] = {}
    problems: list[str] = []
    for stage, specs in stages:
        found = {name: _apply_rules(stage, name, spec) for name, spec in specs.items()}
        companions = {row.companion for row in found.values() if row is not None}
        for name, row in found.items():
            if name in companions:
                continue
            if row is None:
                problems.append(f"no rule matches '{name}' {list(specs[name].shape)} of {stage.origin}")
                continue
            rows.append(row)
            if row.target is not None:
                problems += _mismatches(row, specs, network, filled)
                filled[row.target] = name
    by_target = {row.target: row for row in rows}
    for name, shape in network.items():
        if name in filled:
            continue
        if name in new:
            rows.append(Row(tag=Tag.NEW, rule=new[name], origin="page4d", source=None, target=name, shape=shape))
        elif name in copies and copies[name].target in by_target:
            copied = by_target[copies[name].target]
            rows.append(replace(copied, tag=Tag.DERIVED, rule=copies[name].rule, target=name))
        else:
            problems.append(f"no source tensor becomes '{name}' {list(shape)}")
    if problems:
        more = f" (and {len(problems) - 2} more)" if len(problems) > 2 else ""
        second = f"; {problems[-1]}" if len(problems) > 1 else ""
        raise WeightsError(
            f"the weights do not fit the network: {problems[0]}{second}{more}",
            "these weights are incomplete, modified or of another network (⟨configs⟩ describes one of other sizes); "
            "nothing was written",
        )
    return Account(rows=tuple(rows))


def _apply_rules(stage: SourceStage, name: str, spec: TensorSpec) -> Row | None:
    """Apply the first rule that matches; no row if none does."""

    def row(tag: Tag, title: str, target: str | None, shape: tuple[int, ...] = spec.shape, **more: Any) -> Row:
        return Row(tag=tag, rule=title, origin=stage.origin, source=name, target=target, shape=shape, **more)

    for rule in stage.keys:
        match = re.fullmatch(rule.pattern, name)
        if match is None:
            continue
        if rule.target is None:
            title = rule.title or f"{part_of(name)}: not part of the network"
            return row(Tag.DROPPED, title, None, constant=rule.constant)
        target = match.expand(rule.target)
        for theirs, ours in stage.steps.items():
            target = target.replace(f"aggregator.blocks.{theirs}.", f"aggregator.blocks.{ours}.")
        if rule.adapt is None:
            return row(Tag.COPIED, rule.title or part_of(target), target)
        companion = None if rule.companion is None else match.expand(rule.companion)
        arguments = [torch.empty(spec.shape, device="meta")] * (1 if companion is None else 2)
        try:
            shape = tuple(rule.adapt(*arguments).shape)
        except (RuntimeError, IndexError):  # not a shape that can be adapted
            return None
        return row(Tag.DERIVED, rule.title, target, shape, companion=companion, adapt=rule.adapt)
    return None


def _mismatches(
    row: Row, specs: Mapping[str, TensorSpec], network: Mapping[str, tuple[int, ...]], filled: Mapping[str, str]
) -> list[str]:
    """Return why a tensor cannot fill its target."""
    assert row.source is not None
    assert row.target is not None
    spec, companion = specs[row.source], row.companion
    if companion is not None and (companion not in specs or specs[companion].shape != spec.shape):
        found = "there is none" if companion not in specs else f"it is {list(specs[companion].shape)}"
        return [f"'{row.source}' {list(spec.shape)} of {row.origin} needs '{companion}' of its shape, and {found}"]
    if row.target not in network:
        return [f"'{row.source}' {list(row.shape)} of {row.origin} would become '{row.target}', which does not exist"]
    if row.target in filled:
        return [f"'{filled[row.target]}' and '{row.source}' would both become '{row.target}'"]
    if row.shape != network[row.target]:
        needed = list(network[row.target])
        return [f"'{row.source}' of {row.origin} is {list(row.shape)} where '{row.target}' has {needed}"]
    if not spec.dtype.is_floating_point:
        return [f"'{row.source}' of {row.origin} has type {spec.dtype}, not a floating point one"]
    return []


def part_of(name: str) -> str:
    """Return the part of the network that a tensor belongs to, such as `encoder` or `aggregator.blocks.time`."""
    parts = name.split(".")
    if parts[0] != "aggregator":
        return parts[0]
    return ".".join(part for part in parts[:3] if part not in (parts[-1], "camera_token", "register_token"))
