"""Every tensor of the published checkpoints, at full size, fills a network tensor, is dropped or refused."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import pytest
import torch

from page4d.choices import SparseStrategy, Target, TimeEncoding
from page4d.errors import UsageError, WeightsError
from page4d.networks.config import TIME_VIEW
from page4d.networks.config_parts import MaskHeadKind, SparseConfig
from page4d.networks.presets import PRESETS
from page4d.weights.conversion.accounting import Account, Copy, Rule, SourceStage, Tag, build_account, part_of
from page4d.weights.conversion.convert import account_for, tensor_shapes
from page4d.weights.conversion.view_time import NO_PARTS, AddedParts, Blueprint, TokenStreams, network_blueprint
from page4d.weights.families.family import Family
from page4d.weights.families.identity import Identity
from page4d.weights.families.table import read_network, recognize
from page4d.weights.store import TensorSpec
from tests.encoders.recorded import SHARED
from tests.weights.checkpoints import MANIFESTS, manifest

OWN, MV = Target.OWN, Target.PAGE4D_MV
SIZE = r"has [\w.]+ \d+ where the published"
"""Message on a tensor that determines a size."""


def ckpt150() -> dict[str, TensorSpec]:
    """PAGE-4D with the mask head of its older variant."""
    specs = dict(manifest("page4d"))
    start = "aggregator.spatial_mask_head."
    for name in [name for name in specs if name.startswith(start)]:
        del specs[name]
    shapes = {"0.weight": (1024, 1, 3, 3), "0.bias": (1024,), "2.weight": (1024, 1, 3, 3), "2.bias": (1024,)}
    shapes |= {"4.weight": (1, 1024, 1, 1), "4.bias": (1,)}
    named = {f"{start}head0.{name}": shape for name, shape in shapes.items()}
    named |= {f"{start}alpha_logit": (), f"{start}tau_logit": ()}
    return specs | {name: TensorSpec(shape=shape, dtype=torch.float32) for name, shape in named.items()}


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published checkpoint, and the network that it fills: the one of a preset, or view x time."""

    manifest: str
    preset: str | None = None
    mask: bool | None = None
    name: str | None = None
    dropped: int = 0
    new: int = 0
    derived: int = 0

    def __str__(self) -> str:
        return f"{self.manifest} as {self.preset or MV}"

    @property
    def target(self) -> Target:
        return MV if self.preset is None else OWN


PUBLISHED = [
    Published(preset="vggt", manifest="vggt", dropped=395),
    Published(preset="page4d", manifest="page4d", dropped=401, mask=False),
    Published(preset="page4d-mask", manifest="page4d", new=2, dropped=395, mask=True),
    Published(preset="page4d", manifest="page4d_notrack", dropped=7, mask=False),
    Published(preset="pi3", manifest="pi3", dropped=2),
    Published(preset="pi3x", manifest="pi3x", dropped=2),
    Published(preset="da3-small", manifest="da3_small", dropped=42, derived=1),
    Published(preset="da3-base", manifest="da3_base", dropped=42, derived=1),
    Published(preset="da3-large", manifest="da3_large", dropped=42, derived=1),
    Published(preset="da3-giant", manifest="da3_giant", dropped=42 + 66, derived=1),
    Published(preset="da3-mono", manifest="da3metric_large", name="da3mono-large"),
    Published(preset="da3-metric", manifest="da3metric_large", name="da3metric"),
    Published(preset="da3-nested", manifest="da3nested", dropped=42 + 66, derived=1),
    # Encoder and steps within images have rotary positions; all 76 biases of projections have masks.
    Published(preset="vggt-omega", manifest="vggt_omega_512", dropped=3, derived=48 + 76 + 24 * 4),
    Published(preset="vggt-omega", manifest="vggt_omega_256_text", dropped=74, derived=48 + 76 + 24 * 4),
    Published(manifest="vggt", new=12, dropped=395),
    Published(manifest="page4d", mask=True, new=6, dropped=395),
    Published(manifest="page4d", mask=False, new=12, dropped=401),
    Published(manifest="pi3", new=12, dropped=2),
    Published(manifest="pi3x", new=12, dropped=2),
]
OWN_NETWORKS = [case for case in PUBLISHED if case.preset]


def account(
    target: Target,
    mask: bool | None,
    *sources: dict[str, TensorSpec],
    parts: AddedParts = NO_PARTS,
    name: str | None = None,
) -> tuple[Blueprint, Account]:
    families = [recognize(source, "x") for source in sources]
    found = [
        read_network(family, source, "x", identity=Identity(given=name))
        for family, source in zip(families, sources, strict=True)
    ]
    specs = {each.family: source for each, source in zip(found, sources, strict=True)}
    blueprint = network_blueprint(target, {each.family: each for each in found}, mask, parts)
    shapes = tensor_shapes(blueprint.config)
    filled = account_for(blueprint, list(specs.values()), shapes)
    assert {name: row.shape for name, row in filled.targets().items()} == shapes
    assert len(filled.rows) == len(shapes) + filled.count(Tag.DROPPED)
    assert filled.num_used() + filled.count(Tag.DROPPED) == sum(len(source) for source in sources)
    return blueprint, filled


