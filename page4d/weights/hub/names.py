"""What `weights` takes: the name of a public checkpoint, a file of the hub, or a file of this machine."""

import re
from dataclasses import dataclass
from pathlib import Path

from page4d.errors import UsageError, shortened
from page4d.weights.catalogue import (
    CATALOGUE,
    CatalogueEntry,
    RepositoryKind,
    entries_of_repository,
    entry_of_file,
    find_entry,
)
from page4d.weights.file_type import PICKLE_SUFFIXES

HUB = "hf:"
_DATASETS = "datasets/"
INDEX_SUFFIX = ".safetensors.index.json"
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
"""Files of the hub that are fetched."""

FORM = "hf:org/name[@revision][:file]"
_FORM_HINT = f"give {FORM}, such as hf:depth-anything/DA3-BASE:model.safetensors"
_PART = r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?"
_REFERENCE = re.compile(
    rf"hf:(?P<datasets>datasets/)?(?P<repository>{_PART}/{_PART})"
    r"(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]{0,254}))?(?::(?P<file>[^:]{1,512}))?"
)


@dataclass(frozen=True, kw_only=True)
class HubReference:
    """Weights in a repository of the hub; None leaves the revision or the file to the repository."""

    name: str
    """As the user wrote it."""

    repository: str
    kind: RepositoryKind = RepositoryKind.MODEL
    revision: str | None = None
    file: str | None = None
    entry: CatalogueEntry | None = None
    """The checkpoint in the catalogue, if it has this file."""

    @property
    def place(self) -> str:
        """The repository with revision and file, in the form of `hf:` references."""
        datasets = _DATASETS if self.kind is RepositoryKind.DATASET else ""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{HUB}{datasets}{self.repository}{revision}" + (f":{self.file}" if self.file else "")


def parse_weights(given: str | Path) -> Path | HubReference:
    """Distinguish names of checkpoints and files of the hub from files of this machine.

    A `Path`, and a text with a separator or the suffix of a weights file, is a file; so is the name of an existing
    file. Any other text is a name of the catalogue.

    Raises:
        UsageError: if it is no text, no name of the catalogue, or a malformed `hf:` reference.
    """
    if isinstance(given, Path):
        return given
    if not isinstance(given, str) or not given.strip():
        raise UsageError(
            f"weights are {shortened(repr(given))}, not a name or a path", f"give a name, {FORM} or a file"
        )
    if given.startswith(HUB):
        return _parse_hub(given)
    if re.match(r"[a-z][a-z0-9+.-]*://", given, re.IGNORECASE):
        raise UsageError(f"weights '{shortened(given)}' are a web address", f"for a file of the hub {_FORM_HINT}")
    path = Path(given)
    known = given.lower() in CATALOGUE
    is_path = "/" in given or given in (".", "..") or path.suffix in (*SUFFIXES, *PICKLE_SUFFIXES)
    if is_path or (_exists(path) and not (known and path.is_dir())):
        return path
    return reference_of(find_entry(given))


def reference_of(entry: CatalogueEntry) -> HubReference:
    """Return where the hub has a checkpoint of the catalogue."""
    return HubReference(
        name=entry.name,
        repository=entry.repository,
        kind=entry.repository_kind,
        revision=entry.revision,
        file=entry.file,
        entry=entry,
    )


def licence_line(entry: CatalogueEntry) -> str:
    """Return licence and commercial use of a checkpoint in one line."""
    return f"{entry.licence}; commercial use {'permitted' if entry.commercial else 'not permitted'}"


def check_file_name(file: str, where: str) -> None:
    """Refuse a file of a repository that is no weights file, or whose name leaves the folder of the repository.

    Raises:
        UsageError: naming the file.
    """
    parts = file.split("/")
    if any(part in ("", ".", "..") for part in parts) or not file.isprintable() or "\\" in file:
        raise UsageError(f"{where}: '{shortened(file)}' is not the name of a file", _FORM_HINT)
    if not file.endswith((*SUFFIXES, INDEX_SUFFIX)):
        raise UsageError(
            f"{where}: '{shortened(file)}' is not a weights file",
            f"give a file that ends in {', '.join(SUFFIXES)} or {INDEX_SUFFIX}",
        )


def _parse_hub(text: str) -> HubReference:
    match = _REFERENCE.fullmatch(text)
    if match is None or ".." in (match["revision"] or "") or "--" in match["repository"]:
        raise UsageError(f"'{shortened(text)}' is not of the form {FORM}", _FORM_HINT)
    repository, file = match["repository"], match["file"]
    if file is not None:
        check_file_name(file, HUB + repository)
    entry = entry_of_file(repository, file)
    published = {each.repository_kind for each in entries_of_repository(repository)}
    is_dataset = match["datasets"] is not None or published == {RepositoryKind.DATASET}
    return HubReference(
        name=text,
        repository=repository,
        kind=RepositoryKind.DATASET if is_dataset else RepositoryKind.MODEL,
        revision=match["revision"],
        file=file or (None if entry is None else entry.file),
        entry=entry,
    )


def _exists(path: Path) -> bool:
    try:
        return path.exists() or path.is_symlink()
    except (OSError, ValueError):
        return False
