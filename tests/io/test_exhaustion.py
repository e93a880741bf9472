"""Files, threads, memory and disk space that run out are named, whatever a reader or library makes of it."""

import errno
import os
from pathlib import Path

import av.error
import pytest

from page4d.errors import (
    CapabilityError,
    InputError,
    InterruptedRunError,
    MemoryBudgetError,
    OutputError,
    Page4DError,
    UsageError,
    WeightsError,
)
from page4d.io.atomic import output_error
from page4d.io.exhaustion import known_error, limit_error, limits_named


def system(number: int, name: str | None = None) -> OSError:
    return OSError(number, os.strerror(number), name)


def wrapped(cause: BaseException, outer: BaseException, *, suppressed: bool = False) -> BaseException:
    """Return the error of a reader that met an error of a reader below it; `suppressed` is `raise ... from None`."""
    middle = ValueError("unreadable")
    middle.__context__ = cause
    outer.__context__ = middle
    if suppressed:
        outer.__suppress_context__ = True
    else:
        outer.__cause__ = middle
    return outer


CASES = [
    (system(errno.EMFILE), CapabilityError, "too many open files", "ulimit -n"),
    (system(errno.ENFILE), CapabilityError, "too many open files", "ulimit -n"),
    (ImportError("libx.so: cannot open shared object file: Too many open files"), CapabilityError, "open files", ""),
    (system(errno.EAGAIN), CapabilityError, "no more threads", "ulimit -u"),
    (RuntimeError("can't start new thread"), CapabilityError, "no more threads", "ulimit -u"),
    (system(errno.ENOMEM), MemoryBudgetError, "out of memory", "long_side"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), MemoryBudgetError, "out of memory", "long_side"),
    (ImportError("x.so: failed to map segment from shared object"), MemoryBudgetError, "out of memory", "long_side"),
]


@pytest.mark.parametrize("suppressed", [False, True])
@pytest.mark.parametrize("outer", [InputError, WeightsError, UsageError, RuntimeError])
@pytest.mark.parametrize(("cause", "kind", "text", "hint"), CASES, ids=[repr(case[0])[:40] for case in CASES])
def test_a_limit_wins_over_the_reader_that_met_it(cause, kind, text, hint, outer, suppressed) -> None:
    error = limit_error(wrapped(cause, outer("'cam01.mp4' is damaged"), suppressed=suppressed))
    assert type(error) is kind
    assert text in error.message
    assert hint in error.hint


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS])
def test_a_disk_error_that_nobody_translated_is_an_output_error(number: int) -> None:
    error = limit_error(wrapped(system(number, "out/log"), RuntimeError("writer")))
    assert isinstance(error, OutputError)
    assert "cannot write to 'out/log'" in error.message
    assert "cannot write: disk full" in str(limit_error(system(errno.ENOSPC)))


@pytest.mark.parametrize(
    "error",
    [
        InputError("'Too many open files.mp4' is damaged"),
        wrapped(FileNotFoundError(2, "no", "Cannot allocate memory.mp4"), InputError("missing")),
        wrapped(BlockingIOError(errno.EAGAIN, "locked"), OutputError("in use by another page4d")),
        output_error(system(errno.ENOSPC), Path("out")),
        wrapped(MemoryError(), InterruptedRunError("interrupted")),
        wrapped(MemoryError(), InputError("declares 1e12 points")),
        wrapped(av.error.MemoryError(errno.ENOMEM, "Cannot allocate memory"), InputError("'a.mp4' is incomplete")),
        ValueError("a bug"),
    ],
    ids=repr,
)
def test_other_errors_stay_as_they_are(error: BaseException) -> None:
    assert limit_error(error) is None


def test_other_refusals_of_the_system_name_the_file() -> None:
    error = known_error(system(errno.EACCES, "x/y"))
    assert isinstance(error, CapabilityError)
    assert "'x/y': Permission denied" in error.message
    assert known_error(ValueError("a bug")) is None
    assert known_error(ConnectionError("no number")) is None


def test_the_body_of_a_library_call_raises_the_named_error() -> None:
    with pytest.raises(CapabilityError, match="too many open files"), limits_named():
        raise wrapped(system(errno.EMFILE), InputError("damaged"))
    with pytest.raises(Page4DError, match="damaged"), limits_named():
        raise InputError("damaged")