@cache
def account_of(case: Published) -> tuple[Blueprint, Account]:
    return account(case.target, case.mask, manifest(case.manifest), name=case.name)


@pytest.mark.parametrize("case", PUBLISHED, ids=str)
def test_a_published_checkpoint_fills_the_network(case: Published) -> None:
    blueprint, filled = account_of(case)
    counts = (filled.count(Tag.NEW), filled.count(Tag.DROPPED), filled.count(Tag.DERIVED))
    assert counts == (case.new, case.dropped, case.derived)
    companions = sum(row.companion is not None for row in filled.rows)
    assert filled.count(Tag.COPIED) + case.derived + companions == len(manifest(case.manifest)) - case.dropped
    assert companions == (76 if "omega" in case.manifest else 0)
    if case.preset is None:
        assert blueprint.config.schedule == TIME_VIEW
    elif "text" in case.manifest:
        assert blueprint.config.encoder.image_size == 256
    else:
        assert blueprint.config == PRESETS[case.preset]


def test_three_stage_uses_992_tensors_of_pi3_and_drops_218() -> None:
    blueprint, filled = account(MV, None, manifest("pi3"), manifest("page4d"))
    used = filled.count(Tag.COPIED, "Pi3") + filled.count(Tag.DERIVED, "Pi3")
    assert (used, filled.count(Tag.DROPPED, "Pi3")) == (992, 218)
    assert filled.count(Tag.DERIVED) == 1
    assert filled.count(Tag.COPIED, "PAGE-4D") == 108 + 108 + 6 + 1 + 69 + 62 + 62
    origins = {}
    for target, row in filled.targets().items():
        if match := re.match(r"aggregator\.blocks\.(time|view)\.(\d+)\.", target):
            origins.setdefault(int(match[2]), set()).add(row.origin)
    assert origins == {layer: {"Pi3" if layer < 18 else "PAGE-4D"} for layer in range(24)}
    assert {row.origin for name, row in filled.targets().items() if name.startswith("encoder.")} == {"Pi3"}
    assert filled.targets()["aggregator.blocks.view.17.norm1.weight"].source == "decoder.35.norm1.weight"
    assert filled.targets()["aggregator.dynamic.alpha"].rule == "alpha: starts at 0", (
        "the mask head was not trained on these layers"
    )
    assert blueprint.config.norm_eps == (1e-6,) * 18 + (1e-5,) * 6
    assert (blueprint.config.encoder.norm_eps, blueprint.config.qk_norm_eps) == (1e-6, 1e-5)
    assert [notice for notice in blueprint.notices if "fine-tune" not in notice] == []


@pytest.mark.parametrize("names", [("vggt",), ("pi3", "page4d_notrack")])
def test_blocks_without_a_source_are_copies_of_trunk_blocks(names: tuple[str, ...]) -> None:
    sparse = SparseConfig(layers=(22, 23), strategy=SparseStrategy.MEMORY)
    parts = AddedParts(streams=TokenStreams.OWN, sparse=sparse, time_encoding=TimeEncoding.ALIBI)
    sources = list(map(manifest, names))
    blueprint, filled = account(MV, None, *sources, parts=parts)
    assert blueprint.config.sparse.layers == (22, 23)
    assert filled.count(Tag.DERIVED) == 2 * 2 * 5 * 18 + 2 * 18 + (len(names) > 1)
    assert filled.count(Tag.NEW) == (12 if len(names) == 1 else 6) + 1 + 2 + 2 + 1
    rows = filled.targets()
    sparse = rows["aggregator.sparse.layers.22.block.attn.qkv.weight"].source
    own = rows["aggregator.stream_blocks.geometry.view.4.attn.qkv.weight"].source
    if len(names) == 1:
        assert (sparse, own) == tuple(f"aggregator.global_blocks.{layer}.attn.qkv.weight" for layer in (22, 12))
    else:
        assert (sparse, own) == ("decoder.35.attn.qkv.weight", "decoder.25.attn.qkv.weight")


def test_three_stage_without_a_mask_initializes_a_new_mask_head() -> None:
    blueprint, filled = account(MV, False, manifest("pi3"), manifest("page4d"))
    assert (blueprint.config.mask.head, filled.count(Tag.NEW)) == (MaskHeadKind.CONV, 12)
    assert filled.targets()["aggregator.dynamic.alpha"].rule == "alpha, beta: starts at 1"


