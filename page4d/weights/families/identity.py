"""Which published checkpoint a source is, where tensors leave it open: a name, its `config.json`, its path."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from page4d.errors import UsageError, WeightsError, shortened
from page4d.io.documents import DocumentError, parse_json, read_text
from page4d.weights.file_type import SETTINGS_FILE

Settings = Mapping[str, Any]
"""Settings of a network by name."""

_MAX_BYTES = 2**20

_NUM_PARTS = 4
"""Parts of a path that may name the network: up to the repository of a file in the hub's cache."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """What states which published network a source is, besides its tensors."""

    given: str | None = None
    """The name that the user gives."""

    record: Settings = field(default_factory=dict)
    """Content of the `config.json` in its folder; empty without one."""

    parts: tuple[str, ...] = ()
    """The last parts of its path, the file first."""

    notices: tuple[str, ...] = ()

    @property
    def stated_name(self) -> str:
        """The name in its `config.json`, or an empty text."""
        name = self.record.get("model_name")
        return name if isinstance(name, str) else ""


def read_identity(path: Path, given: str | None = None) -> Identity:
    """Read what identifies a weights file or a folder of shards; a `config.json` that cannot be read is reported."""
    record = (path if path.is_dir() else path.parent) / SETTINGS_FILE
    parts = tuple(reversed(path.absolute().parts))[:_NUM_PARTS]
    if not record.is_file():
        return Identity(given=given, parts=parts)
    try:
        content = parse_json(read_text(record, _MAX_BYTES))
    except DocumentError as error:
        return Identity(given=given, parts=parts, notices=(f"'{record}' was ignored: {error}",))
    if not isinstance(content, dict):
        return Identity(given=given, parts=parts, notices=(f"'{record}' was ignored: it holds no JSON object",))
    return Identity(given=given, record=content, parts=parts)


def candidates_of(names: Sequence[str], identity: Identity, title: str) -> list[str]:
    """Return the names that the user leaves, of the published networks of a family.

    Raises:
        UsageError: if the user gives a name that none of them has.
    """
    if identity.given is None:
        return list(names)
    wanted = _letters(identity.given)
    found = [name for name in names if wanted and _letters(name).startswith(wanted)]
    if not found:
        known = f"known: {', '.join(names)}" if names else "leave it out"
        raise UsageError(f"⟨published_as={identity.given}⟩: no published {title} has this name", known)
    return [name for name in found if _letters(name) == wanted] or found


def name_of(names: Sequence[str], identity: Identity, where: str) -> str:
    """Return the one of several networks with the same tensors that the `config.json` or the path names.

    Raises:
        UsageError: if neither names exactly one.
    """
    for text in (identity.stated_name, *identity.parts):
        found = mentioned(text, names)
        if len(found) == 1:
            return found[0]
    raise UsageError(
        f"'{where}' is {' or '.join(names)}: their tensors have the same names and shapes",
        f"pass ⟨published_as={names[0]}⟩ or ⟨published_as={names[-1]}⟩",
    )


def check_record(
    identity: Identity, name: str, names: Sequence[str], stated: Settings, assumed: Settings, where: str
) -> None:
    """Compare what the `config.json` states with the name and the settings, by name, that the conversion assumes.

    Raises:
        WeightsError: if one differs.
    """
    others = mentioned(identity.stated_name, names)
    pairs = [("model_name", identity.stated_name, name)] if others and name in names and name not in others else []
    pairs += [(key, value, assumed[key]) for key, value in stated.items() if key in assumed]
    for key, theirs, ours in pairs:
        if (tuple(theirs) if isinstance(theirs, list) else theirs) != ours:
            raise WeightsError(
                f"'{where}': the {SETTINGS_FILE} in its folder states {key} {shortened(str(theirs))}, "
                f"{name} has {ours}",
                f"if this {SETTINGS_FILE} is that of other weights, move the weights to a folder of their own",
            )


def mentioned(text: str, names: Sequence[str]) -> list[str]:
    """Return the names that occur in a text, up to case and punctuation."""
    return [name for name in names if _letters(name) in _letters(text)]


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
