"""Limits of the machine: the error to report where files, threads, memory or disk space ran out."""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from page4d.errors import (
    CapabilityError,
    InterruptedRunError,
    MemoryBudgetError,
    OutputError,
    Page4DError,
    UsageError,
    shortened,
)
from page4d.io.atomic import DISK_ERRORS, output_error

_NO_MEMORY = (
    "DefaultCPUAllocator: can't allocate",
    "not enough memory",
    "Cannot allocate memory",
    "Insufficient memory",  # OpenCV
    "bad_alloc",
    "failed to map segment from shared object",  # the loader of shared libraries
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "could not create a primitive",  # oneDNN
)
_NO_THREADS = ("can't start new thread", "Resource temporarily unavailable")
_NO_FILES = ("Too many open files",)
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN)


def is_exhausted(error: BaseException) -> bool:
    """Return whether file handles, threads or memory ran out: then a reader must not report a damaged file."""
    # Pillow reports a failed allocation as an OSError without errno.
    is_pillow = isinstance(error, OSError) and "out of memory" in str(error)
    return isinstance(error, MemoryError) or _errno(error) in _EXHAUSTED or is_pillow


def is_memory_error(error: BaseException) -> bool:
    """Return whether an error of Python or a library means that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch need not be imported
        return True
    return _errno(error) == errno.ENOMEM or _contains_any(error, _NO_MEMORY)


def limit_error(error: BaseException) -> Page4DError | None:
    """Return the error to report if a limit of the machine or of this process is the cause of `error`, else None.

    All exceptions during whose handling `error` was raised are examined: a reader that could not open one more file
    reports a damaged input.
    """
    if isinstance(error, InterruptedRunError | MemoryBudgetError):
        return None
    for each in _causes(error):
        number = _errno(each)
        if number in (errno.EMFILE, errno.ENFILE) or _contains_any(each, _NO_FILES):
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return CapabilityError(
                f"too many open files: this process may open {most}", "raise the limit, for example: ulimit -n 4096"
            )
        is_raised = isinstance(each, MemoryError)
        # A reader that caught a MemoryError reports its file, if memory is not scarce: a size in it is too large.
        if is_memory_error(each) and not (is_raised and isinstance(error, Page4DError)):
            text = f"out of memory: {each}" if is_raised and number is None else "out of memory"  # FFmpeg's has one
            return MemoryBudgetError(text.rstrip(": "), "try a smaller ⟨long_side⟩, ⟨chunk⟩ or ⟨fps⟩")
        if isinstance(error, OutputError):
            continue  # its message has the reason; EAGAIN is the lock of another process
        if number == errno.EAGAIN or _contains_any(each, _NO_THREADS):
            return CapabilityError(
                "the system starts no more threads or processes",
                "raise 'ulimit -u' and 'ulimit -v', or end other programs",
            )
        if number in DISK_ERRORS and isinstance(each, OSError) and not isinstance(error, Page4DError):
            return output_error(each, _path_of(each))
    return None


def known_error(error: BaseException) -> Page4DError | None:
    """Return the error to report to a user, also for any refusal by the operating system; None for a bug."""
    known = limit_error(error) or (error if isinstance(error, Page4DError) else None)
    if known is not None or not isinstance(error, OSError) or not error.errno:
        return known
    if error.errno == errno.ENOENT and not _has_working_folder():
        return CapabilityError("the working folder does not exist any more", "change to another folder, then repeat")
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return UsageError(f"'{shortened(str(error.filename))}' is no usable path: {error.strerror}", "correct it")
    place = "" if _path_of(error) is None else f" '{shortened(str(_path_of(error)))}'"
    return CapabilityError(f"cannot use the file or folder{place}: {error.strerror}", "check it, then repeat")


@contextmanager
def limits_named(memory_hint: str | None = None) -> Iterator[None]:
    """Replace an error of the body by its `limit_error`, if it has one.

    `memory_hint` is what to do when memory runs out, where it is not a reconstruction that needs it.
    """
    try:
        yield
    except Exception as error:
        known = limit_error(error)
        if known is None:
            raise
        if memory_hint is not None and isinstance(known, MemoryBudgetError):
            known = MemoryBudgetError(known.marked_message, memory_hint)
        raise known from error


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, and every error during whose handling it was raised."""
    pending, seen = [error], set[int]()
    while pending:
        each = pending.pop()
        if id(each) not in seen:
            seen.add(id(each))
            yield each
            pending += [other for other in (each.__context__, each.__cause__) if other is not None]


def _errno(error: BaseException) -> int | None:
    number = getattr(error, "errno", None)  # FFmpeg's errors have it, too
    return number if isinstance(number, int) else None


def _contains_any(error: BaseException, texts: tuple[str, ...]) -> bool:
    """Return whether the message of a library's error without errno contains one of the texts."""
    if isinstance(error, Page4DError) or _errno(error) is not None:
        return False  # a file name in the message could contain them
    message = str(error).replace("a primitive descriptor", "")  # oneDNN fails to create these for other reasons
    return any(text in message for text in texts)


def _has_working_folder() -> bool:
    """Return whether the working folder still exists."""
    try:
        os.getcwd()  # noqa: PTH109
    except OSError:
        return False
    return True


def _path_of(error: OSError) -> Path | None:
    return Path(error.filename) if isinstance(error.filename, str) and error.filename else None
