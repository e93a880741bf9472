"""Published checkpoints as page4d files, converted once and kept in page4d's cache.

A converted file is named by its family, a digest of its sources and of the options of the conversion, and the version
of the conversion. Where the tool's conversion has changed, the file is made again and the older one removed.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from page4d.errors import Level, Notice, UsageError, WeightsError
from page4d.io.atomic import file_sha256, write_bytes_atomic
from page4d.io.folders import check_space, locked
from page4d.io.json_records import format_json
from page4d.weights.conversion.convert import ConvertSettings, PlannedConversion, plan_conversion
from page4d.weights.conversion.write import write_conversion
from page4d.weights.conversion_cache import RECORD_SUFFIX, SUFFIX, ConvertedFile, conversion_version, converted_files
from page4d.weights.hub.fetch import FetchObserver
from page4d.weights.hub.pins import weights_cache
from page4d.weights.store import FORMAT_VERSION


def find_converted(digests: Mapping[str, str], settings: ConvertSettings) -> tuple[Path, ConvertedFile] | None:
    """Return the converted file of sources with these digests, if the cache has it and it is complete."""
    return next(converted_files(_key(digests, settings)), None)


def convert_once(
    source: Path,
    digests: Mapping[str, str],
    settings: ConvertSettings,
    observer: FetchObserver,
    verify: Callable[[], None] = lambda: None,
) -> tuple[Path, ConvertedFile]:
    """Return the converted file of a checkpoint; convert it if the cache lacks it.

    `digests` are the SHA-256 of its files by name; `verify` compares them with the files, and is called before a
    conversion. Of several processes one converts, and the others wait for it.

    Raises:
        WeightsError: if the checkpoint cannot be used, or holds an encoder.
        UsageError: if its conversion needs options.
        OutputError: if the cache cannot be written.
    """
    found = find_converted(digests, settings)
    if found is not None:
        return found
    key = _key(digests, settings)
    waiting = Notice(f"another process converts '{source.name}': waiting for it", Level.STEP)
    with locked(weights_cache() / "locks" / key, lambda: observer.notice(waiting)):
        found = find_converted(digests, settings)
        if found is not None:
            return found
        verify()
        conversion = _plan(source, settings)
        family = next(iter(conversion.sources)).value
        path = weights_cache() / f"{family}-{key}-{conversion_version()}{SUFFIX}"
        _remove_others(path, key)
        record = _convert(conversion, path, family, digests, observer)
        return path, record


def _key(digests: Mapping[str, str], settings: ConvertSettings) -> str:
    text = json.dumps([sorted(digests.values()), repr(settings), FORMAT_VERSION])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plan(source: Path, settings: ConvertSettings) -> PlannedConversion:
    try:
        conversion = plan_conversion([source], settings)
    except UsageError as error:
        raise UsageError(
            error.message, f"convert it first: page4d convert-weights '{source}' --out FILE; {error.hint}"
        ) from error
    if conversion.recipe is None:
        raise WeightsError(f"'{source}' holds an encoder, not a whole network", "give the weights of a network")
    return conversion


def _convert(
    conversion: PlannedConversion, path: Path, family: str, digests: Mapping[str, str], observer: FetchObserver
) -> ConvertedFile:
    check_space({path.parent: conversion.num_bytes}, f"the converted {conversion.title}")
    observer.notice(Notice(f"converting {conversion.title}, once (kept in '{path.parent}')", Level.STEP))
    for text in conversion.blueprint.notices:
        observer.notice(Notice(text))
    done = 0

    def written(num_bytes: int) -> None:
        nonlocal done
        done += num_bytes
        observer.progress("convert", done, conversion.num_bytes)

    write_conversion(conversion, path, written)
    record = ConvertedFile(
        sha256=file_sha256(path), num_bytes=path.stat().st_size, family=family, sources=dict(digests)
    )
    text = format_json(record.model_dump(mode="json")) + "\n"
    write_bytes_atomic(path.with_suffix(RECORD_SUFFIX), text.encode())
    return record


def _remove_others(path: Path, key: str) -> None:
    """Remove the files of other versions, and what a killed process left, while this process has the lock."""
    for pattern in (f"*-{key}-*{SUFFIX}", f"*-{key}-*{RECORD_SUFFIX}", f".*-{key}-*.part"):
        for other in path.parent.glob(pattern):
            with suppress(OSError):
                other.unlink()
