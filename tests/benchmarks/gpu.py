"""All comparisons that need a GPU, in one command.

    python tests/benchmarks/gpu.py --out FOLDER

    parity       recorded networks of every family: predictions of the device against those of the CPU, in float32
    scene        `reconstruct` of a scene (`--scene`, by default the sample, and `--set OPTION=VALUE`) on the device,
                 twice, and on the CPU: seconds per stage, share of the time in which the GPU waits for work,
                 difference of the depth maps, whether two runs are equal
    sweeps       correlation and semi-global aggregation of depth hypotheses on the device, and by the compiled
                 kernels of the CPU: seconds, difference, and the share of what arithmetic and memory allow
    schedule     VGGT's structure with random weights: the schedule of the public code, which keeps all layers and has
                 no limits, against ours, in float32 and bf16, for S = 8 to 400 images; seconds, peak and forecast
                 memory
    chunks       `reconstruct` of the sample with chunks of 2 to 16 instants: time per instant, peak memory, and the
                 share of time in which the device waits
    memory       `reconstruct` on a GPU with too little memory for the chunk: it must end by halving chunks

Writes FOLDER/gpu.json. `--parts` chooses; a part that fails is printed, and the others run. A size
that does not fit in memory has no value. `--device cpu --preset vggt-small` runs all but the last part on the CPU, at
small size, to check this script.
"""

import argparse
import gc
import json
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import patch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

import page4d
from page4d.choices import ExistingOutput
from page4d.geometry.camera import Cameras
from page4d.networks.config import NetworkConfig
from page4d.networks.config_parts import CameraHeadConfig, DPTHeadConfig
from page4d.networks.encoders.dino import DinoV2Config
from page4d.networks.layers.execution import NO_LIMITS, ForwardLimits, exact_convolutions
from page4d.networks.network import ViewTimeNetwork, build_network
from page4d.networks.presets import PRESETS
from page4d.networks.tokens import Stream
from page4d.networks.trunk import Aggregator, TrunkOutput
from page4d.options import ReconstructSettings
from page4d.run.memory import Extent, NetworkCost, cost_of, is_out_of_memory
from page4d.stereo.sweep import Windows, aggregate_scores, correlate
from page4d.weights.loading import LoadedNetwork
from tests.encoders.recorded import INSIDE, load_recorded
from tests.networks.naive_twin import naive_trunk
from tests.networks.test_recorded_tensors import FAMILIES, read_run

SAMPLE = ROOT / "samples" / "room"
SIZE = (392, 518)
IMAGES = (8, 16, 32, 64, 100, 200, 400)
CHUNKS = (2, 4, 8, 16)
PARTS = ("parity", "scene", "sweeps", "schedule", "chunks", "memory")
SWEPT = (128, 512)
"""Widths in px of the pictures that are swept."""

HYPOTHESES = 33
FLOP = {"correlation": 120, "aggregation": 32}
"""Per sample: projection 20, bilinear sampling of 3 colors 26, sums over windows 54, NCC 20; per label and path 8."""

BYTES = {"correlation": 4, "aggregation": 48}
"""Per sample: the score that is written; per path the score that is read, and the sum that is read and written."""

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16}
MEMORY_SHARE = 0.02
"""Share of the memory of the GPU that the part `memory` may use: some GB, too few for its chunk at 518 px."""

_HEAD = DPTHeadConfig(layers=(0, 1, 2, 3), features=32, out_channels=(32, 48, 64, 96))
SMALL = replace(
    PRESETS["vggt"],
    encoder=DinoV2Config(image_size=70, embed_dim=64, depth=2, num_heads=4),
    depth=4,
    num_heads=4,
    camera_head=CameraHeadConfig(trunk_depth=1, num_heads=4),
    depth_head=_HEAD,
    point_head=_HEAD,
)
"""VGGT's structure at small size."""


class PublicSchedule(Aggregator):
    """The trunk as the public code runs it: the outputs of all layers are kept until the heads have run."""

    def forward(self, patches: list[Tensor], sizes: Any, *_: object, **__: object) -> list[TrunkOutput]:
        """Run all layers and keep them."""
        with torch.device(patches[0].device):
            levels = naive_trunk(self, patches[0], sizes.grids[0])[Stream.SHARED]
        special = levels[-1][..., : self.special.count, :]
        return [TrunkOutput(special_tokens=special, levels=dict(enumerate(levels)), dynamic_logit=None, memory=None)]