def test_the_older_mask_head_fits_the_view_time_network_only() -> None:
    blueprint, filled = account(MV, True, ckpt150())
    assert blueprint.config.mask.head is MaskHeadKind.CKPT150
    assert blueprint.config.mask.layers == (8, 9, 10, 11, 12)
    assert filled.count(Tag.NEW) == 6
    with pytest.raises(WeightsError, match="older variant"):
        account(OWN, True, ckpt150())


def test_the_released_mask_head_acts_from_the_layer_of_its_training() -> None:
    blueprint, _ = account(MV, True, manifest("page4d"))
    assert blueprint.config.mask.head is MaskHeadKind.RELEASE
    assert blueprint.config.mask.layers == (10, 11, 12, 13, 14)


def test_page4d_requires_the_mask_option() -> None:
    with pytest.raises(UsageError, match="does not record whether it runs with its mask") as caught:
        account(OWN, None, manifest("page4d"))
    assert "mask='on'" in caught.value.hint
    with pytest.raises(UsageError, match="mask applies to PAGE-4D"):
        account(OWN, True, manifest("vggt"))


def used(filled: Account, number: int = 3) -> list[str]:
    """Source tensors from all over the network."""
    names = [row.source for row in filled.rows if row.source and row.target]
    return names[:: len(names) // number]


WRONG: dict[str, tuple[Callable[[TensorSpec], TensorSpec | None], str]] = {
    "missing": (lambda _: None, "no source tensor becomes '|{name}|" + SIZE),
    "of another shape": (
        lambda spec: replace(spec, shape=(*spec.shape[:-1], spec.shape[-1] + 1)),
        "'{name}'|" + SIZE,
    ),
    "of integers": (lambda spec: replace(spec, dtype=torch.int64), "has type torch.int64, not a floating point one"),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("case", OWN_NETWORKS, ids=str)
def test_a_tensor_that_is_wrong_is_refused(case: Published, wrong: str) -> None:
    specs, (change, words) = manifest(case.manifest), WRONG[wrong]
    for name in used(account_of(case)[1])[1:3]:
        changed = {key: change(spec) if key == name else spec for key, spec in specs.items()}
        with pytest.raises((WeightsError, UsageError)) as caught:
            account(
                case.target,
                case.mask,
                {key: spec for key, spec in changed.items() if spec is not None},
                name=case.name,
            )
        assert caught.value.hint
        assert re.search(words.format(name=name), caught.value.message)


@pytest.mark.parametrize("case", OWN_NETWORKS, ids=str)
def test_a_surplus_tensor_is_refused(case: Published) -> None:
    specs = manifest(case.manifest)
    name = used(account_of(case)[1])[0]
    with pytest.raises(WeightsError, match=f"{name}_ema'"):
        account(case.target, case.mask, {**specs, f"{name}_ema": specs[name]}, name=case.name)


def test_a_checkpoint_without_tensors_that_identify_it_is_named() -> None:
    specs = {name: spec for name, spec in manifest("pi3").items() if name != "register_token"}
    with pytest.raises(WeightsError, match=r"has the tensors of Pi3, but none is named 'register_token\*'"):
        recognize(specs, "x")


def changed(specs: dict[str, TensorSpec], name: str, spec: TensorSpec | None, new_name: str = "") -> dict:
    specs = dict(specs)
    old = specs.pop(name)
    if spec is not None or new_name:
        specs[new_name or name] = spec or old
    return specs


NAME = "aggregator.frame_blocks.3.norm1.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"spec": None, "new_name": "aggregator.frame_blocks.3.normal.weight"},
            r"normal.weight' \[1024\] of VGGT would become .*does not exist; no source tensor becomes 'aggreg.*norm1",
        ),
        ({"spec": None, "new_name": "surprise"}, r"no rule matches 'surprise' \[1024\] of VGGT"),
        (
            {"spec": TensorSpec(shape=(7,), dtype=torch.float32)},
            rf"'{NAME}' of VGGT is \[7\] where 'aggregator.blocks.frame.3.norm1.weight' has \[1024\]",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(change: dict, message: str) -> None:
    with pytest.raises(WeightsError, match=message) as caught:
        account(OWN, None, changed(manifest("vggt"), NAME, **change))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(("name", "recording"), MANIFESTS.items())
def test_the_manifests_equal_the_recorded_ones(name: str, recording: str) -> None:
    path = SHARED / f"manifest_{recording}.json"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    recorded = {key: (tuple(shape), dtype) for key, (shape, dtype) in json.loads(path.read_text()).items()}
    assert {key: (spec.shape, str(spec.dtype)[6:]) for key, spec in manifest(name).items()} == recorded


def test_sizes_that_are_not_published_need_a_configuration() -> None:
    specs = {name: spec for name, spec in manifest("vggt").items() if ".frame_blocks.23." not in name}
    with pytest.raises(UsageError, match="has depth 23 where the published VGGT has 24") as caught:
        read_network(Family.VGGT, specs, "x")
    assert "configs" in caught.value.hint
    with pytest.raises(WeightsError, match="has depth 23 where its configs has 24"):
        read_network(Family.VGGT, specs, "x", PRESETS["vggt"])


def test_shapes_that_are_not_published_need_a_configuration() -> None:
    table = "aggregator.patch_embed.pos_embed"
    specs = manifest("vggt") | {table: TensorSpec(shape=(1, 32**2 + 1, 1024), dtype=torch.float32)}
    with pytest.raises(WeightsError, match=r"pos_embed' of VGGT is \[1, 1025, 1024\] where") as caught:
        account(OWN, None, specs)
    assert "configs" in caught.value.hint
    config = replace(PRESETS["vggt"], encoder=replace(PRESETS["vggt"].encoder, image_size=448))
    found = read_network(Family.VGGT, specs, "x", config)
    account_for(network_blueprint(OWN, {Family.VGGT: found}), [specs], tensor_shapes(config))


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"schedule": TIME_VIEW}, "schedule"),
        ({"point_head": None}, "point_head"),
        ({"mask": PRESETS["page4d-mask"].mask}, "mask"),
        ({"encoder": PRESETS["vggt-omega"].encoder}, "encoder"),
    ],
)
def test_a_configuration_of_other_parts_is_refused(change: dict, part: str) -> None:
    with pytest.raises(UsageError, match=f"configs: {part} is not that of VGGT"):
        read_network(Family.VGGT, manifest("vggt"), "x", replace(PRESETS["vggt"], **change))


