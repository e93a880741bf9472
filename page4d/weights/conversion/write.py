"""The file of a conversion: checks of its place, writing with one tensor in memory at a time, and its metadata."""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

import page4d
from page4d.errors import OutputError, UsageError, WeightsError
from page4d.io.atomic import check_file
from page4d.networks.config import NetworkConfig
from page4d.weights.conversion.accounting import Account, Tag
from page4d.weights.conversion.convert import PlannedConversion
from page4d.weights.families.table import FAMILIES
from page4d.weights.sources import TensorSource
from page4d.weights.store import COMMERCIAL, is_finite, save_tensors


def check_output(out: Path, conversion: PlannedConversion | None = None, *, overwrite: bool = False) -> None:
    """Refuse an output that exists, has another suffix than .safetensors, or does not fit on the disk.

    Raises:
        UsageError: if the suffix is wrong, or the file is one of the sources.
        OutputError: if the file exists, its folder is missing or the disk is too full.
    """
    if out.suffix != ".safetensors":
        raise UsageError(f"--out '{out}' does not end in .safetensors", "give it that ending")
    if not out.parent.is_dir():
        raise OutputError(f"folder '{out.parent}' does not exist", "create it first")
    if out.is_dir() or (out.exists() and not overwrite):
        raise OutputError(f"'{out}' already exists", "choose another name, or pass --overwrite")
    check_file(out)
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
    conversion: PlannedConversion, out: Path, on_written: Callable[[int], None] | None = None
) -> dict[str, str]:
    """Write the file with one tensor in memory at a time, and return its metadata.

    Raises:
        WeightsError: if a tensor is not finite or exceeds the range of the element type.
        OutputError: if the file cannot be written.
    """
    rows, adaptations = conversion.account.targets(), conversion.account.adaptations
    by_title = {FAMILIES[family].title: source for family, source in conversion.sources.items()}
    _check_constants(conversion.account, by_title)
    new = _new_tensors(conversion)

    def read(name: str) -> Tensor:
        row = rows[name]
        if row.source is None:
            tensor = new[name]
        else:
            tensor = by_title[row.origin].read(row.source)
            if row.companion is not None:
                tensor = adaptations[name](tensor, _finite(by_title[row.origin].read(row.companion), row.companion))
            elif name in adaptations:
                tensor = adaptations[name](tensor)
        return _cast(tensor, conversion.specs[name].dtype, row.source or name)

    metadata = _metadata(conversion)
    save_tensors(out, conversion.blueprint.config, metadata, conversion.specs, read, on_written)
    return metadata


def _new_tensors(conversion: PlannedConversion) -> dict[str, Tensor]:
    """Return the initial values of the tensors without a source."""
    blueprint = conversion.blueprint
    if not isinstance(blueprint.config, NetworkConfig):
        return {}
    rows = conversion.account.targets().items()
    return blueprint.new.tensors(blueprint.config, {name: row.shape for name, row in rows if row.tag is Tag.NEW})


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
    raise WeightsError(f"tensor '{name}' reaches {largest:g}, which {dtype} cannot hold", "pass --dtype bf16")


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
    for (origin, name), built_in in account.constants.items():
        stored = sources[origin].read(name).flatten()
        values, expected = stored.double(), torch.tensor(built_in, dtype=stored.dtype).double()
        if values.shape != expected.shape or not torch.allclose(values, expected, atol=1e-6):
            raise WeightsError(
                f"'{sources[origin].path}': {name} is {_listed(values)}, page4d uses {_listed(expected)}",
                "these weights need other constants, which page4d does not support",
            )


def _listed(values: Tensor) -> str:
    return f"[{', '.join(f'{value:.6g}' for value in values.tolist()[:3])}{', ...' if len(values) > 3 else ''}]"


def _metadata(conversion: PlannedConversion) -> dict[str, str]:
    account = conversion.account
    network = {}
    if conversion.recipe is not None:
        assert isinstance(conversion.blueprint.config, NetworkConfig)
        mask = conversion.blueprint.config.mask
        network = {
            "recipe": conversion.recipe.value,
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
