"""Time and memory of whole runs: with concurrent and sequential stages, and for a short and a long capture.

    python tools/benchmark_streaming.py [--depth-size video]

Every run is a separate process on two clips with the smallest network. Memory is the peak of the process.
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
sys.path.insert(0, str(ROOT))

STAGES = ("concurrent", "sequential")


def run(scene: Path, out: Path, stages: str, options: list[str]) -> dict[str, float]:
    """Reconstruct in this process."""
    import torch

    from page4d.run import run as run_module
    from page4d.run.run import BoundedQueue
    from page4d.scene.batches import BatchReader
    from page4d_cli.app import run as page4d

    class BlockingQueue(BoundedQueue):
        """Waits until an item is consumed."""

        def put(self, item: object) -> None:
            super().put(item)
            self._demand.acquire()
            self._demand.release()

    torch.set_num_threads(1)
    if stages == "sequential":
        run_module.BoundedQueue = BlockingQueue
        BatchReader.read_ahead = lambda *_: None
    begin, before = time.perf_counter(), time.process_time()
    words = ["reconstruct", scene, "--out", out, "--untrained", "--preset", "mv-tiny", *options]
    assert page4d([*map(str, words), "--no-preview", "--quiet"]) == 0
    seconds = time.perf_counter() - begin
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"seconds": seconds, "cpu": used.ru_utime + used.ru_stime - before, "bytes": 1024 * used.ru_maxrss}


def in_a_process(scene: Path, stages: str, options: list[str]) -> dict[str, float]:
    """Measure a run in a new process; its output is deleted."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--one", str(scene), f"{folder}/out", stages, *options]
        ended = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(ended.stdout.splitlines()[-1])


def compare_stages(scene: Path, frames: int, rounds: int, options: list[str]) -> None:
    """Print the run times with concurrent and sequential stages, and their ratio."""
    found = [{stages: in_a_process(scene, stages, options) for stages in STAGES} for _ in range(rounds)]
    for name, text in (("seconds", "wall"), ("cpu", "CPU")):
        fast, slow = (min(measured[stages][name] for measured in found) for stages in STAGES)
        print(f"{frames} frames, {text}: {fast:.1f} s concurrent, {slow:.1f} s sequential, ratio {fast / slow:.2f}")


def main() -> None:
    """Print both comparisons."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--frames", type=int, nargs=2, default=[300, 3000], help="short and long capture")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each kind, the fastest counts; 0 for none")
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--depth-size", help="long side of depth and clouds, such as video")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    options = [f"--size={arguments.size}"]
    if arguments.depth_size:
        options.append(f"--depth-size={arguments.depth_size}")
    if arguments.one:
        scene, out, stages = arguments.one
        print(json.dumps(run(Path(scene), Path(out), stages, options)))
        return
    from tests.cli.clips import write_scene

    short, long = arguments.frames
    with tempfile.TemporaryDirectory() as folder:
        scenes = {frames: write_scene(Path(folder) / f"{frames}", frames=frames) for frames in (short, long)}
        if arguments.rounds:
            compare_stages(scenes[short], short, arguments.rounds, options)
        few, many = (in_a_process(scenes[frames], "concurrent", options) for frames in (short, long))
        print(
            f"{short} to {long} frames: {few['seconds']:.1f} to {many['seconds']:.1f} s, "
            f"{many['seconds'] / few['seconds']:.2f} times (CPU {many['cpu'] / few['cpu']:.2f} times); "
            f"{few['bytes'] / 1e6:.1f} to {many['bytes'] / 1e6:.1f} MB, {many['bytes'] / few['bytes']:.3f} times"
        )


if __name__ == "__main__":
    main()
