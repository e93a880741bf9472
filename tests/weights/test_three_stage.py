"""Three stages: encoder and first layers compute as in Pi3, last layers and heads as in PAGE-4D."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from page4d.choices import Target
from page4d.errors import UsageError, WeightsError
from page4d.networks import ViewTimeNetwork
from page4d.networks.config_parts import SparseConfig
from page4d.networks.layers.attention import RotaryTables, rotary_tables
from page4d.networks.layers.block import Block
from page4d.networks.tokens import token_positions
from page4d.weights import load
from page4d.weights.conversion.convert import ConvertSettings, plan_conversion, write_conversion
from page4d.weights.conversion.view_time import AddedParts, network_blueprint
from page4d.weights.families.family import Family
from page4d.weights.families.table import read_network
from page4d.weights.store import TensorSpec
from tests.networks.naive_twin import run_on_tokens
from tests.weights.checkpoints import Checkpoint, page4d_and_pi3

GRID, NUM_SPECIAL, WIDTH = (2, 3), 5, 32
NUM_PI3 = 2
"""Layers of the small Pi3; the small PAGE-4D has 4."""


def network_of(folder: Path, *given: Checkpoint, **settings: object) -> ViewTimeNetwork:
    configs = tuple(each.config for each in given)
    paths = [each.save(folder) for each in given]
    out = folder / f"{len(given)}{given[0].name}.safetensors"
    write_conversion(plan_conversion(paths, ConvertSettings(configs=configs, **settings)), out)
    return load(out, "cpu")


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> tuple[ViewTimeNetwork, ...]:
    """The three-stage network, Pi3 and PAGE-4D."""
    upper, lower = page4d_and_pi3()
    folder = tmp_path_factory.mktemp("three")
    return network_of(folder, upper, lower), network_of(folder, lower), network_of(folder, upper, mask=False)


def faint_tokens(count: int) -> Tensor:
    """Tokens whose variance is so small that the epsilon of the norms matters."""
    torch.manual_seed(0)
    return 0.01 * torch.randn(1, count, NUM_SPECIAL + GRID[0] * GRID[1], WIDTH)


def tables(network: ViewTimeNetwork) -> RotaryTables:
    config = network.config
    return rotary_tables(token_positions(GRID, NUM_SPECIAL), WIDTH // config.num_heads, config.rope_base)


def block(network: ViewTimeNetwork, step: str, layer: int) -> Block:
    return network.aggregator.blocks[step][layer]


@pytest.mark.parametrize(("ours", "theirs"), [("time", "frame"), ("view", "global")])
@pytest.mark.parametrize("layer", range(4))
def test_every_block_computes_as_in_its_source(layer: int, ours: str, theirs: str, networks: tuple) -> None:
    three, *origins = networks
    eps, other = (1e-6, 1e-5) if layer < NUM_PI3 else (1e-5, 1e-6)
    found, expected = block(three, ours, layer), block(origins[layer >= NUM_PI3], theirs, layer)
    tokens, rope = faint_tokens(1)[0], tables(three)
    assert (found.norm1.eps, found.norm2.eps, found.attn.q_norm.eps, found.attn.k_norm.eps) == (eps, eps, 1e-5, 1e-5)
    assert torch.equal(found(tokens, rope), expected(tokens, rope))
    changed = deepcopy(found)
    changed.norm1.eps = changed.norm2.eps = other
    assert (changed(tokens, rope) - expected(tokens, rope)).abs().max() > 1e-4, "the test resolves the epsilon"


def test_a_sparse_block_keeps_the_norm_epsilon_of_pi3(tmp_path: Path) -> None:
    upper, lower = page4d_and_pi3()
    parts = AddedParts(sparse=SparseConfig(layers=(3,)))
    three, pi3 = network_of(tmp_path, upper, lower, parts=parts), network_of(tmp_path, lower)
    found, expected = three.aggregator.sparse.layers["3"].block, block(pi3, "global", NUM_PI3 - 1)
    tokens = faint_tokens(1)[0]
    assert torch.equal(found(tokens, tables(three)), expected(tokens, tables(three)))


def test_the_lower_trunk_computes_as_in_pi3(networks: tuple) -> None:
    three, pi3, _ = networks
    tokens = faint_tokens(3)[:, None]
    last = NUM_PI3 - 1
    found = run_on_tokens(three.aggregator, tokens, GRID).levels[last]
    expected = run_on_tokens(pi3.aggregator, tokens, GRID).levels[last]
    assert (found - expected).abs().max() <= 1e-6


def test_the_encoder_computes_as_in_pi3(networks: tuple) -> None:
    three, pi3, page4d = networks
    images = torch.rand(2, 3, 28, 42)
    assert {module.eps for module in three.encoder.modules() if hasattr(module, "eps")} == {1e-6}
    assert torch.equal(three.encoder(images).tokens, pi3.encoder(images).tokens)
    assert not torch.equal(three.encoder(images).tokens, page4d.encoder(images).tokens)


def test_the_heads_compute_as_in_page4d(networks: tuple) -> None:
    three, _, page4d = networks
    tokens = torch.randn(1, 3, 1, 2 * WIDTH)
    assert torch.equal(three.camera_head(tokens)[-1], page4d.camera_head(tokens)[-1])
    levels = [torch.randn(2, 6, 2 * WIDTH) for _ in range(4)]
    assert torch.equal(three.depth_head(levels, GRID).values, page4d.depth_head(levels, GRID).values)
    assert torch.equal(three.point_head(levels, GRID).values, page4d.point_head(levels, GRID).values)


def test_the_published_network_is_no_target(tmp_path: Path) -> None:
    upper, lower = page4d_and_pi3()
    paths = [upper.save(tmp_path), lower.save(tmp_path)]
    configs = upper.configs + lower.configs
    with pytest.raises(UsageError, match="Pi3 and PAGE-4D make the view x time network only"):
        plan_conversion(paths, ConvertSettings(configs=configs, target=Target.OWN))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_heads": 4}, r"Pi3 has num_heads 4 where PAGE-4D has 2"),
        ({"rope_base": 10.0}, r"Pi3 has rope_base 10\.0 where PAGE-4D has 100"),
        ({"num_registers": 4}, "Pi3 has 4 registers and 2 layers, PAGE-4D 4 and 4"),
        ({"depth": 4}, "Pi3 has 5 registers and 4 layers, PAGE-4D 4 and 4"),
    ],
)
def test_sources_of_different_sizes_are_refused(change: dict, message: str) -> None:
    upper, lower = page4d_and_pi3()
    found = {}
    for family, given in ((Family.PI3, lower), (Family.PAGE4D, upper)):
        specs = {
            name: TensorSpec(shape=tuple(value.shape), dtype=value.dtype) for name, value in given.weights.items()
        }
        found[family] = read_network(family, specs, given.name, given.config)
    other = replace(found[Family.PI3].config, **change)
    found[Family.PI3] = replace(found[Family.PI3], config=other)
    with pytest.raises(WeightsError, match=message) as caught:
        network_blueprint(Target.PAGE4D_MV, found)
    assert caught.value.hint
