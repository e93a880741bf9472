"""Linear probe of frozen encoders: ridge regression from their tokens to the logarithm of measured depth.

    python tools/depth_probe.py SCENE run0/encoder.safetensors run1/encoder.safetensors ...

SCENE has `truth/cameras.json` and `truth/depth`. Every file is compared with random weights of its configuration. The
regression is solved exactly; its ridge is chosen on the last quarter of the training tokens. It is tested on later
instants of the training views, and on held-out views, each in turn.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from page4d.networks.encoders.build import build_encoder
from page4d.networks.layers.block import normalize_images
from page4d.scene.batches import open_batches
from page4d.scene.open import open_scene
from page4d.weights.loading import load_encoder

RIDGES = tuple(10.0**power for power in range(-4, 4))
TRAINING_FRACTION = 2 / 3


@dataclass(frozen=True)
class Frames:
    """A capture: images [T, V, 3, H, W] and depth [T, V, H, W], 0 where it is unknown."""

    images: Tensor
    depth: Tensor


def read(scene: Path, size: int, patch: int) -> Frames:
    opened = open_scene(scene, calibration=scene / "truth" / "cameras.json", depth=scene / "truth" / "depth")
    with open_batches(opened, size, patch) as reader:
        batch = reader.read(0, opened.num_times)
    assert batch.depth is not None
    return Frames(batch.images[0], batch.depth[0])


@torch.no_grad()
def features(encoder: nn.Module, images: Tensor) -> Tensor:
    """Return tokens [T, V, P, C]."""
    tokens = encoder.eval()(normalize_images(images.flatten(0, 1))).tokens
    return tokens.unflatten(0, images.shape[:2]).double()


def targets(depth: Tensor, patch: int) -> Tensor:
    """Return the log median depth of every patch [T, V, P]; NaN where less than half of it is known."""
    cut = depth.unfold(-2, patch, patch).unfold(-2, patch, patch).flatten(-2).flatten(-3, -2)
    known = torch.where(cut > 0, cut.log(), torch.nan)
    return torch.where((cut > 0).double().mean(-1) >= 0.5, known.nanmedian(dim=-1).values, torch.nan).double()


def solve(inputs: Tensor, target: Tensor, ridge: float) -> Tensor:
    gram = inputs.T @ inputs / len(inputs) + ridge * torch.eye(inputs.shape[1], dtype=inputs.dtype)
    return torch.linalg.solve(gram, inputs.T @ target / len(inputs))


def probe(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Return AbsRel and the RMSE of log depth on the test tokens."""
    known, tested = (pair[1].isfinite() for pair in (train, test))
    inputs, target = train[0][known], train[1][known]
    mean, deviation, offset = inputs.mean(0), inputs.std(0) + 1e-6, target.mean()
    inputs, target = (inputs - mean) / deviation, target - offset
    cut = len(inputs) * 3 // 4

    def error(ridge: float) -> float:
        weights = solve(inputs[:cut], target[:cut], ridge)
        return float((inputs[cut:] @ weights - target[cut:]).square().mean())

    weights = solve(inputs, target, min(RIDGES, key=error))
    predicted = (test[0][tested] - mean) / deviation @ weights + offset
    errors = predicted - test[1][tested]
    return float((errors.exp() - 1).abs().mean()), math.sqrt(float(errors.square().mean()))


def evaluate(tokens: Tensor, target: Tensor) -> list[float]:
    """Return AbsRel and log RMSE at later instants, then AbsRel and log RMSE in other views."""
    times, views = target.shape[:2]
    split = round(times * TRAINING_FRACTION)
    later = probe((tokens[:split], target[:split]), (tokens[split:], target[split:]))
    others = []
    for view in range(views):
        rest = [other for other in range(views) if other != view]
        others.append(probe((tokens[:, rest], target[:, rest]), (tokens[:, view], target[:, view])))
    return [*later, *(sum(column) / views for column in zip(*others, strict=True))]


def spread(rows: Sequence[Sequence[float]]) -> str:
    """Format mean and standard deviation of every column."""
    table = torch.tensor(rows, dtype=torch.float64)
    deviation = table.std(0) if len(rows) > 1 else torch.zeros(table.shape[1])
    return "   ".join(f"{m:.4f} ±{d:.4f}" for m, d in zip(table.mean(0).tolist(), deviation.tolist(), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scene", type=Path)
    parser.add_argument("encoders", type=Path, nargs="+")
    parser.add_argument("--size", type=int, default=128, help="long side of the images in pixels")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    pretrained, random = [], []
    print(f"{'':24s}{'later instants':32s}other views")
    print(f"{'':24s}{'AbsRel':16s}{'log RMSE':16s}{'AbsRel':16s}log RMSE")
    for seed, path in enumerate(arguments.encoders):
        loaded = load_encoder(path)
        patch = loaded.config.patch_size
        frames = read(arguments.scene, arguments.size, patch)
        target = targets(frames.depth, patch)
        torch.manual_seed(seed)
        for name, encoder, rows in (
            ("pretrained", loaded.encoder, pretrained),
            ("random", build_encoder(loaded.config), random),
        ):
            rows.append(evaluate(features(encoder, frames.images), target))
            print(f"{name + ' ' + str(seed):24s}" + "".join(f"{value:<16.4f}" for value in rows[-1]), flush=True)
    pixels = frames.images.unfold(-2, patch, patch).unfold(-2, patch, patch).permute(0, 1, 3, 4, 2, 5, 6).flatten(4)
    print(
        f"{'pixels of the patch':24s}"
        + "".join(f"{v:<16.4f}" for v in evaluate(pixels.flatten(2, 3).double(), target))
    )
    print(f"{'pretrained':24s}{spread(pretrained)}")
    print(f"{'random':24s}{spread(random)}")


if __name__ == "__main__":
    main()
