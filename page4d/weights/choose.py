"""The public checkpoint for a machine and a use, by a simple upper bound of the memory that a run needs."""

from page4d.weights.catalogue import CATALOGUE, CatalogueEntry

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
