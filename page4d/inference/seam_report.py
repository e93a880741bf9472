"""What is said of chunks that do not fit the one before."""

from page4d.errors import InputError
from page4d.export.run_record import ChunkRecord
from page4d.inference.seams import seam_fits
from page4d.scene.records import Notice


def check_seams(chunks: list[ChunkRecord], longest_side: int) -> None:
    """Refuse chunks that do not fit the one before, at images of `longest_side` pixels.

    Raises:
        InputError: naming the first such seam.
    """
    loose = _loose(chunks, longest_side)
    if loose:
        raise InputError(
            f"the chunks do not fit together at instant {loose[0].start}: {_misfit(loose[0])}",
            "give a larger --chunk and --overlap, or the rig's cameras with --calibration; "
            "--resume without --strict-seams goes on with a warning",
        )


def seams_notice(chunks: list[ChunkRecord], longest_side: int) -> Notice | None:
    """Return a warning if chunks of a capture do not fit the one before."""
    loose = _loose(chunks, longest_side)
    if not loose:
        return None
    worst = max(loose, key=lambda chunk: 0.0 if chunk.seam is None else chunk.seam.residual_share or 0.0)
    seams = f"{len(loose)} of {len(chunks) - 1} seams between chunks do not fit"
    return Notice(f"{seams}; the worst, at instant {worst.start}: {_misfit(worst)}")


def _loose(chunks: list[ChunkRecord], longest_side: int) -> list[ChunkRecord]:
    """Return the chunks that do not fit the one before."""
    return [
        chunk
        for chunk in chunks
        if chunk.seam is not None and not seam_fits(chunk.seam.residual_px, chunk.seam.residual_share, longest_side)
    ]


def _misfit(chunk: ChunkRecord) -> str:
    """Say by how much a chunk misses the one before."""
    assert chunk.seam is not None
    shift, share = chunk.seam.residual_px, chunk.seam.residual_share or 0.0
    return f"off by {share:.1%} of the depth" + ("" if shift is None else f", {shift:.1f} px")
