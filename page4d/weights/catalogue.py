"""The catalogue of public checkpoints, and which of them suits a machine and a use.

Each row states where it is published, its size, licence and abilities. The choice uses a simple upper bound of the
memory that a run needs.

Nothing here downloads or imports PyTorch. Sizes follow from the tensor shapes of the public code: the published files
were not available to this project. Licences are as stated by the authors where `licence_source` points; this is not
legal advice.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from page4d.errors import unknown_name


class RepositoryKind(StrEnum):
    """Kind of a repository of the hub."""

    MODEL = "model"
    DATASET = "dataset"


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """A public checkpoint."""

    name: str
    """What `weights` takes."""

    family: str
    """Value of `page4d.weights.families.family.Family`."""

    title: str
    """As the authors name it."""

    num_values: int
    """Parameters and buffers in the file, also of parts that page4d leaves out."""

    image_bytes: int
    """Memory of a forward pass per image of 518 x 392 px in float32, besides the weights, from a profile."""

    licence: str
    """SPDX identifier, or the name of the licence."""

    commercial: bool = False
    """Whether the licence permits commercial use; False where that is unclear."""

    licence_source: str
    """Where the licence is stated: repository, file, lines or section."""

    licence_note: str = ""
    """Contradictions and conditions."""

    gated: bool = False
    """Whether the hub asks for an accepted request and a token."""

    repository: str
    """Identifier on the hub, `organization/name`."""

    repository_kind: RepositoryKind = RepositoryKind.MODEL
    file: str = "model.safetensors"
    earlier: tuple[str, ...] = ()
    """Repositories with an earlier training of the same network, under the same licence."""

    good_for: str
    """One short line."""

    predicts_cameras: bool = True
    takes_cameras: bool = False
    """Whether known cameras, or their intrinsics, are an input of the network."""

    metric: bool = False
    """Whether its lengths are metres."""

    network: str | None = None
    """The published network where tensors do not determine it; else None."""

    mask: bool | None = None
    """PAGE-4D: whether its checkpoint runs with the mask."""

    revision: str | None = None
    """Commit of the repository, 40 hexadecimal digits; None: the current one, pinned when it is fetched first."""

    sha256: str | None = None
    """Digest of the file; None: pinned when it is fetched first."""

    notes: tuple[str, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of these tensors in float32. The file is larger by its header, or by what `notes` states."""
        return 4 * self.num_values


APACHE = "Apache-2.0"
CC_BY_NC = "CC-BY-NC-4.0"
VGGT_LICENCE = "VGGT License v1"
FAIR_NC = "FAIR Noncommercial Research License v1"

_DA3_README = "ByteDance-Seed/Depth-Anything-3 README.md, table of models, line"
_DA3_LARGE_LICENCE = "the hub's page of DA3-LARGE-1.1 is reported to state apache-2.0 (issue 259, unanswered)"
_VGGT_SOURCE = "facebookresearch/vggt README.md, update of 29 July 2025 and section License; LICENSE.txt"
_PI3_SOURCE = "yyfz/Pi3 README.md lines 213, 215"
_GAUSSIANS = "its head of 3D Gaussians is left out"

_MONO = CatalogueEntry(
    name="da3-mono",
    family="da3-mono",
    title="Depth Anything 3 MONO LARGE",
    num_values=334_171_394,
    image_bytes=216_000_000,
    licence=APACHE,
    commercial=True,
    licence_source=f"{_DA3_README} 230",
    repository="depth-anything/DA3MONO-LARGE",
    good_for="depth and sky of single images",
    predicts_cameras=False,
    network="da3mono-large",
)
_VGGT = CatalogueEntry(
    name="vggt",
    family="vggt",
    title="VGGT-1B",
    num_values=1_256_537_516,
    image_bytes=389_000_000,
    licence=VGGT_LICENCE,
    licence_source=_VGGT_SOURCE,
    licence_note="README.md: the original checkpoint 'remains non-commercial', only VGGT-1B-Commercial is not",
    repository="facebook/VGGT-1B",
    good_for="cameras, depth and points",
    notes=("its track head is left out",),
)
_PAGE4D = CatalogueEntry(
    name="page4d",
    family="page4d",
    title="PAGE-4D without mask",
    num_values=1_190_869_017,
    image_bytes=389_000_000,
    licence="not stated",
    licence_source="kaichen-z/PAGE4D: neither a LICENSE file nor a statement in readme.md",
    licence_note="derived from VGGT, whose licence binds derivatives: not for commercial use until clarified",
    repository="zhouk777/PAGE4D",
    repository_kind=RepositoryKind.DATASET,
    file="checkpoint_nomask.pt",
    good_for="moving scenes; suggested by its authors",
    mask=False,
    notes=("the file holds the state of the optimizer as well, so it is larger than its tensors",),
)
_OMEGA = CatalogueEntry(
    name="vggt-omega",
    family="vggt-omega",
    title="VGGT-Omega 1B 512",
    num_values=1_144_059_977,
    image_bytes=120_000_000,
    licence=FAIR_NC,
    licence_source="facebookresearch/vggt-omega LICENSE lines 1, 30; README.md lines 125-127",
    licence_note="covers results too: line 30 forbids commercial use of 'any outputs or results'",
    gated=True,
    repository="facebook/VGGT-Omega",
    file="vggt_omega_1b_512.pt",
    good_for="images of 512 px; research only",
)

