"""`page4d inspect-shapes`: shapes, parameters, FLOPs and memory of a network, without its weights."""

from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from page4d.errors import UsageError, human_size, unknown_name
from page4d.io.atomic import parse_pin
from page4d.options import NETWORK_PRESETS, WEIGHTS_HELP, WEIGHTS_METAVAR, Option, Sha256
from page4d_cli import console, options
from page4d_cli.progress import fetched_weights
from page4d_cli.tables import Column, Row, print_fields, print_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from page4d.networks.config import NetworkConfig
    from page4d.networks.profile.table import Profile


_MAX_SIDE = 2**14
"""Largest side of an image in pixels."""

_MAX_IMAGES = 2**16
"""Largest number of views, instants or scenes."""


@options.command
def inspect_shapes(
    model: Annotated[
        str | None,
        Option(
            f"Network: {NETWORK_PRESETS}; encoder such as vit-b16, swin-t, twins-svt-s or navit; "
            "pretraining network mae or dino. Default: mv-large.",
            metavar="NAME",
        ),
    ] = None,
    weights: Annotated[
        str | None, Option(f"{WEIGHTS_HELP} Only its sizes are used.", metavar=WEIGHTS_METAVAR)
    ] = None,
    sha256: Sha256 = None,
    times: Annotated[
        int | None, Field(ge=1, le=_MAX_IMAGES), Option("Number of instants. Default: 8.", metavar="T")
    ] = None,
    views: Annotated[
        int | None, Field(ge=1, le=_MAX_IMAGES), Option("Number of views. Default: 4.", metavar="V")
    ] = None,
    size: Annotated[
        str | None,
        Option("Size of the images in pixels; N is NxN. Default: the nominal size of the network.", metavar="WxH|N"),
    ] = None,
    batch: Annotated[
        int, Field(ge=1, le=_MAX_IMAGES), Option("Scenes, or images of an encoder, per batch.", metavar="B")
    ] = 1,
    as_json: options.Json = False,
) -> None:
    """Print shapes, parameters, FLOPs and memory of a network.

    Only shapes are propagated: no weights are needed, nothing is computed. The memory of networks is that with the
    default limits of a CPU.
    """
    from page4d.networks.limits import MAX_CPU_BYTES, limits_within
    from page4d.networks.profile.network import profile_network

    image_size = None if size is None else options.parse_size(size, square=True, max_side=_MAX_SIDE)
    limits = None
    if model is not None and model in _encoders():
        given = (("--weights", weights), ("--sha256", sha256), ("--times", times), ("--views", views))
        for option, number in given:
            if number is not None:
                raise UsageError(
                    f"{option} {number}, but {model} is an encoder of single images",
                    f"leave {option} out; --batch sets the number of images",
                )
        name, profile = model, _encoders()[model](batch=batch, size=image_size)
    else:
        name, network = _choose(model, weights, parse_pin(weights, sha256))
        side = network.default_long_side or network.encoder.image_size
        height, width = image_size or (side, side)
        limits = limits_within(network, [(height, width)], MAX_CPU_BYTES)
        sizes = {"times": times or 8, "views": views or 4, "batch": batch}
        profile = profile_network(network, size=(height, width), **sizes, limits=limits)
    if as_json:
        console.print_json(_document(name, profile))
    else:
        _print(name, profile, "" if limits is None else " with the default limits of a CPU")


def _encoders() -> "dict[str, Callable[..., Profile]]":
    """Return the profile functions of encoders and pretraining networks by name."""
    from page4d.lab.pretraining.profiles import PRETRAINING_PROFILES
    from page4d.networks.encoders.build import ENCODER_PRESETS
    from page4d.networks.profile.encoders import profile_encoder

    return {name: partial(profile_encoder, config) for name, config in ENCODER_PRESETS.items()} | PRETRAINING_PROFILES


def _choose(model: str | None, weights: str | None, sha256: str | None) -> "tuple[str, NetworkConfig]":
    from page4d.networks.presets import PRESETS

    if weights is not None:
        from page4d.weights.store import describe_weights

        if model is not None:
            raise UsageError("--model and --weights both name a network", "give one of them")
        found = fetched_weights(weights, sha256, console.Verbosity())
        return found.name, describe_weights(found.path, found.sha256)[0]
    name = model or "mv-large"
    if name not in PRESETS:
        raise unknown_name("network", name, (*PRESETS, *_encoders()))
    return name, PRESETS[name]


def _document(name: str, profile: "Profile") -> dict[str, Any]:
    return {
        "network": name,
        "symbols": profile.symbols,
        "parameters": profile.parameters,
        "flops": profile.flops,
        "activation_bytes": profile.activation_bytes,
        "weight_bytes": profile.weight_bytes,
        "peak_bytes": profile.peak_bytes,
        "peak_in": profile.peak_part,
        "stages": [{**asdict(stage), "bytes": stage.num_bytes} for stage in profile.stages],
    }


def _numbers(parameters: int, flops: float, num_bytes: int) -> tuple[str, ...]:
    gflop = flops / 1e9
    work = f"{gflop:,.0f}" if gflop >= 1000 else f"{gflop:.3g}" if flops else ""
    return f"{parameters:,}" if parameters else "", work, human_size(num_bytes)


def _memory(profile: "Profile", limits: str) -> str:
    """Return the peak memory of a forward pass as text."""
    place = f", reached in the {profile.peak_part.replace('_', ' ')}" if profile.peak_part else ""
    peak, weights, rest = map(human_size, (profile.peak_bytes, profile.weight_bytes, profile.computed_bytes))
    return f"{peak} in fp32{limits}: {weights} of weights, {rest} of inputs and activations{place}"


def _print(name: str, profile: "Profile", limits: str) -> None:
    """Print a table that fits in 80 columns, with numeric below symbolic shapes and parts as headings."""
    numbers = (Column(title, right=True) for title in ("parameters", "GFLOP", "size"))
    rows: list[Row | str] = []
    part = ""
    for stage in profile.stages:
        if stage.part != part:
            rows.append(stage.part.upper())
            part = stage.part
        shapes = f"[{', '.join(stage.symbolic)}]\n[{', '.join(map(str, stage.shape))}]"
        rows.append((stage.name, shapes, *_numbers(stage.parameters, stage.flops, stage.num_bytes)))
    total = _numbers(profile.parameters, profile.flops, profile.activation_bytes)
    rows += ["TOTAL", ("all stages", "", *total)]
    title = f"{name}: {', '.join(f'{symbol}={number}' for symbol, number in profile.symbols.items())}"
    print_table([Column("stage", wraps=True), Column("symbols, shape"), *numbers], rows, title)
    print_fields([("peak memory", _memory(profile, limits))])
