"""Kill a command line with SIGKILL at random times and resume it, repeatedly.

The process loads everything once and never starts a thread; every run is a forked child of it.
"""

import json
import os
import random
import signal
import time
from pathlib import Path

import torch

import page4d.run.reconstruct
import page4d.scene.open  # noqa: F401
from page4d.installation import open3d_or_none
from page4d_cli.app import run


def begin(words: list[str]) -> int:
    """Run the command line in a child process and return its process id."""
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = run(words)
        finally:
            os._exit(code)
    return child


def end(child: int, after: float | None = None, out: Path | None = None) -> bool:
    """Wait for a child, or kill it after some seconds; return whether it had ended by itself.

    With `out` the seconds begin when a chunk is recorded there, within a minute: where a run is slower or faster than
    measured, no kill would fall between its first and its last chunk.
    """
    if after is not None:
        limit = time.perf_counter() + 60
        while out is not None and not recorded(out) and time.perf_counter() < limit:
            time.sleep(0.002)
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    return status == 0


def recorded(out: Path) -> int:
    """Return the number of recorded chunks."""
    return len(list(out.glob("state/chunk_*.json")))


def random_kills(folder: Path, kills: int, seed: int, words: list[str]) -> None:
    """Kill runs `kills` times, then complete the last output, and print a summary as JSON.

    Outputs are written to `folder`: `whole` without a kill, `0`, `1` and so on with kills.
    """
    torch.set_num_threads(1)
    open3d_or_none()
    rng = random.Random(seed)
    started = time.perf_counter()
    assert end(begin([*words, "--out", f"{folder}/whole"]))
    seconds = time.perf_counter() - started
    number, chunks = 0, []
    while len(chunks) < kills:
        out = folder / str(number)
        child = begin([*words, "--out", str(out), "--resume"])
        every_other = len(chunks) % 2 == 1
        after = rng.uniform(0, seconds / 20 if every_other else seconds)
        if end(child, after, out if every_other else None):
            number += 1
        else:
            chunks.append(recorded(out))
    assert end(begin([*words, "--out", f"{folder}/{number}", "--resume"]))
    print(json.dumps({"chunks_at_kills": chunks, "outputs": number + 1, "seconds": seconds}))