def parity(device: torch.device) -> Iterator[dict[str, Any]]:
    """Compare the predictions of recorded networks on the device with those on the CPU.

    An excess is the largest difference of an output relative to the tolerance of the golden tests, 1e-4 (1 + |x|).
    """
    for family, entry in FAMILIES.items():
        case = next((case for case in entry.cases if (INSIDE / f"{family}_{case}.safetensors").exists()), None)
        if case is None:
            continue
        run = read_run(partial(load_recorded, kind="."), family, case, "")
        images = run.images.unsqueeze(1)
        expected, row = run.network(images), {"network": f"{family}_{case}"}
        run.network.to(device)
        for name, convolutions in {"excess": exact_convolutions, "excess_tf32": nullcontext}.items():
            with convolutions():
                found = run.network(images.to(device))
            row[name] = {
                part: float(((getattr(found, part).cpu() - value).abs() / (1e-4 * (1 + value.abs()))).max())
                for part, value in vars(expected).items()
                if isinstance(value, Tensor) and value.is_floating_point()
            }
        yield row


def scenes(device: torch.device, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Reconstruct a scene on the device, twice, and on the CPU."""
    found, outputs = {}, {}
    devices = {"first": str(device), "second": str(device), "cpu": "cpu"}
    for name in options.runs:
        begin = time.perf_counter()
        with waiting(torch.device(devices[name])) as samples:
            record = page4d.reconstruct(
                options.scene,
                out=folder / "scene" / name,
                weights=options.weights,
                device=devices[name],
                preview=False,
                existing=ExistingOutput.OVERWRITE,
                **dict(change.split("=", 1) for change in options.set),
            )
        found[name] = {
            "seconds": time.perf_counter() - begin,
            "waiting_share": float(np.mean(samples)) if samples else None,
            "instants": len(record.times),
            "timings": record.timings,
            "peak_bytes": record.peak_memory_bytes,
            "predicted_bytes": record.predicted_peak_memory_bytes,
        }
        outputs[name] = page4d.open_output(folder / "scene" / name)
    first, *others = options.runs
    return found | {f"{first}_against_{other}": differences(outputs[first], outputs[other]) for other in others}


@contextmanager
def waiting(device: torch.device) -> Iterator[list[bool]]:
    """Sample every few milliseconds whether a GPU has nothing to do; no samples of a CPU."""
    samples: list[bool] = []
    if device.type != "cuda":
        yield samples
        return
    ended = Event()

    def take() -> None:
        stream = torch.cuda.default_stream(device)
        while not ended.wait(0.005):
            samples.append(stream.query())

    thread = Thread(target=take, daemon=True)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def sweeps(device: torch.device, widths: tuple[int, ...] = SWEPT) -> Iterator[dict[str, Any]]:
    """Compare the work on volumes of hypotheses on the device with the kernels of the CPU."""
    places = dict.fromkeys((device, torch.device("cpu")))
    limits = {place: peaks(place) for place in places}
    for width in widths:
        works = {place: works_at(place, width) for place in places}
        for name in FLOP:
            row: dict[str, Any] = {"work": name, "width": width}
            results = [works[place][name]() for place in places]
            for place, result in zip(places, results, strict=True):
                seconds = shortest(place, works[place][name])
                counted = FLOP[name] * result.numel(), BYTES[name] * result.numel()
                of_arithmetic, of_memory = (
                    count / limit / seconds for count, limit in zip(counted, limits[place], strict=True)
                )
                row[place.type] = {"seconds": seconds, "of_arithmetic": of_arithmetic, "of_memory": of_memory}
            row["difference"] = float((results[0].cpu() - results[-1]).abs().max())
            yield row


def works_at(device: torch.device, width: int) -> dict[str, Callable[[], Tensor]]:
    """Return the correlation of two random pictures of this width, and the aggregation of scores of their size."""
    random, height = torch.Generator().manual_seed(0), width * 3 // 4
    images = avg_pool2d(torch.rand(2, 3, height, width, generator=random), 3, 1, 1).to(device)
    depth = avg_pool2d(2 + torch.rand(1, height, width, generator=random), 15, 1, 7).to(device)
    score = torch.randn(1, height, HYPOTHESES, width, generator=random).to(device)
    pose = torch.eye(4, dtype=torch.float64).repeat(2, 1, 1)
    pose[1, 0, 3] = 0.3
    matrix = torch.tensor([[width, 0, width / 2], [0, width, height / 2], [0, 0, 1.0]], dtype=torch.float64)
    rig = Cameras(world_to_camera=pose, intrinsics=matrix.repeat(2, 1, 1), image_size=(height, width))
    rig = rig.map(lambda values: values.to(device))
    factors = torch.linspace(-0.4, 0.4, HYPOTHESES).exp()[:, None, None].to(device)
    source = Windows.of(images[:1])
    return {
        "correlation": lambda: correlate(source, images[1:], rig[:1], rig[1:], depth, factors),
        "aggregation": lambda: aggregate_scores(score, 0.25, 3.0),
    }


def peaks(device: torch.device, side: int = 2048) -> tuple[float, float]:
    """Return the operations per second of a product of matrices in float32, and bytes per second of a copy."""
    matrix, many = torch.rand(side, side, device=device), torch.rand(16 * side**2, device=device)
    operations, moved = 2 * side**3, 2 * many.nbytes
    return operations / shortest(device, lambda: matrix @ matrix), moved / shortest(device, many.clone)


def shortest(device: torch.device, work: Callable[[], object]) -> float:
    """Return the least seconds of three calls; on a CPU the time of a thread, which other processes change little."""
    if device.type == "cuda":
        return min(cost_of(device, work).seconds for _ in range(3))
    taken = []
    for _ in range(3):
        begin = time.process_time()
        work()
        taken.append((time.process_time() - begin) / torch.get_num_threads())
    return min(taken)


def differences(ours: page4d.Output, theirs: page4d.Output) -> dict[str, float]:
    """Return quantiles of the relative difference of two runs' depth, and shares of equal masks and maps."""
    equal, relative = [], []
    for time_index in range(ours.num_times):
        for view in ours.view_names:
            depth, other = ours.depth(time_index, view), theirs.depth(time_index, view)
            both = (depth > 0) & (other > 0)
            equal.append((((depth > 0) == (other > 0)).mean(), np.array_equal(depth, other)))
            relative.append(np.abs(depth[both] / other[both] - 1))
    masks, maps = np.mean(equal, axis=0)
    found = np.concatenate(relative)
    quantiles = {f"quantile_{share}": float(np.quantile(found, share)) for share in (0.5, 0.9, 0.99)}
    return {"same_mask": masks, "equal_maps": maps, **quantiles}


def network_of(
    config: NetworkConfig, device: torch.device, precision: torch.dtype, *, public: bool
) -> ViewTimeNetwork:
    """Build a network with random weights on a device."""
    torch.manual_seed(0)
    half = precision is not torch.float32
    with torch.device(device):
        network = LoadedNetwork(config, precision) if half else build_network(config)
    if public:
        network.aggregator.__class__ = PublicSchedule
    return network.eval().requires_grad_(False)


@torch.inference_mode()
def run(network: ViewTimeNetwork, images: Tensor, limits: ForwardLimits | None) -> None:
    """Predict from images and wait for the device."""
    network(images, limits=limits)


def measured(device: torch.device, work: Callable[[], object]) -> dict[str, float] | None:
    """Return seconds and peak bytes of a call after a warm-up, None if it does not fit in memory."""
    try:
        work()
        found = cost_of(device, work)
    except (RuntimeError, MemoryError) as error:
        # Kernels that index with 32 bits refuse the maps of all images at once, as the public schedule makes them.
        if not (is_out_of_memory(error) or "INT_MAX" in str(error)):
            raise
        return None
    finally:
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return {"seconds": found.seconds, "bytes": found.num_bytes}


def schedules(config: NetworkConfig, device: torch.device, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compare the public schedule with ours, in both precisions."""
    for precision in options.precisions:
        dtype = PRECISIONS[precision]
        for schedule, limits in (("public", NO_LIMITS), ("page4d", None)):
            network = network_of(config, device, dtype, public=schedule == "public")
            for num_images in options.images:
                images = torch.rand(1, 1, num_images, 3, *options.size, device=device)
                found = measured(device, partial(run, network, images, limits))
                row = {"precision": precision, "schedule": schedule, "images": num_images, "measured": found}
                if limits is None:
                    extent = Extent(times=1, views=num_images, size=tuple(options.size))
                    row["predicted_bytes"] = NetworkCost(config=config, device=device).num_bytes(extent)
                yield row
            del network


def chunks(device: torch.device, folder: Path, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Reconstruct the sample with chunks of several lengths."""
    for length in options.chunks:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        settings = ReconstructSettings(chunk=length, overlap=1, preview=False)
        predictor = page4d.build_predictor(options.weights, device=str(device), settings=settings)
        begin = time.perf_counter()
        record = page4d.reconstruct(
            SAMPLE, predictor, out=folder / "chunks", settings=settings, existing=ExistingOutput.OVERWRITE
        )
        seconds = time.perf_counter() - begin
        busy = record.timings["predict"] + record.timings.get("refine", 0.0) + record.timings.get("background", 0.0)
        yield {
            "chunk": length,
            "seconds_per_instant": seconds / len(record.times),
            "waiting_share": max(1 - busy / seconds, 0.0),
            "peak_bytes": record.peak_memory_bytes,
            "timings": record.timings,
        }


@contextmanager
def little_memory(device: torch.device) -> Iterator[None]:
    """Leave a process a small part of the memory of a GPU, and let it believe that there is more."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(MEMORY_SHARE, device.index or 0)
    try:
        with patch("page4d.run.plan.usable_bytes", lambda _: 1 << 40):
            yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device.index or 0)


def memory(device: torch.device, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Reconstruct chunks that do not fit in the memory of the GPU."""
    settings = ReconstructSettings(long_side=512, chunk=24, overlap=1, preview=False)
    predictor = page4d.build_predictor(options.weights, device=str(device), settings=settings)
    with little_memory(device):
        record = page4d.reconstruct(
            SAMPLE, predictor, out=folder / "memory", settings=settings, existing=ExistingOutput.OVERWRITE
        )
    return {"instants": len(record.times), "chunks": [chunk.stop - chunk.start for chunk in record.chunks]}


def main() -> None:
    """Run all parts, and write their results after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--preset", default="vggt", help="vggt, or vggt-small to check this script")
    parser.add_argument("--weights", default=None, help="network of `reconstruct` (default: the bundled one)")
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--images", type=int, nargs="+", default=IMAGES)
    parser.add_argument("--precisions", nargs="+", default=tuple(PRECISIONS), choices=tuple(PRECISIONS))
    parser.add_argument("--size", type=int, nargs=2, default=SIZE, help="height and width in pixels")
    parser.add_argument("--chunks", type=int, nargs="+", default=CHUNKS)
    parser.add_argument("--scene", type=Path, default=SAMPLE)
    parser.add_argument("--set", nargs="+", default=(), help="options of `reconstruct` for the scene, NAME=VALUE")
    runs = ("first", "second", "cpu")
    parser.add_argument(
        "--runs", nargs="+", default=runs, choices=runs, help="runs of the scene, each against the first"
    )
    options = parser.parse_args()
    device = torch.device(options.device)
    config = SMALL if options.preset == "vggt-small" else PRESETS[options.preset]
    options.out.mkdir(parents=True, exist_ok=True)
    about = torch.cuda.get_device_properties(device).name if device.type == "cuda" else "cpu"
    found: dict[str, Any] = {"device": about, "torch": torch.__version__, "network": asdict(config)}
    parts = {
        "parity": lambda: parity(device),
        "scene": lambda: [scenes(device, options.out, options)],
        "sweeps": lambda: sweeps(device),
        "schedule": lambda: schedules(config, device, options),
        "chunks": lambda: chunks(device, options.out, options),
        "memory": lambda: [memory(device, options.out, options)] if device.type == "cuda" else [],
    }
    failed = []
    for part in options.parts:
        found[part] = []
        try:
            for row in parts[part]():
                found[part].append(row)
                print(part, json.dumps(row, default=float), flush=True)
                (options.out / "gpu.json").write_text(json.dumps(found, indent=2, default=str) + "\n")
        except Exception:
            traceback.print_exc()
            failed.append(part)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
