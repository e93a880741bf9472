"""Conversion of published networks and encoders to self-describing weights files, with every tensor accounted for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from page4d.choices import Recipe, Target
from page4d.errors import UsageError, WeightsError
from page4d.networks.config import NetworkConfig
from page4d.networks.encoders.build import EncoderConfig, build_encoder
from page4d.networks.network import build_network
from page4d.weights.catalogue import CATALOGUE, CatalogueEntry
from page4d.weights.conversion.accounting import Account, Tag, build_account
from page4d.weights.conversion.recipes import RECIPE_SOURCES, Blueprint, encoder_blueprint, network_blueprint
from page4d.weights.conversion.view_time import ViewTimeOptions, copied_tensors
from page4d.weights.families.family import Family
from page4d.weights.families.identity import read_identity
from page4d.weights.families.specs import Specs
from page4d.weights.families.table import FAMILIES, PublishedNetwork, read_encoder, read_network, recognize, titles
from page4d.weights.published import Settings
from page4d.weights.sources import TensorSource, open_source
from page4d.weights.store import TensorSpec, describe_encoder


@dataclass(frozen=True, kw_only=True)
class ConvertSettings:
    """Options of a conversion; None selects what the sources imply. Encoders take `dtype` and `licence` only."""

    recipe: Recipe | None = None
    target: Target | None = None
    mask: bool | None = None
    view_time: ViewTimeOptions | None = None
    """For the view x time network only."""
    dtype: torch.dtype = torch.float32
    licence: str | None = None
    configs: Mapping[str, Settings] = field(default_factory=dict)
    """Constructor arguments by network, where they are not the published ones."""
    published_as: str | None = None
    """The authors' name of the network, or its beginning; required where neither tensors nor names determine it."""


@dataclass(frozen=True, kw_only=True)
class PlannedConversion:
    """A conversion whose tensors are all accounted for; nothing has been written."""

    recipe: Recipe | None
    """None for an encoder."""
    target: str
    sources: Mapping[Family, TensorSource]
    blueprint: Blueprint
    account: Account
    specs: Mapping[str, TensorSpec]
    licence: str
    description: str
    published: tuple[str, ...] = ()
    """Names of the published networks, of families with several."""
    commercial: bool | None = None
    """Whether the licences permit commercial use; None if unknown."""

    @property
    def title(self) -> str:
        """Titles of the sources."""
        return titles(self.sources, " + ")

    @property
    def num_bytes(self) -> int:
        """Size of the tensors in the file."""
        return sum(spec.num_bytes for spec in self.specs.values())


def plan_conversion(paths: Sequence[Path], settings: ConvertSettings) -> PlannedConversion:
    """Open and recognize the sources, and account for every tensor by name and shape.

    Raises:
        WeightsError: if a source is unusable or tensors do not fit.
        UsageError: if the options contradict the sources or each other, or an encoder has no published size.
    """
    opened = []
    for path in paths:
        source = open_source(path)
        opened.append((recognize(source.specs, str(path), source.metadata), source))
    for family, source in opened:
        if FAMILIES[family].is_encoder:
            return _plan_encoder(family, source, settings, len(paths))
    return _plan_network(opened, settings)


def _plan_encoder(
    family: Family, source: TensorSource, settings: ConvertSettings, num_sources: int
) -> PlannedConversion:
    where = str(source.path)
    if num_sources > 1:
        raise UsageError(f"'{where}' is an encoder, and {num_sources} sources are given", "convert it alone")
    if settings != ConvertSettings(dtype=settings.dtype, licence=settings.licence):
        raise UsageError(f"'{where}' is an encoder; options of networks are given", "leave them out")
    licence, description = FAMILIES[family].licence, f"{FAMILIES[family].title}, an encoder"
    if family is Family.PAGE4D_ENCODER:
        config, info = describe_encoder(source.path)
        licence, description = info.licence, info.description
    else:
        config = read_encoder(family, source.specs, where)
    return _planned(
        {family: source}, encoder_blueprint(family, config), settings, licence, description, target="encoder"
    )


def _plan_network(opened: Sequence[tuple[Family, TensorSource]], settings: ConvertSettings) -> PlannedConversion:
    sources: dict[Family, TensorSource] = {}
    for family, source in opened:
        if family in sources:
            raise UsageError(
                f"'{sources[family].path}' and '{source.path}' are both {FAMILIES[family].title}",
                "give one of them; give the shards of one network as their folder",
            )
        sources[family] = source
    unused = sorted(set(settings.configs) - {family.value for family in sources})
    if unused:
        raise UsageError(f"--config describes {unused[0]}, but no source is of this network", "leave it out")
    found = {
        family: read_network(
            family,
            source.specs,
            str(source.path),
            settings.configs,
            read_identity(source.path, settings.published_as),
        )
        for family, source in sources.items()
    }
    recipe = settings.recipe or _matching_recipe(tuple(sources))
    _check_families(recipe, sources)
    target = settings.target or (Target.PAGE4D_MV if recipe is Recipe.THREE_STAGE else Target.OWN)
    blueprint = network_blueprint(recipe, target, found, settings.mask, settings.view_time)
    order = RECIPE_SOURCES[recipe]
    kind = "view x time network" if target is Target.PAGE4D_MV else "published network"
    return _planned(
        {family: sources[family] for family in order},
        blueprint,
        settings,
        licence=" + ".join(f"{FAMILIES[family].title}: {_licence(found[family])}" for family in order),
        description=f"{' + '.join(_title(found[family]) for family in order)}, {kind}",
        target=target.value,
        recipe=recipe,
        published=tuple(name for family in order if (name := found[family].name) is not None),
        commercial=_commercial([found[family] for family in order], settings),
    )


