"""Conversion of published networks and encoders to self-describing weights files, with every tensor accounted for.

The place of the file is checked first; it is written with one tensor in memory at a time.
"""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import page4d
from page4d.choices import Target
from page4d.errors import OutputError, UsageError, WeightsError, counted
from page4d.io.atomic import check_file
from page4d.networks.config import NetworkConfig
from page4d.networks.encoders.build import EncoderConfig, build_encoder
from page4d.networks.network import build_network
from page4d.networks.profile.meta import on_meta_device
from page4d.weights.catalogue import CATALOGUE, CatalogueEntry
from page4d.weights.conversion import view_time
from page4d.weights.conversion.accounting import Account, Tag, build_account
from page4d.weights.conversion.view_time import AddedParts, Blueprint
from page4d.weights.families.family import Family, Specs
from page4d.weights.families.identity import read_identity
from page4d.weights.families.table import FAMILIES, PublishedNetwork, read_network, recognize, titles
from page4d.weights.sources import TensorSource, open_source
from page4d.weights.store import COMMERCIAL, TensorSpec, describe_encoder, is_finite, save_tensors


@dataclass(frozen=True, kw_only=True)
class ConvertSettings:
    """Options of a conversion; None selects what the sources imply. Encoders take `dtype` and `licence` only."""

    target: Target | None = None
    mask: bool | None = None
    parts: AddedParts = view_time.NO_PARTS
    """Of the view x time network."""
    dtype: torch.dtype = torch.float32
    licence: str | None = None
    configs: tuple[NetworkConfig, ...] = ()
    """The networks of the sources, in their order, where their sizes are not the published ones."""
    published_as: str | None = None
    """The authors' name of the network, or its beginning; required where neither tensors nor names determine it."""


@dataclass(frozen=True, kw_only=True)
class PlannedConversion:
    """A conversion whose tensors are all accounted for; nothing has been written."""

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
    def is_network(self) -> bool:
        """Whether it is a whole network, not an encoder."""
        return isinstance(self.blueprint.config, NetworkConfig)

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
        if FAMILIES[family].network is None:
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
    read = FAMILIES[family].encoder
    if read is None:  # a file that page4d wrote
        config, info = describe_encoder(source.path)
        licence, description = info.licence, info.description
    else:
        config = read(source.specs, where)
    blueprint = view_time.encoder_blueprint(family, config)
    return _planned({family: source}, blueprint, settings, licence, description=description, target="encoder")


def _plan_network(opened: Sequence[tuple[Family, TensorSource]], settings: ConvertSettings) -> PlannedConversion:
    sources: dict[Family, TensorSource] = {}
    for family, source in opened:
        if family in sources:
            raise UsageError(
                f"'{sources[family].path}' and '{source.path}' are both {FAMILIES[family].title}",
                "give one of them; give the shards of one network as their folder",
            )
        sources[family] = source
    configs: Sequence[NetworkConfig | None] = settings.configs or [None] * len(sources)
    if len(configs) != len(sources):
        raise UsageError(
            f"⟨configs⟩ describes {counted(len(configs), 'network')} of {counted(len(sources), 'source')}",
            "give one per source, in their order, or none",
        )
    found = {
        family: read_network(
            family, source.specs, str(source.path), config, read_identity(source.path, settings.published_as)
        )
        for (family, source), config in zip(sources.items(), configs, strict=True)
    }
    if len(sources) > 1 and sources.keys() != {*view_time.THREE_STAGE}:
        raise UsageError(f"no network combines {titles(sources)}", "give one network, or Pi3 and PAGE-4D")
    order = view_time.THREE_STAGE if len(sources) > 1 else tuple(sources)
    target = settings.target or (Target.PAGE4D_MV if order == view_time.THREE_STAGE else Target.OWN)
    blueprint = view_time.network_blueprint(target, found, settings.mask, settings.parts)
    kind = "view x time network" if target is Target.PAGE4D_MV else "published network"
    return _planned(
        {family: sources[family] for family in order},
        blueprint,
        settings,
        licence=" + ".join(f"{FAMILIES[family].title}: {_licence(found[family])}" for family in order),
        description=f"{' + '.join(_title(found[family]) for family in order)}, {kind}",
        target=target.value,
        published=tuple(name for family in order if (name := found[family].name) is not None),
        commercial=_commercial([found[family] for family in order], settings),
    )


