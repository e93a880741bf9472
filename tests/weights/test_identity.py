"""Published networks with the same tensors are distinguished, and a contradicting `config.json` is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from page4d.errors import UsageError, WeightsError
from page4d.weights.conversion.convert import ConvertSettings, PlannedConversion, plan_conversion
from page4d.weights.families import table
from page4d.weights.families.da3 import stated_settings
from page4d.weights.families.family import Family
from page4d.weights.families.identity import Identity, candidates_of
from page4d.weights.families.table import PublishedNetwork, read_network, recognize
from tests.encoders.recorded import SHARED
from tests.weights.checkpoints import checkpoint, empty_checkpoint, manifest

NAMES = ("vggt-one", "vggt-two")


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the family of VGGT two published networks of one size, which differ in a setting that tensors lack."""
    config = checkpoint("vggt_c").config
    data = table.FAMILIES[Family.VGGT]
    network = replace(
        data.network,
        published=dict(zip(NAMES, (config, replace(config, rope_base=200.0)), strict=True)),
        stated=stated_settings,
        assumed=lambda config: {"net.out_layers": config.depth_head.layers},
    )
    monkeypatch.setitem(table.FAMILIES, Family.VGGT, replace(data, network=network))


def planned(folder: Path, record: str | None = None, **settings: object) -> PlannedConversion:
    folder.mkdir(parents=True)
    path = checkpoint("vggt_c").save(folder)
    if record is not None:
        (folder / "config.json").write_text(record)
    return plan_conversion([path], ConvertSettings(**settings))


@pytest.mark.parametrize(
    ("folder", "record", "given", "base"),
    [
        ("VGGT-ONE", None, None, 100),
        ("models--org--VGGT_Two/snapshots/0a1b", None, None, 200),
        ("VGGT-ONE", '{"model_name": "org/vggt-two-1.1"}', None, 200),
        ("VGGT-ONE", '{"model_name": "something"}', None, 100),
        ("VGGT-ONE", None, "VGGT-two", 200),
        ("plain", None, "vggt-t", 200),
    ],
)
@pytest.mark.usefixtures("twins")
def test_the_network_follows_from_the_option_the_record_or_the_path(
    folder: str, record: str | None, given: str | None, base: float, tmp_path: Path
):
    assert planned(tmp_path / folder, record, published_as=given).blueprint.config.rope_base == base


@pytest.mark.parametrize(
    ("folder", "given", "message"),
    [
        ("plain", None, "is vggt-one or vggt-two: their tensors have the same names"),
        ("vggt-one-or-vggt-two", None, "is vggt-one or vggt-two"),
        ("a/b/c/d/vggt-one/e/f/g/h", "vggt-", "is vggt-one or vggt-two"),
        ("plain", "two", "published_as='two': no published VGGT has this name"),
        ("plain", "", "published_as='': no published VGGT has this name"),
    ],
)
@pytest.mark.usefixtures("twins")
def test_a_network_that_nothing_identifies_is_refused(folder: str, given: str | None, message: str, tmp_path: Path):
    with pytest.raises(UsageError, match=message) as caught:
        planned(tmp_path / folder, published_as=given)
    assert "vggt-two" in caught.value.hint


def test_a_name_for_a_family_with_one_network_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match="no published VGGT has this name") as caught:
        planned(tmp_path / "x", published_as="vggt", configs=checkpoint("vggt_c").configs)
    assert caught.value.hint == "leave it out"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"model_name": "vggt-one"}, r"states model_name vggt-one, vggt-two has vggt-two"),
        ({"net": {"out_layers": [0, 1, 2, 9]}}, r"states net.out_layers \[0, 1, 2, 9\], vggt-two has \(0, 1, 2, 3\)"),
        ({"config": {"net": {"out_layers": 4}}}, "states net.out_layers 4"),
    ],
)
@pytest.mark.usefixtures("twins")
def test_a_record_that_contradicts_the_network_is_refused(record: dict, message: str, tmp_path: Path):
    with pytest.raises(WeightsError, match=message) as caught:
        planned(tmp_path / "x", json.dumps(record), published_as="vggt-two")
    assert "folder of their own" in caught.value.hint


@pytest.mark.parametrize(
    ("record", "notices"),
    [
        ('{"config": {"net": {"out_layers": [0, 1, 2, 3], "name": "unchecked"}, "head": 3}}', 0),
        ('{"model_name": 7, "net": null}', 0),
        ("{", 1),
        ("[]", 1),
        ('{"a": NaN}', 1),
    ],
)
@pytest.mark.usefixtures("twins")
def test_a_record_that_cannot_be_read_is_ignored_with_a_notice(record: str, notices: int, tmp_path: Path):
    conversion = planned(tmp_path / "x", record, published_as="vggt-two")
    assert len(conversion.blueprint.notices) == notices
    assert all("config.json' was ignored" in notice for notice in conversion.blueprint.notices)


def test_the_settings_of_a_part_are_read_where_the_record_has_two():
    content = {"config": {"anyview": {"net": {"alt_start": 13}}, "metric": {"net": {"alt_start": -1}}}}
    assert stated_settings(content, "anyview") == {"net.alt_start": 13}
    assert stated_settings(content) == {}