def _planned(
    sources: Mapping[Family, TensorSource],
    blueprint: Blueprint,
    settings: ConvertSettings,
    licence: str,
    description: str,
    target: str,
    recipe: Recipe | None = None,
    published: tuple[str, ...] = (),
    commercial: bool | None = None,
) -> PlannedConversion:
    shapes = tensor_shapes(blueprint.config)
    return PlannedConversion(
        recipe=recipe,
        target=target,
        sources=sources,
        blueprint=blueprint,
        account=account_for(blueprint, [source.specs for source in sources.values()], shapes),
        specs={name: TensorSpec(shape=shape, dtype=settings.dtype) for name, shape in shapes.items()},
        licence=settings.licence or licence,
        description=description,
        published=published,
        commercial=commercial,
    )


def account_for(blueprint: Blueprint, sources: Sequence[Specs], shapes: Mapping[str, tuple[int, ...]]) -> Account:
    """Return the account of a blueprint whose stages read these sources and fill tensors of these shapes.

    Raises:
        WeightsError: if the sources do not fill the tensors exactly.
        UsageError: if an initial value is given for a scalar that the network does not have.
    """
    new, copies = {}, {}
    if isinstance(blueprint.config, NetworkConfig):
        blueprint.new.check(blueprint.config, shapes)
        new = {name: rule for name in shapes if (rule := blueprint.new.rule(name)) is not None}
        copies = copied_tensors(shapes, blueprint.config, blueprint.last_of_pi3)
    return build_account(list(zip(blueprint.stages, sources, strict=True)), shapes, new, copies)


def tensor_shapes(config: NetworkConfig | EncoderConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a network or encoder by name, without allocating memory."""
    with torch.device("meta"):
        module = build_network(config) if isinstance(config, NetworkConfig) else build_encoder(config)
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}


def report_document(conversion: PlannedConversion, metadata: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the account as JSON-compatible values, with one row per tensor."""
    account = conversion.account
    return {
        **({} if conversion.recipe is None else {"recipe": conversion.recipe.value}),
        "to": conversion.target,
        "sources": {FAMILIES[family].title: str(source.path) for family, source in conversion.sources.items()},
        "licence": conversion.licence,
        "notices": list(conversion.blueprint.notices),
        "counts": {tag.value: account.count(tag) for tag in Tag},
        "rules": [
            {"from": origin, "rule": rule, "tag": tag.value, "tensors": number}
            for origin, rule, tag, number in account.by_rule()
        ],
        "tensors": [
            {
                "tag": row.tag.value,
                "rule": row.rule,
                "from": row.origin,
                "source": row.source,
                **({} if row.companion is None else {"companion": row.companion}),
                "target": row.target,
                "shape": list(row.shape),
            }
            for row in account.rows
        ],
        "metadata": None if metadata is None else dict(metadata),
    }


def _entry(found: PublishedNetwork) -> CatalogueEntry | None:
    """Return the checkpoint of the catalogue that a network is, where tensors and names determine it."""
    named = (entry for entry in CATALOGUE.values() if found.name in (entry.name, entry.network))
    return None if found.name is None else next(named, None)


def _title(found: PublishedNetwork) -> str:
    entry = _entry(found)
    return FAMILIES[found.family].title if entry is None else entry.title


def _licence(found: PublishedNetwork) -> str:
    entry = _entry(found)
    return FAMILIES[found.family].licence if entry is None else f"{entry.licence} ({entry.title})"


def _commercial(found: Sequence[PublishedNetwork], settings: ConvertSettings) -> bool | None:
    """Return whether all licences permit commercial use; None if one is unknown, or given by the user."""
    if settings.licence is not None or settings.configs:
        return None
    permitted = set()
    for network in found:
        entry = _entry(network)
        entries = [one for one in CATALOGUE.values() if one.family == network.family] if entry is None else [entry]
        permitted |= {one.commercial for one in entries}
    return permitted.pop() if len(permitted) == 1 else None


def _matching_recipe(families: Sequence[Family]) -> Recipe:
    for recipe, needed in RECIPE_SOURCES.items():
        if set(needed) == set(families):
            return recipe
    raise UsageError(f"no recipe combines {titles(families)}", "give one network, or Pi3 and PAGE-4D")


def _check_families(recipe: Recipe, sources: Mapping[Family, TensorSource]) -> None:
    """Refuse sources that the recipe does not use, and missing ones."""
    needed = RECIPE_SOURCES[recipe]
    for family, source in sources.items():
        if family not in needed:
            raise WeightsError(
                f"'{source.path}' holds weights of {FAMILIES[family].title}, recipe {recipe} takes {titles(needed)}",
                "leave --recipe out, or give the weights that it takes",
            )
    missing = [family for family in needed if family not in sources]
    if missing:
        raise UsageError(
            f"recipe {recipe} lacks the weights of {FAMILIES[missing[0]].title}", "give them as another source"
        )