def test_unknown_tensors_are_refused() -> None:
    spec = TensorSpec(shape=(1,), dtype=torch.float32)
    with pytest.raises(WeightsError, match="holds no known network or encoder"):
        recognize({"layer1.0.conv1.weight": spec}, "x")
    with pytest.raises(WeightsError, match="is already a page4d network"):
        recognize({"aggregator.blocks.time.0.norm1.weight": spec}, "x")
    assert recognize(manifest("pi3"), "x") is Family.PI3
    assert recognize(manifest("pi3x"), "x") is Family.PI3X


def test_a_tensor_name_gives_its_part_of_the_network() -> None:
    assert part_of("aggregator.blocks.time.3.norm1.weight") == "aggregator.blocks.time"
    assert part_of("aggregator.special.camera_token") == "aggregator.special"
    assert part_of("camera_head.trunk.0.norm1.bias") == "camera_head"


def test_two_source_tensors_for_one_target_are_refused() -> None:
    spec = TensorSpec(shape=(1,), dtype=torch.float32)
    stage = SourceStage(origin="x", keys=(Rule("a|b", "c"),))
    with pytest.raises(WeightsError, match="'a' and 'b' would both become 'c'"):
        build_account([(stage, {"a": spec, "b": spec})], {"c": (1,)}, {}, {})


COMBINED = SourceStage(origin="x", keys=(Rule(r"(\w)\.a", r"\1", "sum", adapt=torch.add, companion=r"\1.b"),))


def test_a_companion_is_combined_with_a_tensor_and_has_no_row() -> None:
    spec = TensorSpec(shape=(3,), dtype=torch.float32)
    copies = {"copy": Copy(rule="copied", target="n")}
    filled = build_account([(COMBINED, {"n.b": spec, "n.a": spec})], {"n": (3,), "copy": (3,)}, new={}, copies=copies)
    assert [(row.tag, row.source, row.companion, row.target) for row in filled.rows] == [
        (Tag.DERIVED, "n.a", "n.b", "n"),
        (Tag.DERIVED, "n.a", "n.b", "copy"),
    ]
    assert filled.num_used() == 2
    assert [row.adapt for row in filled.rows] == [torch.add, torch.add]


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ({"n.a": (3,)}, r"'n.a' \[3\] of x needs 'n.b' of its shape, and there is none"),
        ({"n.a": (3,), "n.b": (1,)}, r"'n.a' \[3\] of x needs 'n.b' of its shape, and it is \[1\]"),
        ({"n.b": (3,)}, "no rule matches 'n.b'"),
        ({"n.a": (3,), "n.b": (3,), "m.b": (3,)}, "no rule matches 'm.b'"),
    ],
)
def test_companions_that_do_not_fit_are_named(specs: dict, message: str) -> None:
    tensors = {name: TensorSpec(shape=shape, dtype=torch.float32) for name, shape in specs.items()}
    with pytest.raises(WeightsError, match=message):
        build_account([(COMBINED, tensors)], {"n": (3,)}, {}, {})
