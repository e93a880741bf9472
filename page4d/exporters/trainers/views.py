"""Views for training and testing, as the readers of trainers expect them."""

from page4d.errors import InputError, UsageError, counted
from page4d.exporters.job import ExportJob


def check_views(job: ExportJob, least: int) -> None:
    """Refuse fewer views than a trainer needs.

    Raises:
        InputError: naming both numbers.
    """
    if len(job.views) < least:
        found = f"{job.format.name} needs at least {counted(least, 'view')}; this export has {len(job.views)}"
        raise InputError(found, "export more views, or use another format")


def split_views(job: ExportJob) -> tuple[list[int], list[int]]:
    """Return the views for training and those that are held out."""
    held_out = [number for number, view in enumerate(job.views) if view.held_out]
    return [number for number in range(len(job.views)) if number not in held_out], held_out


def repeated_view(job: ExportJob, file: str) -> str:
    """Return the remark on a file for testing that repeats the first view, because readers need the file."""
    return f"{file} repeats {job.views[0].name}, which is trained on: hold out a view to compare scores"


def reading_order(job: ExportJob) -> list[int]:
    """Return all views in the order of readers that test the first: it is the first one unless another is held out.

    Raises:
        UsageError: if several views are held out.
    """
    _, held_out = split_views(job)
    if len(held_out) > 1:
        raise UsageError(f"{job.format.name} holds out one view, not {len(held_out)}", "give one --hold-out")
    first = held_out[0] if held_out else 0
    return [first, *(number for number in range(len(job.views)) if number != first)]


def sorted_names(number: int) -> list[str]:
    """Return the names cam00, cam01, ... of views; their order by text is that by number."""
    digits = max(2, len(str(number - 1)))
    return [f"cam{rank:0{digits}d}" for rank in range(number)]