def read(name: str, record: dict, path: str = "x/model.safetensors", given: str | None = None) -> PublishedNetwork:
    specs = manifest(name)
    identity = Identity(given=given, record=record, parts=tuple(reversed(path.split("/"))))
    return read_network(recognize(specs, "x"), specs, "x", identity=identity)


@pytest.mark.parametrize(
    ("manifest_name", "recording"),
    [
        *((f"da3_{size}", f"da3_{size}") for size in ("small", "base", "large", "giant")),
        ("da3nested", "da3nested_giant_large"),
        *(("da3metric_large", f"da3{kind}_large") for kind in ("mono", "metric")),
    ],
)
def test_the_recorded_settings_of_depth_anything_3_are_those_of_the_conversion(manifest_name: str, recording: str):
    path = SHARED / f"config_full_{recording}.json"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    settings = json.loads(path.read_text())
    parts = ("anyview", "metric") if manifest_name == "da3nested" else (None,)
    assert [len(stated_settings(settings, part)) for part in parts] == [8] * len(parts)
    for record in (settings, {"config": settings}, {"model_name": settings["model"], "config": settings}):
        found = read(manifest_name, record, f"{recording}/model.safetensors")
        assert found.name == recording.replace("_", "-")


@pytest.mark.parametrize(
    ("name", "record", "message"),
    [
        ("da3_base", {"model_name": "depth-anything/DA3-SMALL"}, "model_name depth-anything/DA3-SMALL, da3-base has"),
        ("da3_base", {"net": {"name": "vitl"}}, "net.name vitl, da3-base has vitb"),
        ("da3_large", {"config": {"net": {"alt_start": 4}}}, "net.alt_start 4, da3-large has 8"),
        ("da3_giant", {"net": {"out_layers": [9, 19, 29, 39]}}, "net.out_layers"),
        ("da3nested", {"config": {"anyview": {"net": {"alt_start": 8}}}}, "anyview.net.alt_start 8, da3nested-"),
        ("da3nested", {"metric": {"head": {"output_dim": 2}}}, "metric.head.output_dim 2, da3nested-giant-"),
        ("da3nested", {"model_name": "da3-giant", "anyview": {"net": {"name": "vitl"}}}, "anyview.net.name vitl"),
        ("da3metric_large", {"model_name": "da3mono-large", "net": {"cat_token": True}}, "cat_token True, da3mono-"),
    ],
)
def test_records_of_depth_anything_3_that_contradict_the_tensors_are_refused(name: str, record: dict, message: str):
    with pytest.raises(WeightsError, match=message):
        read(name, record)


@pytest.mark.parametrize(
    ("record", "path", "given", "focal"),
    [
        ({"model_name": "da3metric-large"}, "x", None, 300.0),
        ({"model_name": "da3mono-large"}, "DA3METRIC-LARGE/model.safetensors", None, None),
        ({}, "models--depth-anything--DA3METRIC-LARGE/snapshots/0a1b2c/model.safetensors", None, 300.0),
        ({}, "da3mono_large.safetensors", None, None),
        ({}, "x", "da3-metric", 300.0),
    ],
)
def test_mono_and_metric_are_distinguished(record: dict, path: str, given: str | None, focal: float | None):
    assert read("da3metric_large", record, path, given).config.metric_focal == focal


@pytest.mark.parametrize(
    ("name", "record", "published", "licence", "commercial"),
    [
        ("da3_base", {}, "da3-base", "Depth Anything 3: Apache-2.0 (Depth Anything 3 BASE)", True),
        ("da3_large", {}, "da3-large", "Depth Anything 3: CC-BY-NC-4.0 (Depth Anything 3 LARGE 1.1)", False),
        (
            "da3metric_large",
            {"model_name": "da3metric-large"},
            "da3metric-large",
            "Apache-2.0 (Depth Anything 3 METRIC",
            True,
        ),
    ],
)
def test_a_conversion_records_which_network_it_is_and_its_licence(
    name: str, record: dict, published: str, licence: str, commercial: bool, tmp_path: Path
):
    path = empty_checkpoint(tmp_path, {key: spec.shape for key, spec in manifest(name).items()})
    (tmp_path / "config.json").write_text(json.dumps(record))
    conversion = plan_conversion([path], ConvertSettings())
    assert conversion.published == (published,)
    assert licence in conversion.licence
    assert conversion.commercial is commercial
    assert plan_conversion([path], ConvertSettings(licence="mine")).commercial is None


def test_mono_or_metric_is_asked_for():
    with pytest.raises(UsageError, match="'x' is da3mono-large or da3metric-large") as caught:
        read("da3metric_large", {}, "da3/model.safetensors")
    assert caught.value.hint == "pass published_as='da3mono-large' or published_as='da3metric-large'"
    with pytest.raises(UsageError, match=r"has encoder\.\w+ \d+ where the published da3-base"):
        read("da3_small", {}, given="da3-base")


def test_a_whole_name_precedes_names_that_begin_with_it():
    assert candidates_of(("net-large", "net-large-2"), Identity(given="NET_large"), "x") == ["net-large"]
    assert candidates_of(("net-large", "net-large-2"), Identity(given="net-l"), "x") == ["net-large", "net-large-2"]
