"""Ablation of the view x time network: variants without one part, trained and evaluated on the same samples.

    python tools/ablation.py OUT [--samples N] [--scratch [--matches-samples N]] [--processes 2]

Every variant starts from the weights of the bundled network, except those of the removed part, and is fine-tuned; so
is the bundled network, which has a single stream. With --scratch, trunk and heads start from random weights; encoder
and matching, which no variant changes, are trained once. Such networks differ after hours of training only. Existing
runs in folders under OUT are not repeated. Differences of a few percent need several seeds: pass --seed.

Without attention across views in the trunk, views still exchange information in the matching and in the camera head.
Times are those of one process with one thread.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import torch

from page4d.choices import SceneFamily
from page4d.lab.training.config import TRAINING_PRESETS as TRAININGS
from page4d.lab.training.config import CurriculumStage, SampleShape, TrainedPart
from page4d.lab.training.logs import SilentTrainingObserver
from page4d.lab.training.schedule import Budget
from page4d.lab.training.train import TrainRequest, train
from page4d.lab.training.validation import NETWORK, HeldOutScenes, evaluate, held_out_truths, network_predictors
from page4d.networks import tokens as streams
from page4d.networks import trunk as aggregator
from page4d.networks.config import NetworkConfig, Step, images_together, merge, split
from page4d.networks.config_parts import Streams
from page4d.networks.network import build_network
from page4d.networks.presets import PRESETS as NETWORKS
from page4d.weights.loading import load
from page4d.weights.resolve import bundled_weights
from page4d.weights.store import save_network

SIZES = ((48, 64), (64, 48), (56, 56))
SHAPES = (SampleShape(times=2, views=4, weight=2), SampleShape(times=4, views=2), SampleShape(times=2, views=2))
"""Several instants each, for motion and attention across time."""

SCRATCH_RATE, FINETUNING_RATE = 1e-3, 3e-4
FAMILIES = (SceneFamily.ARC, SceneFamily.HANDHELD)
COLUMNS = {
    "abs_rel": "AbsRel",
    "delta": "<1.25",
    "rotation_deg": "rotation",
    "direction_deg": "direction",
    "focal": "focal",
    "mask_iou": "mask IoU",
}


@dataclass(frozen=True)
class Variant:
    """A network, and how its process is patched."""

    name: str
    config: NetworkConfig
    patch: Callable[[], None] = lambda: None


def separate_views() -> None:
    """Restrict attention across views to one image; the inputs of the heads keep their shape."""
    own = {Step.VIEW: Step.FRAME}
    aggregator.merge = streams.merge = lambda values, step: merge(values, own.get(step, step))
    aggregator.split = lambda merged, step, shape: split(merged, own.get(step, step), shape)
    aggregator.images_together = lambda step, times, views: images_together(own.get(step, step), times, views)


def variants() -> dict[str, Variant]:
    demo = replace(NETWORKS["mv-demo"], motion_head=None)  # it has no effect on the other outputs
    assert demo.mask is not None
    full = replace(demo, mask=replace(demo.mask, streams=Streams.DUAL))
    return {
        "full": Variant("full: two streams", full),
        "single": Variant("single stream", demo),
        "no-mask": Variant("mask off", replace(demo, mask=None)),
        "no-time": Variant("Time-SA off", replace(full, schedule=(Step.FRAME, Step.VIEW))),
        "no-view": Variant("View-SA off", full, separate_views),
    }


def matches_of(out: Path) -> Path:
    """Return the weights file of encoder and matching, for networks from scratch."""
    return out / "matches" / "weights.safetensors"


def never() -> None:
    """Never request a stop."""


def train_matches(out: Path, samples: int, seed: int) -> None:
    """Train encoder and matching, which all variants share."""
    demo = TRAININGS["demo"]
    first = demo.stages[0]
    stage = CurriculumStage(
        sizes=SIZES, shots=first.shots, families=first.families, images_per_batch=32, learner=TrainedPart.MATCHES
    )
    config = replace(demo, stages=(stage,), seed=seed, workers=0, decay_fraction=0.0)
    train(TrainRequest(out=out, config=config, budget=Budget(samples=samples)), SilentTrainingObserver(), never)


def first_weights(config: NetworkConfig, origin: Path, parts: tuple[str, ...], seed: int, path: Path) -> None:
    """Write random weights, except for the named parts of another network."""
    torch.manual_seed(seed)
    network = build_network(config)
    # Attention across time of one image is attention within it.
    within = f".{config.schedule[0].value}."
    known = load(origin, "cpu").state_dict()
    shared = {name.replace(".time.", within): values for name, values in known.items()}
    own = network.state_dict()
    chosen = {name: values for name, values in shared.items() if name.startswith(parts) and name in own}
    missing = [name for name in own if name.startswith(parts) and name not in chosen]
    assert not missing, missing
    network.load_state_dict({**own, **chosen})
    save_network(network, path, {"licence": "Apache-2.0", "description": "initial weights of a variant"})


def train_variant(variant: Variant, out: Path, arguments: argparse.Namespace) -> float:
    """Train one variant; return its training time in seconds."""
    out.mkdir(parents=True, exist_ok=True)
    origin, parts, rate = bundled_weights(), ("",), FINETUNING_RATE
    if arguments.scratch:
        origin, parts, rate = matches_of(arguments.out), ("encoder.", "matching."), SCRATCH_RATE
    first_weights(variant.config, origin, parts, arguments.seed, out / "first.safetensors")
    stage = CurriculumStage(sizes=SIZES, shots=SHAPES, images_per_batch=16)
    config = replace(
        TRAININGS["demo"],
        model=variant.config,
        stages=(stage,),
        optimizer=replace(TRAININGS["demo"].optimizer, learning_rate=rate),
        seed=arguments.seed,
        workers=0,
        evaluation=replace(TRAININGS["demo"].evaluation, every_steps=0, scenes=1),
    )
    request = TrainRequest(
        out=out / "run", config=config, weights=out / "first.safetensors", budget=Budget(samples=arguments.samples)
    )
    return train(request, SilentTrainingObserver(), never).position.seconds


def work(name: str, arguments: argparse.Namespace) -> None:
    """Train and evaluate one variant in this process."""
    torch.set_num_threads(1)
    variant, out = variants()[name], arguments.out / name
    variant.patch()
    seconds = train_variant(variant, out, arguments)
    network = load(out / "run" / "weights.safetensors", "cpu")
    held_out = HeldOutScenes(scenes=arguments.scenes, image_size=SIZES[0], families=FAMILIES)
    figures = {}
    for family in held_out.families:
        truths = held_out_truths(held_out, family, torch.device("cpu"))
        figures[family.value] = evaluate(network_predictors(network, torch.float32)[NETWORK], truths)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    document = {"figures": figures, "seconds": seconds, "parameters": parameters}
    (out / "figures.json").write_text(json.dumps(document, indent=1))


def spawn(name: str, arguments: argparse.Namespace) -> "subprocess.Popen[bytes]":
    options = {"samples": arguments.samples, "scenes": arguments.scenes, "seed": arguments.seed}
    line = [sys.executable, __file__, str(arguments.out), "--only", name]
    line += [f"--{key}={value}" for key, value in options.items()]
    return subprocess.Popen([*line, "--scratch"] if arguments.scratch else line)


def show(out: Path) -> None:
    for family in FAMILIES:
        print(f"\n{family.value}, network output without refinement")
        print(
            f"{'':20s}" + "".join(f"{label:>11s}" for label in COLUMNS.values()) + f"{'seconds':>10s}{'weights':>10s}"
        )
        for name, variant in variants().items():
            document = json.loads((out / name / "figures.json").read_text())
            values = [document["figures"][family.value].get(column) for column in COLUMNS]
            cells = "".join(f"{'-':>11s}" if value is None else f"{value:11.3f}" for value in values)
            weights = f"{document['parameters'] / 1e6:8.2f} M"
            print(f"{variant.name:20s}{cells}{document['seconds']:10.0f}{weights}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--matches-samples", type=int, default=16000)
    parser.add_argument("--scratch", action="store_true", help="start trunk and heads from random weights")
    parser.add_argument("--samples", type=int, default=4000, help="training samples per variant")
    parser.add_argument("--scenes", type=int, default=50, help="held-out scenes per family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="number of variants trained in parallel")
    parser.add_argument("--only", choices=list(variants()), help="train and evaluate this one in this process")
    arguments = parser.parse_args()
    if arguments.only:
        work(arguments.only, arguments)
        return
    if arguments.scratch and not matches_of(arguments.out).exists():
        train_matches(matches_of(arguments.out).parent, arguments.matches_samples, arguments.seed)
    waiting = [name for name in variants() if not (arguments.out / name / "figures.json").exists()]
    running: list[subprocess.Popen[bytes]] = []
    while waiting or running:
        while waiting and len(running) < arguments.processes:
            running.append(spawn(waiting.pop(0), arguments))
        if running.pop(0).wait():
            sys.exit("the training of a variant failed; see above")
    show(arguments.out)


if __name__ == "__main__":
    main()
