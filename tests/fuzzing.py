"""Fuzz tests: seconds in the suite, minutes by name, and a bound on time and memory of each example."""

import os
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import HealthCheck, settings

_KB_PER_UNIT = 1 / 1024 if sys.platform == "darwin" else 1.0
"""Unit of `ru_maxrss`: bytes on macOS, kB on Linux."""


def fuzz(examples: int) -> settings:
    """Return a decorator that runs the same `examples` each time, or PAGE4D_FUZZ_EXAMPLES random ones."""
    chosen = os.environ.get("PAGE4D_FUZZ_EXAMPLES")
    return settings(
        max_examples=int(chosen) if chosen else examples,
        derandomize=not chosen,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )


@contextmanager
def bounded(seconds: float = 1.0, megabytes: float = 300.0) -> Iterator[None]:
    """Fail if the body takes more processor time, or raises the peak memory of the process by more."""
    start, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    taken = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * _KB_PER_UNIT / 1024
    assert taken < seconds, f"{taken:.1f} s of processor time, the bound is {seconds:g} s"
    assert grown < megabytes, f"the peak memory grew by {grown:.0f} MB, the bound is {megabytes:g} MB"
