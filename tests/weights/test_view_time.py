"""Parts that a checkpoint lacks are neutral at their initial values, accounted for, and act once opened."""

import copy
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

import page4d
from page4d.choices import SparseStrategy, Target, TimeEncoding
from page4d.errors import UsageError
from page4d.networks import Conditioning, NetworkOutput, ViewTimeNetwork
from page4d.networks.config import TIME_VIEW
from page4d.networks.config_parts import EpipolarConfig, MaskHeadKind, SparseConfig, Streams
from page4d.networks.presets import PRESETS
from page4d.weights.conversion.accounting import Tag
from page4d.weights.conversion.convert import ConvertSettings, PlannedConversion, plan_conversion, write_conversion
from page4d.weights.conversion.view_time import AddedParts, TokenStreams, view_time_network
from tests.weights.checkpoints import checkpoint, page4d_and_pi3

LANDMARK, DILATED, MEMORY = (SparseConfig(layers=(2, 3), strategy=strategy) for strategy in SparseStrategy)
EVERYTHING = {"streams": TokenStreams.OWN, "sparse": LANDMARK, "time_encoding": TimeEncoding.ALIBI, "epipolar": True}


class Converted(NamedTuple):
    conversion: PlannedConversion
    path: Path
    network: ViewTimeNetwork


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sources")
    return {given.name: given.save(folder) for given in (checkpoint("vggt_c"), *page4d_and_pi3())}


@pytest.fixture(scope="module")
def convert(sources: dict[str, Path], tmp_path_factory: pytest.TempPathFactory):
    """Convert sources with options to a file, once per combination."""
    known = {given.name: given.configs for given in (checkpoint("vggt_c"), *page4d_and_pi3())}
    done: dict[str, Converted] = {}

    def call(*names: str, **options: object) -> Converted:
        key = repr((names, sorted(options.items(), key=str)))
        if key not in done:
            settings = ConvertSettings(
                target=Target.PAGE4D_MV,
                configs=tuple(config for name in names for config in known[name]),
                mask=False if "page4d_c" in names else None,
                parts=AddedParts(**options),
            )
            conversion = plan_conversion([sources[name] for name in names], settings)
            path = tmp_path_factory.mktemp("converted") / "out.safetensors"
            write_conversion(conversion, path)
            done[key] = Converted(conversion, path, page4d.load(path, "cpu"))
        return done[key]

    return call


def capture() -> tuple[Tensor, Tensor, Conditioning]:
    torch.manual_seed(1)
    conditioning = Conditioning(keypoints=torch.rand(1, 2, 2, 2, 3), times=torch.tensor([[0.0, 1.5]]))
    return torch.rand(1, 2, 2, 3, 28, 42), torch.rand(1, 2, 2, 28, 42), conditioning


def predict(network: ViewTimeNetwork) -> NetworkOutput:
    images, mask, conditioning = capture()
    return network(images, mask, conditioning=conditioning)


def same(one: NetworkOutput, other: NetworkOutput) -> bool:
    parts = ("pose_encoding", "depth", "depth_confidence", "points", "points_confidence", "dynamic")
    return all(torch.equal(getattr(one, part), getattr(other, part)) for part in parts)


@pytest.mark.parametrize(
    "options",
    [
        {"streams": TokenStreams.SINGLE},
        {"streams": TokenStreams.OWN},
        *({"sparse": sparse} for sparse in (LANDMARK, DILATED, MEMORY)),
        {"time_encoding": TimeEncoding.ALIBI},
        {"time_encoding": TimeEncoding.ROPE},
        EVERYTHING,
    ],
    ids=str,
)
def test_closed_parts_change_nothing(options: dict, convert):
    plain = predict(convert("vggt_c").network)
    conversion, _, network = convert("vggt_c", **options)
    assert network.config != convert("vggt_c").network.config
    assert same(predict(network), plain)
    new = [row for row in conversion.account.rows if row.tag in (Tag.NEW, Tag.DERIVED)]
    assert all(row.rule for row in new)
    assert conversion.account.num_used() == 374


@pytest.mark.parametrize(
    ("options", "opened"),
    [
        ({"sparse": LANDMARK}, {r"sparse.*gate": 1.0}),
        ({"sparse": MEMORY}, {r"sparse.*gate": 0.5}),
        ({"time_encoding": TimeEncoding.ALIBI}, {r"time\.gates": 1.0}),
        ({"time_encoding": TimeEncoding.ROPE}, {r"time\.gates": 0.3}),
        ({}, {"lambda_pose": 2.0, "lambda_geo_t": -1.0}),
    ],
    ids=str,
)
def test_open_parts_act(options: dict, opened: dict[str, float], convert):
    network = with_scalars(convert("vggt_c", **options).network, opened)
    assert not same(predict(network), predict(convert("vggt_c").network))


def with_scalars(network: ViewTimeNetwork, values: dict[str, float]) -> ViewTimeNetwork:
    network = copy.deepcopy(network)
    for pattern, value in values.items():
        for name, parameter in network.named_parameters():
            if re.search(pattern + "$", name):
                parameter.data.fill_(value)
    return network


def test_keypoints_act_once_lambda_kpt_is_set(convert):
    network = convert("vggt_c", sparse=DILATED).network
    opened, more = (with_scalars(network, {r"sparse.*gate": 1.0, "lambda_kpt": value}) for value in (0.0, 3.0))
    assert not same(predict(opened), predict(more))


