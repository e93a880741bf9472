"""Order of the views for readers that test the first one and train on the others."""

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


def reading_order(job: ExportJob) -> list[int]:
    """Return the places of all views: first the one for testing, which is the first unless another is held out.

    Raises:
        UsageError: if several views are held out.
    """
    held_out = [place for place, view in enumerate(job.views) if view.held_out]
    if len(held_out) > 1:
        raise UsageError(f"{job.format.name} holds out one view, not {len(held_out)}", "give one --hold-out")
    first = held_out[0] if held_out else 0
    return [first, *(place for place in range(len(job.views)) if place != first)]


def sorted_names(number: int) -> list[str]:
    """Return the names cam00, cam01, ... of views; their order by text is that by number."""
    digits = max(2, len(str(number - 1)))
    return [f"cam{rank:0{digits}d}" for rank in range(number)]
