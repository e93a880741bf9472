"""Turn checkpoints of the public networks into one self-describing file, with an account of every tensor."""

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

import page4d
from page4d.errors import OutputError, UsageError, WeightsError
from page4d.models.config import NetworkConfig
from page4d.models.network import IMAGE_DEVIATION, IMAGE_MEAN, build_network
from page4d.weights.accounting import Account, Tag, draw_account
from page4d.weights.families import LICENCES, TITLES, Family, Recognised, Specs, read_network
from page4d.weights.published import Settings
from page4d.weights.recipes import FAMILIES, Blueprint, Recipe, Target, draw_blueprint
from page4d.weights.sources import TensorSource, open_source
from page4d.weights.store import save_tensors
from page4d.weights.stream import TensorSpec
from page4d.weights.view_time import ViewTimeOptions, copies

_CONSTANTS = {"image_mean": IMAGE_MEAN, "image_std": IMAGE_DEVIATION}


@dataclass(frozen=True, kw_only=True)
class ConvertSettings:
    """What is asked for; None is what the sources suggest."""

    recipe: Recipe | None = None
    target: Target | None = None
    mask: bool | None = None
    view_time: ViewTimeOptions | None = None
    """Of the view x time network only."""
    dtype: torch.dtype = torch.float32
    licence: str | None = None
    configs: Mapping[str, Settings] | None = None
    """Constructor arguments by network, where they are not the published ones."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """A conversion that adds up; nothing has been written."""

    recipe: Recipe
    target: Target
    sources: Mapping[Family, TensorSource]
    blueprint: Blueprint
    account: Account
    specs: Mapping[str, TensorSpec]
    licence: str

    @property
    def notices(self) -> tuple[str, ...]:
        """What the user should know."""
        return self.blueprint.notices

    @property
    def num_bytes(self) -> int:
        """Size of the tensors in the file."""
        return sum(spec.num_bytes for spec in self.specs.values())


def plan_conversion(paths: Sequence[Path], settings: ConvertSettings) -> Conversion:
    """Open the sources, recognise them and account for every tensor, by names and shapes alone.

    Raises:
        WeightsError: if a source is unusable or something does not add up.
        UsageError: if the options contradict the sources or each other.
    """
    sources, found = _recognised(paths, settings.configs or {})
    recipe = settings.recipe or _suggested(tuple(found))
    _check_families(recipe, sources)
    target = settings.target or (Target.PAGE4D_MV if recipe is Recipe.THREE_STAGE else Target.OWN)
    order = FAMILIES[recipe]
    specs = {family: sources[family].specs for family in order}
    blueprint = draw_blueprint(recipe, target, found, specs, settings.mask, settings.view_time)
    network = network_shapes(blueprint.config)
    return Conversion(
        recipe=recipe,
        target=target,
        sources={family: sources[family] for family in order},
        blueprint=blueprint,
        account=account_for(blueprint, [specs[family] for family in order], network),
        specs={name: TensorSpec(shape=shape, dtype=settings.dtype) for name, shape in network.items()},
        licence=settings.licence or " + ".join(f"{TITLES[family]}: {LICENCES[family]}" for family in order),
    )


def account_for(blueprint: Blueprint, sources: Sequence[Specs], network: Mapping[str, tuple[int, ...]]) -> Account:
    """Draw the account of a blueprint whose stages read these sources.

    Raises:
        WeightsError: if something does not add up.
        UsageError: if a number is set that the network does not have.
    """
    blueprint.fresh.check(blueprint.config, network)
    fresh = {name: rule for name in network if (rule := blueprint.fresh.rule(name)) is not None}
    copied = copies(network, blueprint.config, blueprint.last_of_pi3)
    return draw_account(list(zip(blueprint.stages, sources, strict=True)), network, fresh, copied)


def network_shapes(config: NetworkConfig) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of a network by its name, without allocating any."""
    with torch.device("meta"):
        return {name: tuple(value.shape) for name, value in build_network(config).state_dict().items()}


class Planned(Protocol):
    """What a conversion tells before it is written."""

    @property
    def sources(self) -> Mapping[Any, TensorSource]:
        """What is read, by what it is."""
        ...

    @property
    def num_bytes(self) -> int:
        """Size of the tensors in the file."""
        ...


def check_output(out: Path, conversion: Planned | None = None, *, overwrite: bool = False) -> None:
    """Refuse an output that exists, cannot be loaded by its name, or does not fit on the disk.

    Raises:
        UsageError: if the file's name does not end in .safetensors, or it is one of the sources.
        OutputError: if it is there already, its folder is missing or the disk is too full.
    """
    if out.suffix != ".safetensors":
        raise UsageError(f"--out '{out}' does not end in .safetensors", "give it that ending")
    if not out.parent.is_dir():
        raise OutputError(f"folder '{out.parent}' does not exist", "make it first")
    if out.is_dir() or (out.exists() and not overwrite):
        raise OutputError(f"'{out}' is there already", "choose another name, or pass --overwrite")
    if conversion is None:
        return
    for source in conversion.sources.values():
        if any(out.exists() and out.samefile(file) for file in source.files):
            raise UsageError(f"--out '{out}' is one of the sources", "choose another name")
    free = shutil.disk_usage(out.parent).free
    if free < conversion.num_bytes:
        raise OutputError(
            f"'{out}' needs {conversion.num_bytes / 1e9:.2f} GB, its disk has {free / 1e9:.2f} GB free",
            "free some space, choose another disk, or pass --dtype bf16",
        )