_ENTRIES = (
    CatalogueEntry(
        name="da3-small",
        family="da3",
        title="Depth Anything 3 SMALL",
        num_values=34_299_463,
        image_bytes=106_000_000,
        licence=APACHE,
        commercial=True,
        licence_source=f"{_DA3_README} 224",
        licence_note="an unanswered report (issue 203) questions its training data",
        repository="depth-anything/DA3-SMALL",
        good_for="small machines and first tests",
        takes_cameras=True,
    ),
    CatalogueEntry(
        name="da3-base",
        family="da3",
        title="Depth Anything 3 BASE",
        num_values=135_366_599,
        image_bytes=207_000_000,
        licence=APACHE,
        commercial=True,
        licence_source=f"{_DA3_README} 223",
        repository="depth-anything/DA3-BASE",
        good_for="real footage, any use; the first one to try",
        takes_cameras=True,
    ),
    CatalogueEntry(
        name="da3-large",
        family="da3",
        title="Depth Anything 3 LARGE 1.1",
        num_values=410_941_767,
        image_bytes=389_000_000,
        licence=CC_BY_NC,
        licence_source=f"{_DA3_README}s 221-222",
        licence_note=_DA3_LARGE_LICENCE,
        repository="depth-anything/DA3-LARGE-1.1",
        earlier=("depth-anything/DA3-LARGE",),
        good_for="larger than da3-base; non-commercial",
        takes_cameras=True,
    ),
    CatalogueEntry(
        name="da3-giant",
        family="da3",
        title="Depth Anything 3 GIANT 1.1",
        num_values=1_355_674_125,
        image_bytes=408_000_000,
        licence=CC_BY_NC,
        licence_source=f"{_DA3_README}s 219-220",
        repository="depth-anything/DA3-GIANT-1.1",
        earlier=("depth-anything/DA3-GIANT",),
        good_for="the largest of Depth Anything 3",
        takes_cameras=True,
        notes=(_GAUSSIANS,),
    ),
    CatalogueEntry(
        name="da3-nested",
        family="da3-nested",
        title="Depth Anything 3 NESTED GIANT LARGE 1.1",
        num_values=1_689_845_519,
        image_bytes=408_000_000,
        licence=CC_BY_NC,
        licence_source=f"{_DA3_README}s 216-217",
        repository="depth-anything/DA3NESTED-GIANT-LARGE-1.1",
        earlier=("depth-anything/DA3NESTED-GIANT-LARGE",),
        good_for="scenes in approximate metres: GIANT, scaled by METRIC",
        takes_cameras=True,
        metric=True,
        network="da3nested-giant-large",
        notes=(_GAUSSIANS,),
    ),
    _MONO,
    replace(
        _MONO,
        name="da3-metric",
        title="Depth Anything 3 METRIC LARGE",
        licence_source=f"{_DA3_README} 227",
        repository="depth-anything/DA3METRIC-LARGE",
        good_for="metric depth and sky of calibrated single images",
        takes_cameras=True,
        metric=True,
        network="da3metric-large",
        notes=("metres need the focal length: depth * focal length in pixels / 300",),
    ),
    CatalogueEntry(
        name="pi3",
        family="pi3",
        title="Pi3",
        num_values=958_696_738,
        image_bytes=63_000_000,
        licence=CC_BY_NC,
        licence_source=_PI3_SOURCE,
        repository="yyfz233/Pi3",
        good_for="no reference view: any order of images",
    ),
    CatalogueEntry(
        name="pi3x",
        family="pi3x",
        title="Pi3X",
        num_values=1_360_032_439,
        image_bytes=167_000_000,
        licence=CC_BY_NC,
        licence_source=_PI3_SOURCE,
        repository="yyfz233/Pi3X",
        good_for="rigs with known cameras or depth; approximate metres",
        takes_cameras=True,
        metric=True,
    ),
    _VGGT,
    replace(
        _VGGT,
        name="vggt-commercial",
        title="VGGT-1B-Commercial",
        commercial=True,
        licence_note="after an application on the hub; its acceptable-use policy excludes military use, among others",
        gated=True,
        repository="facebook/VGGT-1B-Commercial",
        file="vggt_1B_commercial.pt",
        good_for="as vggt, for commercial use",
        notes=("sizes are those of VGGT-1B, which it is stated to equal in structure", "its track head is left out"),
    ),
    _PAGE4D,
    replace(
        _PAGE4D,
        name="page4d-mask",
        title="PAGE-4D with mask",
        image_bytes=390_000_000,
        file="checkpoint_mask.pt",
        good_for="moving scenes, with a mask of what moves",
        mask=True,
    ),
    _OMEGA,
    replace(
        _OMEGA,
        name="vggt-omega-text",
        title="VGGT-Omega 1B 256 text alignment",
        num_values=1_349_743_689,
        file="vggt_omega_1b_256_text.pt",
        good_for="images of 256 px; research only",
        notes=("its text head is left out",),
    ),
)

