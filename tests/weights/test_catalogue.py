"""The catalogue of public checkpoints is complete, suggests what fits a machine, and has files of random values."""

import math
import os
import re
import runpy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from page4d.errors import UsageError
from page4d.networks.presets import PRESETS
from page4d.networks.profile.network import profile_network
from page4d.weights import load
from page4d.weights.catalogue import (
    CATALOGUE,
    PREFERENCE,
    CatalogueEntry,
    RepositoryKind,
    choose_checkpoint,
    command_with,
    entries_of_repository,
    entry_of_file,
    find_entry,
    needed_bytes,
)
from page4d.weights.conversion.convert import ConvertSettings, plan_conversion, write_conversion
from page4d.weights.families.family import Family
from page4d.weights.families.identity import Identity
from page4d.weights.families.table import FAMILIES, read_network, recognize
from page4d.weights.sources import open_source
from page4d.weights.store import TensorSpec, is_finite
from tests.weights.checkpoints import checkpoint, manifest

PAGE = Path(__file__).parents[2] / "docs" / "weights.md"

entries = pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda entry: entry.name)


@entries
def test_its_family_has_a_network_of_its_name(entry: CatalogueEntry) -> None:
    reader = FAMILIES[Family(entry.family)].network
    assert reader is not None
    assert entry.network is None or entry.network in reader.names


@pytest.mark.parametrize("name", sorted(CATALOGUE.keys() & PRESETS.keys()))
def test_abilities_are_those_of_the_network(name: str) -> None:
    entry, config = CATALOGUE[name], PRESETS[name]
    assert (entry.predicts_cameras, entry.takes_cameras) == (config.predicts_cameras, config.takes_cameras)
    assert entry.metric == config.predicts_metres


@entries
def test_an_entry_is_complete(entry: CatalogueEntry) -> None:
    assert CATALOGUE[entry.name] is entry
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry.name)
    assert re.fullmatch(r"[\w-]+/[\w.-]+", entry.repository)
    assert re.fullmatch(r"[\w-]+\.(?:safetensors|pt)", entry.file)
    assert entry.num_bytes == 4 * entry.num_values
    assert "/" in entry.licence_source
    assert entry.good_for
    assert entry.revision is None or re.fullmatch(r"[0-9a-f]{40}", entry.revision)
    assert entry.sha256 is None or re.fullmatch(r"[0-9a-f]{64}", entry.sha256)


@entries
def test_a_converted_file_records_the_licence_of_the_catalogue(entry: CatalogueEntry) -> None:
    of_family = FAMILIES[Family(entry.family)].licence
    assert entry.licence.replace("-", " ").replace("not stated", "none stated") in of_family.replace("-", " ")


@entries
def test_only_licences_that_permit_it_are_commercial(entry: CatalogueEntry) -> None:
    assert entry.commercial == (entry.licence == "Apache-2.0" or entry.name == "vggt-commercial")
    assert not entry.gated or entry.repository.startswith("facebook/")


@entries
def test_a_file_of_the_hub_gives_its_entry(entry: CatalogueEntry) -> None:
    for repository in (entry.repository, *entry.earlier):
        assert entry_of_file(repository.upper(), entry.file) is entry
        assert entry_of_file(repository, "other.safetensors") is None
        assert entry in entries_of_repository(repository)
    alone = sum(other.repository == entry.repository for other in CATALOGUE.values()) == 1
    assert (entry_of_file(entry.repository) is entry) == alone


def test_page4d_is_published_as_a_data_set_with_two_files() -> None:
    both = [entry for entry in CATALOGUE.values() if entry.repository_kind is RepositoryKind.DATASET]
    assert {entry.file: entry.mask for entry in both} == {"checkpoint_nomask.pt": False, "checkpoint_mask.pt": True}


def test_names_are_found_in_any_case_and_others_are_refused_with_the_closest() -> None:
    assert find_entry("DA3-Base") is CATALOGUE["da3-base"]
    with pytest.raises(UsageError, match="'da3-bse'") as raised:
        find_entry("da3-bse")
    assert raised.value.hint.startswith("did you mean da3-base? choose from mv-demo, da3-small, ")
    with pytest.raises(UsageError) as raised:
        find_entry("qqq")
    assert "vggt-omega" in raised.value.hint


def catalogue_table() -> list[str]:
    head = (
        "| name | checkpoint | values | file | memory | licence | commercial | gated | repository: file | good for |"
    )
    rows = [
        f"| `{entry.name}` | {entry.title} | {entry.num_values / 1e6:,.0f} M | {entry.num_bytes / 1e9:.2f} GB "
        f"| {needed_bytes(entry) / 1e9:.0f} GB | {entry.licence} | {'yes' if entry.commercial else 'no'} "
        f"| {'yes' if entry.gated else 'no'} | `{entry.repository}`: `{entry.file}` | {entry.good_for} |"
        for entry in CATALOGUE.values()
    ]
    return [head, "|---" * (head.count("|") - 1) + "|", *rows]


def licence_table() -> list[str]:
    named: dict[tuple[str, ...], list[str]] = {}
    for entry in CATALOGUE.values():
        stated = (entry.licence, entry.licence_source, entry.licence_note)
        named.setdefault(stated, []).append(f"`{entry.name}`")
    rows = [f"| {', '.join(names)} | {' | '.join(stated)} |" for stated, names in named.items()]
    return ["| name | licence | stated in | note |", "|---|---|---|---|", *rows]


