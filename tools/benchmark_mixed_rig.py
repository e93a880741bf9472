"""Time and memory of views of mixed sizes, compared with views padded to one size.

    python tools/benchmark_mixed_rig.py

The baseline pads all views to a common canvas, without masking the padding. Both run in turn, and the fastest of
several rounds counts. Memory is that of the tensors of a forward pass, without weights.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch
from torch import Tensor
from torch.nn import functional

from page4d.geometry.pixels import fit_each_view, shared_canvas
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.presets import PRESETS
from page4d.networks.profile.meta import LiveBytes

RIGS = {
    "1 portrait, 3 landscape": [(1920, 1080), (1080, 1920), (480, 640), (1080, 2560)],
    "3 portrait, 3 landscape": [(1920, 1080)] * 3 + [(1080, 1920)] * 3,
    "4:3 and 16:9": [(480, 640)] * 2 + [(2160, 3840)] * 2,
}
"""Height and width of the original image of every view."""


def forward_passes(
    network: ViewTimeNetwork, views: Sequence[Tensor], canvas: tuple[int, int]
) -> dict[str, Callable[[], object]]:
    """Return the forward passes of views padded to the canvas, and of views of their own sizes."""
    pads = [(0, canvas[1] - view.shape[-1], 0, canvas[0] - view.shape[-2]) for view in views]
    padded = torch.stack([functional.pad(view, pad) for view, pad in zip(views, pads, strict=True)], dim=2)
    return {"padded": lambda: network(padded), "mixed": lambda: network(views)}


@torch.inference_mode()
def compare(network: ViewTimeNetwork, rig: str, options: argparse.Namespace) -> None:
    """Measure both in turn and print a row of the table."""
    patch = network.config.patch_size
    transforms = fit_each_view(RIGS[rig], options.size, patch)
    canvas = shared_canvas(transforms)
    views = [torch.rand(1, options.times, 3, *transform.canvas_size) for transform in transforms]
    seconds: dict[str, float] = {}
    num_bytes: dict[str, float] = {}
    for turn in range(options.rounds + 1):
        for name, run in forward_passes(network, views, canvas).items():
            if turn == 0:
                with LiveBytes() as counted:
                    run()
                num_bytes[name] = counted.peak / 1e6
            else:
                start = time.process_time()
                run()
                seconds[name] = min(seconds.get(name, float("inf")), time.process_time() - start)
    tokens = {
        "padded": float(len(views) * canvas[0] * canvas[1] // patch**2),
        "mixed": float(sum(view.shape[-2] * view.shape[-1] for view in views) // patch**2),
    }
    cells = [f"{rig:32}"]
    for found, digits in ((tokens, 0), (seconds, 2), (num_bytes, 1)):
        padded, mixed = found["padded"], found["mixed"]
        cells.append(f"{padded:8.{digits}f} {mixed:8.{digits}f} {mixed / padded:6.2f}")
    print("   ".join(cells), flush=True)


def main() -> None:
    """Print a table of padded views, mixed views and their ratio for every rig."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--preset", default="mv-small", choices=list(PRESETS))
    parser.add_argument("--size", type=int, default=224, help="long side of the images in pixels")
    parser.add_argument("--times", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    network = build_network(PRESETS[options.preset]).eval().requires_grad_(False)
    print(f"{options.preset}, {options.times} instants, long side {options.size} px, {options.threads} threads")
    groups = ("patches per instant", "CPU seconds", "MB of tensors")
    print(f"{'rig':32}   " + "   ".join(f"{group:24}" for group in groups))
    print(" " * 35 + "   ".join(f"{'padded':>8} {'mixed':>8} {'ratio':>6}" for _ in groups))
    for rig in RIGS:
        compare(network, rig, options)


if __name__ == "__main__":
    main()