def _planned(
    sources: Mapping[Family, TensorSource],
    blueprint: Blueprint,
    settings: ConvertSettings,
    licence: str,
    **others: Any,
) -> PlannedConversion:
    shapes = tensor_shapes(blueprint.config)
    return PlannedConversion(
        sources=sources,
        blueprint=blueprint,
        account=account_for(blueprint, [source.specs for source in sources.values()], shapes),
        specs={name: TensorSpec(shape=shape, dtype=settings.dtype) for name, shape in shapes.items()},
        licence=settings.licence or licence,
        **others,
    )


def account_for(blueprint: Blueprint, sources: Sequence[Specs], shapes: Mapping[str, tuple[int, ...]]) -> Account:
    """Return the account of a blueprint whose stages read these sources and fill tensors of these shapes.

    Raises:
        WeightsError: if the sources do not fill the tensors exactly.
    """
    new, copies = {}, {}
    if isinstance(blueprint.config, NetworkConfig):
        new = {name: rule for name in shapes if (rule := blueprint.new.rule(name)) is not None}
        copies = view_time.copied_tensors(shapes, blueprint.config, blueprint.last_of_pi3)
    return build_account(list(zip(blueprint.stages, sources, strict=True)), shapes, new, copies)


@cache
def tensor_shapes(config: NetworkConfig | EncoderConfig) -> Mapping[str, tuple[int, ...]]:
    """Return the shape of every tensor of a network or encoder by name, without allocating memory."""
    with on_meta_device():
        module = build_network(config) if isinstance(config, NetworkConfig) else build_encoder(config)
    return {name: tuple(value.shape) for name, value in module.state_dict().items()}


