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
    # Pillow reports a failed allocation as an OSError without a number.
    unnumbered = isinstance(error, OSError) and "out of memory" in str(error)
    return isinstance(error, MemoryError) or _number(error) in _EXHAUSTED or unnumbered


def is_memory_error(error: BaseException) -> bool:
    """Return whether an error of Python or a library means that memory ran out, on a GPU or on the CPU."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":  # torch need not be imported
        return True
    return _number(error) == errno.ENOMEM or _says(error, _NO_MEMORY)


def limit_error(error: BaseException) -> Page4DError | None:
    """Return the error to report if a limit of the machine or of this process is the cause of `error`, else None.

    All exceptions during whose handling `error` was raised are examined: a reader that could not open one more file
    reports a damaged input.
    """
    if isinstance(error, InterruptedRunError | MemoryBudgetError):
        return None
    for each in _causes(error):
        number = _number(each)
        if number in (errno.EMFILE, errno.ENFILE) or _says(each, _NO_FILES):
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            return CapabilityError(
                f"too many open files: this process may open {most}", "raise the limit, for example: ulimit -n 4096"
            )
        if is_memory_error(each) and not _is_judged(error, each):
            text = f"out of memory: {each}" if _is_plain(each) else "out of memory"
            return MemoryBudgetError(text.rstrip(": "), "try a smaller --size, --chunk or --fps")
        if isinstance(error, OutputError):
            continue  # it names the reason; EAGAIN is another process's lock
        if number == errno.EAGAIN or _says(each, _NO_THREADS):
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
    if error.errno == errno.ENOENT and not _exists_here():
        return CapabilityError("the working folder does not exist any more", "change to another folder, then repeat")
    place = "" if _path_of(error) is None else f" '{_path_of(error)}'"
    return CapabilityError(f"cannot use the file or folder{place}: {error.strerror}", "check it, then repeat")


@contextmanager
def limits_named() -> Iterator[None]:
    """Raise the `limit_error` of an error of the body, if there is one, in its place."""
    try:
        yield
    except Exception as error:
        known = limit_error(error)
        if known is None:
            raise
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


def _number(error: BaseException) -> int | None:
    number = getattr(error, "errno", None)  # also of FFmpeg's errors
    return number if isinstance(number, int) else None


def _says(error: BaseException, texts: tuple[str, ...]) -> bool:
    """Return whether a library's error without a number holds one of the texts."""
    if isinstance(error, Page4DError) or _number(error) is not None:
        return False  # their messages hold file names
    message = str(error).replace("a primitive descriptor", "")  # those are no matter of memory
    return any(text in message for text in texts)


def _exists_here() -> bool:
    """Return whether the working folder of this process exists."""
    try:
        os.getcwd()  # noqa: PTH109
    except OSError:
        return False
    return True


def _path_of(error: OSError) -> Path | None:
    return Path(error.filename) if isinstance(error.filename, str) and error.filename else None


def _is_plain(error: BaseException) -> bool:
    """Return whether an error is Python's or NumPy's for memory, and not that of a library with a number."""
    return isinstance(error, MemoryError) and _number(error) is None


def _is_judged(error: BaseException, cause: BaseException) -> bool:
    """Return whether a reader caught Python's error for memory by its name: then the input asked for too much."""
    return isinstance(error, Page4DError) and _is_plain(cause)