def write_conversion(
    conversion: Conversion, out: Path, on_written: Callable[[int], None] | None = None
) -> dict[str, str]:
    """Write the file, one tensor in memory at a time, and return what it says about itself.

    Raises:
        WeightsError: if a tensor holds what is no number or does not fit the element type.
        OutputError: if the file cannot be written.
    """
    _check_constants(conversion.sources)
    rows = conversion.account.targets()
    by_title = {TITLES[family]: source for family, source in conversion.sources.items()}
    new = {row.target: row.shape for row in rows.values() if row.target is not None and row.tag is Tag.NEW}
    fresh = conversion.blueprint.fresh.tensors(conversion.blueprint.config, new)

    def read(name: str) -> Tensor:
        row = rows[name]
        if row.source is None:
            tensor = fresh[name]
        else:
            tensor = by_title[row.origin].read(row.source)
            if name in conversion.account.adaptations:
                tensor = conversion.account.adaptations[name](tensor)
        return cast_tensor(tensor, conversion.specs[name].dtype, row.source or name)

    metadata = _metadata(conversion)
    save_tensors(out, conversion.blueprint.config, metadata, conversion.specs, read, on_written)
    return metadata


def report_document(conversion: Conversion, metadata: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the whole account for machines: every tensor has a row."""
    account = conversion.account
    return {
        "recipe": conversion.recipe.value,
        "to": conversion.target.value,
        "sources": {TITLES[family]: str(source.path) for family, source in conversion.sources.items()},
        "licence": conversion.licence,
        "notices": list(conversion.notices),
        **account_document(account),
        "metadata": None if metadata is None else dict(metadata),
    }


def account_document(account: Account) -> dict[str, Any]:
    """Return every row of an account for machines, and what the rows add up to."""
    return {
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
                "target": row.target,
                "shape": list(row.shape),
            }
            for row in account.rows
        ],
    }


def _recognised(
    paths: Sequence[Path], configs: Mapping[str, Settings]
) -> tuple[dict[Family, TensorSource], dict[Family, Recognised]]:
    sources: dict[Family, TensorSource] = {}
    found: dict[Family, Recognised] = {}
    for path in paths:
        source = open_source(path)
        recognised = read_network(source.specs, str(path), configs)
        if recognised.family in sources:
            raise UsageError(
                f"'{sources[recognised.family].path}' and '{path}' are both {TITLES[recognised.family]}",
                "give one of them; the shards of one network are given as their folder",
            )
        sources[recognised.family], found[recognised.family] = source, recognised
    unused = sorted(set(configs) - {family.value for family in found})
    if unused:
        raise UsageError(f"--config describes {unused[0]}, but no source is of it", "leave it out")
    return sources, found


def _suggested(families: Sequence[Family]) -> Recipe:
    for recipe, needed in FAMILIES.items():
        if set(needed) == set(families):
            return recipe
    held = " and ".join(TITLES[family] for family in families)
    raise UsageError(f"no recipe makes a network of {held}", "give one network, or Pi3 and PAGE-4D")


def _check_families(recipe: Recipe, sources: Mapping[Family, TensorSource]) -> None:
    """Compare what a recipe needs with what there is."""
    needed = FAMILIES[recipe]
    for family, source in sources.items():
        if family not in needed:
            wanted = " and ".join(TITLES[each] for each in needed)
            raise WeightsError(
                f"'{source.path}' holds weights of {TITLES[family]}, recipe {recipe} takes {wanted}",
                "leave --recipe out, or give the weights it takes",
            )
    missing = [family for family in needed if family not in sources]
    if missing:
        raise UsageError(f"recipe {recipe} lacks the weights of {TITLES[missing[0]]}", "give them as one more source")


def cast_tensor(tensor: Tensor, dtype: torch.dtype, name: str) -> Tensor:
    """Return a tensor in another type.

    Raises:
        WeightsError: if it holds what is no number or does not fit the type.
    """
    cast = tensor.to(dtype)
    if bool(torch.isfinite(cast).all()):
        return cast
    if bool(torch.isfinite(tensor).all()):
        largest = float(tensor.abs().max())
        raise WeightsError(f"tensor '{name}' reaches {largest:g}, which {dtype} cannot hold", "pass --dtype bf16")
    raise WeightsError(f"tensor '{name}' holds values that are not finite", "get the weights again")


def _check_constants(sources: Mapping[Family, TensorSource]) -> None:
    """Compare constants of a source with those that are built in."""
    for source in sources.values():
        for name, built_in in _CONSTANTS.items():
            if name not in source.specs:
                continue
            values = source.read(name).flatten()
            if values.shape != (3,) or not torch.allclose(
                values.double(), torch.tensor(built_in).double(), atol=1e-6
            ):
                raise WeightsError(
                    f"'{source.path}': {name} is {values.tolist()[:3]}, built in is {list(built_in)}",
                    "these weights need another normalisation than page4d has",
                )


def _metadata(conversion: Conversion) -> dict[str, str]:
    account = conversion.account
    titles = " + ".join(TITLES[family] for family in conversion.sources)
    mask = conversion.blueprint.config.mask
    kind = "view x time network" if conversion.target is Target.PAGE4D_MV else "its own network"
    sources = {TITLES[family]: source.sha256() for family, source in conversion.sources.items()}
    return {
        "licence": conversion.licence,
        "description": f"{titles}, {kind}",
        "recipe": conversion.recipe.value,
        "to": conversion.target.value,
        "mask": "none" if mask is None else f"{mask.head.value}, {mask.rule.value}",
        "sources": json.dumps(sources, sort_keys=True),
        "tensors": json.dumps({tag.value: account.count(tag) for tag in Tag}, sort_keys=True),
        "notices": "; ".join(conversion.blueprint.notices),
        "tool": f"page4d {page4d.__version__}",
    }