@pytest.mark.parametrize(("name", "table"), [("catalogue", catalogue_table), ("licences", licence_table)])
def test_the_documentation_holds_the_catalogue(name: str, table: Callable[[], list[str]]) -> None:
    text = PAGE.read_text()
    block = re.compile(rf"(?<=<!-- {name}: ).*?(?=<!-- end -->)", re.DOTALL)
    (found,) = block.findall(text)
    comment, *rows = found.strip().splitlines()
    if os.environ.get("PAGE4D_REGENERATE"):
        rows = table()
        PAGE.write_text(block.sub(lambda _: "\n".join([comment, "", *rows, "", ""]), text))
    assert [row for row in rows if row] == table()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("name", PREFERENCE)
def test_the_preferred_one_that_fits(name: str, half: bool) -> None:
    needed = needed_bytes(CATALOGUE[name], half=half)
    stronger = PREFERENCE[: PREFERENCE.index(name)]
    fitting = [other for other in stronger if needed_bytes(CATALOGUE[other], half=half) <= needed]
    assert choose_checkpoint(needed, commercial=False, half=half) is CATALOGUE[[*fitting, name][0]]


def test_only_licences_that_permit_it_are_suggested_for_commercial_use() -> None:
    assert choose_checkpoint(64 * 10**9, commercial=False) is CATALOGUE["da3-giant"]
    assert choose_checkpoint(64 * 10**9, commercial=True) is CATALOGUE["da3-base"]


def test_little_memory_gets_the_small_one_and_less_gets_none() -> None:
    needed = needed_bytes(CATALOGUE["da3-small"])
    small = choose_checkpoint(needed, commercial=True)
    assert small is CATALOGUE["da3-small"]
    assert choose_checkpoint(needed - 1, commercial=False) is None
    assert needed_bytes(small, half=True) < needed


def test_what_is_suggested_needs_no_application_and_predicts_cameras() -> None:
    chosen = [CATALOGUE[name] for name in PREFERENCE]
    assert not [
        entry for entry in chosen if entry.gated or not entry.predicts_cameras or entry.licence == "not stated"
    ]
    assert any(entry.commercial for entry in chosen)
    assert command_with(chosen[-1]).split()[-2:] == ["--weights", "da3-small"]


@pytest.mark.parametrize(
    "name",
    [
        "da3-small",
        *(pytest.param(f"da3-{size}", marks=pytest.mark.slow) for size in ("base", "large", "giant", "nested")),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("da3-mono", "da3-metric", "vggt", "page4d-mask")),
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("pi3", "pi3x", "vggt-omega")),
    ],
)
def test_the_memory_per_image_is_that_of_a_profile(name: str) -> None:
    config = PRESETS[name]
    size = (28 * config.patch_size, 37 * config.patch_size)
    profiles = [profile_network(config, times=1, views=views, size=size) for views in (1, 2)]
    per_pixel = (profiles[1].computed_bytes - profiles[0].computed_bytes) / (size[0] * size[1])
    assert 0.99 * per_pixel <= CATALOGUE[name].image_bytes / (518 * 392) <= 1.05 * per_pixel


TOOL = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "random_checkpoint.py"), run_name="random_checkpoint")


@pytest.mark.parametrize(("name", "golden"), [("da3-base", "vggt_c"), ("vggt-omega", "vggt_omega_c")])
def test_small_files_of_both_formats_convert(name: str, golden: str, tmp_path: Path, monkeypatch) -> None:
    given = checkpoint(golden)
    specs = {key: TensorSpec(shape=tuple(value.shape), dtype=value.dtype) for key, value in given.weights.items()}
    monkeypatch.setitem(TOOL["write_checkpoint"].__globals__, "manifest", lambda _: specs)
    path = TOOL["write_checkpoint"](name, tmp_path)
    assert path.name == CATALOGUE[name].file
    source = open_source(path)
    assert source.specs == specs
    again = open_source(TOOL["write_checkpoint"](name, tmp_path / "again"))
    assert all(torch.equal(source.read(key), again.read(key)) for key in specs)
    write_conversion(
        plan_conversion([path], ConvertSettings(configs=given.configs)), tmp_path / "network.safetensors"
    )
    with torch.no_grad():
        output = load(tmp_path / "network.safetensors", "cpu")(given.images[:, None])
    assert is_finite(output.depth)
    assert float(output.depth.std()) > 0


@pytest.mark.parametrize("name", ["da3-small", "da3-giant", "da3-nested", "da3-mono", "da3-metric"])
def test_the_record_identifies_the_network(name: str) -> None:
    specs = manifest(TOOL["MANIFESTS"].get(name, name.replace("-", "_")))
    record = TOOL["hub_record"](CATALOGUE[name])
    found = read_network(recognize(specs, "x"), specs, "x", identity=Identity(record=record))
    assert found.name == (CATALOGUE[name].network or name)


@pytest.mark.parametrize("entry", CATALOGUE.values(), ids=lambda entry: entry.name)
def test_the_manifest_has_the_size_and_the_family_of_the_catalogue(entry: CatalogueEntry) -> None:
    specs = manifest(TOOL["MANIFESTS"].get(entry.name, entry.name.replace("-", "_")))
    num_values = sum(math.prod(spec.shape) for spec in specs.values())
    assert (entry.num_values, entry.num_bytes) == (num_values, 4 * num_values)
    assert recognize(specs, entry.name) == entry.family
