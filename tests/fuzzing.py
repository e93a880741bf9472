"""Fuzz tests: seconds in the suite, minutes by name, and a bound on time and memory of each example."""

import copy
import json
import os
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from page4d.errors import Page4DError
from page4d.io.exhaustion import known_error

Test = TypeVar("Test", bound=Callable[..., Any])
Result = TypeVar("Result")

_KB_PER_UNIT = 1 / 1024 if sys.platform == "darwin" else 1.0
"""Unit of `ru_maxrss`: bytes on macOS, kB on Linux."""


def fuzz(examples: int) -> Callable[[Test], Test]:
    """Return a decorator that runs the same `examples` each time, or PAGE4D_FUZZ_EXAMPLES random ones, untimed."""
    chosen = os.environ.get("PAGE4D_FUZZ_EXAMPLES")
    bounded_examples = settings(
        max_examples=int(chosen) if chosen else examples,
        derandomize=not chosen,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture],
    )
    return lambda test: pytest.mark.timeout(0)(bounded_examples(test)) if chosen else bounded_examples(test)


@contextmanager
def bounded(seconds: float = 1.0, megabytes: float = 300.0) -> Iterator[None]:
    """Fail if the body takes more processor time, or raises the peak memory of the process by more."""
    start, peak = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    taken = time.process_time() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak) * _KB_PER_UNIT / 1024
    assert taken < seconds, f"{taken:.1f} s of processor time, the bound is {seconds:g} s"
    assert grown < megabytes, f"the peak memory grew by {grown:.0f} MB, the bound is {megabytes:g} MB"


def read_or_refuse(read: Callable[[], Result], codes: Sequence[int] = (2, 3)) -> Result | None:
    """Return what a reader returns, or None if it refuses with a short message and a hint.

    The error is the one that the command line reports: "out of memory" would not be in `codes`.
    """
    try:
        return read()
    except Page4DError as error:
        refused = known_error(error) or error
    assert refused.exit_code in codes
    assert refused.hint
    assert "\n" not in refused.message
    assert len(refused.message) < 1000
    return None


_NUMBER = re.compile(rb"-?\d+\.?\d*(?:e[-+]?\d+)?")


@st.composite
def mutated_bytes(draw: st.DrawFn, content: bytes, hostile: Sequence[bytes]) -> bytes:
    """Return content with bytes deleted, repeated, overwritten or flipped, or a number replaced by `hostile` bytes.

    Places near the begin are more frequent.
    """
    last = max(len(content) - 1, 0)
    start = draw(st.one_of(st.integers(0, min(200, last)), st.integers(0, last)))
    stop = min(len(content), start + draw(st.integers(1, 40)))
    kind = draw(st.sampled_from(("cut", "end", "repeat", "overwrite", "flip", "number")))
    written = draw(st.one_of(st.sampled_from(hostile), st.binary(min_size=1, max_size=8)))
    if kind == "cut":
        return content[:start] + content[stop:]
    if kind == "end":
        return content[:start]
    if kind == "repeat":
        return content[:stop] + content[start:]
    if kind == "flip" and content:
        return content[:start] + bytes([content[start] ^ (1 << draw(st.integers(0, 7)))]) + content[start + 1 :]
    number = _NUMBER.search(content, start) if kind == "number" else None
    first, end = (start, start + len(written)) if number is None else number.span()
    return content[:first] + written + content[end:]


EXTREMES: tuple[object, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**30, 10**400),
    *(0.0, 0.5, -0.5, 1e-300, 1e9, -1e9, 1e300, -1e300, 1.7e308),
    *("", "0", "nan", "x" * 3000, "a/../b", "\n\x1b[31m", "\ud800", "\u202e"),
    *([], [[]], [0, 0, 0], [[[[[[]]]]]], {}, {"": {}}, {"a": {"a": {"a": []}}}),
)
"""Values in place of those of a valid document."""


def places_of(value: object, at: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths to all values in nested lists and dictionaries."""
    items: Iterable[tuple[str | int, object]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    return [at, *(place for key, inner in items for place in places_of(inner, (*at, key)))]


@st.composite
def mutated_json(draw: st.DrawFn, document: object) -> str:
    """Return JSON with one to three values of a valid document replaced, deleted, repeated or renamed."""
    changed = copy.deepcopy(document)
    text = None
    for _ in range(draw(st.integers(1, 3))):
        *route, last = draw(st.sampled_from(places_of(changed)[1:] or [("",)]))
        if last == "" or not isinstance(changed, dict | list):
            break
        parent: Any = changed
        for key in route:
            parent = parent[key]
        kind = draw(st.sampled_from(("replace", "replace", "replace", "delete", "repeat", "rename", "same key")))
        if kind == "replace":
            parent[last] = copy.deepcopy(draw(st.sampled_from(EXTREMES)))
        elif kind == "delete":
            del parent[last]
        elif isinstance(parent, list):
            parent += [parent[int(last)]] * draw(st.sampled_from((1, 20)))
        elif kind == "rename":
            parent[draw(st.sampled_from(("", "other", str(last).upper())))] = parent.pop(last)
        else:
            text = f'"{last}": 1, "{last}": '
            parent["same key"] = parent.pop(last)
    written = json.dumps(changed)
    if text is not None:
        written = written.replace('"same key": ', text, 1)
    return written.replace("1.7e+308", draw(st.sampled_from(("1e400", "NaN", "-Infinity", "1.7e308"))))