def report_document(conversion: PlannedConversion, metadata: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the account as JSON-compatible values, with one row per tensor."""
    account = conversion.account
    return {
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


def check_output(out: Path, conversion: PlannedConversion | None = None, *, overwrite: bool = False) -> None:
    """Refuse an output that exists, has another suffix than .safetensors, or does not fit on the disk.

    Raises:
        UsageError: if the suffix is wrong, or the file exists or is one of the sources.
        OutputError: if its folder is missing or the disk is too full.
    """
    if out.suffix != ".safetensors":
        raise UsageError(f"⟨out='{out}'⟩ does not end in .safetensors", "give it that ending")
    if not out.parent.is_dir():
        raise OutputError(f"folder '{out.parent}' does not exist", "create it first")
    check_file(out, overwrite=overwrite)
    if conversion is None:
        return
    for source in conversion.sources.values():
        if any(out.exists() and out.samefile(file) for file in source.files):
            raise UsageError(f"⟨out='{out}'⟩ is one of the sources", "choose another name")
    free = shutil.disk_usage(out.parent).free
    if free < conversion.num_bytes:
        raise OutputError(
            f"'{out}' needs {conversion.num_bytes / 1e9:.2f} GB, its disk has {free / 1e9:.2f} GB free",
            "free some space, choose another disk, or pass ⟨dtype=bf16⟩",
        )


def write_conversion(
    conversion: PlannedConversion, out: Path, on_written: Callable[[int, int], None] | None = None
) -> dict[str, str]:
    """Write the file with one tensor in memory at a time, and return its metadata.

    Raises:
        WeightsError: if a tensor is not finite or exceeds the range of the element type.
        OutputError: if the file cannot be written.
    """
    rows = conversion.account.targets()
    by_title = {FAMILIES[family].title: source for family, source in conversion.sources.items()}
    _check_constants(conversion.account, by_title)
    blueprint, new = conversion.blueprint, {}
    if isinstance(blueprint.config, NetworkConfig):
        shapes = {name: row.shape for name, row in rows.items() if row.tag is Tag.NEW}
        new = blueprint.new.tensors(blueprint.config, shapes)

    def read(name: str) -> Tensor:
        row = rows[name]
        if row.source is None:
            tensor = new[name]
        else:
            source = by_title[row.origin]
            tensor = source.read(row.source)
            if row.adapt is not None:
                others = [] if row.companion is None else [_finite(source.read(row.companion), row.companion)]
                tensor = row.adapt(tensor, *others)
        return _cast(tensor, conversion.specs[name].dtype, row.source or name)

    metadata = _metadata(conversion)
    save_tensors(out, blueprint.config, metadata, conversion.specs, read, on_written)
    return metadata


def _cast(tensor: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Return a tensor in another type.

    Raises:
        WeightsError: if a value is not finite or exceeds the range of the type.
    """
    if not tensor.is_floating_point():
        raise WeightsError(
            f"tensor '{name}' has type {tensor.dtype}, and quantized weights are not supported",
            "get the weights in floating point",
        )
    cast = tensor.to(dtype)
    if is_finite(cast):
        return cast
    largest = float(_finite(tensor, name).abs().max())
    raise WeightsError(f"tensor '{name}' reaches {largest:g}, which {dtype} cannot hold", "pass ⟨dtype=bf16⟩")


def _finite(tensor: Tensor, name: str) -> Tensor:
    """Return a tensor whose values are finite.

    Raises:
        WeightsError: if one is not.
    """
    if not is_finite(tensor):
        raise WeightsError(f"tensor '{name}' holds values that are not finite", "get the weights again")
    return tensor


def _check_constants(account: Account, sources: Mapping[str, TensorSource]) -> None:
    """Refuse sources whose constants, such as those of the image normalization, differ from the built-in ones.

    Those are compared as rounded to the type of the source, which may be a copy in half precision.
    """
    for row in account.rows:
        if row.constant is None or row.source is None:
            continue
        stored = sources[row.origin].read(row.source).flatten()
        values, expected = stored.double(), torch.tensor(row.constant, dtype=stored.dtype).double()
        if values.shape != expected.shape or not torch.allclose(values, expected, atol=1e-6):
            raise WeightsError(
                f"'{sources[row.origin].path}': {row.source} is {_listed(values)}, page4d uses {_listed(expected)}",
                "these weights need other constants, which page4d does not support",
            )


def _listed(values: Tensor) -> str:
    return f"[{', '.join(f'{value:.6g}' for value in values.tolist()[:3])}{', ...' if len(values) > 3 else ''}]"


def _metadata(conversion: PlannedConversion) -> dict[str, str]:
    account = conversion.account
    network = {}
    if isinstance(conversion.blueprint.config, NetworkConfig):
        mask = conversion.blueprint.config.mask
        network = {
            "to": conversion.target,
            **({"published": " + ".join(conversion.published)} if conversion.published else {}),
            "mask": "none" if mask is None else f"{mask.head.value}, {mask.rule.value}",
        }
    sources = {FAMILIES[family].title: source.sha256() for family, source in conversion.sources.items()}
    return {
        "licence": conversion.licence,
        "description": conversion.description,
        **network,
        **({} if conversion.commercial is None else {COMMERCIAL: "yes" if conversion.commercial else "no"}),
        "families": " + ".join(conversion.sources),
        "sources": json.dumps(sources, sort_keys=True),
        "tensors": json.dumps({tag.value: account.count(tag) for tag in Tag}, sort_keys=True),
        "notices": "; ".join(conversion.blueprint.notices),
        "tool": f"page4d {page4d.__version__}",
    }
