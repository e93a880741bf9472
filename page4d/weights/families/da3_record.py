"""Settings in the `config.json` of Depth Anything 3's checkpoints.

Source: Depth Anything 3, configuration files of the models; the published `config.json` files were not available.
"""

from collections.abc import Mapping
from typing import Any

_STATED = {
    "net": ("name", "out_layers", "alt_start", "qknorm_start", "rope_start", "cat_token"),
    "head": ("dim_in", "output_dim"),
}
_BACKBONES = {384: "vits", 768: "vitb", 1024: "vitl", 1536: "vitg"}


def stated_settings(content: Mapping[str, Any], part: str | None = None) -> dict[str, Any]:
    """Return the settings that a `config.json` states, such as `net.alt_start`; without those that it lacks.

    They are read at its top or below `config`, and there below `part` if the network is one of two.
    """
    inner = _record(content, "config") or content
    inner = inner if part is None else _record(inner, part)
    return {
        f"{module}.{name}": record[name]
        for module, names in _STATED.items()
        for record in (_record(inner, module),)
        for name in names
        if name in record
    }


def assumed_settings(embed_dim: int, out_layers: tuple[int, ...], start: int = -1) -> dict[str, Any]:
    """Return the same settings in the public code; `start` is -1 for a network without steps across views."""
    any_view = start >= 0
    return {
        "net.name": _BACKBONES.get(embed_dim),
        "net.out_layers": out_layers,
        **dict.fromkeys(("net.alt_start", "net.qknorm_start", "net.rope_start"), start),
        "net.cat_token": any_view,
        "head.dim_in": 2 * embed_dim if any_view else embed_dim,
        "head.output_dim": 2 if any_view else 1,
    }


def _record(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = content.get(name)
    return found if isinstance(found, Mapping) else {}
