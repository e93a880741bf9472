"""Turn the checkpoint of a published encoder into one self-describing file, with an account of every tensor."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import page4d
from page4d.encoders.build import build_encoder
from page4d.errors import UsageError
from page4d.weights.accounting import Account, Tag, draw_account
from page4d.weights.convert import account_document, cast_tensor
from page4d.weights.encoder_families import (
    ENCODER_LICENCES,
    EncoderFamily,
    RecognisedEncoder,
    encoder_family,
    read_encoder,
)
from page4d.weights.sources import TensorSource, open_source
from page4d.weights.store import WeightsInfo, describe_encoder, holds_encoder, save_tensors
from page4d.weights.stream import TensorSpec

_NOTICE = "the file does not say which mean and deviation its images had; page4d subtracts those of ImageNet"


@dataclass(frozen=True, kw_only=True)
class EncoderConversion:
    """A conversion that adds up; nothing has been written."""

    recognised: RecognisedEncoder
    sources: Mapping[EncoderFamily, TensorSource]
    account: Account
    specs: Mapping[str, TensorSpec]
    licence: str
    description: str
    target: str = "encoder"
    notices: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Size of the tensors in the file."""
        return sum(spec.num_bytes for spec in self.specs.values())


def plan_encoder(
    paths: Sequence[Path], dtype: torch.dtype = torch.float32, licence: str | None = None
) -> EncoderConversion | None:
    """Account for every tensor of an encoder, by names and shapes alone; None if the first source is none.

    Raises:
        WeightsError: if the source is unusable or something does not add up.
        UsageError: if there are more sources, or the encoder has no published size.
    """
    source = open_source(paths[0])
    own = _read_own(paths[0])
    family = encoder_family(source.specs) if own is None else EncoderFamily.OWN
    if family is None:
        return None
    if len(paths) > 1:
        raise UsageError(f"'{paths[0]}' is an encoder, and {len(paths)} sources are given", "give it alone")
    recognised = read_encoder(source.specs, family, str(paths[0])) if own is None else own[0]
    with torch.device("meta"):
        encoder = build_encoder(recognised.config)
    shapes = {name: tuple(value.shape) for name, value in encoder.state_dict().items()}
    return EncoderConversion(
        recognised=recognised,
        sources={family: source},
        account=draw_account([(recognised.stage, source.specs)], shapes, {}, {}),
        specs={name: TensorSpec(shape=shape, dtype=dtype) for name, shape in shapes.items()},
        licence=licence or (ENCODER_LICENCES[family] if own is None else own[1].licence),
        description=f"{family}, an encoder" if own is None else own[1].description,
        notices=(_NOTICE,) if family is EncoderFamily.VIT else (),
    )


def _read_own(path: Path) -> tuple[RecognisedEncoder, WeightsInfo] | None:
    """Return what a file that page4d wrote says about its encoder; None if it is none."""
    if not path.is_file() or path.suffix != ".safetensors" or not holds_encoder(path):
        return None
    config, info = describe_encoder(path)
    return RecognisedEncoder(family=EncoderFamily.OWN, config=config), info


def write_encoder(
    conversion: EncoderConversion, out: Path, on_written: Callable[[int], None] | None = None
) -> dict[str, str]:
    """Write the file, one tensor in memory at a time, and return what it says about itself.

    Raises:
        WeightsError: if a tensor holds what is no number or does not fit the element type.
        OutputError: if the file cannot be written.
    """
    (source,) = conversion.sources.values()
    rows, adaptations = conversion.account.targets(), conversion.account.adaptations

    def read(name: str) -> Tensor:
        taken = rows[name].source
        assert taken is not None
        tensor = source.read(taken)
        adapted = adaptations[name](tensor) if name in adaptations else tensor
        return cast_tensor(adapted, conversion.specs[name].dtype, taken)

    family = conversion.recognised.family
    metadata = {
        "licence": conversion.licence,
        "description": conversion.description,
        "sources": json.dumps({family: source.sha256()}, sort_keys=True),
        "tensors": json.dumps({tag.value: conversion.account.count(tag) for tag in Tag}, sort_keys=True),
        "notices": "; ".join(conversion.notices),
        "tool": f"page4d {page4d.__version__}",
    }
    save_tensors(out, conversion.recognised.config, metadata, conversion.specs, read, on_written)
    return metadata


def encoder_document(conversion: EncoderConversion, metadata: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the whole account for machines: every tensor has a row."""
    return {
        "to": conversion.target,
        "sources": {family: str(source.path) for family, source in conversion.sources.items()},
        "licence": conversion.licence,
        "notices": list(conversion.notices),
        **account_document(conversion.account),
        "metadata": None if metadata is None else dict(metadata),
    }
