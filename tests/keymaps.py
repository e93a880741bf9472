"""Tensors renamed by a key map, and networks with them."""

import json
import re
from collections.abc import Mapping

from torch import Tensor

from page4d.choices import Target
from page4d.networks.config import NetworkConfig
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.weights.conversion.accounting import Account, KeyMap
from page4d.weights.conversion.convert import account_for, tensor_shapes
from page4d.weights.conversion.view_time import network_blueprint
from page4d.weights.families.table import read_network, recognize
from page4d.weights.store import TensorSpec
from tests.encoders.recorded import INSIDE


def recorded_config(name: str) -> NetworkConfig:
    """Return the configuration of a recorded network."""
    return NetworkConfig.from_json(json.dumps(json.loads((INSIDE / "networks.json").read_text())[name]))


def target_name(name: str, rules: KeyMap) -> str | None:
    """Return the page4d name of a tensor, or None if it is dropped on purpose."""
    rule = next(rule for rule in rules if re.fullmatch(rule.pattern, name))
    return None if rule.target is None else re.fullmatch(rule.pattern, name).expand(rule.target)


def rename(tensors: Mapping[str, Tensor], rules: KeyMap) -> dict[str, Tensor]:
    """Return the tensors under their page4d names."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        target = target_name(name, rules)
        assert target not in renamed, f"two tensors would be named '{target}', one of them '{name}'"
        if target is not None:
            renamed[target] = tensor
    return renamed


def accounted(
    tensors: Mapping[str, Tensor], given: NetworkConfig | None = None, mask: bool | None = None
) -> tuple[NetworkConfig, Account]:
    """Return the configuration of a published network, and the account of its tensors."""
    specs = {name: TensorSpec(shape=tuple(tensor.shape), dtype=tensor.dtype) for name, tensor in tensors.items()}
    family = recognize(specs, "tensors")
    found = read_network(family, specs, "tensors", given)
    blueprint = network_blueprint(Target.OWN, {family: found}, mask)
    return blueprint.config, account_for(blueprint, [specs], tensor_shapes(blueprint.config))


def converted(
    tensors: Mapping[str, Tensor], given: NetworkConfig | None = None, mask: bool | None = None
) -> tuple[NetworkConfig, dict[str, Tensor]]:
    """Return the configuration and the tensors of a published network as its conversion does, in memory."""
    config, account = accounted(tensors, given, mask)
    rows = account.targets()
    state = {name: tensors[row.source] for name, row in rows.items() if row.source is not None}
    for name, row in rows.items():
        if row.adapt is not None:
            state[name] = row.adapt(state[name], *([] if row.companion is None else [tensors[row.companion]]))
    return config, state


def converted_network(
    tensors: Mapping[str, Tensor], given: NetworkConfig | None = None, mask: bool | None = None
) -> ViewTimeNetwork:
    """Return a published network with its weights, in evaluation and without gradients."""
    config, state = converted(tensors, given, mask)
    network = build_network(config).eval().requires_grad_(False)
    new = {name: value for name, value in network.state_dict().items() if name not in state}
    assert new.keys() == ({"aggregator.dynamic.alpha", "aggregator.dynamic.beta"} if mask else set())
    network.load_state_dict(state | new)
    return network
