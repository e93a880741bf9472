"""Time and memory of the aggregator, compared with a naive implementation, at the published width.

    python tools/benchmark_trunk.py

Every measurement is a separate process; both run in turn, and the fastest of several rounds counts. Memory is that
of the trunk's tensors, and the growth of the process; weights are not included. Published heads read 4 of 24 layers,
here a head reads the last of 8.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from page4d.networks.config import FRAME_GLOBAL, NetworkConfig
from page4d.networks.config_parts import BiasRows, CameraHeadConfig, MaskConfig, MaskHeadKind, MaskRule, Streams
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.layers.execution import ForwardLimits
from page4d.networks.presets import PRESETS
from page4d.networks.profile.meta import LiveBytes
from page4d.networks.trunk import Aggregator
from tests.networks.naive_twin import naive_trunk, run_trunk

VIEWS = 4
IMPLEMENTATIONS = ("naive", "ours")
MAX_TOKENS = 256
"""Limit of tokens per step and image in the aggregator: a constant share of all tokens."""


@dataclass(frozen=True, kw_only=True)
class Trunk(NetworkConfig):
    """A trunk with one dense head, which reads the last layer only."""

    @property
    def dense_layers(self) -> tuple[int, ...]:
        return (self.depth - 1,)


def page4d_mv(pairs: int) -> Trunk:
    """Time and view attention in two streams, with the mask in a fifth of the layers."""
    masked = MaskConfig(layers=tuple(range(pairs // 3, pairs // 3 + max(1, pairs // 5))))
    return Trunk(
        encoder=DinoV2Config(), depth=pairs, num_heads=16, mask=masked, camera_head=PRESETS["vggt"].camera_head
    )


def page4d(pairs: int) -> Trunk:
    """Frame and global attention in one stream, with PAGE-4D's mask in two fifths of the layers."""
    masked = MaskConfig(
        layers=tuple(range(2 * pairs // 5, 2 * pairs // 5 + max(1, 2 * pairs // 5))),
        head=MaskHeadKind.RELEASE,
        rule=MaskRule.PAGE4D,
        streams=Streams.SINGLE,
        bias_rows=BiasRows.SPECIAL,
    )
    return Trunk(
        encoder=DinoV2Config(),
        depth=pairs,
        num_heads=16,
        schedule=FRAME_GLOBAL,
        mask=masked,
        camera_head=CameraHeadConfig(),
    )


TRUNKS: dict[str, Callable[[int], Trunk]] = {"time, view": page4d_mv, "frame, global": page4d}


class _QuickWeights(TorchFunctionMode):
    """Fill weights with cheap values: random initialization takes longer than the measurement."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in (Tensor.uniform_, Tensor.normal_, Tensor.erfinv_):
            row = torch.linspace(-0.04, 0.04, args[0].shape[-1])
            return args[0].copy_(row[torch.randperm(len(row))])
        return function(*args, **(kwargs or {}))


@torch.inference_mode()
def measure(trunk: str, implementation: str, num_images: int, options: argparse.Namespace) -> dict[str, float]:
    """Run once after a warm-up on one image and return seconds and bytes; with `tracked` again for tensor bytes."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    with torch.inference_mode(mode=False), _QuickWeights():
        aggregator = Aggregator(TRUNKS[trunk](options.pairs)).eval().requires_grad_(False)
    for name, parameter in aggregator.named_parameters():
        if "lambda_" in name:
            parameter.fill_(1.0)
    side = options.size // 14

    def run(times: int, views: int) -> Any:
        patches = torch.randn(1, times, views, side * side, 1024)
        motion = torch.randn(1, times, views, side, side)
        if implementation == "naive":
            return naive_trunk(aggregator, patches, (side, side), motion)
        limits = ForwardLimits(max_tokens=MAX_TOKENS * num_images, max_queries=MAX_TOKENS * num_images)
        return run_trunk(aggregator, patches, (side, side), motion, limits=limits)

    run(1, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu_start = time.perf_counter(), time.process_time()
    run(num_images // VIEWS, VIEWS)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu_start
    process = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    found = {"seconds": seconds, "cpu": cpu, "process": process}
    if options.tracked:
        with LiveBytes() as counted:
            run(num_images // VIEWS, VIEWS)
        found["tensors"] = counted.peak
    return found


def in_a_process(
    trunk: str, implementation: str, num_images: int, options: argparse.Namespace, *, tracked: bool
) -> dict:
    """Measure in a new process whose allocator returns freed memory."""
    command = [sys.executable, __file__, "--one", trunk, implementation, str(num_images)]
    command += [f"--size={options.size}", f"--pairs={options.pairs}", f"--threads={options.threads}"]
    command += ["--tracked"] if tracked else []
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "1048576"}
    ended = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(ended.stdout)


def compare(trunk: str, num_images: int, options: argparse.Namespace) -> None:
    """Measure both in turn and print a row of the table."""
    rounds = [
        {name: in_a_process(trunk, name, num_images, options, tracked=turn == 0) for name in IMPLEMENTATIONS}
        for turn in range(options.rounds)
    ]
    best = {
        quantity: {
            name: min(found[name][quantity] for found in rounds if quantity in found[name])
            for name in IMPLEMENTATIONS
        }
        for quantity in ("seconds", "cpu", "process", "tensors")
    }
    cells = [f"{trunk:14}{num_images:>7}"]
    for quantity, unit in (("seconds", 1), ("cpu", 1), ("tensors", num_images * 1e6), ("process", num_images * 1e6)):
        naive, ours = (best[quantity][name] for name in IMPLEMENTATIONS)
        cells.append(f"{naive / unit:7.1f} {ours / unit:7.1f} {ours / naive:6.2f}")
    print("   ".join(cells), flush=True)


def main() -> None:
    """Print a table of both implementations and their ratio for every trunk and number of images."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=280, help="side of the images in pixels, a multiple of 14")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of attention layers")
    parser.add_argument("--images", type=int, nargs="+", default=[4, 8, 16], help="multiples of 4")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--tracked", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        trunk, implementation, num_images = options.one
        print(json.dumps(measure(trunk, implementation, int(num_images), options)))
        return
    print(
        f"{options.pairs} pairs of width 1024, images of {options.size} px, {options.threads} threads, "
        f"at most {MAX_TOKENS} tokens per image and step"
    )
    groups = ("seconds", "CPU seconds", "tensors, MB per image", "process, MB per image")
    print(f"{'trunk':14}{'images':>7}   " + "   ".join(f"{group:22.22}" for group in groups))
    print(" " * 24 + "   ".join(f"{'naive':>7} {'ours':>7} {'ratio':>6}" for _ in groups))
    for trunk in TRUNKS:
        for num_images in options.images:
            compare(trunk, num_images, options)


if __name__ == "__main__":
    main()