BUNDLED = "mv-demo"
"""The network that page4d contains and uses by default."""

CATALOGUE: Mapping[str, CatalogueEntry] = {entry.name: entry for entry in _ENTRIES}
"""All public checkpoints by the name that `weights` takes."""


def find_entry(name: str) -> CatalogueEntry:
    """Return the checkpoint of a name; case does not matter.

    Raises:
        UsageError: if the catalogue does not have it.
    """
    entry = CATALOGUE.get(name.lower())
    if entry is None:
        raise unknown_name("checkpoint", name, (BUNDLED, *CATALOGUE))
    return entry


def entries_of_repository(repository: str) -> list[CatalogueEntry]:
    """Return the checkpoints of a repository of the hub, also of an earlier training; case does not matter."""
    return [
        entry
        for entry in CATALOGUE.values()
        if repository.lower() in (name.lower() for name in (entry.repository, *entry.earlier))
    ]


def entry_of_file(repository: str, file: str | None = None) -> CatalogueEntry | None:
    """Return the checkpoint of a file of the hub, or of a repository that has a single one; else None."""
    found = [entry for entry in entries_of_repository(repository) if file is None or file == entry.file]
    return found[0] if len(found) == 1 else None


NUM_IMAGES = 16
"""A rig of four cameras at four instants, the shortest chunk with the default overlap."""

_PROCESS_BYTES = 1_000_000_000
"""Python, its libraries and the decoders."""

_FRAME_BYTES = 45_000_000
"""Frames and results of an image of 518 x 392 px besides the network."""

_FRAGMENTATION = 1.3
"""Memory of the process relative to that of its tensors."""

_HALF_SHARE = 0.6
"""Weights with encoder and trunk in half precision, relative to float32: the heads stay in float32."""

PREFERENCE = ("da3-giant", "pi3x", "da3-large", "da3-base", "da3-small")
"""The preferred first: a judgement of page4d, which has measured none of these checkpoints.

Networks of one family are in the order of their size. `pi3x` precedes `da3-large` for its larger size and its metres.
No comparison of the authors was verified. Left out are checkpoints that need an application, that state no licence,
that do not predict cameras, and those of the families that `da3` and `pi3x` follow (`vggt`, `pi3`).
"""


def needed_bytes(entry: CatalogueEntry, *, half: bool = False) -> int:
    """Return an upper bound of the memory for `NUM_IMAGES` images at the default size, `half`: with bf16 or fp16."""
    weights = entry.num_bytes * (_HALF_SHARE if half else 1.0)
    return int(weights + _PROCESS_BYTES + NUM_IMAGES * _FRAGMENTATION * (entry.image_bytes + _FRAME_BYTES))


def choose_checkpoint(memory_bytes: int, *, commercial: bool, half: bool = False) -> CatalogueEntry | None:
    """Return the preferred checkpoint that fits, or None; `commercial`: of those whose licence permits that use."""
    for name in PREFERENCE:
        entry = CATALOGUE[name]
        if (entry.commercial or not commercial) and needed_bytes(entry, half=half) <= memory_bytes:
            return entry
    return None


def command_with(entry: CatalogueEntry) -> str:
    """Return the command that reconstructs a scene with a checkpoint."""
    return f"page4d reconstruct SCENE --out OUT --weights {entry.name}"


def licence_and_size(entry: CatalogueEntry) -> str:
    """Return the licence of a checkpoint and the size of its download."""
    return f"{entry.licence}, {entry.num_bytes / 1e9:.1f} GB"