def test_initial_values_are_in_the_file_and_in_the_account(convert):
    conversion, _, network = convert("vggt_c", **EVERYTHING)
    assert network.config.epipolar == EpipolarConfig(layers=network.config.mask.layers)
    state = network.state_dict()
    assert float(state["aggregator.dynamic.alpha"]) == float(state["aggregator.dynamic.beta"]) == 1
    assert float(state["aggregator.mask_bias.lambda_pose"]) == 0
    assert torch.equal(state["aggregator.time.gates"], torch.zeros(4))
    rules = {rule: number for origin, rule, _, number in conversion.account.by_rule() if origin == "page4d"}
    assert rules == {
        "alpha, beta: starts at 1": 2,
        "lambda: starts at 0": 4,
        "lambda_kpt: starts at 0": 1,
        "sparse_gate: starts at 0": 2,
        "time_gate: starts at 0": 1,
        "dynamic mask head: untrained, last layer 0": 6,
    }


def test_stream_blocks_are_copies_of_trunk_blocks(convert):
    conversion, _, network = convert("vggt_c", streams=TokenStreams.OWN)
    blocks = network.aggregator.blocks
    (layer,) = network.config.mask.layers
    for stream in network.aggregator.stream_blocks.values():
        for step in ("time", "view"):
            ours, theirs = stream[step][0].state_dict(), blocks[step][layer].state_dict()
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    row = conversion.account.targets()["aggregator.stream_blocks.pose.view.0.norm1.weight"]
    assert (row.tag, row.source) == (Tag.DERIVED, f"aggregator.global_blocks.{layer}.norm1.weight")
    assert conversion.account.count(Tag.DERIVED) == 2 * 2 * 18


@pytest.mark.parametrize(
    ("names", "layers", "copied"),
    [(("vggt_c",), (2, 3), (2, 3)), (("page4d_c", "pi3_c"), (1, 3), (1, 1)), (("pi3_c",), (0, 1), (1, 1))],
)
def test_sparse_blocks_are_copies_of_the_last_pi3_block_or_of_their_layer(
    names: tuple, layers: tuple, copied: tuple, convert
):
    conversion, _, network = convert(*names, sparse=SparseConfig(layers=layers))
    for layer, origin in zip(layers, copied, strict=True):
        ours = network.aggregator.sparse.layers[str(layer)].block.state_dict()
        theirs = network.aggregator.blocks["view"][origin].state_dict()
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
        row = conversion.account.targets()[f"aggregator.sparse.layers.{layer}.block.mlp.fc1.weight"]
        assert row.origin == ("VGGT" if names == ("vggt_c",) else "Pi3")
        assert row.rule == f"sparse block: copy of layer {origin} across views"


def test_memory_tokens_are_random_and_reproducible(convert, tmp_path: Path):
    conversion, path, network = convert("vggt_c", sparse=MEMORY)
    torch.rand(3)
    write_conversion(conversion, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == path.read_bytes()
    first = network.state_dict()
    memories = [first[f"aggregator.sparse.layers.{layer}.memory"] for layer in (2, 3)]
    assert [tuple(memory.shape) for memory in memories] == [(1, 32, 32)] * 2
    assert not torch.equal(*memories)
    assert all(0.018 < float(memory.std()) < 0.022 for memory in memories)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sparse": SparseConfig(layers=(4,))}, r"a layer outside 0\.\.3"),
        ({"sparse": SparseConfig(layers=(0,))}, "sparse attention in layer 0, mask from 1"),
    ],
    ids=str,
)
def test_contradictory_options_are_refused(options: dict, message: str, convert):
    with pytest.raises(UsageError, match=message) as caught:
        convert("vggt_c", **options)
    assert caught.value.hint


def test_pi3_has_a_single_stream(convert):
    assert convert("pi3_c").network.config.mask.streams is Streams.SINGLE
    with pytest.raises(UsageError, match="streams='dual': the heads of Pi3 and Pi3X read a single stream"):
        convert("pi3_c", streams=TokenStreams.DUAL)


def test_options_of_the_view_time_network_are_refused_for_the_published_one(sources: dict[str, Path]):
    settings = ConvertSettings(configs=checkpoint("vggt_c").configs, parts=AddedParts(epipolar=True))
    with pytest.raises(UsageError, match="parts of the view x time network"):
        plan_conversion([sources["vggt_c"]], settings)


def test_three_stage_supports_all_options_at_once(convert):
    conversion, _, network = convert("page4d_c", "pi3_c", **EVERYTHING)
    assert len(conversion.sources) == 2
    assert network.config.norm_eps == (1e-6, 1e-6, 1e-5, 1e-5)
    assert same(predict(network), predict(convert("page4d_c", "pi3_c").network))


@pytest.mark.parametrize(
    ("preset", "reason"),
    [
        ("da3-mono", "within single images only"),
        ("da3-base", "no positions of their own"),
        ("da3-giant", "no positions of their own"),
        ("vggt-omega", "special tokens alone"),
    ],
)
def test_networks_with_other_steps_cannot_become_the_view_time_network(preset: str, reason: str):
    with pytest.raises(UsageError, match=f"cannot become the view x time network: .*{reason}") as caught:
        view_time_network(PRESETS[preset], MaskHeadKind.CONV)
    assert caught.value.hint == "leave target='page4d-mv' out"


def test_pi3x_becomes_the_view_time_network_for_several_views(tmp_path: Path):
    """The outputs for one view are recorded."""
    given = checkpoint("pi3x_c")
    settings = ConvertSettings(configs=given.configs, target=Target.PAGE4D_MV)
    conversion = plan_conversion([given.save(tmp_path)], settings)
    assert conversion.account.num_used() == len(given.weights) - 2, "all but the constants of normalization"
    write_conversion(conversion, tmp_path / "network.safetensors")
    network = page4d.load(tmp_path / "network.safetensors", "cpu")
    assert network.config.schedule == TIME_VIEW
    assert network.config.mask.streams is Streams.SINGLE
    assert torch.isfinite(network(torch.rand(1, 2, 2, 3, 28, 42)).points).all()
