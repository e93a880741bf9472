"""Tensors renamed by a key map, and key maps for tests only."""

from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from page4d.networks.config import NetworkConfig
from page4d.weights.conversion.accounting import KeyMap, Rule, build_account, target_name
from page4d.weights.conversion.convert import tensor_shapes
from page4d.weights.families.shapes import NetworkSettings
from page4d.weights.families.table import network_stage, read_network, recognize
from page4d.weights.families.vggt import VGGT
from page4d.weights.store import TensorSpec


def _in_time_and_view(rule: Rule) -> Rule:
    if rule.target is None:
        return rule
    return replace(rule, target=rule.target.replace(".blocks.frame.", ".blocks.time.").replace(".global.", ".view."))


VGGT_TO_TIME_VIEW: KeyMap = tuple(map(_in_time_and_view, VGGT))
"""The public VGGT checkpoint, for the schedule time, view; exact for one instant."""

PAGE4D_WITHOUT_MASK: KeyMap = (Rule(pattern=r"aggregator\.spatial_mask_head\..*", target=None), *VGGT)
"""The public PAGE-4D checkpoint that runs without its mask."""


def rename(tensors: Mapping[str, Tensor], rules: KeyMap) -> dict[str, Tensor]:
    """Return the tensors under their page4d names."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        target = target_name(name, rules)
        assert target not in renamed, f"two tensors would be named '{target}', one of them '{name}'"
        if target is not None:
            renamed[target] = tensor
    return renamed


def converted(
    tensors: Mapping[str, Tensor], settings: NetworkSettings | None = None
) -> tuple[NetworkConfig, dict[str, Tensor]]:
    """Return the configuration and the tensors of a published network as its conversion does, in memory."""
    specs = {name: TensorSpec(shape=tuple(tensor.shape), dtype=tensor.dtype) for name, tensor in tensors.items()}
    family = recognize(specs, "tensors")
    config = read_network(family, specs, "tensors", {} if settings is None else {family.value: settings}).config
    stage = network_stage(family, config, config.schedule)
    account = build_account([(stage, specs)], tensor_shapes(config), {}, {})
    rows = account.targets()
    state = {name: tensors[row.source] for name, row in rows.items() if row.source is not None}
    for name, adapt in account.adaptations.items():
        companion = rows[name].companion
        state[name] = adapt(state[name], *([] if companion is None else [tensors[companion]]))
    return config, state
