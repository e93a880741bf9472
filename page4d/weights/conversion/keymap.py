"""Key maps from the tensor names of published checkpoints to those of page4d, as data."""

import re
from dataclasses import dataclass

from page4d.errors import WeightsError


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Rename names that match `pattern` in full to `target`, a template of `re`; None drops them on purpose."""

    pattern: str
    target: str | None


KeyMap = tuple[Rule, ...]
"""Rules in order of priority: the first match applies."""


def dpt_rules(head: str, source: str | None = None) -> KeyMap:
    """Return the rules of a dense head in the names of the public VGGT code.

    `source` is a pattern of the head's name in the checkpoint, where it differs.
    """
    name = head if source is None else source
    levels = [
        Rule(pattern=rf"{name}\.scratch\.layer{k}_rn\.(.*)", target=rf"{head}.adapters.{k - 1}.\1")
        for k in range(1, 5)
    ]
    return (
        Rule(pattern=rf"{name}\.resize_layers\.(.*)", target=rf"{head}.resizes.\1"),
        *levels,
        *fusion_rules(name, head),
        Rule(pattern=rf"{name}\.scratch\.output_conv1\.(.*)", target=rf"{head}.fused_conv.\1"),
        Rule(pattern=rf"{name}\.scratch\.output_conv2\.0\.(.*)", target=rf"{head}.out_conv1.\1"),
        Rule(pattern=rf"{name}\.scratch\.output_conv2\.2\.(.*)", target=rf"{head}.out_conv2.\1"),
        Rule(pattern=rf"{name}\.((?:norm|projects)\..*)", target=rf"{head}.\1"),
    )


def fusion_rules(source: str, target: str, suffix: str = "") -> KeyMap:
    """Return the rules of a chain of fusions; `suffix` ends the names of the chain's units."""
    return tuple(
        Rule(
            pattern=rf"{source}\.scratch\.refinenet{k}{suffix}\.{theirs}(.*)",
            target=rf"{target}.fusions.{k - 1}.{ours}\1",
        )
        for k in range(1, 5)
        for theirs, ours in (("resConfUnit1", "skip_unit"), ("resConfUnit2", "unit"), ("out_conv", "out_conv"))
    )


UNCHANGED: KeyMap = (Rule(pattern=r"(.*)", target=r"\1"),)
"""A file that page4d wrote."""


def target_name(name: str, rules: KeyMap) -> str | None:
    """Return the page4d name of a tensor, or None if it is dropped on purpose.

    Raises:
        WeightsError: if no rule matches.
    """
    for rule in rules:
        match = re.fullmatch(rule.pattern, name)
        if match is not None:
            return None if rule.target is None else match.expand(rule.target)
    raise WeightsError(f"no rule matches the tensor '{name}'", "these weights are of another network")
