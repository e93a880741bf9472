"""Whole runs: with their stages at once and one after the other, and of a short and a long capture.

    python tools/benchmark_streaming.py

Every run is a process of its own on two clips with the smallest network. Memory is the process's at its worst moment.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "cli")]

FORMS = ("at once", "in turn")


def run(scene: Path, out: Path, form: str, size: int) -> dict[str, float]:
    """Reconstruct in this process."""
    import torch

    from page4d.inference import reconstruct as pipeline
    from page4d.inference.bounded_queue import Handover
    from page4d.scene.batches import BatchReader
    from page4d_cli.app import run as page4d

    class InTurn(Handover):
        """Waits until what was given is used up."""

        def give(self, thing: object) -> None:
            super().give(thing)
            self._wanted.acquire()
            self._wanted.release()

    torch.set_num_threads(1)
    if form == "in turn":
        pipeline.Handover = InTurn
        BatchReader.read_ahead = lambda *_: None
    begin, before = time.perf_counter(), time.process_time()
    words = ["reconstruct", scene, "--out", out, "--untrained", "--preset", "mv-tiny", "--size", size]
    assert page4d([*map(str, words), "--no-preview", "--quiet"]) == 0
    seconds = time.perf_counter() - begin
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"seconds": seconds, "cpu": used.ru_utime + used.ru_stime - before, "bytes": 1024 * used.ru_maxrss}


def in_a_process(scene: Path, form: str, size: int) -> dict[str, float]:
    """Measure in a fresh process; the output is thrown away."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--one", str(scene), f"{folder}/out", form, f"--size={size}"]
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(ended.stdout.splitlines()[-1])


def compare_forms(scene: Path, frames: int, rounds: int, size: int) -> None:
    """Print how long a capture takes with the stages at once and in turn."""
    found = [{form: in_a_process(scene, form, size) for form in FORMS} for _ in range(rounds)]
    for name, text in (("seconds", "wall"), ("cpu", "CPU")):
        at_once, in_turn = (min(measured[form][name] for measured in found) for form in FORMS)
        print(f"{frames} frames, {text}: {at_once:.1f} s at once, {in_turn:.1f} s in turn, {at_once / in_turn:.2f}")


def main() -> None:
    """Print both ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, nargs=2, default=[300, 3000], help="short and long capture")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each form, the fastest counts; 0 for none")
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        scene, out, form = options.one
        print(json.dumps(run(Path(scene), Path(out), form, options.size)))
        return
    from clips import write_scene

    short, long = options.frames
    with tempfile.TemporaryDirectory() as folder:
        scenes = {frames: write_scene(Path(folder) / f"{frames}", frames=frames) for frames in (short, long)}
        if options.rounds:
            compare_forms(scenes[short], short, options.rounds, options.size)
        few, many = (in_a_process(scenes[frames], "at once", options.size) for frames in (short, long))
        print(
            f"{short} to {long} frames: {few['seconds']:.1f} to {many['seconds']:.1f} s, "
            f"{many['seconds'] / few['seconds']:.2f} times (CPU {many['cpu'] / few['cpu']:.2f} times); "
            f"{few['bytes'] / 1e6:.1f} to {many['bytes'] / 1e6:.1f} MB, {many['bytes'] / few['bytes']:.3f} times"
        )


if __name__ == "__main__":
    main()
