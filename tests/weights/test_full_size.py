"""Names and shapes of every published checkpoint fill its network exactly; changed ones are refused."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch

from page4d.choices import Target
from page4d.errors import UsageError, WeightsError
from page4d.networks.presets import PRESETS
from page4d.weights.conversion.accounting import Account, Tag
from page4d.weights.conversion.convert import account_for, tensor_shapes
from page4d.weights.conversion.view_time import network_blueprint
from page4d.weights.families.family import Specs
from page4d.weights.families.identity import Identity
from page4d.weights.families.table import read_network, recognize
from page4d.weights.store import TensorSpec
from tests.weights.checkpoints import manifest

SIZE = r"has [\w.]+ \d+ where the published"
"""Message on a tensor that determines a size."""


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published checkpoint: its network, and the number of its tensors that are left out."""

    preset: str
    manifest: str
    dropped: int
    name: str | None = None
    mask: bool | None = None

    def __str__(self) -> str:
        return self.preset


PUBLISHED = [
    Published(preset="vggt", manifest="vggt", dropped=395),
    Published(preset="page4d", manifest="page4d", dropped=401, mask=False),
    Published(preset="page4d-mask", manifest="page4d", dropped=395, mask=True),
    Published(preset="pi3", manifest="pi3", dropped=2),
    Published(preset="pi3x", manifest="pi3x", dropped=2),
    Published(preset="da3-small", manifest="da3_small", dropped=42),
    Published(preset="da3-base", manifest="da3_base", dropped=42),
    Published(preset="da3-large", manifest="da3_large", dropped=42),
    Published(preset="da3-giant", manifest="da3_giant", dropped=42 + 66),
    Published(preset="da3-mono", manifest="da3metric_large", dropped=0, name="da3mono-large"),
    Published(preset="da3-metric", manifest="da3metric_large", dropped=0, name="da3metric"),
    Published(preset="da3-nested", manifest="da3nested", dropped=42 + 66),
    Published(preset="vggt-omega", manifest="vggt_omega_512", dropped=3),
]


def account(published: Published, specs: Specs) -> Account:
    family = recognize(specs, "x")
    found = read_network(family, specs, "x", identity=Identity(given=published.name))
    blueprint = network_blueprint(Target.OWN, {family: found}, published.mask)
    assert blueprint.config == PRESETS[published.preset]
    return account_for(blueprint, [specs], tensor_shapes(blueprint.config))


@pytest.fixture(params=PUBLISHED, ids=str, scope="module")
def published(request: pytest.FixtureRequest) -> tuple[Published, Account]:
    return request.param, account(request.param, manifest(request.param.manifest))


def used(filled: Account, number: int = 3) -> list[str]:
    """Source tensors from all over the network."""
    names = [row.source for row in filled.rows if row.source and row.target]
    return names[:: len(names) // number]


def test_it_fills_the_network_of_its_name_exactly(published: tuple[Published, Account]) -> None:
    case, filled = published
    specs = manifest(case.manifest)
    assert filled.count(Tag.DROPPED) == case.dropped
    assert filled.num_used() + case.dropped == len(specs)
    assert set(filled.targets()) == set(tensor_shapes(PRESETS[case.preset]))


WRONG: dict[str, tuple[Callable[[TensorSpec], TensorSpec | None], str]] = {
    "missing": (lambda _: None, "no source tensor becomes '|{name}|" + SIZE),
    "of another shape": (
        lambda spec: replace(spec, shape=(*spec.shape[:-1], spec.shape[-1] + 1)),
        "'{name}'|" + SIZE,
    ),
    "of integers": (lambda spec: replace(spec, dtype=torch.int64), "has type torch.int64, not a floating point one"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_tensor_that_is_wrong_is_refused(published: tuple[Published, Account], wrong: str) -> None:
    case, filled = published
    specs, (change, words) = manifest(case.manifest), WRONG[wrong]
    for name in used(filled)[1:3]:
        changed = {key: change(spec) if key == name else spec for key, spec in specs.items()}
        with pytest.raises((WeightsError, UsageError)) as caught:
            account(case, {key: spec for key, spec in changed.items() if spec is not None})
        assert caught.value.hint
        assert re.search(words.format(name=name), caught.value.message)


def test_a_surplus_tensor_is_refused(published: tuple[Published, Account]) -> None:
    case, filled = published
    specs = manifest(case.manifest)
    name = used(filled)[0]
    with pytest.raises(WeightsError, match=f"{name}_ema'"):
        account(case, {**specs, f"{name}_ema": specs[name]})


def test_a_checkpoint_without_tensors_that_identify_it_is_named() -> None:
    specs = {name: spec for name, spec in manifest("pi3").items() if name != "register_token"}
    with pytest.raises(WeightsError, match=r"has the tensors of Pi3, but none is named 'register_token\*'"):
        recognize(specs, "x")
