"""What `weights` takes: a public checkpoint, a file of the hub, or a local file; and pins of what was fetched."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from page4d.errors import UsageError, shortened
from page4d.io.folders import cache_folder
from page4d.io.json_records import FileModel, Sha256, read_cached, write_model
from page4d.weights import catalogue
from page4d.weights.catalogue import CatalogueEntry, RepositoryKind
from page4d.weights.file_type import PICKLE_SUFFIXES

BUNDLED_FILE = Path(__file__).parent / "files" / f"{catalogue.BUNDLED}.safetensors"
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
    file, and the bundled network. Any other text is a name of the catalogue.

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
    is_bundled = given.lower() == catalogue.BUNDLED
    known = is_bundled or given.lower() in catalogue.CATALOGUE
    is_path = "/" in given or given in (".", "..") or path.suffix in (*SUFFIXES, *PICKLE_SUFFIXES)
    if is_path or (_exists(path) and not (known and path.is_dir())):
        return path
    return BUNDLED_FILE if is_bundled else reference_of(catalogue.find_entry(given))


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


class FileRecord(FileModel):
    """A file of a repository: its size and SHA-256."""

    name: str
    num_bytes: int = Field(ge=0)
    sha256: Sha256


class Pin(FileModel):
    """The commit and the files that a reference stands for on this machine.

    The first file is the one that is opened; the shards of an index follow it.
    """

    reference: str
    revision: str = Field(pattern=r"^[0-9a-f]{40}$")
    files: list[FileRecord] = Field(min_length=1)
    licence_shown: bool = False

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of the files by name."""
        return {file.name: file.sha256 for file in self.files}


def weights_cache() -> Path:
    """Return the folder of pins and of converted weights."""
    return cache_folder() / "weights"


def pin_file(reference: HubReference) -> Path:
    """Return the file of a reference's pin: the same for a name and for the place that it stands for."""
    readable = re.sub(r"[^A-Za-z0-9._-]+", "--", f"{reference.repository}/{reference.file or ''}").strip("-")
    digest = hashlib.sha256(reference.place.encode()).hexdigest()[:8]
    return weights_cache() / "pins" / f"{readable[:150]}-{digest}.json"


def read_pin(reference: HubReference) -> Pin | None:
    """Return the pin of a reference; None if it was not fetched yet, or the pin is damaged."""
    pin = read_cached(pin_file(reference), Pin)
    return pin if pin is not None and pin.reference == reference.place else None


def write_pin(reference: HubReference, pin: Pin) -> None:
    """Record a pin.

    Raises:
        OutputError: if the cache cannot be written.
    """
    write_model(pin_file(reference), pin)


def _parse_hub(text: str) -> HubReference:
    match = _REFERENCE.fullmatch(text)
    if match is None or ".." in (match["revision"] or "") or "--" in match["repository"]:
        raise UsageError(f"'{shortened(text)}' is not of the form {FORM}", _FORM_HINT)
    repository, file = match["repository"], match["file"]
    if file is not None:
        check_file_name(file, HUB + repository)
    entry = catalogue.entry_of_file(repository, file)
    published = {each.repository_kind for each in catalogue.entries_of_repository(repository)}
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
