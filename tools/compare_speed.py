"""Measure CPU time, run time and peak memory of `page4d reconstruct`, and compare checkouts that run in turn.

    python tools/compare_speed.py BASE NEW --run "SCENE --frames 0:16 --calibration FILE --no-preview" [--repeats 3]
    python tools/compare_speed.py . --table

`--run`, which may be repeated, has the arguments of `page4d reconstruct` without `--out`. Every run is a process of
its own with an empty cache but for models and compiled kernels, which an earlier run makes. Prints the medians, their
ratios to those of the first checkout, and the seconds of the stages. `--table` prints CPU seconds per instant by
number of views and size, of synthetic captures with known cameras, on one thread. Set OMP_NUM_THREADS=1 on a busy
machine: waiting threads take CPU time.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "page4d"
KEPT = ("weights", "pose_model", "texture_model", "kernels")
TABLE = [(views, 512) for views in (2, 4, 8, 16)] + [(4, 256), (4, 1024)]
"""Numbers of views and long sides in pixels."""

INSTANTS = 6
STAGES = ("decode", "predict", "refine", "clean", "detail", "write")
_ON_CPU_TIME = "import time; time.perf_counter = time.process_time; from page4d_cli.__main__ import start; start()"
"""Program that times stages in CPU seconds: of one chunk, whose stages follow each other, they do not overlap."""


def command_of(checkout: Path, *words: str, cpu_time: bool = False) -> tuple[list[str], dict[str, str]]:
    """Return the command line of page4d in a checkout, and its environment; with `cpu_time` stages are timed so."""
    # -P: a checkout in the current folder must not come first.
    program = ("-c", _ON_CPU_TIME) if cpu_time else ("-m", "page4d_cli")
    return [sys.executable, "-P", *program, *words, "-q"], {**os.environ, "PYTHONPATH": str(checkout)}


def measure(checkout: Path, run: str, *, cpu_time: bool = False) -> tuple[dict[str, float], dict[str, float]]:
    """Return CPU seconds, seconds, and peak memory in GB, also as forecast, of one run, and seconds of its stages."""
    with tempfile.TemporaryDirectory() as folder:
        out, cache = Path(folder, "out"), Path(folder, "page4d")
        cache.mkdir()
        for kept in filter(Path.exists, (CACHE / name for name in KEPT)):
            (cache / kept.name).symlink_to(kept)
        words = ("reconstruct", *shlex.split(run), "--out", str(out))
        command, environment = command_of(checkout, *words, cpu_time=cpu_time)
        begin = os.times()
        with subprocess.Popen(command, env={**environment, "XDG_CACHE_HOME": folder}) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{checkout}: {shlex.join(command)} ended with {process.returncode}")
        record = json.loads((out / "run.json").read_text())
        found = {
            "CPU s": usage.ru_utime + usage.ru_stime,
            "s": os.times().elapsed - begin.elapsed,
            "peak GB": usage.ru_maxrss * 1024 / 1e9,
            "forecast GB": record["predicted_peak_memory_bytes"] / 1e9,
        }
        return found, record["timings"]


def medians(rows: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of every column."""
    return {name: median(row.get(name, 0.0) for row in rows) for name in rows[0]}


def compare(checkouts: list[Path], run: str, repeats: int) -> None:
    """Print what a run takes in every checkout."""
    print(f"\n{run}")
    rounds = [[measure(checkout, run) for checkout in checkouts] for _ in range(repeats)]
    base: dict[str, float] = {}
    for checkout, measured in zip(checkouts, zip(*rounds, strict=True), strict=True):
        found, stages = (medians(list(rows)) for rows in zip(*measured, strict=True))
        base = base or found
        figures = "  ".join(f"{value:8.2f} {name} ({value / base[name]:.2f})" for name, value in found.items())
        print(f"{checkout.name:12} {figures}", flush=True)
        print(" " * 13 + ", ".join(f"{name} {seconds:.1f}" for name, seconds in stages.items() if seconds >= 0.05))


def print_table(checkout: Path) -> None:
    """Print the table of docs/performance.md."""
    os.environ["OMP_NUM_THREADS"] = "1"
    print(f"| views | long side (px) | {' | '.join(STAGES)} | CPU s, whole run | peak GB | forecast GB |")
    print("|---" * (5 + len(STAGES)) + "|")
    for number, (views, side) in enumerate([TABLE[0], *TABLE]):
        with tempfile.TemporaryDirectory() as folder:
            size = f"{side}x{side * 3 // 4}"
            shape = ("--views", str(views), "--frames", str(INSTANTS), "--size", size, "--supersample", "1")
            command, environment = command_of(checkout, "synthesize", "--out", f"{folder}/scene", *shape)
            subprocess.run(command, env=environment, check=True)
            cameras = f"--calibration {folder}/scene/truth/cameras.json --depth-size {side}"
            found, stages = measure(checkout, f"{folder}/scene {cameras} --no-check --no-preview", cpu_time=True)
        if number == 0:  # it compiled the kernels
            continue
        shares = " | ".join(f"{stages.get(stage, 0.0) / INSTANTS:.2f}" for stage in STAGES)
        whole = f"{found['CPU s']:.0f} | {found['peak GB']:.2f} | {found['forecast GB']:.2f}"
        print(f"| {views} | {side} | {shares} | {whole} |", flush=True)


def main() -> None:
    """Compare checkouts, or print the table of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs="+")
    parser.add_argument("--run", action="append", default=[])
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    checkouts = [checkout.resolve() for checkout in given.checkouts]
    for checkout in checkouts:
        subprocess.run([sys.executable, "-m", "compileall", "-q", *checkout.glob("page4d*")], check=True)
    for run in given.run:
        compare(checkouts, run, given.repeats)
    if given.table:
        print_table(checkouts[0])


if __name__ == "__main__":
    main()
